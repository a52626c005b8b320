"""Weights that labkit's networks and their PyTorch twins both make from NumPy, so that no file holds them.

A layer's weights depend on its kind, on its number among the layers of that kind, and on their shapes, which
are Keras's: kernels [height, width, in, out] or [in, out].
"""

import math
from collections.abc import Mapping

import numpy as np

__all__ = ["CHAIN", "KINDS", "batch", "layer_weights", "pytorch_weights", "sampled", "torchvision_weights"]

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


def torchvision_weights(depth: int, classes: int = 10) -> dict[str, np.ndarray]:
    """Return weights for a ResNet of torchvision with 18 or 50 layers, by its names and in its layout."""
    bottleneck = depth == 50
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, norm: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        for word in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{word}"] = shape[:1]

    convolution("conv1", "bn1", 64, 3, 7, 7)
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3) if bottleneck else (2, 2, 2, 2), start=1):
        width = 32 * 2**stage
        outputs, kernels = ([width, width, 4 * width], (1, 3, 1)) if bottleneck else ([width] * 2, (3, 3))
        for block in range(blocks):
            at, inputs = f"layer{stage}.{block}", [before, *outputs]
            for index, kernel in enumerate(kernels):
                shape = outputs[index], inputs[index], kernel, kernel
                convolution(f"{at}.conv{index + 1}", f"{at}.bn{index + 1}", *shape)
            if before != outputs[-1]:
                convolution(f"{at}.downsample.0", f"{at}.downsample.1", outputs[-1], before, 1, 1)
            before = outputs[-1]
    shapes |= {"fc.weight": (classes, before), "fc.bias": (classes,)}
    return pytorch_weights(shapes)


# Of a chain of PyTorch: convolution, norm, depthwise convolution with two filters a channel, pool, Flatten,
# norm, two dense layers of one shape, logits.
CHAIN = {"0.weight": (6, 3, 5, 5), "0.bias": (6,), "3.weight": (12, 1, 3, 3), "3.bias": (12,)}
CHAIN |= {f"1.{word}": (6,) for word in ("weight", "bias", "running_mean", "running_var")}
CHAIN |= {f"7.{word}": (432,) for word in ("weight", "bias", "running_mean", "running_var")}
CHAIN |= {"8.weight": (432, 432), "8.bias": (432,), "10.weight": (432, 432), "10.bias": (432,)}
CHAIN |= {"12.weight": (10, 432), "12.bias": (10,)}


def pytorch_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return a value for each weight of PyTorch, by name; each name has its own."""
    random, made = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            values = random.normal(0.0, math.sqrt(2 / math.prod(shape[1:])), shape)
        elif name.endswith(("bias", "mean")):
            values = random.uniform(-0.3, 0.3, shape)
        else:
            values = random.uniform(0.5, 1.5, shape)
        made[name] = values.astype(np.float32)
    return made
