"""The tests of lesson 11's exercises: bytes of activations, accumulation, recomputation, sharded state."""

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.collectives.exchange import spoiled
from course.lessons.verdict import Wrong, a_function, a_number, an_array, compare, draws, several, tests
from course.lessons.workers import Worker, run_answer


@tests("11.1", "the bytes that a bottleneck block keeps")
def _bottleneck(answer: Any) -> str:
    function = a_function(answer)
    drawn = draws(111).integers(9, 100, 3).tolist()
    for images, side, width in ((1, 8, 16), (32, 56, 64), (3, 7, 512), drawn):
        shown = f"{images} images, side {side} and width {width}"
        found = a_number(function(images, side, width), f"your result for {shown}")
        unit = images * side**2 * width * 4  # bytes of the narrow tensor
        counted = (
            (20, "you count the output of the last ReLU as well; the next block counts it, as its input"),
            (
                12,
                "one input of the sum is missing: the last normalization returns what is four times as wide",
            ),
            (18, "you count what a normalization returns before a ReLU; a ReLU needs only its own output"),
            (7, "the input, and what the last convolution returns, are four times as wide"),
            (4, "a float32 number has 4 bytes"),
            (16 / images, "this is one image; the batch keeps as much for each of its images"),
            (16 / side, "an image has side × side pixels"),
        )
        otherwise = (
            f"these are {found / unit:.3g} tensors of the narrow width; go through the block layer by layer, "
            "and write down each tensor that is kept once"
        )
        hints = [(count * unit, hint) for count, hint in counted]
        compare(found, 16 * unit, f"for {shown}, your bytes", hints, otherwise)
    return "the bytes of a bottleneck block's activations, for four sizes; a network is a sum of such blocks"


class _Gradient(np.ndarray[Any, Any]):
    """A gradient, or an array that was computed from one; ``of`` knows it while it lives."""

    of: "_Gradients | None" = None

    def __array_finalize__(self, source: Any) -> None:
        self.of = getattr(source, "of", None)
        if self.of is not None:
            self.of.hold(self)


class _Gradients:
    """The gradient of a squared error; notes the images it gets, and how many of its results are held."""

    def __init__(self, features: int) -> None:
        self.weights = draws(11).normal(size=features)
        self.sizes: list[int] = []
        self.most = 0
        self._held: list[weakref.ref[Any]] = []

    def __call__(self, images: Any, targets: Any) -> NDArray[np.float64]:
        self.sizes.append(len(images))
        if not len(images):
            raise Wrong("gradient was called with no images; stop when the batch ends")
        result = (images.T @ (images @ self.weights - targets) * (2 / len(images))).view(_Gradient)
        result.of = self
        self.hold(result)
        return result

    def hold(self, array: _Gradient) -> None:
        self._held = [held for held in self._held if held() is not None] + [weakref.ref(array)]
        self.most = max(self.most, len(self._held))


