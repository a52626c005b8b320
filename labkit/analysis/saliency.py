"""Which pixels a prediction depends on: occlusion and input gradients."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from labkit.analysis.network import Network

__all__ = ["covered", "gradient_map", "occlusion_map", "patch_positions"]

Images = NDArray[np.uint8]
Predict = Callable[[Images], NDArray[Any]]


def patch_positions(length: int, patch: int, stride: int) -> NDArray[np.intp]:
    """Return where patches begin along a side of ``length`` pixels; the last one ends at the edge."""
    last = length - patch
    return np.unique(np.append(np.arange(0, last + 1, stride), last))


def covered(image: Images, patch: int, stride: int = 2) -> tuple[Images, NDArray[np.bool_]]:
    """Return copies of an image, each with one square covered by the image's mean colour.

    Args:
        image: uint8 [height, width, channels].
        patch: side of the square, in pixels; at most the image's.
        stride: pixels between two positions.

    Returns images uint8 [positions, height, width, channels], row by row, and the covered pixels, bool
    [positions, height, width].
    """
    height, width = image.shape[:2]
    mean = image.mean(axis=(0, 1)).round().astype(np.uint8)
    corners = [
        (top, left)
        for top in patch_positions(height, patch, stride)
        for left in patch_positions(width, patch, stride)
    ]
    masks = np.zeros((len(corners), height, width), bool)
    for mask, (top, left) in zip(masks, corners, strict=True):
        mask[top : top + patch, left : left + patch] = True
    return np.where(masks[..., None], mean, image), masks


def occlusion_map(
    predict: Predict, image: Images, label: int, patch: int = 6, stride: int = 2
) -> NDArray[np.float64]:
    """Return how much the probability of ``label`` falls where a pixel is covered (Zeiler & Fergus, 2014).

    Args:
        predict: returns probabilities [n, classes] for images uint8 [n, height, width, channels].
        image: uint8 [height, width, channels].
        label: the number of a class.
        patch: side of the square that covers a part of the image, in pixels.
        stride: pixels between two positions of the square.

    Returns float64 [height, width]: the mean fall over all squares that cover the pixel. Negative where the
    probability rises.
    """
    images, masks = covered(image, patch, stride)
    probabilities = predict(np.concatenate([image[None], images]))[:, label].astype(np.float64)
    falls = probabilities[0] - probabilities[1:]
    return np.tensordot(falls, masks, 1) / masks.sum(axis=0)


def gradient_map(network: "Network", image: Images, label: int) -> NDArray[np.float64]:
    """Return how strongly the logit of ``label`` reacts to each pixel (Simonyan et al., 2014).

    Args:
        network: the trained network.
        image: uint8 [height, width, channels].
        label: the number of a class.

    Returns float64 [height, width]: the largest absolute derivative over the channels, for standardized
    pixels.
    """
    import tensorflow as tf

    pixels = network.standardize(image[None])
    with tf.GradientTape() as tape:
        tape.watch(pixels)
        logit = network.model(pixels, training=False)[0, label]
    return np.abs(tape.gradient(logit, pixels).numpy()[0]).max(axis=-1).astype(np.float64)
