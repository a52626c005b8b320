"""Count the floating-point operations of a training step, and measure the machine's peak FLOP/s."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.models.variants import output_shapes


def training_flops(model: keras.Model, frozen: Collection[str] = (), *, image_size: int | None = None) -> int:
    """Return the floating-point operations per image of a training step, in convolutions and dense layers.

    A multiply-add counts as two operations. A layer performs its multiply-adds once in the forward pass, once
    for the gradient of its kernel if the kernel is trained, and once for the gradient of its inputs if an
    earlier layer is trained (so never in the first layer). Everything else (normalization, activations,
    pooling, the optimizer's update) counts as zero, though it takes time.

    Args:
        model: functional, in either data format; each layer is called once and has one output.
        frozen: names of layers that aren't trained.
        image_size: side of the images in pixels; None: the size that the model was built for.
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
        is_frozen = operation.name in frozen
        has_own = bool(getattr(operation, "trainable_weights", [])) and not is_frozen
        has_gradient[id(operation.output)] = before or has_own
        if kernels := _kernels(operation):
            forward = multiply_adds(operation, shapes.get(operation.name))
            total += 2 * forward * (1 + (kernels[0].trainable and not is_frozen) + before)
    return total


def multiply_adds(layer: Any, output_shape: Sequence[int | None] | None = None) -> int:
    """Return the multiply-adds of a layer's forward pass for one image; 0 if it has no kernel.

    Each weight of the kernel is used once at each position of the output. A factor for each channel adds
    nothing, so it counts as none.

    Args:
        layer: with one output, in either data format.
        output_shape: of a batch; None: the shape in the layer's first call.
    """
    weights = sum(math.prod(kernel.shape) for kernel in _kernels(layer))
    if not weights:
        return 0
    shape = (layer.output.shape if output_shape is None else output_shape)[1:]
    channels_first = getattr(layer, "data_format", "channels_last") == "channels_first"
    return weights * math.prod(shape[1:] if channels_first else shape[:-1])


def _kernels(layer: Any) -> list[Any]:
    """Return a layer's kernel, or the two of a separable convolution; none of a factor for each channel."""
    names = ("kernel", "depthwise_kernel", "pointwise_kernel")
    kernels = [getattr(layer, name, None) for name in names]
    return [kernel for kernel in kernels if kernel is not None and len(kernel.shape) > 1]


def matrix_product(size: int, precision: str, device: str = "/cpu:0") -> Callable[[], float]:
    """Return a function that multiplies two square matrices once and returns the GFLOP/s reached.

    Args:
        size: rows and columns of the matrices; a product takes 2 size³ operations.
        precision: ``float32``, ``float64`` or ``mixed_bfloat16``, as in ``--precision``.
        device: TensorFlow's name of the device that computes.
    """
    dtype = tf.bfloat16 if precision == "mixed_bfloat16" else tf.as_dtype(precision)
    with tf.device(device):
        factors = [
            tf.cast(tf.random.stateless_normal([size, size], [number, 0]), dtype) for number in range(2)
        ]

    @tf.function(autograph=False)
    def multiply(first, second):
        # Fetching one element is enough to wait for the whole product.
        return tf.linalg.matmul(first, second)[:1, :1]

    def measure() -> float:
        started = time.perf_counter()
        with tf.device(device):
            multiply(*factors).numpy()
        return 2 * size**3 / (time.perf_counter() - started) / 1e9

    measure()  # the first call traces the function
    return measure


def ceiling(
    precision: str,
    *,
    sizes: tuple[int, ...] = (1024, 2048),
    seconds: float = 0.7,
    least_repeats: int = 3,
    device: str = "/cpu:0",
) -> float:
    """Return the peak GFLOP/s of large matrix products: the median of each size, and the best of these.

    Args:
        precision: see ``matrix_product``.
        sizes: rows and columns of the matrices to try.
        seconds: how long to repeat each size.
        least_repeats: the smallest number of repeats of each size.
        device: see ``matrix_product``.
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
