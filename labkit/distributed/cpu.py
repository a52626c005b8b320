"""The features of this machine's CPU."""

from pathlib import Path

__all__ = ["BFLOAT16_INSTRUCTIONS", "bfloat16_instructions", "cpu_flags"]

BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def cpu_flags() -> set[str] | None:
    """Return the CPU's flags from /proc/cpuinfo; None on systems without it."""
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return None


def bfloat16_instructions() -> list[str]:
    """Return the bfloat16 instruction sets of the CPU; an empty list where the system does not list them."""
    return [name for name in BFLOAT16_INSTRUCTIONS if name in (cpu_flags() or ())]
