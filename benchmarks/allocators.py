"""The allocator settings with which every side of a comparison is measured."""

import os

__all__ = ["ALLOCATORS", "environment_with"]

# By default glibc returns big buffers to the kernel and requests them again for the next operation, with a
# page fault for each 4 KiB. "keeping" makes it keep them. Neither jemalloc nor tcmalloc is on PyPI.
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "keeping": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "100000000000",
        "MALLOC_TOP_PAD_": "268435456",
    },
}
_OTHERS = ("TF_CPU_ALLOCATOR_USE_BFC",)


def environment_with(allocator: str) -> dict[str, str]:
    """Return this process's environment with the variables of ``allocator`` and of no other setting."""
    known = {name for variables in ALLOCATORS.values() for name in variables} | set(_OTHERS)
    kept = {name: value for name, value in os.environ.items() if name not in known}
    return kept | ALLOCATORS[allocator]
