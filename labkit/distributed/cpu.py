"""What can be told of this machine's CPU and GPUs without TensorFlow, and which precision is faster here."""

import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.startup.quiet_import import import_tensorflow

# Of the steps that are measured in both precisions.
BATCH = 64
STAGES = ((32, 16), (16, 32), (8, 64))  # pixels of a side, channels: the stages of ResNet-20 on CIFAR-10
CLASSES = 10
SECONDS = 1.2  # of alternating steps; compilation takes some tenths more
LEAST_TURNS = 3
CLEARLY_FASTER = 1.15  # times the speed; less may be other work on the machine

BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def cpu_flags() -> set[str] | None:
    """Return the CPU's flags from /proc/cpuinfo; None on systems without it."""
    try:
        return set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return None


def cpu_model() -> str:
    """Return the processor's name as Linux has it; the architecture, such as arm64, elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.machine()


def bfloat16_instructions() -> list[str]:
    """Return the bfloat16 instruction sets of the CPU; an empty list where the system does not list them."""
    return [name for name in BFLOAT16_INSTRUCTIONS if name in (cpu_flags() or ())]


# Device files of every GPU that TensorFlow for Linux can use: NVIDIA's drivers for servers and for Tegra, the
# Windows Subsystem for Linux, AMD's ROCm.
_GPU_FILES = ("nvidia*", "nvhost*", "nvgpu*", "dxg", "kfd")


def has_no_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether TensorFlow surely finds no GPU here. False where only TensorFlow can tell."""
    return sys.platform == "linux" and not any(next(devices.glob(name), None) for name in _GPU_FILES)


def missing_gpus_error(wanted: int, found: int) -> InputError:
    """Return the error for ``--num-gpus`` ``wanted`` on a machine where TensorFlow finds fewer."""
    return InputError(
        f"--num-gpus is {wanted}, but TensorFlow finds {found} here (see labkit doctor); "
        f"allowed: {f'0 to {found}' if found else '0'}, or any number with --simulate-missing-gpus"
    )


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
