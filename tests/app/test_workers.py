"""The live page of a cluster: the heartbeat of each task, and the metrics of each worker as they grow."""

import os
import re
import socket
import time

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.workers import MAX_ROWS, ClusterStore
from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, process_space, write_heartbeat
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.rows import RowReader
from tests.app.boards import DrawnChart, charts
from tests.app.test_pages import cards_of, checked, open_page


def beat(name: str, **changed) -> Heartbeat:
    values = {
        "name": name,
        "address": "127.0.0.1:2222",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "incarnation": "abc",
        "counter": 1,
        "phase": "training",
        "step": 7,
        "seen": {},
        "message": "",
        "examples_per_second": 1.0,
        "process_space": process_space(),
    }
    return Heartbeat(**{**values, **changed})


def put_heartbeat(run: RunDirectory, name: str, age: float = 0.0, **changed) -> None:
    run.cluster_path.mkdir(exist_ok=True)
    path = heartbeat_path(run.cluster_path, name)
    write_heartbeat(path, beat(name, **changed))
    os.utime(path, (time.time() - age,) * 2)


def append(run: RunDirectory, name: str, *rates: float, step: int = 10, **changed) -> None:
    run.cluster_path.mkdir(exist_ok=True)
    writer = MetricsWriter(run.cluster_path / f"{name.replace(':', '-')}.jsonl")
    rows = [
        {
            "worker": name,
            "step": step + number,
            "examples_per_second": rate,
            "compute_fraction": 0.7,
            "communication_fraction": 0.2,
            "input_wait_fraction": 0.1,
            "wall_time": 1_700_000_000.0 + step + number,
            **changed,
        }
        for number, rate in enumerate(rates)
    ]
    writer.append(rows)
    writer.close()


def table(at: AppTest) -> dict[str, dict[str, object]]:
    (frame,) = at.dataframe
    return {row["Task"]: row for row in frame.value.to_dict("records")}


def rates(at: AppTest) -> DrawnChart:
    """Return the chart of the workers' speeds."""
    (chart,) = [chart for chart in charts(at) if chart.title == "Examples per second of each worker"]
    return chart


def bars(at: AppTest) -> dict[str, str]:
    """Return what the bars of the shares of time say, by worker."""
    return dict(re.findall(r'<dt>([^<]*)</dt><dd><div [^>]*aria-label="([^"]*)"', cards_of(at)))


# ---- the page ------------------------------------------------------------------------------------------


def test_a_run_of_one_process_shows_no_tasks(make_run):
    at = open_page("live", make_run())
    assert not at.dataframe
    assert len(charts(at)) == 4
    assert "lk-shares" not in cards_of(at)


def test_each_task_shows_its_state_step_and_speed(make_run):
    run = make_run(state="running")
    put_heartbeat(run, "chief:0", step=40)
    put_heartbeat(run, "worker:0", phase="waiting", seen={"chief:0": "abc"}, step=0)
    put_heartbeat(run, "worker:1", phase="waiting", seen={"chief:0": ""}, step=0)
    append(run, "worker:0", 100.0, 120.0, step=38)
    rows = table(open_page("live", run))
    assert list(rows) == ["chief:0", "worker:0", "worker:1"]
    assert [row["State"] for row in rows.values()] == ["running", "running", "waiting for chief:0"]
    assert rows["worker:0"]["Examples per second"] == 120
    assert (rows["chief:0"]["Step"], rows["worker:0"]["Step"]) == (40, 39)
    assert rows["worker:0"]["Process"] == f"{os.getpid()} on {socket.gethostname()}"


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"phase": "left", "pid": 2**22}, "ended"),
        ({"pid": 2**22}, "lost"),  # above pid_max of a 64-bit Linux
        ({"pid": 2**22, "process_space": "another host"}, "running"),
        ({"age": 100}, "stalled"),
        ({"phase": "stopping"}, "stopping"),
        ({"phase": "lost", "message": "worker:1 has ended"}, "lost a peer: worker:1 has ended"),
    ],
)
def test_the_state_of_a_task(make_run, changed, state):
    run = make_run(state="running")
    put_heartbeat(run, "worker:0", **changed)
    assert table(open_page("live", run))["worker:0"]["State"] == state


def test_the_age_of_the_last_heartbeat_is_shown(make_run):
    run = make_run(state="running")
    put_heartbeat(run, "worker:0", age=600)
    put_heartbeat(run, "worker:1", age=600, phase="left")
    rows = table(open_page("live", run))
    assert rows["worker:0"]["Last heartbeat"] == "10 min ago"
    assert rows["worker:1"]["Last heartbeat"] == "–"


def test_speeds_and_shares_are_drawn_and_grow(make_run):
    run = make_run(state="running")
    append(run, "worker:0", 100.0, 120.0)
    append(run, "worker:1", 90.0, 95.0)
    at = open_page("live", run)
    shares = bars(at)
    assert list(rates(at).lines) == ["worker:0", "worker:1"]
    words = "compute 70%, communication 20%, input, waiting 10%"
    assert shares == {"worker:0": words, "worker:1": words}
    append(run, "worker:1", 99.0, step=12)
    at.slider(key="smoothing").set_value(0.0)
    drawn = rates(checked(at.run())).lines["worker:1"]
    assert drawn.x.tolist() == [10, 11, 12]
    assert drawn.y.tolist() == [90, 95, 99]


