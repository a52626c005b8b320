"""What each process of a run takes of its machine, in ``machine.jsonl`` of the run directory.

``docs/run-directory.md`` describes the rows. A thread of the process writes one a second.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from labkit.run_directory.directory import RunDirectory
from labkit.run_directory.machine.gpus import Gpus, driver_library
from labkit.run_directory.metrics import MetricsWriter

__all__ = ["machine_recorded", "machine_rows_paths"]

SECONDS_BETWEEN_ROWS = 1.0
MOST_SECONDS = 10.0  # between two rows of a long run
SHARE = 1e-3  # of the time since the start, for which a row stands in a long run


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
    path = run.machine_path if chief else _path_of(run, task)
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


def _path_of(run: RunDirectory, task: str) -> Path:
    return run.cluster_path / "machine" / f"{task.replace(':', '-')}.jsonl"


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
        counts = {
            "time": time.monotonic(),
            "cpu": used.user + used.system,
            "machine_cpu": sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - _guests(machine),
        }
        try:
            done = self._process.io_counters()
            counts |= {"read": done.read_bytes, "written": done.write_bytes}
        except (AttributeError, self._psutil.Error, OSError):  # not on macOS; hidden in some containers
            pass
        return counts


def _guests(times: Any) -> float:
    # Linux counts the time of virtual machines in ``user`` and ``nice`` as well.
    return float(getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0))
