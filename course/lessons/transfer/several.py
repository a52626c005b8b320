"""Images with no, one or several objects, and what softmax and sigmoid say about them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.data import shapes
from labkit.figures.style import OKABE_ITO, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES = ("disc", "frame", "cross", "bars")


def drawn(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Draw images with 0 to 3 different shapes in turn.

    Returns images uint8 [count, 32, 32, 3], and targets int32 [count, 4], a one for each of ``SHAPES``.
    """
    generator = np.random.default_rng((seed, 0x736576))
    ranks = np.argsort(np.argsort(generator.random((count, len(SHAPES))), axis=1), axis=1)
    targets = (ranks < (np.arange(count) % 4)[:, None]).astype(np.int32)
    every = np.zeros((count, len(shapes.CLASSES)), np.int32)
    every[:, [shapes.CLASSES.index(name) for name in SHAPES]] = targets
    images, _ = shapes.draw(every, generator)
    return images, targets


def draw_probabilities(
    images: NDArray[np.uint8],
    targets: NDArray[Any],
    probabilities: Mapping[str, NDArray[np.float64]],
    classes: tuple[str, ...],
) -> "Figure":
    """Draw a few images, and below each the probability of each class by each output.

    Args:
        images: uint8 [n, height, width, 3].
        targets: zeros and ones [n, classes].
        probabilities: by the name of the output, [n, classes].
        classes: their names.
    """
    places, names = np.arange(len(classes)), list(probabilities)
    alt = f"Images with {targets.sum(axis=1).tolist()} objects and their probabilities"
    with drawing(9.5, 4.6, alt) as figure:
        axes = figure.subplots(2, len(images), height_ratios=(1, 1.5), sharey="row")
        for column, image in enumerate(images):
            above, below = axes[:, column]
            above.imshow(image, interpolation="nearest")
            shown = [name for name, has in zip(classes, targets[column], strict=True) if has]
            above.set_title(", ".join(shown) or "none", loc="center", fontweight="normal", fontsize=8)
            above.set(xticks=[], yticks=[])
            for number, name in enumerate(names):
                offset = 0.2 * (2 * number - 1)
                color = OKABE_ITO[number]
                below.barh(places + offset, probabilities[name][column], height=0.4, color=color, label=name)
            below.set_yticks(places, classes)
            below.set(xlim=(0, 1), xlabel="probability")
            for place in np.flatnonzero(targets[column]):
                below.axhspan(place - 0.5, place + 0.5, color="#e5e7eb", zorder=0)
        axes[1, 0].invert_yaxis()
        axes[1, 0].legend(loc="lower right")
    return figure