def test_staleness_is_drawn_for_each_worker_of_an_asynchronous_run(make_run):
    run = make_run(state="running")
    append(run, "worker:0", 100.0, 100.0, staleness_counts={"0": 1, "2": 3})
    append(run, "worker:1", 30.0, staleness_counts={"7": 5})
    staleness = charts(open_page("live", run))[-1]
    assert (staleness.title, staleness.unit) == ("Staleness of the updates", "percent")
    lines = staleness.lines
    assert (lines["worker:0"].x.tolist(), lines["worker:1"].x.tolist()) == ([0, 1, 2], [7])
    assert lines["worker:0"].y.tolist() == [0.25, 0, 0.75]
    assert lines["worker:1"].y.tolist() == [1]


def test_a_synchronous_run_has_no_histogram_of_staleness(make_run):
    run = make_run(state="running")
    append(run, "worker:0", 100.0)
    assert "Staleness of the updates" not in [chart.title for chart in charts(open_page("live", run))]


def test_a_straggler_is_named_until_it_is_as_fast_as_the_others(make_run):
    run = make_run(state="running")
    for number, seconds in enumerate((0.1, 0.1, 0.35)):
        put_heartbeat(run, f"worker:{number}")
        append(run, f"worker:{number}", 1.0, 1.0, own_seconds_per_step=seconds, steps=3)
    at = open_page("live", run)
    assert [warning.value for warning in at.warning] == [
        "Straggler: worker:2 takes 0.350 s a step, 3.5 times as long as the others (median 0.100 s)."
    ]
    append(run, "worker:2", *[1.0] * 5, step=12, own_seconds_per_step=0.11, steps=3)
    assert not at.run().warning


def test_the_bytes_of_each_worker_are_shown(make_run):
    run = make_run(state="running")
    put_heartbeat(run, "worker:0")
    put_heartbeat(run, "ps:0")
    append(run, "worker:0", 1.0, bytes_sent_per_step=303080.0, bytes_received_per_step=498024.0)
    rows = table(open_page("live", run))
    assert rows["worker:0"]["Sent per step"] == 303080
    assert rows["worker:0"]["Received per step"] == 498024


def test_damaged_files_of_a_cluster_break_no_page(make_run):
    run = make_run(state="running")
    append(run, "worker:1", 1.0, staleness_counts={"1": None, "x": 1}, own_seconds_per_step="long")
    run.cluster_path.joinpath("worker-1.jsonl").rename(run.cluster_path / "worker-2.jsonl")
    (run.cluster_path / "worker-0.json").write_text("{")
    (run.cluster_path / "worker-0.jsonl").write_text('nonsense\n{"worker": 3}\n[1]\n')
    (run.cluster_path / "strange.jsonl").write_text("{}\n")
    at = open_page("live", run)
    assert not at.dataframe
    assert list(rates(at).lines) == ["worker:2"], "of the rows that can be read"
    assert list(bars(at)) == ["worker:2"]


# ---- reading -------------------------------------------------------------------------------------------


def test_only_what_was_appended_is_read(make_run, monkeypatch):
    run = make_run()
    append(run, "worker:0", *[100.0] * 50)
    store = ClusterStore(run.cluster_path)
    first = store.poll()
    assert first.rows["worker:0"].shape == (50, 6)
    assert store.poll() is first, "without new rows the snapshot is the same"
    taken: list[int] = []
    real = RowReader.poll

    def poll(reader, *given):
        rows = real(reader, *given)
        taken.append(len(rows))
        return rows

    monkeypatch.setattr(RowReader, "poll", poll)
    append(run, "worker:0", 110.0, step=60)
    assert store.poll().column("worker:0", "examples_per_second").tolist() == [100.0] * 50 + [110.0]
    assert taken == [1]
    assert len(first.rows["worker:0"]) == 50, "an earlier snapshot doesn't change"


def test_only_the_last_rows_of_a_long_run_are_kept(make_run):
    run = make_run()
    append(run, "worker:0", *map(float, range(MAX_ROWS + 100)))
    rates = ClusterStore(run.cluster_path).poll().column("worker:0", "examples_per_second")
    assert len(rates) == MAX_ROWS
    assert rates[-1] == MAX_ROWS + 99


def test_rows_after_the_resumed_step_no_longer_count(make_run):
    run = make_run()
    append(run, "worker:0", 1.0, 2.0, 3.0, step=10)
    append(run, "worker:0", 4.0, step=11)
    workers = ClusterStore(run.cluster_path).poll()
    assert workers.column("worker:0", "step").tolist() == [10, 11, 11]
    assert workers.column("worker:0", "examples_per_second").tolist() == [1, 2, 4]


def test_a_run_that_was_started_over_is_read_again(make_run):
    run = make_run()
    append(run, "worker:0", 1.0, 2.0)
    store = ClusterStore(run.cluster_path)
    store.poll()
    (run.cluster_path / "worker-0.jsonl").unlink()
    append(run, "worker:0", 7.0)
    assert store.poll().column("worker:0", "examples_per_second").tolist() == [7]


def test_the_clock_of_another_host_is_not_trusted(make_run):
    run = make_run()
    put_heartbeat(run, "worker:0", age=-5000)  # its host is ahead of this one
    store = ClusterStore(run.cluster_path)
    assert store.tasks()[0].age < 5
    put_heartbeat(run, "worker:0", age=5000, counter=2)
    assert store.tasks()[0].age < 5
