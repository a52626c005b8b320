"""Decisions on the input that need no TensorFlow: whose share of a batch, and by which path."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from labkit.data.manifest import Manifest
from labkit.errors import InputError

__all__ = ["INPUT_PATHS", "WHOLE_BATCH", "InputShare", "choose_input_path"]

INPUT_PATHS = ("auto", "memory", "streaming")
_MEMORY_SHARE = 0.25
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class InputShare:
    """The slice of every global batch that this process feeds.

    Args:
        num_replicas: replicas in the whole job; they divide the global batch.
        first_replica: the first one that lives in this process.
        num_local_replicas: how many do.
    """

    num_replicas: int = 1
    first_replica: int = 0
    num_local_replicas: int = 1

    def __post_init__(self) -> None:
        last = self.first_replica + self.num_local_replicas
        if (
            self.num_replicas < 1
            or self.first_replica < 0
            or self.num_local_replicas < 1
            or last > self.num_replicas
        ):
            raise InputError(
                f"replicas {self.first_replica} to {last - 1} of {self.num_replicas} is no share of a batch; "
                "give at least one local replica, numbered below the number of replicas"
            )

    def replica_batch_size(self, global_batch_size: int) -> int:
        """Return one replica's examples per step.

        Raises:
            InputError: the batch is empty or the replicas do not divide it.
        """
        if global_batch_size < 1 or global_batch_size % self.num_replicas:
            raise InputError(
                f"batch size {global_batch_size} cannot be shared equally by {self.num_replicas} replicas; "
                f"choose a positive multiple of {self.num_replicas}"
            )
        return global_batch_size // self.num_replicas


WHOLE_BATCH = InputShare()


def choose_input_path(manifest: Manifest, input_path: str = "auto") -> str:
    """Resolve ``auto``: ``memory`` where the training images take at most a quarter of the free memory.

    Free memory is what the system reports as available, and no more than the container's limit.

    Raises:
        InputError: `input_path` is not one of ``auto``, ``memory``, ``streaming``.
    """
    if input_path not in INPUT_PATHS:
        raise InputError(f"input path {input_path!r} is unknown; choose one of {', '.join(INPUT_PATHS)}")
    if input_path != "auto":
        return input_path
    needed = manifest.count("train") * int(np.prod(manifest.image_shape))
    return "memory" if needed <= _MEMORY_SHARE * _available_memory() else "streaming"


def _available_memory() -> int:
    available = psutil.virtual_memory().available
    for name in _CGROUP_LIMITS:
        try:
            available = min(available, int(Path(name).read_text()))
        except (OSError, ValueError):  # no such hierarchy, or "max"
            continue
    return available
