"""Whatever the files of a run directory hold, the run is read, or refused in one line."""

import contextlib
import json
import shutil
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.certificate import read_certificate
from labkit.run_directory.notes import family_of, read_lineage, read_notes
from labkit.run_directory.reader import read_metrics, with_evaluations
from tests.commands.in_process import ends_well, tree
from tests.commands.made_runs import whole_run
from tests.fuzzing import as_file, damaged_bytes, damaged_json, json_values

FILES_OF_ROWS = ("metrics.jsonl", "evaluations.jsonl")
FILES = (
    "config.json",
    "status.json",
    "environment.json",
    "notes.json",
    "lineage.json",
    "certificate.json",
    *FILES_OF_ROWS,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, bytes]:
    """The files of a run that is whole."""
    run = whole_run(tmp_path_factory.mktemp("runs"), "good")
    return {name: (run.path / name).read_bytes() for name in FILES}


def contents(good: bytes) -> st.SearchStrategy[bytes]:
    """What a file of JSON may hold: anything, or the good content with damage."""
    damaged = damaged_json(json.loads(good)).map(as_file)
    return st.one_of(
        damaged,
        damaged,
        damaged_bytes(good),
        json_values.map(as_file),
        st.binary(max_size=60),
        st.just(b"[" * 100_000),
    )


def contents_of_rows(good: bytes) -> st.SearchStrategy[bytes]:
    """What a file of rows may hold: the same for some of its lines, or damage to the whole."""
    lines = good.splitlines(keepends=True)
    row = st.sampled_from(lines).flatmap(contents).map(lambda line: line + b"\n")
    rows = st.lists(st.one_of(st.sampled_from(lines), row, row), max_size=8).map(b"".join)
    return st.one_of(rows, rows, rows, damaged_bytes(good))


def read_all(run: RunDirectory) -> None:
    """Read a run with each reader of run directories; InputError is their only error."""
    for read in (run.read_config, lambda: recorded_config(run), lambda: read_certificate(run)):
        with contextlib.suppress(InputError):
            read()
    status = run.read_status()
    if status is not None:
        assert isinstance(status.liveness(), str)
    assert isinstance(run.read_environment(), dict)
    read_notes(run)
    lineage = read_lineage(run)
    if lineage is not None:
        lineage.describe()
    assert run.path in [relative.run.path for relative in family_of(run, [run])]
    with_rows = read_metrics(run)
    assert all(isinstance(row, dict) for row in with_evaluations(with_rows))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_run_with_anything_in_its_files_is_read_or_refused_in_one_line(tmp_path_factory, good, data):
    folder = tmp_path_factory.getbasetemp() / "anything" / "run"
    shutil.rmtree(folder, ignore_errors=True)
    run = RunDirectory(folder)
    run.create()
    damaged = data.draw(st.sets(st.sampled_from(FILES), min_size=1, max_size=3))
    for name in FILES:
        of = contents_of_rows if name in FILES_OF_ROWS else contents
        content = data.draw(of(good[name]), name) if name in damaged else good[name]
        (folder / name).write_bytes(content)
    before = tree(folder)
    read_all(run)
    for command in (["runs"], ["runs", "--json", "--sort", "accuracy"]):
        assert ends_well(*command, "--runs-dir", str(folder.parent)) == 0
    for command in (["show"], ["show", "--json"]):
        assert ends_well(*command, str(folder)) == 0
    output = str(folder.parent / "metrics.csv")
    assert ends_well("metrics", str(folder), "--output", output) in (0, 2)  # 2: no row can be read
    fork = str(folder.parent / "fork")
    for command in (["replay", "--step", "25"], ["fork", "--at", "25", "--job-dir", fork]):
        assert ends_well(*command, str(folder)) == 2, "its data set isn't there"
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lineage.json", '{"parent": "a", "step": 1e999, "changes": {}}'),
        ("status.json", json.dumps({"state": "running", "host": socket.gethostname(), "pid": 10**400})),
        ("status.json", '{"state": "running", "heartbeat": 1' + "0" * 400 + "}"),
        ("status.json", '{"state": "failed", "message": "\\ud800\\n\\u001b[31m"}'),
        ("metrics.jsonl", '{"resumed_at_step": 3, "wall_time": 1' + "0" * 400 + "}\n"),
        ("metrics.jsonl", '{"split": "test", "step": 30, "loss": "low", "accuracy": {}}\n'),
        ("evaluations.jsonl", '{"split": "test", "step": [], "accuracy": 0.5}\n'),
        ("config.json", '{"optimizer": {"learning_rate": 1' + "0" * 400 + "}}"),
    ],
)
def test_what_was_found_by_chance_stays_mended(tmp_path, good, name, content):
    run = RunDirectory(tmp_path / "run")
    run.create()
    for other in FILES:
        (run.path / other).write_bytes(good[other])
    (run.path / name).write_text(content)
    if name == "config.json":
        whole = json.loads(good[name])
        whole["optimizer"] |= json.loads(content)["optimizer"]
        (run.path / name).write_text(json.dumps(whole))
    read_all(run)
    assert ends_well("runs", "--runs-dir", str(tmp_path)) == ends_well("show", str(run.path)) == 0
