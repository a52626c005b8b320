"""What this machine's processor says of itself."""

from pathlib import Path

__all__ = ["BFLOAT16_INSTRUCTIONS", "bfloat16_instructions", "cpu_flags"]

BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def cpu_flags() -> set[str] | None:
    """Return the processor's flags as Linux lists them; None on a system that doesn't."""
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return None


def bfloat16_instructions() -> list[str]:
    """Return which instruction sets for bfloat16 the processor has, as far as the system tells."""
    return [name for name in BFLOAT16_INSTRUCTIONS if name in (cpu_flags() or ())]