@tests("11.2", "accumulate a gradient in parts")
def _accumulate(answer: Any) -> str:
    function = a_function(answer)
    random = draws(112)
    for count, part in ((32, 8), (50, 16), (7, 7), (5, 8), (121, 10)):
        images, targets = random.normal(size=(count, 6)), random.normal(size=count)
        whole = _Gradients(6)(images, targets)
        gradient = _Gradients(6)
        shown = f"with {count} images in parts of {part}"
        result = function(gradient, images.copy(), targets.copy(), part)
        found = an_array(result, (6,), f"your result {shown}")
        if not gradient.sizes:
            raise Wrong("gradient was never called; call it with one part of the images at a time")
        if max(gradient.sizes) > part:
            raise Wrong(f"{shown}, gradient got {max(gradient.sizes)} images at once; {part} is what fits")
        if sum(gradient.sizes) != count:
            raise Wrong(
                f"{shown}, gradient got {sum(gradient.sizes)} images in all; the last part may be smaller"
            )
        if not np.allclose(found, whole):
            parts = -(-count // part)
            if np.allclose(found, whole * parts):
                raise Wrong(f"{shown}, this is {parts} times the gradient; each part's gradient is a mean")
            raise Wrong(f"{shown}, this isn't the batch's gradient; a part counts by its share of the images")
        if gradient.most > 7 and count // part > 8:  # a sum needs six: old and new ones, scaled and added
            raise Wrong(
                f"{shown}, {gradient.most} gradients were held at one time; add each to a sum and let it go"
            )
    return "the whole batch's gradient for even and uneven parts, and only the sum is held besides one part"


@tests("11.3", "the length of segments for a budget")
def _segments(answer: Any) -> str:
    function = a_function(answer)
    cases = [(24, 5, 26), (24, 5, 121), (24, 5, 20), (50, 4, 60), (9, 12, 40), (1000, 5, 900)]
    cases += draws(113).integers((20, 2, 60), (200, 8, 400), (3, 3)).tolist()
    for blocks, kept, budget in cases:
        shown = f"{blocks} blocks that keep {kept} tensors each, and a budget of {budget}"
        found = a_number(function(blocks, kept, budget), f"your result for {shown}")
        need = {length: math.ceil(blocks / length) + kept * length for length in range(1, blocks + 1)}
        right = max((length for length, tensors in need.items() if tensors <= budget), default=0)
        if found == right:
            continue
        if right == 0:
            raise Wrong(f"for {shown}: no length fits, the least is {min(need.values())} tensors; return 0")
        if found == 0:
            raise Wrong(
                f"for {shown}: segments of {right} blocks fit; short segments have many inputs to hold, so "
                "longer ones may fit where short ones don't"
            )
        if found not in need:
            raise Wrong(f"for {shown}: {found:g} is not a number of blocks from 1 to {blocks}, and one fits")
        if need[int(found)] > budget:
            raise Wrong(
                f"for {shown}: segments of {found:g} blocks hold {need[int(found)]} tensors, with the inputs "
                "of all segments, the number of which is rounded up"
            )
        raise Wrong(
            f"for {shown}: segments of {found:g} blocks fit, but longer ones do as well, and then fewer "
            "blocks are computed twice"
        )
    return "the longest segments that fit, for nine networks and budgets"


RATE, MOMENTUM = 0.1, 0.9


@tests("11.4", "shard the optimizer's state over real processes")
def _sharded(answer: Any) -> str:
    function = a_function(answer)
    for size, length in ((2, 7), (4, 12)):
        random = draws(114, size)
        one, velocity = random.normal(size=length), np.zeros(length)
        velocities = np.array_split(velocity, size)
        parts = [len(part) for part in velocities]
        for step in range(3):
            before, gradients = one, random.normal(size=(size, length))
            velocity = MOMENTUM * velocity + gradients.sum(0)
            one = before - RATE * velocity
            inputs = [(before, gradients[rank], velocities[rank]) for rank in range(size)]
            found, velocities, sent = _in_workers(function, inputs)
            own = [np.array_split(each, size)[rank] for rank, each in enumerate(gradients)]
            _judge(found, one, before - RATE * np.concatenate(own), step)
            most = 8 * max(length - part + (size - 1) * part for part in parts)
            if not sum(sent):
                raise Wrong("nothing was sent; a worker knows others' gradients only from their messages")
            if max(sent) > most:
                raise Wrong(
                    f"the weights are right, but one of {size} workers sent {max(sent)} bytes, allowed: "
                    f"{most}; send each worker only its part of the gradient, and your part of the weights"
                )
        if np.allclose(_in_workers(function, inputs, changed=0)[0][1], one):
            raise Wrong("a message to worker 1 was changed, and its weights are the same; why is it sent?")
    return (
        "with 2 and 4 workers the weights are those of one process, each worker holds its part of the "
        "velocity, and no byte too many was sent"
    )


def _in_workers(
    function: Callable[..., Any], inputs: list[Any], changed: int | None = None
) -> tuple[Any, ...]:
    """Return the weights and the velocity of each worker after a step, and the bytes that each sent.

    ``changed``: which message to worker 1 the network spoils.
    """

    def call(worker: Worker, *own: Any) -> Any:
        return function(spoiled(worker, changed), *own)

    size, found = len(inputs), []
    done = run_answer(size, call, each=inputs)
    for rank, (result, (weights, _, velocity)) in enumerate(zip(done.results, inputs, strict=True)):
        several(result, 2, "two arrays: all weights, and this worker's part of the velocity")
        what = f"the velocity that worker {rank} of {size} returns, of which it holds its part only,"
        found.append(
            (
                an_array(result[0], weights.shape, f"the weights that worker {rank} of {size} returns"),
                an_array(result[1], velocity.shape, what),
            )
        )
    return (*zip(*found, strict=True), done.bytes_sent)


def _judge(found: Any, one: NDArray[np.float64], without_sum: NDArray[np.float64], step: int) -> None:
    if all(np.allclose(each, one) for each in found):
        return
    if step == 0 and np.allclose(found[0], without_sum):
        raise Wrong("each worker used its own gradient only; the update needs the sum of all gradients")
    if not all(np.allclose(each, found[0]) for each in found):
        raise Wrong(
            f"after {step + 1} step(s) the {len(found)} workers have different weights; each must receive "
            "the parts that the others updated"
        )
    raise Wrong(
        f"after {step + 1} step(s) the weights aren't those of one process: velocity = {MOMENTUM} × "
        f"velocity + the sum of the gradients, weights = weights − {RATE} × velocity"
    )
