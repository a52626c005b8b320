"""What can be told of this machine's CPU and GPUs without TensorFlow."""

import sys
from pathlib import Path

from labkit.errors import InputError

__all__ = [
    "BFLOAT16_INSTRUCTIONS",
    "bfloat16_instructions",
    "cpu_flags",
    "has_no_gpu",
    "missing_gpus_error",
]

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


# Device files of every GPU that TensorFlow for Linux can use: NVIDIA's drivers for servers and for Tegra, the
# Windows Subsystem for Linux, AMD's ROCm.
_GPU_FILES = ("nvidia*", "nvhost*", "nvgpu*", "dxg", "kfd")


def has_no_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether TensorFlow surely finds no GPU here. False where only TensorFlow can tell."""
    return sys.platform == "linux" and not any(next(devices.glob(name), None) for name in _GPU_FILES)


def missing_gpus_error(wanted: int, found: int) -> InputError:
    """Return the error for ``--num-gpus`` ``wanted`` on a machine where TensorFlow finds fewer."""
    return InputError(
        f"--num-gpus is {wanted}, but TensorFlow finds {found} here (see labkit doctor); "
        f"allowed: {f'0 to {found}' if found else '0'}, or any number with --simulate-missing-gpus"
    )
