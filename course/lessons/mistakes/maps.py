"""Maps of important pixels, and a test of them: cover the pixels that a map names, and others by chance."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.network import gradient_map, occlusion_map

if TYPE_CHECKING:
    from labkit.analysis.network import Classifier


def fall_without(
    predict: Callable[[NDArray[np.uint8]], NDArray[Any]],
    images: NDArray[np.uint8],
    labels: NDArray[Any],
    maps: NDArray[np.float64],
    share: float = 0.1,
) -> NDArray[np.float64]:
    """Return how much the probability of the label falls without the most important pixels.

    The pixels get the image's mean colour (the deletion test of Petsiuk et al., 2018).

    Args:
        predict: returns probabilities [n, classes] for images.
        images: uint8 [n, height, width, channels].
        labels: the class whose probability is followed, int [n].
        maps: importance of each pixel, float [n, height, width].
        share: of the pixels to cover.

    Returns float64 [n].
    """
    flat = maps.reshape(len(maps), -1)
    chosen = np.zeros(flat.shape, bool)
    most = np.argsort(-flat, axis=1, kind="stable")[:, : round(share * flat.shape[1])]
    np.put_along_axis(chosen, most, True, axis=1)
    mean = images.mean(axis=(1, 2), keepdims=True).round().astype(np.uint8)
    without = np.where(chosen.reshape(maps.shape)[..., None], mean, images)
    rows = np.arange(len(images))
    return predict(images)[rows, labels].astype(np.float64) - predict(without)[rows, labels]


def maps_of(
    network: "Classifier", images: NDArray[np.uint8], labels: NDArray[Any], stride: int | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return the gradient and the occlusion map of each image, by name, float64 [n, height, width].

    Args:
        network: the trained network.
        images: uint8 [n, height, width, channels].
        labels: the class that each map is about, int [n].
        stride: pixels between two positions of the covering square; None: as ``occlusion_map`` has it.
    """
    pairs = list(zip(images, labels, strict=True))
    gradients = [gradient_map(network, image, label) for image, label in pairs]
    occlusions = [occlusion_map(network.probabilities, image, label, stride=stride) for image, label in pairs]
    return {"gradient": np.array(gradients), "occlusion": np.array(occlusions)}
