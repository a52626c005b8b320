"""The deep network of lesson 11 and what is measured of it, in processes that have TensorFlow.

The notebook has the network's block and its gradient, ``gradients(weights, x, labels, length, norm)``, which
holds the activations of ``length`` blocks at one time. Functions here take it as an argument.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.figures import Panels, points_and_lines
from course.lessons.memory import begin_peak, peak_bytes
from course.lessons.workers import Worker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEGABYTE = 1e6
BLOCKS, SIDE, CHANNELS = 24, 32, 16
TENSOR = 4 * SIDE * SIDE * CHANNELS  # bytes of one tensor of one image
WEIGHTS = BLOCKS * 2 * 9 * CHANNELS**2
TURNS = 4  # of a step with and without recomputation
BATCHES = (8, 16, 32)
PER_BLOCK = 5  # tensors that a block keeps on a tape
# What each of two workers measures: name, images at one time (0: all), and blocks of a segment. A peak only
# grows, so the order is from the smallest to the largest.
PLANS = (
    (("segments of 2", 0, 2), ("all kept", 0, BLOCKS)),
    (("segments of 1", 0, 1), ("parts of 8", 8, BLOCKS)),
)
Gradients = Callable[..., Sequence[Any]]


def batch_norm(values: Any) -> Any:
    """Return float32 [images, side, side, channels] normalized by its batch, without a trained scale."""
    import tensorflow as tf

    ones = tf.ones([values.shape[-1]])
    return tf.compat.v1.nn.fused_batch_norm(values, ones, 0 * ones)[0]


def problem(images: int, seed: int) -> tuple[list[tuple[Any, Any]], Any, Any]:
    """Return random kernels [3, 3, channels, channels] of each block, features, and labels [images]."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # it is the memory of this process that is measured
    random = np.random.default_rng(seed)
    kernels = random.normal(0, 0.06, (BLOCKS, 2, 3, 3, CHANNELS, CHANNELS)).astype(np.float32)
    x = random.normal(size=(images, SIDE, SIDE, CHANNELS)).astype(np.float32)
    weights = [(tf.constant(first), tf.constant(second)) for first, second in kernels]
    return weights, tf.constant(x), tf.constant(np.arange(images) % CHANNELS)


def accumulated(
    gradients: Gradients, data: tuple[Any, Any, Any], part: int, length: int, norm: Any = batch_norm
) -> NDArray[np.float32]:
    """Return the gradient of the summed loss as one vector, computed for ``part`` images at a time."""
    weights, x, labels = data
    total = np.zeros(WEIGHTS, np.float32)
    for at in range(0, len(x), part):
        found = gradients(weights, x[at : at + part], labels[at : at + part], length, norm)
        total += np.concatenate([np.ravel(gradient) for gradient in found])
    return total


def measure(worker: Worker, gradients: Gradients, seed: int) -> dict[str, dict[int, int]]:
    """Return, by name, the peak memory in bytes after a step, by the number of images; 0: before all steps.

    See ``PLANS``.
    """
    found: dict[str, dict[int, int]] = {}
    before = begin_peak()
    for name, part, length in PLANS[worker.rank]:
        found[name] = {0: before}
        for images in BATCHES:
            accumulated(gradients, problem(images, seed), part or images, length)
            found[name][images] = peak_bytes()
    return found


def per_image(peaks: Mapping[int, int]) -> float:
    """Return by how many bytes a peak grows with each image, from the two largest batches."""
    *_, (fewer, low), (more, high) = sorted(peaks.items())
    return (high - low) / (more - fewer)


def parts_against_whole(worker: Worker, gradients: Gradients, seed: int) -> float:
    """Return how far the gradient of parts of 12, 12 and 8 images is from that of all 32, relative.

    Worker 0 uses batch normalization, worker 1 no normalization.
    """
    norm, data = (batch_norm, lambda values: values)[worker.rank], problem(32, seed)
    whole, parts = (accumulated(gradients, data, part, BLOCKS, norm) for part in (32, 12))
    return difference(parts, whole)


def recomputed(
    worker: Worker, gradients: Gradients, lengths: Sequence[int], seed: int
) -> tuple[float, float]:
    """Return how far the recomputed gradient is from the other, relative, and by what factor it is slower.

    Each worker recomputes segments of ``lengths[rank]`` blocks. The factor is of the seconds that the
    processor computes for this worker, medians of ``TURNS``.
    """
    length = lengths[worker.rank]
    data, seconds, found = problem(16, seed), {BLOCKS: [], length: []}, {}  # type: ignore[var-annotated]
    for _ in range(TURNS):
        for each, spent in seconds.items():
            begin = time.process_time()
            found[each] = accumulated(gradients, data, 16, each)
            spent.append(time.process_time() - begin)
    factor = float(np.median(seconds[length]) / np.median(seconds[BLOCKS]))
    return difference(found[length], found[BLOCKS]), factor


def held(blocks: int, length: int) -> list[int]:
    """Return the tensors that are held after each block that is passed, forward and then backward.

    ``length``: blocks of a segment.
    """
    starts = range(0, blocks, length)
    curve = [1 + at // length for at in range(starts[-1])]  # forward, up to the last segment
    for checkpoints, start in reversed([*enumerate(starts, 1)]):
        taped = range(1, min(length, blocks - start) + 1)
        kept = (*taped, *(count - 1 for count in reversed(taped)))
        curve += [checkpoints + PER_BLOCK * count for count in kept]
    return curve


def peaks(measured: Mapping[str, Mapping[int, int]], predicted: Mapping[str, float]) -> "Figure":
    """Draw over the batch size how much the memory of a process grows that trains, and the model's lines.

    Args:
        measured: by how it trains, the peak in bytes by the number of images; 0: memory before all steps.
        predicted: by the same names, bytes of an image; names without it get no line.
    """
    points = {}
    for name, found in sorted(measured.items()):
        grown = {images: (peak - found[0]) / MEGABYTE for images, peak in found.items() if images}
        points[name] = [*grown], [*grown.values()]
    most = max(BATCHES)
    lines = {name: ((0, most), (0, each * most / MEGABYTE)) for name, each in predicted.items()}
    panel = {"Growth of the memory of a process that trains": ("images of a batch", points, lines)}
    return points_and_lines(panel, "peak − memory before, MB", log="")


def held_tensors(length: int) -> "Figure":
    """Draw how many tensors are held during a step that recomputes segments of ``length`` blocks."""
    curve, everything = held(BLOCKS, length), PER_BLOCK * BLOCKS + 1
    title = f"Segments of {length} of {BLOCKS} blocks: at most {max(curve)} tensors are held"
    lines = {"held": (range(1, len(curve) + 1), curve)}
    panel: Panels = {title: ("blocks passed so far, forward and then backward", {}, lines)}
    marks, level = {"forward ends": BLOCKS}, {f"all kept: {everything}": everything}
    return points_and_lines(panel, "tensors held", log="", marks=marks, level=level)


def difference(one: Any, other: Any) -> float:
    """Return the norm of the difference of two arrays over the norm of ``other``."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def labkits_orthogonalized(worker: Worker, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what labkit's Muon makes of a matrix."""
    from labkit.optim.optimizers import orthogonalized

    return np.asarray(orthogonalized(matrix))
