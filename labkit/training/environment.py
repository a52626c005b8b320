"""The environment that a run records (``environment.json``)."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

import tensorflow as tf

from labkit.distributed.tf_compat import uses_onednn
from labkit.home import checkout
from labkit.plurals import without_secrets
from labkit.training.plan import TrainingPlan
from labkit.version import VERSION

__all__ = ["describe_environment"]

PACKAGES = ("tensorflow", "keras", "numpy")


def describe_environment(plan: TrainingPlan) -> dict[str, Any]:
    """Return versions, devices, threads, kernels, command, git commit and data set of a run."""
    config, manifest, devices = plan.config, plan.manifest, plan.devices
    return {
        "versions": {"python": platform.python_version(), "labkit": VERSION}
        | {name: _version(name) for name in PACKAGES},
        "devices": list(devices.names),
        "device_kind": devices.kind,
        "description": devices.describe(),
        "replicas": devices.num_replicas,
        "simulated": devices.simulated,
        "banner": devices.banner,
        "variable_strategy": config.distribution.variable_strategy,
        "threads": {
            "intra": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter": tf.config.threading.get_inter_op_parallelism_threads(),
            "cores": os.cpu_count(),
        },
        "onednn": uses_onednn(),
        "platform": platform.platform(),
        "command": without_secrets(sys.argv),
        "git_commit": _git_commit(),
        "data": {
            "dataset": manifest.dataset,
            "asked_for": plan.asked_for,
            "directory": str(manifest.directory),
            "checksum": manifest.checksum,
            "classes": list(manifest.classes),
            "image_shape": list(manifest.image_shape),
            "channel_mean": list(manifest.channel_mean),
            "channel_std": list(manifest.channel_std),
            "multi_label": manifest.multi_label,
            "counts": {name: manifest.count(name) for name in manifest.splits},
            "source": manifest.source,
            "chosen_because": plan.data_note,
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return labkit's git commit, with ``-dirty`` if files differ from it; None outside a checkout."""
    folder = checkout()  # an installed labkit may lie in the repository of somebody else's project
    if folder is None:
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
