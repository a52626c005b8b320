"""The exercises of lesson 03: cross-entropy, an update, a schedule, and a loop to fix."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.verdict import Wrong, a_function, a_number, a_result, an_array, draws, explain, tests
from labkit.config import OptimizerConfig
from labkit.optim.schedules import learning_rate_at

Array = NDArray[np.float64]


@tests("03.1", "cross-entropy that survives large logits")
def _cross_entropy(answer: Any) -> str:
    loss = a_function(answer)
    random = draws(31)
    for count, classes in ((4, 3), (6, 10)):
        logits = random.normal(0, 2, size=(count, classes))
        labels = random.integers(0, classes, size=count)
        _small_logits(loss(logits.copy(), labels.copy()), logits, labels)
    for size in (1e3, 1e5):
        logits = np.array([[size, 0.0, -size], [-size, -size, 0.0], [size, size, 0.0]])
        labels = np.array([1, 0, 2])
        with np.errstate(all="ignore"):
            found = _floats(loss(logits.copy(), labels.copy()), labels.shape)
        if found.shape != (3,) or not np.isfinite(found).all():
            raise Wrong(
                f"right for small logits, but logits of {size:g} give {found.tolist()}; "
                "exp overflows: subtract the largest logit of each row first"
            )
        if not np.allclose(found, [size, size, size + np.log(2)], rtol=1e-6):
            raise Wrong(
                "right for small logits, but large losses come out too small; don't limit the probability "
                "or add a constant to it: write log(p) as logit − log(sum of exp)"
            )
    return "equal to −log(p) for small logits, and exact for logits of 100,000"


def _floats(found: Any, shape: tuple[int, ...]) -> Array:
    """Return ``found`` as float64, finite or not. Raises Wrong for what are no numbers."""
    try:
        return np.asarray(a_result(found), np.float64)
    except (TypeError, ValueError, OverflowError):
        return an_array(found, shape)


def _small_logits(found: Any, logits: Array, labels: NDArray[np.int64]) -> None:
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -log_p[np.arange(len(labels)), labels]
    if np.allclose(_floats(found, expected.shape), expected.mean()) and np.size(found) == 1:
        raise Wrong("that is the mean over the examples; return the loss of each")
    values = an_array(found, expected.shape)
    if np.allclose(values, expected, rtol=1e-5, atol=1e-6):
        return
    explain(values, (
        (-expected, "the sign is wrong: the loss is −log(p), which is never negative"),
        (np.exp(-expected), "that is the probability of the label; the loss is its negative logarithm"),
        (expected / np.log(2), "that is in bits; the natural logarithm gives nats"),
        (-logits[np.arange(len(labels)), labels], "softmax is missing: subtract the log of the sum of exp"),
    ), atol=1e-6)  # fmt: skip
    raise Wrong("for small logits the answer isn't −log(softmax(logits)[label])")


SHAPES = ((3, 3, 2, 4), (4,), (5, 2), (2,))


@tests("03.2", "SGD with momentum and weight decay")
def _update(answer: Any) -> str:
    update = a_function(answer)
    random = draws(32)
    for rate, momentum, decay in ((0.1, 0.9, 0.0), (0.3, 0.5, 0.2), (0.05, 0.9, 0.01)):
        weights, velocities, gradients = ([random.normal(size=shape) for shape in SHAPES] for _ in range(3))
        copies = [[array.copy() for array in arrays] for arrays in (weights, velocities, gradients)]
        found = _two_lists(a_result(update(*copies, rate, momentum, decay)))

        def expected(
            way: str, arguments: Any = (weights, velocities, gradients, rate, momentum, decay)
        ) -> Any:
            return _updated(way, *arguments)

        if _same(found, expected("right")):
            continue
        for way, hint in _UPDATE_HINTS.items():
            if _same(found, expected(way)):
                raise Wrong(hint)
        if _same(found[1:], expected("right")[1:]):
            raise Wrong("the velocities are right, the weights aren't: w − rate · new velocity")
        raise Wrong(f"with momentum {momentum} and decay {decay} the velocity isn't momentum · v + gradient")
    return "velocities and weights are right, kernels decay, and vectors don't"


def _two_lists(found: Any) -> tuple[list[Array], list[Array]]:
    if isinstance(found, tuple | list):
        found = [list(part) if hasattr(part, "__iter__") else part for part in found]
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise Wrong(f"your answer is {type(found).__name__}; return two lists: weights, velocities")
    if any(not isinstance(part, tuple | list) or len(part) != len(SHAPES) for part in found):
        raise Wrong("each of the two lists must have one array for each weight")
    weights, velocities = (
        [an_array(array, shape, what) for array, shape in zip(part, SHAPES, strict=True)]
        for part, what in zip(found, ("a new weight", "a new velocity"), strict=True)
    )
    return weights, velocities


_UPDATE_HINTS = {
    "decay all": "your decay also shrinks vectors (gamma, beta, biases); it is for weights of several axes",
    "decay none": "the weight decay is missing: it adds decay · w to the gradient of a kernel",
    "old velocity": "you move by the old velocity; compute the new one first",
    "with rate": "your velocity contains the rate; labkit's doesn't: v = momentum · v + gradient",
    "damped": "your velocity is a mean, with 1 − momentum before the gradient; labkit's is a sum",
    "no momentum": "your step ignores the velocity: w − rate · v, with the new v",
}


def _updated(
    way: str, weights: Any, velocities: Any, gradients: Any, rate: float, momentum: float, decay: float
):
    new: tuple[list[Array], list[Array]] = ([], [])
    for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
        decays = way == "decay all" or (weight.ndim > 1 and way != "decay none")
        slope = gradient + decay * weight if decays else gradient
        after = momentum * velocity + (1 - momentum if way == "damped" else 1) * slope
        move = rate * {"old velocity": velocity, "no momentum": slope}.get(way, after)
        if way == "with rate":
            after = momentum * velocity + rate * slope
            move = after
        new[0].append(weight - move)
        new[1].append(after)
    return new


def _same(found: Any, expected: Any) -> bool:
    return all(
        np.allclose(one, other, rtol=1e-5, atol=1e-7)
        for ours, theirs in zip(found, expected, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )


@tests("03.3", "a cosine schedule with warm-up")
def _schedule(answer: Any) -> str:
    rate = a_function(answer)
    drawn = (*draws(33).integers((60, 1), (200, 50)).tolist(), 0.7)
    for total, warmup, peak in ((100, 10, 0.5), (41, 0, 2.0), (250, 40, 0.1), drawn):
        config = OptimizerConfig(learning_rate=peak, learning_rate_schedule="cosine", warmup_steps=warmup)
        expected = [
            learning_rate_at(step, config, total_steps=total, steps_per_epoch=1) for step in range(total)
        ]
        found = [
            a_number(rate(step, total, warmup, peak), f"your rate at step {step}") for step in range(total)
        ]
        if np.allclose(found, expected, rtol=1e-5, atol=1e-6 * peak):
            continue
        ways = (([way(step, total, warmup, peak) for step in range(total)], hint) for way, hint in _SCHEDULES)
        explain(found, ways, atol=1e-6 * peak)
        wrong = int(np.argmax(~np.isclose(found, expected, rtol=1e-5, atol=1e-6 * peak)))
        where = "in the warm-up" if wrong < warmup else "after the warm-up"
        raise Wrong(f"at step {wrong} of {total}, {where}, your rate is {found[wrong]:.4g}; not as described")
    return "equal to labkit's schedule at every step of four runs"


def _cosine(progress: float) -> float:
    """Return half a period, from 1 at ``progress`` 0 to 0 at 1."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def _ramp(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _after(step: int, total: int, warmup: int) -> float:
    """Return the progress after the warm-up, 0 to 1."""
    return max(0, step - warmup) / (total - warmup)


