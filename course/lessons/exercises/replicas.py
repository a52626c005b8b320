"""The tests of lesson 04's exercises: gradients of slices, all-reduce, batch statistics, noise scale."""

import numpy as np
from numpy.typing import NDArray

from course.lessons.verdict import (
    Wrong,
    a_function,
    a_number,
    a_result,
    an_array,
    compare,
    draws,
    several,
    tests,
)


@tests("04.1", "the gradient of the global batch from uneven slices")
def _global_gradient(answer: object) -> str:
    function = a_function(answer)
    random = draws(41)
    for sizes in ([32, 32], [50, 30, 20], [100, 1, 27], [8, 0, 4, 4]):
        images = random.normal(size=(sum(sizes), 5))
        targets = random.normal(size=sum(sizes))
        weights = random.normal(size=5)
        each = 2 * (images @ weights - targets)[:, None] * images  # of the squared error of each image
        parts = np.split(each, np.cumsum(sizes)[:-1])
        gradients = np.array([part.mean(0) if len(part) else np.zeros(5) for part in parts])
        found = an_array(function(gradients.copy(), np.array(sizes)), (5,), "what your function returns")
        if np.allclose(found, each.mean(0), rtol=1e-5, atol=1e-6):
            continue
        if np.allclose(found, gradients.sum(0)):
            raise Wrong(
                "this is the sum of the replicas' mean gradients: N times too large for equal slices, so the "
                "learning rate would be N times as high"
            )
        if np.allclose(found, gradients.mean(0)):
            raise Wrong(
                f"with slices of {sizes} images, the plain mean of the gradients gives an image of a "
                "small slice more weight; weight each gradient by its number of images"
            )
        if np.allclose(found, each.sum(0)):
            raise Wrong("this is the gradient of the summed loss; divide by the number of all images")
        raise Wrong(f"with slices of {sizes} images, this isn't the gradient of the mean over all images")
    return "equal to the gradient of the whole batch for even, uneven and empty slices"


