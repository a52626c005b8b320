"""What a run takes of its machine, and the tasks and workers of a cluster, on the live page."""

import os
import re
import socket
import time

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.workers import ClusterStore
from labkit.distributed.heartbeat import heartbeat_path, process_space
from labkit.run_directory import RunDirectory
from tests.app.boards import DrawnChart, boards, charts
from tests.app.conftest import in_cluster
from tests.app.pages import checked, html_of, open_page, words
from tests.app.rows import append_machine, append_worker, machine_row


def test_a_run_of_one_process_without_rows_has_neither(make_run):
    at = open_page("live", make_run())
    assert len(boards(at)) == 1 and len(charts(at)) == 4
    assert not at.dataframe
    assert "Shares of time" not in html_of(at) and "Machine" not in words(at)


def test_the_machine_is_drawn_over_the_steps_and_grows(make_run):
    run = make_run(state="running")
    append_machine(run, *(machine_row(second + 0.5) for second in range(-5, 60)))
    at = open_page("live", run)
    _, board = boards(at)
    cpu, memory, disk = board.charts
    assert [chart.title for chart in board.charts] == ["CPU use", "Memory", "Disk, per second"]
    assert list(cpu.lines) == ["run", "whole machine"]
    assert set(cpu.lines["run"].y) == {0.5}, "of all cores"
    assert set(cpu.lines["whole machine"].y) == {0.75}
    assert (memory.unit, disk.unit) == ("bytes", "bytes")
    assert cpu.lines["run"].x[[0, -1]] == pytest.approx([1.5, 59.5]), "between the first and the last step"
    append_machine(run, machine_row(80.0, memory_bytes=2**31))
    memory = boards(checked(at.run()))[1].charts[1]
    assert memory.lines["run"].x[-1] == pytest.approx(80)
    assert memory.lines["run"].y[-1] == 2**31
    at.get("button_group")[0].set_value("clock")
    clock = boards(checked(at.run()))[1]
    assert clock.charts[0].lines["run"].x[0] == 1_700_000_000 - 4.5


def test_each_task_of_a_cluster_and_each_gpu_is_drawn(make_run):
    run, gpus = make_run(state="running"), {"gpu0_use_fraction": 0.5, "gpu0_memory_bytes": 2**30}
    append_machine(
        run,
        machine_row(1),
        machine_row(2, **gpus, gpu11_use_fraction=0.9),
        machine_row(3, **gpus, gpux_use_fraction=1),
    )
    drawn = {chart.title: chart for chart in boards(open_page("live", run))[1].charts}
    assert list(drawn["GPU use"].lines) == ["GPU 0", "GPU 11"]
    assert drawn["GPU use"].unit == "percent"
    assert drawn["GPU use"].lines["GPU 11"].y.tolist() == [0.9]
    assert drawn["GPU memory in use"].lines["GPU 0"].y.tolist() == [2**30, 2**30]
    run = make_run("cluster", state="running")
    append_machine(
        run, machine_row(1, process="chief:0", gpu0_use_fraction=0.5), machine_row(2, process="chief:0")
    )
    first = machine_row(1, process="worker:1", cpu_cores=1.0, gpu0_use_fraction=0.25)
    append_machine(run, first, machine_row(2, process="worker:1"), task="worker-1")
    drawn = {chart.title: chart for chart in boards(open_page("live", run))[1].charts}
    assert list(drawn["CPU use"].lines) == ["chief:0", "worker:1"]
    assert drawn["CPU use"].lines["worker:1"].y.tolist() == [0.25, 0.5]
    assert "worker:1, written" in drawn["Disk, per second"].lines
    assert list(drawn["GPU use"].lines) == ["chief:0, GPU 0", "worker:1, GPU 0"]