_SCHEDULES: tuple[tuple[Callable[[int, int, int, float], float], str], ...] = (
    (
        lambda step, total, warmup, peak: peak * _cosine(_after(step, total, warmup)),
        "the warm-up is missing: for the first steps the rate rises",
    ),
    (
        lambda step, total, warmup, peak: (
            peak * step / warmup if step < warmup else peak * _cosine(_after(step, total, warmup))
        ),
        "your first step has the rate 0 and learns nothing: count (step + 1) / warmup",
    ),
    (
        lambda step, total, warmup, peak: peak * _ramp(step, warmup) * _cosine(step / total),
        "your cosine starts at step 0; it starts where the warm-up ends, so that the peak is reached",
    ),
    (
        lambda step, total, warmup, peak: (
            peak * _ramp(step, warmup) * _cosine(2 * _after(step, total, warmup))
        ),
        "your rate rises again to the peak at the end; take half a period of the cosine",
    ),
    (
        lambda step, total, warmup, peak: (
            peak * _ramp(step, warmup) * math.cos(math.pi * _after(step, total, warmup))
        ),
        "your rate becomes negative; the cosine goes from 1 to −1: add 1 and halve it",
    ),
    (
        lambda step, total, warmup, peak: peak * _ramp(step, warmup) * (1 - _after(step, total, warmup)),
        "your rate falls along a line; take half a period of a cosine",
    ),
)


