"""Check what a question contains, before a network sees it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.ask.wire import Message
from labkit.data.manifest import Manifest
from labkit.errors import InputError

__all__ = ["image_of", "images_of", "labels_of", "number_of", "split_of"]

MAX_IMAGES = 512


def images_of(
    question: Message, manifest: Manifest, other_shape: tuple[int, int, int] | None = None
) -> NDArray[np.uint8]:
    """Return the question's images, uint8 [n, height, width, channels] as stored, or of ``other_shape``.

    Raises InputError for others.
    """
    images = question.arrays.get("images")
    if images is None:
        raise InputError("the question has no images")
    if images.dtype != np.uint8 or images.shape[1:] not in (manifest.image_shape, other_shape):
        wanted = ", ".join(map(str, manifest.image_shape))
        raise InputError(
            f"images are {images.dtype} {list(images.shape)}; allowed: uint8 [n, {wanted}], as the network's"
        )
    if not 1 <= len(images) <= MAX_IMAGES:
        raise InputError(f"there are {len(images)} images; allowed: 1 to {MAX_IMAGES}")
    return images


def image_of(question: Message, manifest: Manifest) -> NDArray[np.uint8]:
    """Return the question's only image, uint8 [height, width, channels]."""
    images = images_of(question, manifest)
    if len(images) != 1:
        raise InputError(f"there are {len(images)} images; allowed: 1")
    return images[0]


def labels_of(question: Message, manifest: Manifest, count: int) -> NDArray[np.int32] | None:
    """Return the labels, int32 [n] or zeros and ones [n, classes]; None if there are none."""
    labels = question.arrays.get("labels")
    if labels is None:
        return None
    wanted = (count, *manifest.target_shape)
    limit = 2 if manifest.multi_label else manifest.num_classes
    whole = np.issubdtype(labels.dtype, np.integer)
    if not whole or labels.shape != wanted or labels.min() < 0 or labels.max() >= limit:
        raise InputError(
            f"labels are {labels.dtype} {list(labels.shape)}; allowed: integers {list(wanted)} from 0 to "
            f"{limit - 1}"
        )
    return labels.astype(np.int32)


def number_of(content: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Return a whole number of the question from ``low`` to ``high``. Raises InputError for anything else."""
    value = content.get(name)
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{name} is {value!r}; allowed: a whole number from {low:,} to {high:,}")
    return value


def split_of(content: Mapping[str, Any], manifest: Manifest) -> str:
    """Return the split of the question. Raises InputError if the data set has none of this name."""
    value = content.get("split")
    if value not in manifest.splits:
        raise InputError(f"split is {value!r}; allowed: {', '.join(manifest.splits)}")
    return str(value)
