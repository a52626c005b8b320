"""Input decisions that need no TensorFlow: share of a batch, augmentation settings, and the input path."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from labkit.config import DataConfig
from labkit.data.manifest import Manifest
from labkit.errors import InputError

PADDING = 4
LARGEST_PADDED = 64  # side in pixels; larger images are not padded by four pixels, but cropped and resized
# Of the area. ImageNet's 0.08 is for 90 passes over a million photographs; docs/decisions.md has more.
SMALLEST_SHARE = 0.25
INPUT_PATHS = ("auto", "memory", "streaming")
_MEMORY_SHARE = 0.25
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class InputShare:
    """The slice of every global batch that this process feeds.

    Args:
        num_replicas: number of replicas in the whole job; must divide the global batch size.
        first_replica: index of this process's first replica.
        num_local_replicas: number of this process's replicas.

    Raises:
        InputError: the replicas are not a range within the job.
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
                f"replicas {self.first_replica} to {last - 1} of {self.num_replicas} can't share a batch; "
                "give at least one local replica, with indices below the number of replicas"
            )

    def replica_batch_size(self, global_batch_size: int) -> int:
        """Return the number of examples per replica and step.

        Raises:
            InputError: the batch size is not a positive multiple of the number of replicas.
        """
        if global_batch_size < 1 or global_batch_size % self.num_replicas:
            raise InputError(
                f"batch size {global_batch_size} cannot be split equally among {self.num_replicas} replicas; "
                f"choose a positive multiple of {self.num_replicas}"
            )
        return global_batch_size // self.num_replicas


WHOLE_BATCH = InputShare()


@dataclass(frozen=True)
class Augmentation:
    """Settings of random rotation, crop, flip, TrivialAugment, change of colors and cutout, in this order.

    Args:
        crop_padding: pixels added on each side before the crop.
        crop_padding_mode: ``constant`` (black pixels) or ``reflect`` (the image mirrored at its border).
        flip: ``random``, ``none`` or ``alternating``. With ``alternating``, epoch 0 is random and the flip
            changes in each later epoch, so any two consecutive epochs show both sides of every image (Jordan,
            "94% on CIFAR-10 in 3.29 Seconds", 2024, arXiv:2404.00498, section 3.6).
        cutout_size: side in pixels of a square that is covered in each image; 0 covers nothing.
        random_resized_crop: the smallest share of the image's area that a crop keeps, which is then resized
            to the whole image's size; 0 pads and crops instead.
        crop_size: side in pixels of the crop; None: the crop has the image's own size.
        brightness: largest number of grey levels that is added to all pixels or taken away.
        contrast: largest change of the factor of each pixel's distance from its image's mean color.
        own: ``FILE.py:NAME`` of a function of somebody's own that comes last; None: none.
        rotation: largest angle in degrees by which an image is turned to either side.
        trivial: whether TrivialAugment changes each image.
    """

    crop_padding: int = PADDING
    crop_padding_mode: str = "constant"
    flip: str = "random"
    cutout_size: int = 0
    random_resized_crop: float = 0.0
    crop_size: int | None = None
    brightness: float = 0.0
    contrast: float = 0.0
    own: str | None = None
    rotation: float = 0.0
    trivial: bool = False

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """Return how many rows, and how many columns, a crop of an image of this size can begin at."""
        top, left = (side + 2 * self.crop_padding - (self.crop_size or side) + 1 for side in (height, width))
        return top, left


def augmentation_of(data: DataConfig) -> Augmentation | None:
    """Return the settings of a run's augmentation; None if it trains on images as they are."""
    if not data.use_distortion_for_training:
        return None if data.augment is None else Augmentation(crop_padding=0, flip="none", own=data.augment)
    return Augmentation(
        data.crop_padding,
        data.crop_padding_mode,
        data.flip,
        data.cutout_size,
        data.random_resized_crop or 0.0,  # None: a run recorded before there was this option
        data.crop_size,
        data.brightness,
        data.contrast,
        data.augment,
        data.random_rotation,
        data.trivial_augment,
    )


def resolved_crop(data: DataConfig, image_shape: tuple[int, int, int]) -> float:
    """Return ``random_resized_crop``; where it is unset, the value for images of this shape."""
    if data.random_resized_crop is not None:
        return data.random_resized_crop
    large = min(image_shape[:2]) > LARGEST_PADDED and data.crop_size is None
    return SMALLEST_SHARE if large and data.use_distortion_for_training else 0.0


def choose_input_path(manifest: Manifest, input_path: str = "auto") -> str:
    """Resolve ``auto``: to ``memory`` if the training images need at most a quarter of the free memory.

    Free memory is the memory that the system reports as available, limited by the container's limit.

    Raises:
        InputError: `input_path` is not one of ``auto``, ``memory``, ``streaming``.
    """
    if input_path not in INPUT_PATHS:
        raise InputError(f"input path {input_path!r} is unknown; choose one of {', '.join(INPUT_PATHS)}")
    if input_path != "auto":
        return input_path
    needed = manifest.count("train") * int(np.prod(manifest.image_shape))
    return "memory" if needed <= _MEMORY_SHARE * available_memory() else "streaming"


def available_memory() -> int:
    """Return the bytes of memory that this process may still take, by the system and its container."""
    available = psutil.virtual_memory().available
    for name in _CGROUP_LIMITS:
        try:
            available = min(available, int(Path(name).read_text()))
        except (OSError, ValueError):  # this cgroup version is not in use, or the limit is "max"
            continue
    return available
