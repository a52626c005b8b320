"""A map of important pixels, laid over its image."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["overlay"]

# Orange and blue: readers who confuse red and green can tell them apart.
RAISES, LOWERS = np.array([255.0, 120.0, 0.0]), np.array([0.0, 110.0, 255.0])
FAINT = 0.55  # of the image's contrast, so that the colours stand out
STRONGEST = 0.85  # opacity of the colour


def overlay(image: NDArray[np.uint8], values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the image in faint grey, orange where ``values`` are positive and blue where they are negative.

    The opacity grows with the value up to the 99th percentile of its amount.

    Args:
        image: uint8 [height, width, 1 or 3].
        values: [height, width].

    Returns uint8 [height, width, 3].
    """
    grey = 128 + FAINT * (image.mean(axis=2, keepdims=True) - 128)
    values = np.nan_to_num(np.asarray(values, np.float64), posinf=0.0, neginf=0.0)
    limit = np.quantile(np.abs(values), 0.99) or np.abs(values).max()
    share = STRONGEST * np.clip(np.abs(values) / limit, 0, 1)[..., None] if limit else np.zeros_like(grey)
    colour = np.where((values >= 0)[..., None], RAISES, LOWERS)
    return np.rint(grey * (1 - share) + colour * share).clip(0, 255).astype(np.uint8)
