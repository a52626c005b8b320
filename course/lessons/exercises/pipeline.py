"""The tests of the exercises of lesson 12: the time of a schedule, 1F1B, cuts, replicas of a pipeline."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.pipeline import schedules
from course.lessons.verdict import Wrong, a_function, a_number, a_result, an_array, compare, draws, tests
from course.lessons.workers import run_answer


@tests("12.1", "the seconds that a schedule takes")
def _test_seconds(answer: Any) -> str:
    function = a_function(answer)
    one_by_one = schedules.one_forward_one_backward(4, 6)
    gpipe = [[(kind, m) for kind in "FB" for m in range(4)] for _ in range(3)]
    for name, schedule, forward, backward in (
        ("1 stage", gpipe[:1], [1.0], [2.0]),
        ("GPipe on 3 equal stages", gpipe, [1.0] * 3, [2.0] * 3),
        ("GPipe with a slow stage 1", gpipe, [1.0, 3.0, 1.0], [2.0, 5.0, 2.0]),
        ("GPipe with a slow stage 2", gpipe, [1.0, 1.0, 4.0], [2.0, 1.0, 3.0]),
        ("1F1B on 4 stages", one_by_one, [1.0, 2.0, 1.5, 1.0], [2.0, 3.0, 2.5, 1.0]),
        ("1F1B on 4 other stages", one_by_one, *draws(121).uniform(1, 5, (2, 4)).round(1).tolist()),
    ):
        given = [list(work) for work in schedule], list(forward), list(backward)
        found = a_number(function(*given), f"your result for {name}")
        right = schedules.seconds_of(schedules.simulate(schedule, forward, backward))
        works = [len(w) / 2 * (f + b) for w, f, b in zip(schedule, forward, backward, strict=True)]
        hints = (
            (sum(works), "you add up all passes; stages compute at the same time"),
            (max(works), "this is the work of the busiest stage; a stage also waits for others"),
        )
        otherwise = (
            f"{right:g} s are needed; a pass begins when its stage is free and its input is there: forward, "
            "from the stage before; backward, from the next one, on the last stage its own forward pass"
        )
        compare(found, right, f"for {name}, your seconds", hints, otherwise)
    return "right for GPipe and 1F1B, for equal and unequal stages"


@tests("12.2", "the schedule 1F1B")
def _test_schedule(answer: Any) -> str:
    function = a_function(answer)
    drawn = draws(122).integers((2, 2), (8, 20), (2, 2)).tolist()
    for stages, micro_batches in ((2, 4), (3, 3), (4, 8), (4, 2), (5, 17), (1, 3), *drawn):
        shown = f"with {stages} stages and {micro_batches} micro-batches"
        schedule = _a_schedule(function(stages, micro_batches), stages, micro_batches, shown)
        try:
            seconds = schedules.seconds_of(schedules.simulate(schedule, [1.0] * stages, [2.0] * stages))
        except ValueError as error:
            raise Wrong(f"{shown} nobody can go on: {error}") from None
        for stage, most in enumerate(schedules.most_kept(schedule)):
            if most > stages - stage:
                raise Wrong(
                    f"{shown}, stage {stage} keeps {most} micro-batches; it may keep p − s = {stages - stage}"
                    ": begin with so many forward passes, then one backward and one forward in turn"
                )
        best = 3 * (micro_batches + stages - 1)
        if seconds > best:
            raise Wrong(
                f"{shown} it takes {seconds:g} s with passes of 1 and 2 s, and {best} are enough; the first "
                "stages need more forward passes ahead, so that the later ones never wait"
            )
    return "no stage keeps more than p − s micro-batches, and the bubble is that of GPipe, for 1 to 7 stages"


def _a_schedule(found: Any, stages: int, micro_batches: int, shown: str) -> list[list[tuple[str, int]]]:
    a_result(found)
    if not isinstance(found, list | tuple) or len(found) != stages:
        raise Wrong(f"{shown}, return a list with {stages} lists, one for each stage")
    try:
        schedule = [[(str(kind), int(m)) for kind, m in work] for work in found]
    except (TypeError, ValueError):
        raise Wrong(f'{shown}, each stage has a list of pairs such as ("F", 0) or ("B", 3)') from None
    every = [(kind, m) for kind in "BF" for m in range(micro_batches)]
    for stage, work in enumerate(schedule):
        if sorted(work) != every:
            raise Wrong(
                f"{shown}, stage {stage} must have all {len(every)} passes once; is one left at the end?"
            )
        # "B" and "F" apart, each in the order of the stage
        if sorted(work, key=lambda each: each[0]) != sorted(schedule[0], key=lambda each: each[0]):
            raise Wrong(
                f"{shown}, stages 0 and {stage} take them in different orders, and messages have no name"
            )
    return schedule


@tests("12.3", "where to cut a network")
def _test_cuts(answer: Any) -> str:
    function = a_function(answer)
    random = draws(123)
    cases = [([5.0, 1, 1, 1, 1, 1], 2), ([1.0, 1, 1, 9], 2)]
    cases += [([4.0, 2, 1, 5, 2], 3), ([2.0, 2, 4, 1, 4], 4)]  # equal shares, and least squares, are not best
    cases += [(random.uniform(1, 5, size).round(1).tolist(), stages) for size, stages in ((7, 3), (9, 4))]
    for costs, stages in cases:
        shown = f"for the costs {costs} and {stages} stages"
        cuts = an_array(function(list(costs), stages), (stages - 1,), f"what your function returns {shown}")
        if (cuts != np.round(cuts)).any() or (np.diff([0, *cuts, len(costs)]) < 1).any():
            raise Wrong(
                f"{shown}, your cuts are {cuts.tolist()}; expected ascending numbers of blocks from 1 to "
                f"{len(costs) - 1}: no stage may be empty"
            )
        options = cuts.astype(int).tolist(), schedules.best_cuts(costs, stages)
        found, best = (max(schedules.sums_between(costs, option)) for option in options)
        if found > best + 1e-9:
            raise Wrong(
                f"{shown}, your most expensive stage costs {found:g}, and {best:g} is possible; compare the "
                "sums of costs of all cuts, not the numbers of blocks"
            )
    return "no other cut gives a smaller largest sum, for 2 to 4 stages"


WORKERS, MICRO_BATCHES, IMAGES, WIDTH = 4, 3, 24, 6


class Layer:
    """A dense layer with tanh, float64. The loss of the last one is the squared error, divided by IMAGES."""

    def __init__(self, weights: NDArray[np.float64], last: bool) -> None:
        self._weights, self._last = weights, last
        self._kept: dict[int, tuple[Any, Any]] = {}
        self.gradient = np.zeros_like(weights)

    def forward(self, m: int, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        self._kept[m] = inputs, np.tanh(inputs @ self._weights)
        return self._kept[m][1]

    def backward(self, m: int, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        inputs, outputs = self._kept.pop(m)
        if self._last:
            gradient = 2 * (outputs - gradient) / IMAGES
        gradient = gradient * (1 - outputs**2)
        self.gradient = self.gradient + inputs.T @ gradient
        return gradient @ self._weights.T


def _whole(weights: list[NDArray[Any]], images: NDArray[Any], targets: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the gradient of each layer, computed in this process."""
    layers = [Layer(own, number == len(weights) - 1) for number, own in enumerate(weights)]
    for layer in layers:
        images = layer.forward(0, images)
    for layer in reversed(layers):
        targets = layer.backward(0, targets)
    return [layer.gradient for layer in layers]


