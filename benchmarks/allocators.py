"""Settings of the memory allocator that every side of a comparison is measured with."""

import os

from labkit.allocator import CHOICE, KEEPING

__all__ = ["ALLOCATORS", "environment_with"]

# glibc gives big buffers back to the kernel and takes them anew for the next operation, a page fault for each
# 4 KiB. "keeping" is told to keep them. Neither jemalloc nor tcmalloc is a package of PyPI.
ALLOCATORS: dict[str, dict[str, str]] = {"default": {CHOICE: "default"}, "keeping": KEEPING}
_OTHERS = ("TF_CPU_ALLOCATOR_USE_BFC",)


def environment_with(allocator: str) -> dict[str, str]:
    """Return this process's environment with ``allocator`` in force, and no other that is known here."""
    known = {name for variables in ALLOCATORS.values() for name in variables} | set(_OTHERS)
    kept = {name: value for name, value in os.environ.items() if name not in known}
    return kept | ALLOCATORS[allocator]
