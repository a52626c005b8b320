"""Small grey images of the ten digits, drawn from a font: a data set that trains within a second."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["SIZE", "digits"]

SIZE = 12  # pixels, height and width
FONT_HEIGHT, FONT_WIDTH = 7, 5
FONT = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def digits(
    count: int, *, seed: int = 0, noise: float = 0.15
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw ``count`` digits, each at one of four places, with its own brightness and noise.

    Args:
        seed: the same seed gives the same images.
        noise: standard deviation of the noise of a pixel; the strokes are 0.6 to 1.

    Returns images float32 [count, 12, 12], standardized (mean 0, standard deviation 1 over all pixels), and
    labels int64 [count].
    """
    random = np.random.default_rng(seed)
    labels = random.integers(len(FONT), size=count)
    glyphs = np.array([[[int(c) for c in row] for row in digit.split()] for digit in FONT], np.float32)
    images = np.zeros((count, SIZE, SIZE), np.float32)
    tops, lefts = random.integers(2, 4, size=count), random.integers(3, 5, size=count)
    strokes = glyphs[labels] * random.uniform(0.6, 1, size=(count, 1, 1))
    for image, stroke, top, left in zip(images, strokes, tops, lefts, strict=True):
        image[top : top + FONT_HEIGHT, left : left + FONT_WIDTH] = stroke
    images += random.normal(0, noise, images.shape)
    return ((images - images.mean()) / images.std()).astype(np.float32), labels
