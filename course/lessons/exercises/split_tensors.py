"""The tests of lesson 13's exercises: split dense layers, rows of neighbours, bytes, the roofline."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from course.lessons.split_tensors.layers import all_reduce
from course.lessons.verdict import Wrong, a_function, a_number, an_array, compare, draws, several, tests
from course.lessons.workers import Worker, run_answer

A_TERM = (
    "isn't that of the whole layers; each worker's product is one term of a sum over all hidden channels, so "
    "it needs an all-reduce, after the product"
)
A_PART = (
    "is wrong; it belongs to this worker's hidden channels alone, follows from whole x, its own hidden "
    "values and the whole gradient of the output, and needs no message"
)
PARTS = ("the output", "the gradient of x", "the gradient of first", "the gradient of second")


@tests("13.1", "two dense layers over several workers, forward and backward")
def _two_layers(answer: object) -> str:
    function = a_function(answer)
    random = draws(131)
    for workers, batch, inputs, hidden, outputs in ((2, 6, 8, 12, 4), (4, 4, 12, 16, 8)):
        shapes = ((batch, inputs), (batch, outputs), (inputs, hidden), (hidden, outputs))
        x, gradient, first, second = (random.normal(size=shape) for shape in shapes)
        cuts = zip(np.split(first, workers, 1), np.split(second, workers, 0), strict=True)
        done = run_answer(workers, _reducing, function, x, gradient, each=list(cuts))
        active = np.maximum(x @ first, 0)
        of_hidden = gradient @ second.T * (active > 0)
        right = active @ second, of_hidden @ first.T, x.T @ of_hidden, active.T @ gradient
        for worker, result in enumerate(done.results):
            several(result, 4, "four arrays: the output, and the gradients of x, first and second")
            for name, found, whole, axis in zip(PARTS, result, right, (None, None, 1, 0), strict=True):
                own = whole if axis is None else np.split(whole, workers, axis)[worker]
                name = f"{name} on worker {worker} of {workers}"
                if (
                    whole is right[0]
                    and np.shape(found) == own.shape
                    and np.allclose(found, x @ first @ second)
                ):
                    raise Wrong(
                        f"{name} has no ReLU; hidden values below 0 are 0, and so are their gradients"
                    )
                if not np.allclose(an_array(found, own.shape, name), own):
                    raise Wrong(f"{name} {A_TERM if axis is None else A_PART}")
        least = 2 * (workers - 1) / workers * (batch * outputs + batch * inputs) * 8
        if max(done.bytes_sent) > 1.2 * least + 64:
            raise Wrong(
                f"the results are right, but a worker of {workers} sent {max(done.bytes_sent)} bytes where "
                f"{least:.0f} are enough; two all-reduces suffice: which arrays are only a part of a sum?"
            )
    return "equal to one process on 2 and 4 workers, with two all-reduces"


def _reducing(worker: Worker, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(functools.partial(all_reduce, worker), *arguments)


@tests("13.2", "the rows of the neighbours")
def _rows_of_neighbours(answer: object) -> str:
    function = a_function(answer)
    random = draws(132)
    # (workers, rows above, rows below): for 3×3, for 3×3 with stride 2, for 5×5
    for workers, above, below in ((2, 1, 1), (4, 0, 1), (4, 2, 2)):
        image = random.normal(size=(2, 4 * workers, 5, 3))
        bands = np.split(image, workers, 1)
        done = run_answer(workers, function, each=[(band, above, below) for band in bands])
        padded = np.pad(image, [(0, 0), (above, below), (0, 0), (0, 0)])
        for worker, found in enumerate(done.results):
            right = padded[:, 4 * worker : 4 * worker + 4 + above + below]
            name = f"the band of worker {worker} of {workers} with {above} rows above and {below} below"
            if above != below and getattr(found, "shape", right.shape) != right.shape:
                raise Wrong(
                    f"{name} has the shape {list(found.shape)}; expected {list(right.shape)}: how many of "
                    "your rows does the worker above you need, and how many the one below?"
                )
            values = an_array(found, right.shape, name)
            wrong = np.flatnonzero((~np.isclose(values, right)).any((0, 2, 3))).tolist()
            if wrong:
                outside = (worker == 0 and wrong[0] < above) or (worker == workers - 1 and wrong[-1] >= 4)
                raise Wrong(f"{name} {_row_hint(wrong, above, outside)}")
        most = (above + below if workers > 2 else max(above, below)) * bands[0][:, :1].nbytes
        if max(done.bytes_sent) > most:
            raise Wrong(
                f"the rows are right, but a worker of {workers} sent {max(done.bytes_sent)} bytes where "
                f"{most} are enough; array[:, -0:] is the whole array"
            )
    return "the bands have the rows that 3×3, 3×3 with stride 2 and 5×5 need, on 2 and 4 workers"


def _row_hint(wrong: list[int], above: int, outside: bool) -> str:
    if any(above <= row < above + 4 for row in wrong):
        return "doesn't have its own rows in the middle"
    if outside:
        return "needs zeros outside the image: the first worker has no neighbour above, the last none below"
    return (
        f"has wrong rows {'above' if wrong[0] < above else 'below'} its own: send your last rows to the "
        "worker below, which needs them above its own, and your first rows to the worker above"
    )


def _exchanges(worker: Worker, split: str, images: int, size: int, channels: int) -> None:
    """Send what a step of a residual block sends, statistics left out, in arrays of the same sizes."""
    activations = np.zeros((images, size, size, channels), np.float32)
    kernel = np.zeros((3, 3, channels, channels), np.float32)
    for array in [activations] * 2 if split == "channels" else [kernel] * 2:
        all_reduce(worker, array)
    neighbours = [rank for rank in (worker.rank - 1, worker.rank + 1) if 0 <= rank < worker.size]
    for rank in neighbours * (4 if split == "height" else 0):
        worker.send(rank, activations[:, 0])  # what isn't received is dropped after the round


@tests("13.3", "the bytes of each split")
def _bytes_of_splits(answer: object) -> str:
    function = a_function(answer)
    random = draws(133)
    for workers, split in itertools.product((2, 4), COUNTED):
        images, size, channels = (int(value) for value in 4 * random.integers(1, 5, 3))
        what = f"{images} images of {size}×{size}, {channels} channels, by {split} on {workers} workers"
        found = a_number(function(split, images, size, channels, workers), f"your result for {what},")
        counted = max(run_answer(workers, _exchanges, split, images, size, channels).bytes_sent)
        rows = 16 * min(workers - 1, 2) * images * size * channels * (split == "height")
        ring = "a ring sends 2 (P − 1) / P of an array from each worker, not all of it"
        hints = (
            (counted / 4, "4 times too small: a float32 number has 4 bytes"),
            (counted / 2, "2 times too small: two convolutions, or two all-reduces"),
            (counted * workers / (2 * (workers - 1)), ring),
            (counted - rows, "the rows for the neighbours are missing"),
            (counted - rows / 2, "rows are sent for both convolutions, forward and backward: four times"),
            (counted - rows * 3 / 4, "a row is sent four times, for both convolutions, forward and backward"),
        )
        otherwise = f"workers counted {counted:,} bytes; {COUNTED[split]}"
        compare(found, counted, f"for {what}, your bytes", hints, otherwise)
    return "equal to the bytes that real workers counted, for each split on 2 and 4 workers"


COUNTED = {
    "images": "the gradients of both kernels are all-reduced, however many images there are",
    "channels": "activations of the block's whole shape are all-reduced, once forward and once backward",
    "height": "kernels as by images, and rows to one neighbour on 2 workers, to two on more, for two "
    "convolutions, forward and backward",
}


@tests("13.4", "a layer under the roof")
def _under_the_roof(answer: object) -> str:
    function = a_function(answer)
    random = draws(134)
    for layer in ((64, 32, 16, 16, 3), (64, 32, 16, 64, 1), (1, 8, 512, 512, 3), (256, 1, 64, 10, 1)):
        images, size, inputs, outputs, kernel = layer
        positions, weights = images * size**2, kernel**2 * inputs * outputs
        right = 2 * positions * weights / (4 * (positions * (inputs + outputs) + weights))
        for gflops, gigabytes in ((100.0, 20.0), (20000.0, 900.0), random.uniform(10, 500, 2).tolist()):
            wanted = "two numbers: FLOP for each byte, and GFLOP/s"
            result = several(function(*layer, gflops, gigabytes), 2, wanted)
            found, reached = a_number(result[0], "FLOP for each byte"), a_number(result[1], "GFLOP/s")
            hints = (
                (4 * right, "this is FLOP for each number; a float32 number has 4 bytes"),
                (right / 2, "a multiplication and an addition are 2 FLOP"),
                (weights / (2 * (inputs + outputs)), "the bytes of the kernel are missing"),
            )
            shown = f"for images, size, inputs, outputs, kernel = {layer}, FLOP for each byte"
            compare(found, right, shown, hints, f"expected {right:.4g}")
            most = min(gflops, right * gigabytes)
            machine = f"{right:.3g} FLOP a byte, {gflops:.0f} GFLOP/s and {gigabytes:.0f} GB/s"
            otherwise = f"{most:.4g} can be reached; the lower of two limits binds"
            compare(reached, most, f"with {machine}, the GFLOP/s reached", [], otherwise)
    return "intensity and limit are right for four layers on three machines"
