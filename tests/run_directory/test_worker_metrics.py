"""The rows of each worker of a cluster, and who is named a straggler because of them."""

import math

import pytest

from labkit.errors import InputError
from labkit.run_directory import worker_metrics
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.worker_metrics import (
    KEPT_STEPS,
    StepSpans,
    Stragglers,
    WorkerMetrics,
    find_stragglers,
    read_spans,
    read_worker_metrics,
)


def rows_of(folder, results, **common) -> list[dict]:
    """Return the rows of ``worker:0`` that are written for these steps; the first one isn't counted."""
    metrics = WorkerMetrics(folder, examples_per_step=8, replicas=1)
    for step, result in enumerate([results[0], *results], start=1):
        metrics.add("worker:0", step, **common | result)
    metrics.close()
    return read_worker_metrics(folder).get("worker:0", [])


def test_a_row_has_the_mean_bytes_of_a_step_or_the_updates_of_each_staleness(tmp_path, monkeypatch):
    results = [{"bytes_sent": 100.0, "bytes_received": 10.0}, {"bytes_sent": 300.0, "bytes_received": 30.0}]
    [row] = rows_of(tmp_path / "a", results, waited=0.0, worked=0.1, exchanged=0.0)
    assert (row["bytes_sent_per_step"], row["bytes_received_per_step"]) == (200, 20)
    assert "staleness_counts" not in row
    results = [{"staleness": value} for value in (2, 0, 2, 11)]
    [row] = rows_of(tmp_path / "b", results, waited=None, worked=0.1, exchanged=0.02)
    assert row["staleness_counts"] == {"0": 1, "2": 2, "11": 1}
    monkeypatch.setattr(worker_metrics, "SECONDS_BETWEEN_ROWS", 0.0)  # else about a row a second
    written = rows_of(tmp_path / "c", [{}, {}], waited=0.0, worked=0.1, exchanged=0.0)
    assert [each["steps"] for each in written] == [1, 1]


@pytest.mark.parametrize(("waited", "own"), [(0.0, 0.1), (None, 0.4)])
def test_a_synchronous_workers_own_time_leaves_out_what_it_waits_for_others(tmp_path, waited, own):
    [row] = rows_of(tmp_path, [{}, {}, {}], waited=waited, worked=0.4, exchanged=0.3)
    assert row["own_seconds_per_step"] == pytest.approx(own)


# ---- stragglers ----------------------------------------------------------------------------------------


def row(seconds: float, *, steps: int = 4, wall_time: float = 0.0) -> dict:
    return {"own_seconds_per_step": seconds, "steps": steps, "wall_time": wall_time}


@pytest.mark.parametrize(
    ("earlier", "seconds", "found"),
    [
        ([], {"a": [0.1, 0.1], "b": [0.1, 0.1], "c": [0.16, 0.16]}, ["c"]),
        ([], {"a": [0.1, 0.1], "b": [0.1, 0.1], "c": [0.14, 0.14]}, []),
        ([], {"a": [0.1, 0.1], "b": [0.2, 0.2]}, ["b"]),
        ([], {"a": [0.5, 0.5]}, []),
        (["b"], {"a": [0.1, 0.1], "b": [0.13, 0.13]}, ["b"]),  # until it is clearly faster
        (["b"], {"a": [0.1, 0.1], "b": [0.12, 0.12]}, []),
        ([], {"a": [0.1, 0.1], "b": [0.9]}, []),  # one slow second
        ([], {"a": [0.1, 0.1], "b": [math.nan, math.nan]}, []),
    ],
)
def test_a_straggler_takes_half_as_long_again_as_the_median_of_the_others(earlier, seconds, found):
    rows = {worker: [row(value) for value in values] for worker, values in seconds.items()}
    assert [straggler.worker for straggler in find_stragglers(rows, earlier)] == found


def test_one_slow_step_or_a_worker_that_is_lost_is_no_straggler():
    assert find_stragglers({"a": [row(0.1), row(0.1)], "b": [row(0.1, steps=99), row(0.9, steps=1)]}) == []
    now = [row(0.1, wall_time=200), row(0.1, wall_time=201)]
    assert find_stragglers({"a": now, "b": [row(0.9), row(0.9)]}) == []


def test_the_console_names_a_straggler_when_it_begins_and_when_it_ends(tmp_path):
    def append(worker: str, *seconds: float) -> None:
        writer = MetricsWriter(tmp_path / f"{worker.replace(':', '-')}.jsonl")
        writer.append([{"worker": worker} | row(value) for value in seconds])
        writer.close()

    append("worker:0", *[9.0] * 5)  # of an earlier session
    stragglers = Stragglers(tmp_path)
    append("worker:0", 0.1, 0.1)
    append("worker:1", 0.1, 0.1)
    assert stragglers.news() == []
    append("worker:1", *[0.3] * 5)
    assert stragglers.news() == [
        "straggler: worker:1 takes 0.300 s a step, 3.0 times as long as the others (median 0.100 s)"
    ]
    append("worker:1", 0.3)
    assert stragglers.news() == [], "it is named once"
    append("worker:1", *[0.1] * 5)
    assert stragglers.news() == ["worker:1 is no straggler any more"]
    assert stragglers.news() == []


# ---- the last steps, moment by moment ------------------------------------------------------------------


def spans_of(*steps: int, began: float = 100.0) -> list[StepSpans]:
    return [StepSpans(step, began + step, (("input", began + step + 0.5),)) for step in steps]


def write_spans(folder, spans: list[StepSpans]) -> None:
    metrics = WorkerMetrics(folder, examples_per_step=8, replicas=1)
    for each in spans:
        metrics.add("worker:1", each.step, waited=0.0, worked=0.1, exchanged=0.0, spans=each)
    metrics.close()


def test_the_moments_of_the_last_steps_are_kept_and_of_steps_made_again_the_last_ones(tmp_path):
    spans = spans_of(*range(1, 2 * KEPT_STEPS))
    write_spans(tmp_path, spans)
    assert read_spans(tmp_path) == {"worker:1": spans[-KEPT_STEPS:]}
    again = spans_of(*range(KEPT_STEPS, 2 * KEPT_STEPS), began=900.0)
    write_spans(tmp_path, again)
    assert read_spans(tmp_path) == {"worker:1": again}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"worker": "worker:1", "steps": [{"step": 1}]}',
        '{"worker": "worker:1", "steps": [{"step": 1, "began": 1.0, "ends": []}]}',
        "[" * 9999,
    ],
)
def test_a_damaged_file_of_moments_is_named(content, tmp_path):
    write_spans(tmp_path, spans_of(1, 2))
    (tmp_path / "spans" / "worker-0.json").write_text(content)
    with pytest.raises(InputError, match="worker-0.json is damaged; remove it"):
        read_spans(tmp_path)
