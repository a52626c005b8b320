"""How much arithmetic a training step is, and how much the machine can do."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.models.resizing import output_shapes

__all__ = ["ceiling", "matrix_product", "multiply_adds", "training_flops"]


def training_flops(model: keras.Model, frozen: Collection[str] = (), *, image_size: int | None = None) -> int:
    """Return the floating-point operations of a training step for one image: convolutions and dense layers.

    A multiply-add counts as two operations. Each layer has its multiply-adds once forward; once more for the
    gradient of its kernel, where that is trained; and once more for the gradient of its inputs, where a
    trained weight stands before it, which is not so at the first layer. Everything else (normalization,
    activations, pooling, the update) counts as nothing, though it takes time.

    Args:
        model: functional, of layers that are called once and have one output each, in either layout.
        frozen: names of layers that aren't trained.
        image_size: side of the images; None: as the model takes them.
    """
    shapes = {} if image_size is None else output_shapes(model, image_size)
    total = 0
    has_gradient: dict[int, bool] = {}
    for operation in model.operations:
        if isinstance(operation, keras.layers.InputLayer):
            has_gradient[id(operation.output)] = False
            continue
        inputs = operation.input if isinstance(operation.input, list) else [operation.input]
        before = any(has_gradient[id(tensor)] for tensor in inputs)
        is_held = operation.name in frozen
        has_own = bool(getattr(operation, "trainable_weights", [])) and not is_held
        has_gradient[id(operation.output)] = before or has_own
        kernel = getattr(operation, "kernel", None)
        if kernel is not None:
            forward = multiply_adds(operation, shapes.get(operation.name))
            total += 2 * forward * (1 + (kernel.trainable and not is_held) + before)
    return total


def multiply_adds(layer: Any, output_shape: Sequence[int | None] | None = None) -> int:
    """Return the multiply-adds of a layer's forward pass for one image; 0 for one without a kernel.

    Each weight of a kernel is used once at each place of the output.

    Args:
        layer: with one output, in either layout.
        output_shape: of a batch; None: of its first call.
    """
    if getattr(layer, "kernel", None) is None:
        return 0
    shape = (layer.output.shape if output_shape is None else output_shape)[1:]
    channels_first = getattr(layer, "data_format", "channels_last") == "channels_first"
    return math.prod(layer.kernel.shape) * math.prod(shape[1:] if channels_first else shape[:-1])


def matrix_product(size: int, precision: str, device: str = "/cpu:0") -> Callable[[], float]:
    """Return a function that multiplies two matrices once and returns the GFLOP/s that it reached.

    Args:
        size: rows and columns; a product is 2 size³ operations.
        precision: ``float32``, ``float64`` or ``mixed_bfloat16``, as of a model.
        device: where.
    """
    dtype = tf.bfloat16 if precision == "mixed_bfloat16" else tf.as_dtype(precision)
    with tf.device(device):
        factors = [
            tf.cast(tf.random.stateless_normal([size, size], [number, 0]), dtype) for number in range(2)
        ]

    @tf.function
    def multiply(first, second):
        # One number of it is fetched, by which all of it is known to be done.
        return tf.linalg.matmul(first, second)[:1, :1]

    def measure() -> float:
        started = time.perf_counter()
        with tf.device(device):
            multiply(*factors).numpy()
        return 2 * size**3 / (time.perf_counter() - started) / 1e9

    measure()  # traces it
    return measure


def ceiling(
    precision: str,
    *,
    sizes: tuple[int, ...] = (1024, 2048),
    seconds: float = 0.7,
    least_repeats: int = 3,
    device: str = "/cpu:0",
) -> float:
    """Return the GFLOP/s of large matrix products: for each size the median of some, and of these the best.

    Args:
        precision, device: see ``matrix_product``.
        sizes: rows and columns of the matrices.
        seconds, least_repeats: for how long each size is repeated, and how often at least.
    """
    medians = []
    for size in sizes:
        measure = matrix_product(size, precision, device)
        rates: list[float] = []
        end = time.perf_counter() + seconds
        while len(rates) < least_repeats or time.perf_counter() < end:
            rates.append(measure())
        medians.append(statistics.median(rates))
    return max(medians)
