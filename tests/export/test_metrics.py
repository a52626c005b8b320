"""``labkit metrics``: CSV and Parquet hold the rows that count, and tell missing from not finite."""

import csv
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.commands import main as cli
from labkit.errors import InputError
from labkit.export import metrics
from labkit.export.metrics import write_metrics
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics, with_evaluations
from tests.commands.in_process import refused

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-(2**53), 2**53), st.just(2**70)
)
OTHERS = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
NAMES = st.sampled_from(["loss", "accuracy", "a,b", 'quo"te', "new\nline", "split ", "é"])
ROWS = st.builds(
    lambda split, step, rest: {"split": split, "step": step, "wall_time": 1e9, **rest},
    st.sampled_from(["train", "validation", "test"]),
    st.integers(0, 9),
    st.dictionaries(NAMES, NUMBERS | OTHERS, max_size=4),
)
RESUMES = st.builds(lambda step: {"resumed_at_step": step, "wall_time": 2e9}, st.integers(0, 9))


def expected(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the rows that count, as the run's own reader has them, with their split and numbers alone."""
    reader = read_metrics(run)
    return [
        {name: value for name, value in row.items() if name == "split" or type(value) in (int, float)}
        for row in with_evaluations(reader)
    ]


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    def equal(one: Any, other: Any) -> bool:
        both = all(isinstance(value, float) and math.isnan(value) for value in (one, other))
        return both or one == other

    return len(found) == len(wanted) and all(
        one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
        for one, other in zip(found, wanted, strict=True)
    )


def from_csv(path: Path) -> list[dict[str, Any]]:
    def number(text: str) -> float:
        try:
            return int(text)
        except ValueError:
            return float(text)

    with open(path, newline="", encoding="utf-8") as file:
        return [
            {name: text if name == "split" else number(text) for name, text in row.items() if text}
            for row in csv.DictReader(file)
        ]


def from_parquet(path: Path) -> list[dict[str, Any]]:
    rows = pyarrow.parquet.read_table(path).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@settings(max_examples=60, deadline=None)
@example(rows=[{"split": "validation", "step": 0, "loss": None}], evaluated=[], block=1)
@given(
    rows=st.lists(ROWS | RESUMES, max_size=25),
    evaluated=st.lists(ROWS, max_size=4),
    block=st.integers(1, 30),
)
def test_both_formats_read_back_as_the_rows_that_count(rows, evaluated, block):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "BLOCK_ROWS", block)
        run = RunDirectory(Path(folder))
        text = "".join(json.dumps(row) + "\n" for row in rows)
        run.metrics_path.write_text(text.replace("\n", "\n{oops\n", 1) + '{"split": "train", "st')
        (run.path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluated))
        wanted = expected(run)
        if not wanted and text and not any("resumed_at_step" in row for row in rows):
            with pytest.raises(InputError, match="none is a row"):
                write_metrics(run, run.path / "out.csv")
            return
        for ending, read in ((".csv", from_csv), (".parquet", from_parquet)):
            path = run.path / f"out{ending}"
            assert write_metrics(run, path).rows == len(wanted)
            found = read(path)
            assert same(found, wanted), f"{found}\n{wanted}"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.chdir(tmp_path)
    made = RunDirectory(tmp_path / "run")
    made.create()
    made.config_path.write_text("{}")
    made.metrics_path.write_text(
        '{"split": "train", "step": 1, "loss": NaN}\n{"split": "train", "step": 2}\n'
        '{"split": "train", "step": 3, "loss": -Infinity}\n{"resumed_at_step": 2}\n'
    )
    return made


def test_missing_values_are_told_from_those_that_are_not_finite(run, capsys):
    assert cli.main(["metrics", "run"]) == 0
    said = capsys.readouterr().out
    assert "metrics.csv: 2 rows, 5 columns" in said
    assert "rows that were made again after 1 resume point are left out" in said
    assert Path("metrics.csv").read_text().splitlines() == [
        "split,step,epoch,wall_time,loss",
        "train,1,,,NaN",
        "train,2,,,",
    ]
    assert cli.main(["metrics", "run", "--output", "new/folder/m.parquet"]) == 0
    loss = pyarrow.parquet.read_table("new/folder/m.parquet")["loss"].to_pylist()
    assert math.isnan(loss[0]) and loss[1] is None


def test_a_run_without_metrics_gives_a_header(run):
    run.metrics_path.unlink()
    assert cli.main(["metrics", "run"]) == 0
    assert Path("metrics.csv").read_bytes() == b"split,step,epoch,wall_time\r\n"
    assert cli.main(["metrics", "run", "--output", "m.parquet"]) == 0
    assert pyarrow.parquet.read_table("m.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere", "no run at 'nowhere'"),
        ("run --output m.json", "ends with .csv or .parquet"),
        ("run --output folder.csv", "is a folder"),
        ("run --output file/m.csv", "is not a directory"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(run, arguments, words):
    Path("folder.csv").mkdir()
    Path("file").write_text("x")
    before = sorted(Path().rglob("*"))
    assert words in refused("metrics", *arguments.split())
    assert sorted(Path().rglob("*")) == before
