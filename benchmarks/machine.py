"""Hardware, versions and environment of a measurement."""

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

__all__ = ["describe_machine", "load_average"]

PACKAGES = ("labkit", "tensorflow", "keras", "numpy", "tensorboard", "torch")
INSTRUCTION_SETS = re.compile(r"sse4_2|fma|avx.*|amx.*|asimd.*|sve.*")
# Variables that affect TensorFlow's speed or memory allocation (TF_CLI_ belongs to Terraform).
ENVIRONMENT = re.compile(r"(TF(?!_CLI)|XLA|MALLOC|OMP|KMP|ONEDNN|DNNL|CUDA|KERAS)_|LD_PRELOAD$")


def describe_machine() -> dict[str, Any]:
    """Return ``hardware``, ``versions`` and the ``environment`` variables that matter for speed."""
    cpu = _cpu_information()
    return {
        "hardware": {
            "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
            "cpu_family_model_stepping": [cpu.get(key) for key in ("cpu family", "model", "stepping")],
            "instruction_sets": [
                flag for flag in cpu.get("flags", "").split() if INSTRUCTION_SETS.match(flag)
            ],
            "logical_cores": psutil.cpu_count(),
            "physical_cores": psutil.cpu_count(logical=False),
            "cores_allowed": _cores_allowed(),
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "environment": {name: value for name, value in sorted(os.environ.items()) if ENVIRONMENT.match(name)},
    }


def load_average() -> list[float] | None:
    """Return the load average over 1, 5 and 15 minutes; None on systems without one."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return None


def _cpu_information() -> dict[str, str]:
    """Return the first CPU's entries of /proc/cpuinfo; empty without that file."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cores_allowed() -> int | None:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
