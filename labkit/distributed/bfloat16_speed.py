"""Measure whether this machine's CPU computes faster in bfloat16 than in float32: its flags don't tell."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from labkit.startup.quiet_import import import_tensorflow

__all__ = ["step_seconds"]

BATCH = 64
STAGES = ((32, 16), (16, 32), (8, 64))  # pixels of a side, channels: the stages of ResNet-20 on CIFAR-10
CLASSES = 10
SECONDS = 1.2  # of alternating steps; compilation takes some tenths more
LEAST_TURNS = 3


def step_seconds() -> tuple[float, float]:
    """Return the seconds of a step in float32 and in bfloat16, medians of alternating turns.

    A step is two 3×3 convolutions of each stage and a matrix product, forward and backward, with weights in
    float32 as in mixed precision. Takes about 2 seconds after the import of TensorFlow.
    """
    import_tensorflow()
    import tensorflow as tf

    with tf.device("/cpu:0"):
        steps = [_make_step(dtype) for dtype in (tf.float32, tf.bfloat16)]
        for step in steps:
            step()
        taken: list[list[float]] = [[], []]
        end = time.perf_counter() + SECONDS
        while len(taken[0]) < LEAST_TURNS or time.perf_counter() < end:
            for step, seconds in zip(steps, taken, strict=True):
                started = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - started)
    return statistics.median(taken[0]), statistics.median(taken[1])


def _make_step(dtype: Any) -> Callable[[], None]:
    import tensorflow as tf

    def normal(*shape: int) -> Any:
        return tf.random.stateless_normal(shape, seed=(0, 0))

    images = [normal(BATCH, side, side, channels) for side, channels in STAGES]
    weights = [normal(3, 3, channels, channels) for _, channels in STAGES]
    head = normal(STAGES[-1][1], CLASSES)

    @tf.function(autograph=False)
    def gradients(images: Any, weights: Any, head: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((weights, head))
            total = 0.0
            for batch, kernel in zip(images, weights, strict=True):
                values = tf.cast(batch, dtype)
                for _ in range(2):
                    values = tf.nn.relu(tf.nn.conv2d(values, tf.cast(kernel, dtype), 1, "SAME"))
                total += tf.reduce_sum(tf.cast(values, tf.float32))
            logits = tf.matmul(tf.reduce_mean(values, (1, 2)), tf.cast(head, dtype))
            total += tf.reduce_sum(tf.cast(logits, tf.float32))
        return tape.gradient(total, (weights, head))

    def step() -> None:
        gradients(images, weights, head)[1].numpy()  # waits for the end

    return step
