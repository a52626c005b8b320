"""Weights that labkit's networks and their PyTorch twins both make from NumPy, so that no file holds them.

A layer's weights depend on its kind, on its number among the layers of that kind, and on their shapes, which
are Keras's: kernels [height, width, in, out] or [in, out].
"""

import math
from collections.abc import Mapping

import numpy as np

__all__ = ["KINDS", "batch", "layer_weights", "sampled"]

KINDS = ("convolution", "norm", "dense")


def layer_weights(kind: str, number: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the weights of layer ``number`` of its kind, float32, by the names in ``shapes``."""
    random = np.random.default_rng([KINDS.index(kind), number])
    made = {}
    for name, shape in sorted(shapes.items()):
        if name == "kernel":
            values = random.normal(0.0, math.sqrt(2 / math.prod(shape[:-1])), shape)
        elif name in ("gamma", "moving_variance"):
            values = random.uniform(0.5, 1.5, shape)
        else:
            values = random.uniform(-0.3, 0.3, shape)
        made[name] = values.astype(np.float32)
    return made


def batch(number: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images float32 [size, 32, 32, 3] and labels int32 [size] of ten classes."""
    random = np.random.default_rng([len(KINDS), number])
    images = random.normal(size=(size, 32, 32, 3)).astype(np.float32)
    return images, random.integers(0, 10, size).astype(np.int32)


def sampled(values: np.ndarray) -> np.ndarray:
    """Return 100 of the values, or all of fewer, the same ones for the same shape."""
    flat = values.ravel()
    return np.random.default_rng(0).permutation(flat)[:100]