class _Wire:
    """Counts what is sent. ``send`` returns a copy, as a network does, and adds 1 to message ``changed``."""

    def __init__(self, workers: int, changed: int = -1) -> None:
        self.sent = [0] * workers
        self.messages, self._changed = 0, changed

    def send(self, sender: int, receiver: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        workers = len(self.sent)
        if not (0 <= sender < workers and 0 <= receiver < workers):
            raise Wrong(f"send({sender}, {receiver}, …) with {workers} workers; they are 0 to {workers - 1}")
        if sender == receiver:
            raise Wrong(f"worker {sender} sends to itself; the next worker is (worker + 1) % N")
        copied = np.array(values, np.float64)
        self.sent[sender] += copied.nbytes
        self.messages += copied.size > 0
        return copied + (self.messages - 1 == self._changed)


@tests("04.2", "an all-reduce that sends no byte too many")
def _all_reduce(answer: object) -> str:
    function = a_function(answer)
    random = draws(42)
    for workers, size in ((2, 8), (3, 9), (4, 24), (5, 60), (7, 7 * 31)):
        arrays = [random.normal(size=size) for _ in range(workers)]
        wire = _Wire(workers)
        found = a_result(function([array.copy() for array in arrays], wire.send))
        if not hasattr(found, "__len__") or isinstance(found, dict) or len(found) != workers:
            raise Wrong(f"with {workers} workers, return a list of {workers} arrays: the sum on each worker")
        total = np.sum(arrays, axis=0)
        for worker, own in enumerate(found):
            values = an_array(own, (size,), f"the result of worker {worker}")
            if np.allclose(values, total / workers):
                raise Wrong("each worker has the mean; an all-reduce with SUM returns the sum")
            if not np.allclose(values, total):
                unequal = int((~np.isclose(values, total)).sum())
                raise Wrong(
                    f"with {workers} workers, {unequal} of {size} values on worker {worker} aren't the sum; "
                    "draw who has what after each step"
                )
        _check_bytes(wire, workers, size)
        for message in range(wire.messages):
            results = function([array.copy() for array in arrays], _Wire(workers, message).send)
            if np.allclose(results, total):
                raise Wrong(
                    f"with {workers} workers, message {message + 1} makes no difference to any sum; a worker "
                    "may use another's values only as they came through send"
                )
    return "every worker has the sum, and each sent 2 (N − 1) / N of the array's bytes, for 2 to 7 workers"


def _check_bytes(wire: _Wire, workers: int, size: int) -> None:
    best = 2 * (workers - 1) / workers * size * 8
    if sum(wire.sent) == 0:
        raise Wrong("nothing was sent; a worker may use another's values only if they came through send")
    if sum(wire.sent) < 0.999 * workers * best:
        raise Wrong(
            f"with {workers} workers, {sum(wire.sent)} bytes were sent in all, fewer than possible; a worker "
            "used values that weren't sent to it"
        )
    if max(wire.sent) > 1.001 * best and min(wire.sent) <= size * 8 < max(wire.sent):
        raise Wrong(
            f"the sum is right, but with {workers} workers one of them sent {max(wire.sent) // (size * 8)} "
            "arrays and others one; let every worker sum and send one chunk of N"
        )
    if max(wire.sent) > 1.001 * best:
        factor = max(wire.sent) / (size * 8)
        raise Wrong(
            f"the sum is right, but with {workers} workers the busiest one sent {factor:.2f} times the "
            f"array, allowed: {best / size / 8:.2f}; send one chunk of N in each step"
        )


@tests("04.3", "statistics of the global batch from those of slices")
def _combine(answer: object) -> str:
    function = a_function(answer)
    random = draws(43)
    for sizes in ([16, 16, 16, 16], [40, 24], [5, 20, 7]):
        slices = [random.normal(random.normal(0, 2, 3), 1.5, (size, 3)) for size in sizes]
        means, variances = (np.array([getattr(part, name)(0) for part in slices]) for name in ("mean", "var"))
        result = function(means.copy(), variances.copy(), np.array(sizes))
        result = several(result, 2, "two arrays: the mean and the variance of each channel")
        mean = an_array(result[0], (3,), "the mean that your function returns")
        variance = an_array(result[1], (3,), "the variance that your function returns")
        _judge_moments(mean, variance, means, variances, np.concatenate(slices), sizes)
    return "equal to mean and variance of the whole batch, for even and uneven slices"


def _judge_moments(
    mean: NDArray, variance: NDArray, means: NDArray, variances: NDArray, batch: NDArray, sizes: list[int]
) -> None:
    share = np.array(sizes)[:, None] / sum(sizes)
    if not np.allclose(mean, batch.mean(0)):
        if np.allclose(mean, means.mean(0)):
            raise Wrong(f"with slices of {sizes} images, the mean needs weights: the slices' sizes")
        raise Wrong(f"the mean isn't that of all images, with slices of {sizes}")
    if np.allclose(variance, batch.var(0)):
        return
    if np.allclose(variance, variances.mean(0)) or np.allclose(variance, (share * variances).sum(0)):
        raise Wrong(
            "the mean of the variances is too small: the slices' means differ as well; add the variance of "
            "the means"
        )
    if np.allclose(variance, batch.std(0)):
        raise Wrong("this is the standard deviation; return its square")
    if np.allclose(variance, batch.var(0, ddof=1)):
        raise Wrong("this divides by n − 1; batch normalization divides by n")
    if (variance < 0).any():
        raise Wrong("a variance is negative; take the mean of the squares minus the square of the mean")
    raise Wrong(f"the variance isn't that of all images, with slices of {sizes}")


@tests("04.4", "the gradient noise scale from two batch sizes")
def _noise_scale(answer: object) -> str:
    function = a_function(answer)
    random = draws(44)
    for small, big in ((16, 256), (1, 64), (32, 96), (8, 8192)):
        squared, trace = random.uniform(0.01, 2), random.uniform(5, 500)
        lengths = squared + trace / small, squared + trace / big
        found, right = a_number(function(small, big, *lengths), "what your function returns"), trace / squared
        hints = (
            (1 / right, "this is |G|² / tr Σ; the noise scale is the other way round"),
            (trace, "this is tr Σ, the noise; divide it by |G|²"),
            (trace / lengths[1], "the gradient of the large batch isn't free of noise: solve both equations"),
            (lengths[0] / lengths[1], "this is the ratio of what was measured; solve the two equations"),
        )
        said = f"with tr Σ = {trace:.4g} and |G|² = {squared:.4g} the noise scale is {right:.4g}"
        compare(found, right, "your noise scale", hints, said)
    return "the noise scale was recovered for four pairs of batch sizes"