def test_damaged_rows_are_left_out_and_a_file_that_cannot_be_read_is_named(make_run):
    run = make_run(state="running")
    damaged = b'oops\n[]\n3\nnull\n{"process": 3}\n{"wall_time": 1, "cpu_cores": "x"}\n\xff\x00\n'
    run.machine_path.write_bytes(damaged)
    assert len(boards(open_page("live", run))) == 1
    append_machine(run, machine_row(5), machine_row(6, cores=0), machine_row(7, read_bytes_per_second=None))
    cpu = boards(open_page("live", run))[1].charts[0]
    assert cpu.lines["run"].x.tolist() == [5, 7]
    run.machine_path.unlink()
    run.machine_path.mkdir()
    assert "can't be read" in words(open_page("live", run))


def put_heartbeat(run: RunDirectory, name: str, age: float = 0.0, **changed) -> None:
    alive = {"host": socket.gethostname(), "pid": os.getpid(), "phase": "training", "step": 7}
    in_cluster(run, (name,), **{**alive, "process_space": process_space(), **changed})
    os.utime(heartbeat_path(run.cluster_path, name), (time.time() - age,) * 2)


def table(at: AppTest) -> dict[str, dict[str, object]]:
    (frame,) = at.dataframe
    return {row["Task"]: row for row in frame.value.to_dict("records")}


def rates(at: AppTest) -> DrawnChart:
    """Return the chart of the workers' speeds."""
    (chart,) = [chart for chart in charts(at) if chart.title == "Examples per second of each worker"]
    return chart


def bars(at: AppTest) -> dict[str, list[str]]:
    """Return what the bars of the shares of time say, by worker: compute, communication, waiting."""
    rows = [re.findall("<bdi>(.*?)</bdi>", row) for row in html_of(at).split("<tr>") if "lk-bar-of" in row]
    return {worker: shares for worker, *shares in rows}


# ---- tasks and workers of a cluster ---------------------------------------------------------------------


def test_each_task_shows_its_state_step_and_speed(make_run):
    run = make_run(state="running")
    put_heartbeat(run, "chief:0", step=40)
    put_heartbeat(run, "worker:0", phase="waiting", seen={"chief:0": "abc"}, step=0)
    put_heartbeat(run, "worker:1", phase="waiting", seen={"chief:0": ""}, step=0)
    bytes_per_step = {"bytes_sent_per_step": 303080.0, "bytes_received_per_step": 498024.0}
    append_worker(run, "worker:0", 100.0, 120.0, step=38, **bytes_per_step)
    rows = table(open_page("live", run))
    assert list(rows) == ["chief:0", "worker:0", "worker:1"]
    assert [row["State"] for row in rows.values()] == ["running", "running", "waiting for chief:0"]
    assert rows["worker:0"]["Examples per second"] == 120
    assert [rows["worker:0"][f"{how} per step"] for how in ("Sent", "Received")] == [303080, 498024]
    assert (rows["chief:0"]["Step"], rows["worker:0"]["Step"]) == (40, 39)
    assert rows["worker:0"]["Process"] == f"{os.getpid()} on {socket.gethostname()}"


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"phase": "left", "pid": 2**22}, "ended"),
        ({"pid": 2**22}, "lost"),  # above pid_max of a 64-bit Linux
        ({"pid": 2**22, "process_space": "another host"}, "running"),
        ({"age": 600}, "stalled"),
        ({"phase": "stopping"}, "stopping"),
        ({"phase": "lost", "message": "worker:1 has ended"}, "lost a peer: worker:1 has ended"),
    ],
)
def test_the_state_of_a_task(make_run, changed, state):
    run = make_run(state="running")
    put_heartbeat(run, "worker:0", **changed)
    row = table(open_page("live", run))["worker:0"]
    assert row["State"] == state
    if changed.get("age"):
        assert row["Last heartbeat"].startswith("10 min 0")
    if state == "ended":
        assert row["Last heartbeat"] == "–"


