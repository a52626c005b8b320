"""What a run should remember of where it came from (``environment.json``)."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import tensorflow as tf

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.distributed.devices import DevicePlan

__all__ = ["describe_environment"]

PACKAGES = ("labkit", "tensorflow", "keras", "numpy")


def describe_environment(
    config: Config, manifest: Manifest, plan: DevicePlan, data_note: str, asked_for: str
) -> dict[str, Any]:
    """Return versions, devices, threads, command, git commit and data set.

    Args:
        data_note: the line that said which data set was chosen, and why.
        asked_for: the data set as the user named it, ``auto`` perhaps.
    """
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "devices": list(plan.devices),
        "device_kind": plan.kind,
        "description": plan.describe(),
        "replicas": plan.num_replicas,
        "simulated": plan.simulated,
        "banner": plan.banner,
        "variable_strategy": config.distribution.variable_strategy,
        "threads": {
            "intra": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter": tf.config.threading.get_inter_op_parallelism_threads(),
            "cores": os.cpu_count(),
        },
        "platform": platform.platform(),
        "command": sys.argv,
        "git_commit": _git_commit(),
        "data": {
            "dataset": manifest.dataset,
            "asked_for": asked_for,
            "directory": str(manifest.directory),
            "checksum": manifest.checksum,
            "classes": list(manifest.classes),
            "image_shape": list(manifest.image_shape),
            "counts": {name: manifest.count(name) for name in manifest.splits},
            "source": manifest.source,
            "chosen_because": data_note,
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit of labkit's checkout, ``-dirty`` where files differ; None outside of a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
