"""The roofline of this machine, and operations of a ResNet on it (Williams, Waterman & Patterson, 2009).

The time of an operation has two limits: its arithmetic at the speed of a large matrix product, and its bytes,
inputs and outputs once, at the speed of a sum of two long vectors. The longer one binds.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from course.lessons.split_tensors.costs import FLOAT

VECTOR = 8_000_000  # numbers; three times 32 MB are more than most caches hold
IMAGES = 128  # of a batch
ROUNDS = 20  # the fastest of each counts
NORMALIZE_FLOPS = 6  # a value: sum, square and its sum; minus the mean, times the scale, plus the offset


@dataclass(frozen=True)
class Machine:
    """GFLOP/s of a large matrix product, and GB/s of a sum of two long vectors."""

    gflops: float
    gigabytes: float

    @property
    def ridge(self) -> float:
        """The FLOP a byte at which both limits are equal."""
        return self.gflops / self.gigabytes

    def limit(self, intensity: float) -> float:
        """Return the GFLOP/s that an operation of this many FLOP a byte can reach."""
        return min(self.gflops, intensity * self.gigabytes)


@dataclass(frozen=True)
class Operation:
    """An operation: what it computes, the bytes that it reads and writes, and its seconds.

    Args:
        seconds: of the fastest repeat, nan where it wasn't measured.
    """

    name: str
    flops: float
    bytes: float
    seconds: float = math.nan

    @property
    def intensity(self) -> float:
        """FLOP a byte."""
        return self.flops / self.bytes

    def limit(self, machine: Machine) -> float:
        """Return the seconds that it takes at least."""
        return self.flops / machine.limit(self.intensity) / 1e9

    def bound(self, machine: Machine) -> str:
        """Return which limit binds, "memory" or "arithmetic"."""
        return "memory" if self.intensity < machine.ridge else "arithmetic"


def convolution_of(name: str, images: int, size: int, channels: tuple[int, int], kernel: int) -> Operation:
    """Return a convolution with stride 1 of ``images`` of ``size`` × ``size`` positions, not measured.

    Args:
        channels: of its input and its output.
    """
    inputs, outputs = channels
    positions, weights = images * size**2, kernel**2 * inputs * outputs
    return Operation(name, 2 * positions * weights, FLOAT * (positions * (inputs + outputs) + weights))


def measure() -> tuple[Machine, list[Operation]]:
    """Return the best that the CPU reaches with all cores, and operations of ResNets.

    All take turns, so that other work on the machine slows down the limits as well as the operations.
    """
    import tensorflow as tf

    from labkit.analysis.architecture import matrix_product

    layers = [(32, 16, 16, 3), (16, 32, 32, 3), (8, 64, 64, 3), (32, 16, 64, 1)]
    known, runs = [], [_run(tf.add, [VECTOR], [VECTOR])]
    for size, inputs, outputs, kernel in layers:
        name = f"{kernel}×{kernel} convolution, {size}×{size}, {inputs} → {outputs} channels"
        known.append(convolution_of(name, IMAGES, size, (inputs, outputs), kernel))
        shapes = [IMAGES, size, size, inputs], [kernel, kernel, inputs, outputs]
        runs.append(_run(lambda x, weights: tf.nn.conv2d(x, weights, 1, "SAME"), *shapes))
    shape, where = [IMAGES, 32, 32, 16], "32×32, 16 channels"
    values = math.prod(shape)
    known.append(Operation(f"batch normalization, {where}", NORMALIZE_FLOPS * values, 2 * FLOAT * values))
    known.append(Operation(f"sum and ReLU, {where}", 2 * values, 3 * FLOAT * values))
    runs.append(_run(lambda x, ones: tf.compat.v1.nn.fused_batch_norm(x, ones, ones)[0], shape, [16]))
    runs.append(_run(lambda x, y: tf.nn.relu(x + y), shape, shape))
    product, gflops, seconds = matrix_product(1024, "float32"), 0.0, [math.inf] * len(runs)
    for _ in range(ROUNDS):
        gflops = max(gflops, product(), product())
        seconds = [min(best, run()) for best, run in zip(seconds, runs, strict=True)]
    machine = Machine(gflops, 3 * FLOAT * VECTOR / seconds[0] / 1e9)
    return machine, [replace(each, seconds=best) for each, best in zip(known, seconds[1:], strict=True)]


def _run(compute: Callable[..., Any], *shapes: list[int]) -> Callable[[], float]:
    """Return a function that runs ``compute`` with tensors of these shapes once and returns its seconds."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def function(*tensors):
        result = compute(*tensors)
        return result, tf.reshape(result, [-1])[:1]  # fetching one element is enough to wait for all

    with tf.device("/cpu:0"):
        tensors = [tf.random.stateless_normal(shape, [0, 0]) for shape in shapes]
    # Compiled here: TensorFlow warns where functions compile in one call after the other.
    compiled = function.get_concrete_function(*tensors)
    compiled(*tensors)

    def run() -> float:
        begin = time.perf_counter()
        with tf.device("/cpu:0"):
            compiled(*tensors)[1].numpy()
        return time.perf_counter() - begin

    return run
