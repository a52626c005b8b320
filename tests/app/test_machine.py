"""What a run takes of its machine, on the live page."""

import json

import pytest

from app.charts.machine import MachineStore
from labkit.run_directory import RunDirectory
from tests.app.boards import boards
from tests.app.test_pages import checked, open_page, words


def row(second: float, **changed) -> dict[str, object]:
    values = {
        "process": "",
        "wall_time": 1_700_000_000.0 + second,
        "cores": 4,
        "cpu_cores": 2.0,
        "machine_cpu_fraction": 0.75,
        "memory_bytes": 2**30,
        "machine_memory_fraction": 0.5,
        "machine_memory_bytes": 2**34,
        "read_bytes_per_second": 0.0,
        "written_bytes_per_second": 1e6,
    }
    return {**values, **changed}


def write(run: RunDirectory, *rows: dict[str, object], task: str = "") -> None:
    path = run.cluster_path / "machine" / f"{task}.jsonl" if task else run.machine_path
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


def test_a_run_without_rows_has_no_such_charts(make_run):
    at = open_page("live", make_run())
    assert len(boards(at)) == 1
    assert "Machine" not in words(at)


def test_the_machine_is_drawn_over_the_steps_and_grows(make_run):
    run = make_run(state="running")
    write(run, *(row(second + 0.5) for second in range(-5, 60)))
    at = open_page("live", run)
    _, board = boards(at)
    cpu, memory, disk = board.charts
    assert [chart.title for chart in board.charts] == ["CPU use", "Memory", "Disk, per second"]
    assert list(cpu.lines) == ["run", "whole machine"]
    assert set(cpu.lines["run"].y) == {0.5}, "of all cores"
    assert set(cpu.lines["whole machine"].y) == {0.75}
    assert (memory.unit, disk.unit) == ("bytes", "bytes")
    assert cpu.lines["run"].x[[0, -1]] == pytest.approx([1.5, 59.5]), "between the first and the last step"
    write(run, row(80.0, memory_bytes=2**31))
    memory = boards(checked(at.run()))[1].charts[1]
    assert memory.lines["run"].x[-1] == pytest.approx(80)
    assert memory.lines["run"].y[-1] == 2**31
    at.get("button_group")[0].set_value("clock")
    clock = boards(checked(at.run()))[1]
    assert clock.charts[0].lines["run"].x[0] == 1_700_000_000 - 4.5


def test_each_task_of_a_cluster_is_drawn(make_run):
    run = make_run(state="running")
    write(run, row(1, process="chief:0"), row(2, process="chief:0"))
    write(run, row(1, process="worker:1", cpu_cores=1.0), row(2, process="worker:1"), task="worker-1")
    cpu, _, disk = boards(open_page("live", run))[1].charts
    assert list(cpu.lines) == ["chief:0", "worker:1"]
    assert cpu.lines["worker:1"].y.tolist() == [0.25, 0.5]
    assert "worker:1, written" in disk.lines


DAMAGED = [
    b"oops\n[]\n3\nnull\n",
    b'{"process": 3}\n',
    b'{"wall_time": 1, "cpu_cores": "x"}\n',
    b"\xff\x00\n",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_rows_are_left_out(make_run, text):
    run = make_run(state="running")
    run.machine_path.write_bytes(text)
    assert len(boards(open_page("live", run))) == 1
    write(run, row(5), row(6, cores=0), row(7, read_bytes_per_second=None))
    cpu = boards(open_page("live", run))[1].charts[0]
    assert cpu.lines["run"].x.tolist() == [5, 7]


def test_a_file_that_cannot_be_read_is_named(make_run):
    run = make_run(state="running")
    run.machine_path.mkdir()
    assert "can't be read" in words(open_page("live", run))


def test_only_new_rows_change_what_is_drawn(make_run):
    run = make_run()
    write(run, row(1))
    store = MachineStore(run)
    first = store.poll()
    assert store.poll() is first
    write(run, row(2))
    assert store.poll().version > first.version
    assert first.tables[""].size == 1, "an earlier poll doesn't change"
    run.machine_path.unlink()
    assert store.poll().tables == {}


def test_each_gpu_is_drawn_with_its_use_and_memory(make_run):
    run = make_run(state="running")
    used = {"gpu0_use_fraction": 0.5, "gpu0_memory_bytes": 2**30, "gpu11_use_fraction": 0.9}
    write(run, row(1), row(2, **used), row(3, **used, gpux_use_fraction=1))
    charts = {chart.title: chart for chart in boards(open_page("live", run))[1].charts}
    assert list(charts["GPU use"].lines) == ["GPU 0", "GPU 11"]
    assert charts["GPU use"].unit == "percent"
    assert charts["GPU use"].lines["GPU 11"].y.tolist() == [0.9, 0.9]
    assert charts["GPU memory in use"].lines["GPU 0"].y.tolist() == [2**30, 2**30]


def test_tasks_of_a_cluster_are_told_apart(make_run):
    run = make_run(state="running")
    write(run, row(1, process="chief:0", gpu0_use_fraction=0.5), row(2, process="chief:0"))
    write(
        run, row(1, process="worker:1", gpu0_use_fraction=0.25), row(2, process="worker:1"), task="worker-1"
    )
    charts = {chart.title: chart for chart in boards(open_page("live", run))[1].charts}
    assert list(charts["GPU use"].lines) == ["chief:0, GPU 0", "worker:1, GPU 0"]
