"""Rows of metrics as columns: parsed quickly as by Python's own parser, whatever the rows hold."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.charts import columns
from labkit.run_directory.reader import Block, parse_block

NAMES = ("loss", "accuracy", "epoch", "wall_time", "größe", "名", "a/b-c.d_1")
NUMBERS = st.one_of(
    st.floats(),  # NaN and infinities, too
    st.integers(-(2**53), 2**53),
    st.sampled_from([2**63 - 1, -(2**63), 2**63, 2**64, 10**30, -(10**30), 10**400, 0, -0.0, 5e-324, 1e308]),
)
OTHERS = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=5),
    st.sampled_from(["2026-01-02", "1.5", "NaN", "Infinity", "train", "\ud800", "x: NaN, y"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from("ab"), st.integers(), max_size=2),
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "split": st.sampled_from(["train", "train", "train", "validation", "test", "other", 7, None]),
        "step": st.integers(1, 2**40) | NUMBERS | OTHERS,
        **dict.fromkeys(NAMES, NUMBERS | OTHERS),
    },
)
# Most blocks hold rows of a kind.
USUAL = st.fixed_dictionaries(
    {"split": st.sampled_from(["train", "validation"]), "step": st.integers(1, 2**40), "loss": st.floats()},
    optional={"accuracy": st.floats(), "größe": st.integers(-5, 5), "late": st.none(), "note": st.text()},
)
DAMAGED = st.sampled_from(
    [
        b"",
        b"  ",
        b"{",
        b"oops",
        b"[1]",
        b"3",
        b"null",
        b'{"step": 6} null',
        b'{"step": 6, "deep": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"split": "train", "step": 1}{"split": "train", "step": 2}',
        b'{"split": "train", "step": 1, "step": 2}',
        b'{"split": "train", "step": 1, "loss": 1e999}',
        b'{"split": "train", "step": 1, "loss": 01}',
        b'{"split": "train", "step": 1, "loss": NaN',
        b' {"split": "train", "step": 3, "loss": 1.0}',
        b'{"split": "train", "step": 1, "loss": "\xff"}',
        b'{"split": "train",\x00 "step": 1}',
        b'{"split":"train","step":4,"loss":NaN}',
        b'{"step": 5,',
        b'"split": "train"}',
    ]
)


def line(row: dict[str, Any], *, ascii_only: bool) -> bytes:
    return json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


LINES = st.one_of(
    st.lists(USUAL.map(lambda row: line(row, ascii_only=False)), max_size=40),
    st.lists(ROWS.map(lambda row: line(row, ascii_only=True)), max_size=12),
    st.lists(
        st.one_of(USUAL.map(lambda row: line(row, ascii_only=True)), DAMAGED),
        max_size=12,
    ),
)


def content(block: Block) -> dict[str, Any]:
    """Return the numbers of each column in the order of names, without columns that have none."""
    return {
        split: [
            (name, [repr(v) if there else None for v, there in zip(values.tolist(), present, strict=True)])
            for name, (values, present) in block.columns[split].items()
            if present.any()
        ]
        for split in block.counts
    }


@given(lines=LINES)
@example(lines=[b'{"step": 1, "split": "train", "loss": 1}', b"", b'{"step": 2}{"step": 3}'])
@example(lines=[b'{"split": "train", "step": 1, "a\\": NaN": 1}'])
@example(lines=[b'{"split": "train", "step": 1, "a": "\\u0000NaN", "b": NaN}'])
@example(lines=[b'{"split": "train", "step": 1, "a": {}', b'}{"split": "train", "step": 1}'])
@example(lines=[b'{"split": "train", "step":', b"1}", b'{"step": 2}{"step": 3}'])
@settings(max_examples=400, deadline=None)
def test_both_parsers_read_the_same(lines):
    data = b"".join(one + b"\n" for one in lines)
    quickly = parse_block(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "training_columns", lambda lines: None)
        patch.setattr(columns, "_decoded", lambda lines: None)
        by_python = parse_block(data)
    assert quickly.counts == by_python.counts
    assert quickly.damaged_lines == by_python.damaged_lines
    assert content(quickly) == content(by_python)


def column_of_one(rows: list[dict[str, Any]], name: str) -> columns.Column:
    assert len(rows) == 1, "rows of training were parsed as dictionaries"
    return np.array([rows[0][name]], np.float64), np.ones(1, bool)


def test_rows_of_one_form_are_parsed_without_dictionaries(monkeypatch):
    rows = [{"split": "train", "step": step, "loss": 1 / step, "epoch": 3} for step in range(1, 900)]
    rows.insert(600, {"split": "validation", "step": 600, "loss": math.inf, "accuracy": 0.5})
    for part in (rows[:600], rows):
        data = b"".join(line(row, ascii_only=True) + b"\n" for row in part)
        with monkeypatch.context() as patch:
            patch.setattr(columns, "training_columns", lambda lines: None)
            expected = content(parse_block(data))
        with monkeypatch.context() as patch:
            patch.setattr(columns, "_column", column_of_one)
            assert content(parse_block(data)) == expected


def test_rows_as_a_run_writes_them_are_parsed_quickly(monkeypatch):
    rows = [
        {"split": "train", "step": step, "loss": math.nan if step % 9 == 4 else 1 / step}
        for step in range(1, 900)
    ]
    rows[500]["added"] = 1.5
    rows.insert(600, {"split": "validation", "step": 600, "loss": math.inf, "accuracy": 0.5})
    data = b"".join(line(row, ascii_only=True) + b"\n" for row in rows)
    monkeypatch.setattr(columns, "parse_lines", None)  # Python would need it
    block = parse_block(data)
    assert block.counts == {"train": 899, "validation": 1}
    loss, present = block.columns["train"]["loss"]
    np.testing.assert_array_equal(loss, [row["loss"] for row in rows if row["split"] == "train"])
    assert present.all()
    assert np.flatnonzero(block.columns["train"]["added"][1]).tolist() == [500]
    assert block.columns["validation"]["loss"][0].tolist() == [math.inf]