def test_speeds_and_shares_are_drawn_and_grow(make_run):
    run = make_run(state="running")
    append_worker(run, "worker:0", 100.0, 120.0)
    append_worker(run, "worker:1", 90.0, 95.0)
    at = open_page("live", run)
    shares = bars(at)
    assert list(rates(at).lines) == ["worker:0", "worker:1"]
    assert "Staleness of the updates" not in [chart.title for chart in charts(at)], "it is synchronous"
    assert shares == {f"worker:{number}": ["70 %", "20 %", "10 %"] for number in (0, 1)}
    append_worker(run, "worker:1", 99.0, step=12)
    at.slider(key="smoothing").set_value(0.0)
    drawn = rates(checked(at.run())).lines["worker:1"]
    assert drawn.x.tolist() == [10, 11, 12]
    assert drawn.y.tolist() == [90, 95, 99]


def test_staleness_is_drawn_for_each_worker_of_an_asynchronous_run(make_run):
    run = make_run(state="running")
    append_worker(run, "worker:0", 100.0, 100.0, staleness_counts={"0": 1, "2": 3})
    append_worker(run, "worker:1", 30.0, staleness_counts={"7": 5})
    staleness = charts(open_page("live", run))[-1]
    assert (staleness.title, staleness.unit) == ("Staleness of the updates", "percent")
    lines = staleness.lines
    assert (lines["worker:0"].x.tolist(), lines["worker:1"].x.tolist()) == ([0, 1, 2], [7])
    assert lines["worker:0"].y.tolist() == [0.25, 0, 0.75]
    assert lines["worker:1"].y.tolist() == [1]


def test_a_straggler_is_named_until_it_is_as_fast_as_the_others(make_run):
    run = make_run(state="running")
    for number, seconds in enumerate((0.1, 0.1, 0.35)):
        put_heartbeat(run, f"worker:{number}")
        append_worker(run, f"worker:{number}", 1.0, 1.0, own_seconds_per_step=seconds, steps=3)
    at = open_page("live", run)
    assert [warning.value for warning in at.warning] == [
        "Straggler: worker:2 takes 0.350 s a step, 3.5 times as long as the others (median 0.100 s)."
    ]
    append_worker(run, "worker:2", *[1.0] * 5, step=12, own_seconds_per_step=0.11, steps=3)
    assert not at.run().warning


def test_damaged_files_of_a_cluster_break_no_page(make_run):
    run = make_run(state="running")
    append_worker(run, "worker:1", 1.0, staleness_counts={"1": None, "x": 1}, own_seconds_per_step="long")
    run.cluster_path.joinpath("worker-1.jsonl").rename(run.cluster_path / "worker-2.jsonl")
    (run.cluster_path / "worker-0.json").write_text("{")
    (run.cluster_path / "worker-0.jsonl").write_text('nonsense\n{"worker": 3}\n[1]\n')
    (run.cluster_path / "strange.jsonl").write_text("{}\n")
    at = open_page("live", run)
    assert not at.dataframe
    assert list(rates(at).lines) == ["worker:2"], "of the rows that can be read"
    assert list(bars(at)) == ["worker:2"]


# ---- reading -------------------------------------------------------------------------------------------


def test_rows_after_the_resumed_step_no_longer_count_and_a_run_started_over_is_read_again(make_run):
    run = make_run()
    append_worker(run, "worker:0", 1.0, 2.0, 3.0)
    append_worker(run, "worker:0", 4.0, step=11)
    store = ClusterStore(run.cluster_path)
    workers = store.poll()
    assert workers.column("worker:0", "step").tolist() == [10, 11, 11]
    assert workers.column("worker:0", "examples_per_second").tolist() == [1, 2, 4]
    (run.cluster_path / "worker-0.jsonl").unlink()
    append_worker(run, "worker:0", 7.0)
    assert store.poll().column("worker:0", "examples_per_second").tolist() == [7]


def test_the_clock_of_another_host_is_not_trusted(make_run):
    run = make_run()
    put_heartbeat(run, "worker:0", age=-5000)  # its host is ahead of this one
    store = ClusterStore(run.cluster_path)
    assert store.tasks()[0].age < 5
    put_heartbeat(run, "worker:0", age=5000, counter=2)
    assert store.tasks()[0].age < 5
