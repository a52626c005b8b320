"""Rows of metrics as columns: parsed quickly as by Python's own parser, whatever the rows hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.run_directory import columns
from labkit.run_directory import reader as reader_module
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader

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


# Numbers that take the same bytes in MessagePack, and some that don't.
PACKED = (
    st.floats(allow_nan=False, allow_infinity=False),
    *(st.integers(*ends) for ends in ((0, 127), (128, 255), (2**16, 2**32 - 1), (2**53 - 2, 2**53 + 2))),
    *(st.integers(*ends) for ends in ((-2, 2), (126, 130), (2**64 - 2, 2**64 + 1))),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
ALIKE = st.lists(st.sampled_from(PACKED), max_size=17).flatmap(
    lambda numbers: st.lists(
        st.fixed_dictionaries(
            {"split": st.just("train"), "step": st.integers(256, 300)}
            | {f"value {place}": number for place, number in enumerate(numbers)}
        ),
        min_size=1,
        max_size=40,
    )
)

LINES = st.one_of(
    ALIKE.map(lambda rows: [line(row, ascii_only=True) for row in rows]),
    st.lists(USUAL.map(lambda row: line(row, ascii_only=False)), max_size=40),
    st.lists(ROWS.map(lambda row: line(row, ascii_only=True)), max_size=12),
    st.lists(
        st.one_of(USUAL.map(lambda row: line(row, ascii_only=True)), DAMAGED),
        max_size=12,
    ),
)


def content(data: bytes, path: Path) -> dict[str, Any]:
    """Return what a reader makes of a file."""
    path.write_bytes(data)
    reader = MetricsReader(path)
    reader.poll()
    return {
        "train": [{name: repr(value) for name, value in row.items()} for row in reader.split("train")],
        "evaluations": repr(reader.evaluations),
        "damaged": reader.damaged_lines,
        "duration": repr(reader.duration),
        "order": reader.order.tolist(),
    }


@given(lines=LINES)
@example(lines=[b'{"step": 1, "split": "train", "loss": 1}', b"", b'{"step": 2}{"step": 3}'])
@example(lines=[b'{"split": "train", "step": 1, "a\\": NaN": 1}'])
@example(lines=[b'{"split": "train", "step": 1, "a": "\\u0000NaN", "b": NaN}'])
@example(lines=[b'{"split": "train", "step": 1, "a": {}', b'}{"split": "train", "step": 1}'])
@example(lines=[b'{"split": "train", "step":', b"1}", b'{"step": 2}{"step": 3}'])
@settings(max_examples=400, deadline=None)
def test_both_parsers_read_the_same(lines, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    data = b"".join(one + b"\n" for one in lines)
    quickly = content(data, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "training_columns", lambda lines: None)
        assert content(data, path) == quickly


@pytest.mark.parametrize(("limit", "value"), [("MAX_CELLS", 50_000), ("MAX_COLUMNS", 50)])
def test_a_new_name_at_every_step_does_not_fill_the_memory(tmp_path, monkeypatch, limit, value):
    monkeypatch.setattr(columns, limit, value)
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append([{"split": "train", "step": step, f"name{step}": 1.0} for step in range(1, 1_000)])
    writer.close()
    reader = MetricsReader(path)
    reader.poll()
    assert len(reader.train) == 999
    assert len(reader.train.columns) <= 50
