"""Steps of workers whose clocks differ, on one time axis."""

import gzip
import json
import random
from collections import defaultdict
from pathlib import Path

import pytest

from labkit.analysis.timeline import KINDS, Timeline, read_timeline, write_trace
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import StepSpans, WorkerMetrics

CLOCKS = {"worker:0": 0.0, "worker:1": 3600.0, "worker:2": -7.25}  # how far each is ahead
JITTER = 1e-4  # seconds between the ends of the same exchange
EXCHANGE = 0.02
INPUT, REST = 0.005, 0.003


def record(run: RunDirectory, spans: dict[str, list[StepSpans]]) -> None:
    for worker, steps in spans.items():
        metrics = WorkerMetrics(run.cluster_path, examples_per_step=8, replicas=1)
        for each in steps:
            metrics.add(worker, each.step, waited=0.0, worked=0.1, exchanged=0.0, spans=each)
        metrics.close()


@pytest.fixture
def computing(tmp_path: Path) -> tuple[RunDirectory, dict[tuple[str, int], float]]:
    """A synchronous run of 20 steps, and for how long each worker computed in each step."""
    chance = random.Random(1)
    run = RunDirectory(tmp_path / "run")
    spans, computed = defaultdict(list), {}
    now = dict.fromkeys(CLOCKS, 1000.0)
    for step in range(1, 21):
        for worker in CLOCKS:
            computed[worker, step] = chance.uniform(0.05, 0.2)
        exchanged = max(now[w] + INPUT + computed[w, step] for w in CLOCKS) + EXCHANGE
        for worker, ahead in CLOCKS.items():
            began = now[worker]
            end = exchanged + chance.uniform(0, JITTER)
            moments = {"input": began + INPUT, "compute": began + INPUT + computed[worker, step],
                       "exchange": end, "rest": end + REST}  # fmt: skip
            ends = tuple((kind, moment + ahead) for kind, moment in moments.items())
            spans[worker].append(StepSpans(step, began + ahead, ends))
            now[worker] = end + REST
    record(run, spans)
    return run, computed


def test_the_exchanges_align_the_clocks(computing):
    run, _ = computing
    timeline = read_timeline(run, 10)
    assert timeline.steps == list(range(11, 21))
    assert timeline.has_exchanges
    for worker, ahead in CLOCKS.items():
        assert timeline.offsets[worker] == pytest.approx(-ahead, abs=JITTER)


def test_the_last_worker_of_a_step_waits_for_nobody_and_the_others_for_it(computing):
    run, computed = computing
    seconds = {(s.worker, s.step, s.kind): s.end - s.begin for s in read_timeline(run, 20).spans}
    for step in range(1, 21):
        longest = max(computed[worker, step] for worker in CLOCKS)
        for worker in CLOCKS:
            mine = computed[worker, step]
            expected = {"input": INPUT, "compute": mine, "exchange": EXCHANGE, "rest": REST}
            expected["wait"] = longest - mine
            found = {kind: seconds.get((worker, step, kind), 0.0) for kind in expected}
            assert found == pytest.approx(expected, abs=3 * JITTER), (worker, step)


def test_an_asynchronous_workers_clock_is_aligned_by_its_quickest_report(tmp_path):
    run, chance = RunDirectory(tmp_path / "run"), random.Random(2)
    spans, step = defaultdict(list), 0
    for turn in range(15):
        for worker, ahead in (("worker:0", 50.0), ("worker:1", -3.0)):
            step += 1
            began = 1000.0 + turn
            ends = (("exchange", began + 0.1), ("compute", began + 0.6), ("exchange", began + 0.7))
            ends = tuple((kind, end + ahead) for kind, end in ends)
            seen = began + 0.7 + chance.uniform(0.001, 0.2)
            spans[worker].append(StepSpans(step, began + ahead, ends, seen))
    record(run, spans)
    timeline = read_timeline(run, 8)
    assert timeline.steps == list(range(23, 31))
    for worker, ahead in (("worker:0", 50.0), ("worker:1", -3.0)):
        assert timeline.offsets[worker] == pytest.approx(-ahead, abs=0.03), "to the quickest report"
        assert timeline.seconds(worker)["compute"] == pytest.approx(0.5)
        assert timeline.seconds(worker)["exchange"] == pytest.approx(0.2)
        waits = [each for each in timeline.spans if each.worker == worker and each.kind == "wait"]
        assert [each.end - each.begin for each in waits] == pytest.approx([0.3] * 3), "for the next batch"


def test_a_worker_of_an_earlier_synchronous_session_is_left_out(tmp_path):
    run, input_of = RunDirectory(tmp_path / "run"), (("input", 2.0),)
    record(run, {"worker:2": [StepSpans(step, 1.0, input_of) for step in (1, 2)]})
    record(run, {"worker:0": [StepSpans(step, 1.0, input_of, seen=2.5) for step in (3, 4)]})
    assert read_timeline(run, 5).offsets == {"worker:0": 0.5}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_file_has_each_part_within_its_step(computing, name, tmp_path):
    run, _ = computing
    timeline = read_timeline(run, 5)
    write_trace(timeline, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert_is_trace(json.loads(gzip.decompress(content) if name.endswith("gz") else content), timeline)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["run", name])


def test_the_file_for_tensorboard_has_a_row_for_each_worker(computing, tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    run, _ = computing
    timeline = read_timeline(run, 5)
    write_trace(timeline, tmp_path / "workers.xplane.pb")
    space = xplane_pb2.XSpace.FromString((tmp_path / "workers.xplane.pb").read_bytes())
    assert [plane.name for plane in space.planes] == [f"/device:CUSTOM:{worker}" for worker in CLOCKS]
    for plane, worker in zip(space.planes, CLOCKS, strict=True):
        [line] = plane.lines
        names = [plane.event_metadata[event.metadata_id].name for event in line.events]
        mine = [span for span in timeline.spans if span.worker == worker]
        parts = {step: [span.kind for span in mine if span.step == step] for step in timeline.steps}
        assert names == [name for step in timeline.steps for name in (f"step {step}", *parts[step])]
        shown = [event for event, name in zip(line.events, names, strict=True) if name in KINDS]
        for event, span in zip(shown, mine, strict=True):
            assert event.duration_ps == pytest.approx(1e12 * (span.end - span.begin), abs=1)


def assert_is_trace(content: dict, timeline: Timeline) -> None:
    """Check the rules of Chrome's trace format: parts of a row nest, in microseconds from 0."""
    events = content["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == list(timeline.offsets)
    parts = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in parts) == 0
    steps = {
        (event["pid"], event["args"]["step"]): event for event in parts if event["name"].startswith("step ")
    }
    assert {step for _, step in steps} == set(timeline.steps)
    assert len(parts) == len(steps) + len(timeline.spans)
    for event in parts:
        step = steps[event["pid"], event["args"]["step"]]
        assert event["dur"] >= 0
        assert event["ts"] >= step["ts"]
        assert event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1e-3


def test_a_run_of_one_process_is_refused(tmp_path):
    with pytest.raises(InputError, match="labkit profile"):
        read_timeline(RunDirectory(tmp_path / "run"), 5)
