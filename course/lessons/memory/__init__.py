"""What lesson 11 measures: the peak memory of a process, and how far predictions were from measurements."""

import ctypes
import resource
from contextlib import suppress
from pathlib import Path

import psutil

from labkit.startup.process import MAXRSS_BYTES, peak_memory_bytes

M_MMAP_THRESHOLD = -3  # of mallopt(3)


def peak_bytes() -> int:
    """Return the largest memory that this process has had until now: its peak resident set, in bytes."""
    # On Linux, ru_maxrss can be that of the process which started this one (getrusage(2)).
    return peak_memory_bytes() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES


def begin_peak() -> int:
    """Forget the peak so far, if the system can (Linux), and return the memory in use now, in bytes.

    From now on, glibc returns freed arrays to the system at once, so that a peak counts what is held. By
    itself it does so for large ones only, and what it calls large grows while a process runs (mallopt(3)).
    """
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5)
    return int(psutil.Process().memory_info().rss)
