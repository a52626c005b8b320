"""What a process records of its machine. The driver of GPUs is played by a class: no GPU is needed."""

import json
import os
import re
import time
from types import SimpleNamespace

import pytest

from labkit.run_directory import RunDirectory, machine
from labkit.run_directory.disk import discard
from labkit.run_directory.machine import Gpus, machine_recorded, machine_rows_paths


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


# ---- GPUs -----------------------------------------------------------------------------------------------

OURS = 4711


class Driver:
    """Behaves like ``pynvml`` with four GPUs. ``users``: the processes on each, and their memory."""

    def __init__(self, users, refuses=()):
        self.users, self.refuses, self.asked = users, refuses, []

    def __getattr__(self, name):
        def ask(*given):
            self.asked.append(name)
            if name in self.refuses:
                raise RuntimeError("Not Supported")
            own = re.sub("([A-Z])", r"_\1", name).lower()  # nvmlDeviceGetCount: nvml_device_get_count
            return getattr(self, own)(*given)

        return ask

    def nvml_device_get_count(self):
        return len(self.users)

    def nvml_device_get_handle_by_index(self, index):
        return f"handle {index}"

    def nvml_device_get_minor_number(self, handle):
        return int(handle.split()[1]) + 4  # device files aren't numbered as the driver's GPUs are

    def nvml_device_get_compute_running_processes(self, handle):
        users = self.users[int(handle.split()[1])]
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in users]

    def nvml_device_get_utilization_rates(self, handle):
        return SimpleNamespace(gpu=10 + int(handle.split()[1]), memory=99)

    def nvml_device_get_memory_info(self, handle):
        return SimpleNamespace(total=16 * 2**30, used=2**30, free=15 * 2**30)


def nothing_opened() -> set[int]:
    return set()


def test_the_gpus_of_this_process_are_measured_and_no_others():
    driver = Driver([[(1, 5)], [(OURS, 300), (2, 7)], [], [(OURS, None)]])
    assert Gpus(driver, OURS, nothing_opened).row() == {
        "gpu1_use_fraction": 0.11,
        "gpu1_memory_bytes": 2**30,
        "gpu1_total_memory_bytes": 16 * 2**30,
        "gpu1_process_memory_bytes": 300,
        "gpu3_use_fraction": 0.13,
        "gpu3_memory_bytes": 2**30,
        "gpu3_total_memory_bytes": 16 * 2**30,
    }


def test_within_a_container_the_opened_device_files_tell_which():
    row = Gpus(Driver([[(900_001, 1)], [], []]), OURS, lambda: {5, 6}).row()
    assert {key.partition("_")[0] for key in row} == {"gpu1", "gpu2"}
    assert "gpu1_process_memory_bytes" not in row


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ("DeviceGetCount", set()),
        ("DeviceGetHandleByIndex", set()),
        ("DeviceGetComputeRunningProcesses", set()),
        (
            "DeviceGetUtilizationRates",
            {"gpu0_memory_bytes", "gpu0_total_memory_bytes", "gpu0_process_memory_bytes"},
        ),
    ],
)
def test_what_the_driver_does_not_tell_is_left_out(refused, left):
    assert Gpus(Driver([[(OURS, 1)]], ["nvml" + refused]), OURS, nothing_opened).row().keys() == left


def recorded(run: RunDirectory, gpu_library) -> list[dict]:
    before = len(rows(run.machine_path)) if run.machine_path.exists() else 0
    with machine_recorded(run, gpu_library=gpu_library):
        wait_for_rows(run.machine_path, before + 2)
    return rows(run.machine_path)[before:]


def test_the_rows_of_a_run_hold_its_gpus_beside_the_rest_once_it_uses_them(run):
    driver = Driver([[]])
    assert not [key for row in recorded(run, lambda: None) for key in row if key.startswith("gpu")]
    assert not [key for row in recorded(run, lambda: driver) for key in row if key.startswith("gpu")]
    driver.users[0].append((os.getpid(), 123))
    row = recorded(run, lambda: driver)[-1]
    assert row["gpu0_process_memory_bytes"] == 123 and row["memory_bytes"] > 0
