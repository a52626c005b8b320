"""What each process of a run takes of its machine, in ``machine.jsonl`` of the run directory.

``docs/run-directory.md`` describes the rows. A thread of the process writes one a second. GPUs are asked
through NVML, which comes with the driver and doesn't touch CUDA: it neither starts one nor takes its memory.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from labkit.run_directory.directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter

SECONDS_BETWEEN_ROWS = 1.0
MOST_SECONDS = 10.0  # between two rows of a long run
SHARE = 1e-3  # of the time since the start, for which a row stands in a long run

# Of process numbers on Linux: the one that the driver counts in (PROC_PID_INIT_INO).
FIRST_NAMESPACE = "pid:[4026531836]"
DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg")  # the second in the Windows Subsystem for Linux


def driver_library() -> Any:
    """Return the module ``pynvml``, ready to be asked; None where there is no driver or no such module."""
    if not any(map(os.path.exists, DRIVER_FILES)):
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a driver that isn't loaded, or of another version than its library
        return None
    return pynvml


@contextmanager
def machine_recorded(
    run: RunDirectory, task: str = "", *, chief: bool = True, gpu_library: Callable[[], Any] = driver_library
) -> Iterator[None]:
    """Record what this process takes of its machine while the block runs.

    Nothing that goes wrong in it ends the training: where the system tells nothing, or the file can't be
    written, there are no rows.

    Args:
        run: the run directory, which exists.
        task: name of this task of a cluster; empty for a single process.
        chief: whether this is the process that writes the run.
        gpu_library: returns ``pynvml``, or None where no GPU is to be asked.
    """
    over = threading.Event()
    path = run.machine_path if chief else run.cluster_path / "machine" / f"{task.replace(':', '-')}.jsonl"
    given = (path, task, over, gpu_library)
    thread = threading.Thread(target=_record, args=given, name="labkit-machine", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2.0)


def machine_rows_paths(run: RunDirectory) -> list[Path]:
    """Return the files of all processes, that of the chief first. They may not exist yet."""
    return [run.machine_path, *sorted((run.cluster_path / "machine").glob("*.jsonl"))]


def _record(path: Path, task: str, over: threading.Event, gpu_library: Callable[[], Any]) -> None:
    # A full disk, a system that hides its numbers: a run goes on without these rows, and without a traceback.
    with suppress(Exception):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(MetricsWriter(path)) as writer:
            started, meter = time.monotonic(), _Meter()
            gpus = Gpus(gpu_library(), os.getpid())
            while not over.wait(_pause(time.monotonic() - started)):
                writer.append([{"process": task, **meter.row(), **gpus.row()}])


def _pause(seconds: float) -> float:
    """Return the seconds to the next row, after ``seconds`` of recording."""
    return min(max(SECONDS_BETWEEN_ROWS, SHARE * seconds), MOST_SECONDS)


class _Meter:
    """Measures this process and its machine between two calls of ``row``."""

    def __init__(self) -> None:
        import psutil

        self._psutil, self._process = psutil, psutil.Process()
        self._cores = os.cpu_count() or 1
        self._before = self._counts()

    def row(self) -> dict[str, Any]:
        """Return the rates since the last call, and the memory now. What the system hides is left out."""
        now, before = self._counts(), self._before
        self._before = now
        seconds = max(now["time"] - before["time"], 1e-3)
        rates = {name: max(0.0, now[name] - before[name]) / seconds for name in now if name in before}
        memory = self._psutil.virtual_memory()
        row = {
            "wall_time": time.time(),
            "cores": self._cores,
            "cpu_cores": rates["cpu"],
            "machine_cpu_fraction": min(1.0, rates["machine_cpu"] / self._cores),
            "memory_bytes": self._process.memory_info().rss,
            "machine_memory_fraction": memory.percent / 100,
            "machine_memory_bytes": memory.total,
        }
        if "read" in rates:
            row["read_bytes_per_second"], row["written_bytes_per_second"] = rates["read"], rates["written"]
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}

    def _counts(self) -> dict[str, float]:
        """Return what grows with time: seconds, seconds of processor time, bytes."""
        used, machine = self._process.cpu_times(), self._psutil.cpu_times()
        # Linux counts the time of virtual machines in ``user`` and ``nice`` as well.
        other = sum(getattr(machine, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        counts = {
            "time": time.monotonic(),
            "cpu": used.user + used.system,
            "machine_cpu": sum(machine) - other,
        }
        try:
            done = self._process.io_counters()
            counts |= {"read": done.read_bytes, "written": done.write_bytes}
        except (AttributeError, self._psutil.Error, OSError):  # not on macOS; hidden in some containers
            pass
        return counts


# ---- GPUs -----------------------------------------------------------------------------------------------


def opened_in_container() -> set[int]:
    """Return the numbers of the device files that this process has open, within a container; else nothing."""
    try:
        if os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE:
            return set()
        files = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd")]
    except OSError:  # not on Linux; a file that was just closed
        return set()
    found = (re.fullmatch(r"/dev/nvidia(\d+)", file) for file in files)
    return {int(match[1]) for match in found if match}


class Gpus:
    """Measures the GPUs that a process uses. What the driver doesn't tell is left out.

    A process uses a GPU if the driver lists it there. Within a container the driver doesn't know its number;
    then those count that ``opened`` names.

    Args:
        library: ``pynvml`` or what behaves like it; None: there are no GPUs.
        process: the number of the process.
        opened: returns the numbers of the device files of the GPUs that the process has opened.
    """

    def __init__(
        self, library: Any, process: int, opened: Callable[[], set[int]] = opened_in_container
    ) -> None:
        self._library, self._process, self._opened = library, process, opened
        self._handles: list[Any] = []
        if library is not None:
            try:
                count = library.nvmlDeviceGetCount()
                self._handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            except Exception:
                self._handles = []

    def row(self) -> dict[str, float]:
        """Return the values of each GPU in use by their keys in ``machine.jsonl``."""
        if not self._handles:
            return {}
        listed = [self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or [] for handle in self._handles]
        used = [index for index, processes in enumerate(listed) if self._own(processes)]
        if not used and (opened := self._opened()):
            files = [self._ask("nvmlDeviceGetMinorNumber", handle) for handle in self._handles]
            used = [index for index, file in enumerate(files) if file in opened]
        row: dict[str, float] = {}
        for index in used:
            row |= self._values(index, listed[index])
        return row

    def _values(self, index: int, processes: list[Any]) -> dict[str, float]:
        handle, found = self._handles[index], {}
        if (rates := self._ask("nvmlDeviceGetUtilizationRates", handle)) is not None:
            found["use_fraction"] = rates.gpu / 100
        if (memory := self._ask("nvmlDeviceGetMemoryInfo", handle)) is not None:
            found["memory_bytes"], found["total_memory_bytes"] = memory.used, memory.total
        own = [one.usedGpuMemory for one in self._own(processes)]
        if own and None not in own:
            found["process_memory_bytes"] = sum(own)
        return {f"gpu{index}_{name}": value for name, value in found.items()}

    def _own(self, processes: list[Any]) -> list[Any]:
        return [one for one in processes if one.pid == self._process]

    def _ask(self, name: str, handle: Any) -> Any:
        try:
            return getattr(self._library, name)(handle)
        except Exception:  # not supported by this GPU, or a driver that is being renewed
            return None