@tests("12.4", "replicas of a pipeline, on four processes")
def _test_replicas(answer: Any) -> str:
    function = a_function(answer)
    random = draws(124)
    for stages in (WORKERS, 2, 1):
        weights = list(random.normal(0, 0.5, (stages, WIDTH, WIDTH)))
        images, targets = random.normal(size=(2, IMAGES, WIDTH))
        parts = [
            [np.split(own, MICRO_BATCHES) for own in np.split(values, WORKERS // stages)]
            for values in (images, targets)
        ]
        each = []
        for replica, stage in (divmod(rank, stages) for rank in range(WORKERS)):
            last = stage == stages - 1
            given = parts[0][replica] if stage == 0 else None, parts[1][replica] if last else None
            each.append((Layer(weights[stage], last), *given))
        results = run_answer(WORKERS, function, stages, MICRO_BATCHES, each=each).results
        whole = _whole(weights, images, targets)
        shape = f"with {WORKERS // stages} × {stages} workers"
        names = [f"{shape}, the result of worker {rank}" for rank in range(WORKERS)]
        found = [an_array(own, (WIDTH, WIDTH), name) for own, name in zip(results, names, strict=True)]
        for rank, (gradient, name) in enumerate(zip(found, names, strict=True)):
            right = whole[rank % stages]
            if np.allclose(gradient, right):
                continue
            if np.allclose(gradient * WORKERS / stages, right):
                raise Wrong(f"{name} is a mean; the loss is divided by the images of all pipelines: add")
            if np.allclose(sum(found[rank % stages :: stages]), right):
                raise Wrong(f"{name} is the gradient of its own pipeline; add those of the others")
            if np.allclose(gradient, sum(whole)):
                raise Wrong(f"{name} has other stages' gradients in it; add only those of its own stage")
            raise Wrong(f"{name} isn't the gradient of its layer; do neighbours have the same order?")
    return "each worker has the gradient of the whole batch: in 1 × 4, 2 × 2 and 4 × 1 processes"
