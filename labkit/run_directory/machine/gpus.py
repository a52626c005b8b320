"""What a process takes of NVIDIA's GPUs, as their driver tells it through NVML.

NVML comes with the driver and doesn't touch CUDA: asking it neither starts a GPU nor takes memory of it.
"""

import os
import re
from collections.abc import Callable
from typing import Any

__all__ = ["Gpus", "driver_library"]

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