@tests("03.4", "find three mistakes in a loop")
def _fixed_loop(answer: Any) -> str:
    loop = a_function(answer)
    random = draws(34)
    batches = [random.normal(size=(12, 4)) for _ in range(5)]
    for parts in (6, 3, 2, 1):
        start = random.normal(size=3)
        seen: list[int] = []
        found = an_array(loop(_recording(seen), start.copy(), batches, 0.1, parts), start.shape)
        if np.allclose(found, _loop(start, batches, parts), rtol=1e-6):
            if max(seen, default=0) > 12 // parts:
                raise Wrong(
                    f"the weights are right, but you took the gradient of {max(seen)} examples at once; with "
                    f"{parts} parts the memory holds {12 // parts}"
                )
            continue
        explain(found, ((_loop(start, batches, parts, bugs), hint) for bugs, hint in _LOOP_HINTS), 1e-6)
        raise Wrong(f"with {parts} parts the weights aren't those of one step for each whole batch")
    return "the same weights with 1, 2, 3 and 6 parts as with whole batches"


def _recording(seen: list[int]) -> Callable[[Array, Array], Array]:
    """Return the gradient; it notes of how many examples it was asked for."""

    def gradient(weights: Array, part: Array) -> Array:
        seen.append(len(part))
        return _slope(weights, part)

    return gradient


def _slope(weights: Array, examples: Array) -> Array:
    """Return the gradient of the mean squared error of a linear model on examples (inputs, target)."""
    inputs, targets = examples[:, :3], examples[:, 3]
    return 2 * inputs.T @ (inputs @ weights - targets) / len(examples)


def _loop(weights: Array, batches: list[Array], parts: int, bugs: str = "") -> Array:
    total = np.zeros_like(weights)
    for batch in batches:
        if "kept" not in bugs:
            total = np.zeros_like(weights)
        for part in np.split(batch, parts):
            total = total + _slope(weights, part) / (1 if "sum" in bugs else parts)
            if "inside" in bugs:
                weights = weights - 0.1 * total
        if "inside" not in bugs:
            weights = weights - 0.1 * total
    return weights


_LOOP_HINTS = (
    ("kept", "the total still contains the gradients of earlier batches; set it to 0 for each batch"),
    ("sum", "you add up the parts' mean gradients; the mean of the batch is their sum divided by parts"),
    ("inside", "you move after every part; move once for each batch, after its last part"),
    ("kept sum", "one mistake is fixed; the total isn't set to 0 for each batch, nor divided by parts"),
    ("kept inside", "one mistake is fixed; the total isn't set to 0, and the weights move after every part"),
    (
        "sum inside",
        "one mistake is fixed; the total isn't divided by parts, and the weights move in each part",
    ),
    ("kept sum inside", "all three mistakes are still there; run it in your head with two parts"),
)
