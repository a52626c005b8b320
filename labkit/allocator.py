"""The C library's memory allocator, told to keep what it has: by starting the command anew, once."""

import os
import platform
import re
import sys
from collections.abc import Mapping, MutableMapping

from labkit.errors import InputError

__all__ = ["CHOICE", "KEEPING", "choose", "glibc_is_set", "keep_memory", "preloaded_allocator"]

# What makes glibc keep big buffers instead of giving them back to the kernel after each operation and taking
# them anew for the next, a page fault for every 4 KiB: no mmap for them, no trimming, room ahead. It reads
# these at the start of a process alone (mallopt(3)).
KEEPING = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
CHOICE = "LABKIT_ALLOCATOR"  # an environment variable: keeping (the default) or default


def keep_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Start this command anew with an allocator that keeps its memory, where that changes anything.

    The process stays the same one, number and parent and open files; it must not have begun any work. It
    happens once, because the new one finds the variables set. Nothing happens where somebody has already
    decided: with ``LABKIT_ALLOCATOR=default``, another allocator, or any ``MALLOC_`` variable.
    """
    if choose(environment) != "keeping" or glibc_is_set(environment):
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, **KEEPING})


def choose(environment: Mapping[str, str]) -> str:
    """Return ``keeping`` where glibc is the allocator and was left to labkit; else ``default``.

    Raises InputError where the variable says neither.
    """
    choice = environment.get(CHOICE) or "keeping"
    if choice not in ("keeping", "default"):
        raise InputError(f"{CHOICE} is {choice!r}; allowed: keeping, default; or unset it")
    if choice == "default" or preloaded_allocator(environment):
        return "default"
    return "keeping" if platform.libc_ver()[0] == "glibc" else "default"


def glibc_is_set(environment: Mapping[str, str]) -> bool:
    """Return whether somebody has told glibc's allocator anything."""
    return any(name.startswith("MALLOC_") for name in environment)


def preloaded_allocator(environment: Mapping[str, str]) -> str | None:
    """Return the name of an allocator that takes glibc's place, None where there is none."""
    if environment.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true"):
        return "TensorFlow's own (TF_CPU_ALLOCATOR_USE_BFC)"
    found = re.search(r"jemalloc|tcmalloc|mimalloc", environment.get("LD_PRELOAD", ""))
    return f"{found[0]} (LD_PRELOAD)" if found else None
