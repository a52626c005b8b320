"""What a process records of its machine."""

import json
import time

import pytest

from labkit.run_directory import RunDirectory, machine
from labkit.run_directory.disk import discard
from labkit.run_directory.machine import machine_recorded, machine_rows_paths


@pytest.fixture
def run(tmp_path, monkeypatch) -> RunDirectory:
    monkeypatch.setattr(machine, "SECONDS_BETWEEN_ROWS", 0.1)
    made = RunDirectory(tmp_path / "run")
    made.create()
    return made


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for_rows(path, count: int) -> None:
    end = time.monotonic() + 30
    while not path.exists() or len(rows(path)) < count:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_rows_tell_what_this_process_does(run):
    with machine_recorded(run):
        end = time.monotonic() + 0.7
        while time.monotonic() < end:  # one busy core
            pass
        wait_for_rows(run.machine_path, 4)
    written = rows(run.machine_path)
    assert {row["process"] for row in written} == {""}
    assert max(row["cpu_cores"] for row in written) > 0.1
    for row in written:
        assert 0 <= row["cpu_cores"] <= row["cores"] + 0.5
        assert 0 <= row["machine_cpu_fraction"] <= 1
        assert 0 < row["memory_bytes"] < row["machine_memory_bytes"]
    times = [row["wall_time"] for row in written]
    assert times == sorted(times)
    count = len(written)
    time.sleep(0.3)
    assert len(rows(run.machine_path)) == count, "nothing is written after the block"


def test_each_task_of_a_cluster_has_a_file_and_a_resumed_run_goes_on_in_it(run):
    for _ in range(2):
        with machine_recorded(run, "chief:0"), machine_recorded(run, "worker:1", chief=False):
            before = len(rows(run.machine_path)) if run.machine_path.exists() else 0
            wait_for_rows(run.machine_path, before + 1)
            wait_for_rows(run.cluster_path / "machine" / "worker-1.jsonl", before + 1)
    paths = machine_rows_paths(run)
    assert [rows(path)[0]["process"] for path in paths] == ["chief:0", "worker:1"]
    assert not list(run.cluster_path.glob("*.jsonl")), "those are the workers' metrics"
    discard(run)
    assert not any(path.exists() for path in paths)


def test_a_place_that_cannot_be_written_ends_no_training(run, capfd):
    run.machine_path.mkdir()
    with machine_recorded(run):
        time.sleep(0.3)
    assert "Traceback" not in capfd.readouterr().err


def test_the_rows_of_a_long_run_are_few():
    assert machine._pause(0) == machine._pause(900) == 1
    assert machine._pause(5000) == pytest.approx(5)
    assert machine._pause(1e7) == 10
