"""The exercises of lesson 02: a residual block, an initialization, batch normalization, receptive fields."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.verdict import Wrong, a_function, a_number, an_array, draws, explain, tests

Array = NDArray[np.float64]
CLOSE = 1e-4, 1e-5  # relative and absolute, to float32


def _pooled(x: Array) -> Array:
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def _padded(x: Array, before: int, after: int) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (0, 0), (before, after)))


@tests("02.1", "the forward pass of a residual block")
def _residual_block(answer: Any) -> str:
    block = a_function(answer)
    random = draws(21)
    for height, width, channels in ((4, 4, 3), (6, 2, 5)):
        x, change = random.normal(size=(2, 3, height, width, channels))
        _same_shape(an_array(block(x.copy(), change.copy()), change.shape), x, change)
    for height, width, channels in ((4, 6, 2), (8, 8, 4)):
        x = random.normal(size=(3, height, width, channels))
        change = random.normal(size=(3, height // 2, width // 2, 2 * channels))
        found = an_array(block(x.copy(), change.copy()), change.shape, "your answer for a smaller residual")
        _smaller(found, x, change)
    return "sum and ReLU are right, with the same shape and with half the resolution and twice the channels"


def _same_shape(found: Array, x: Array, change: Array) -> None:
    if np.allclose(found, np.maximum(x + change, 0), *CLOSE):
        return
    explain(found, (
        (x + change, "your sum is right; version 1 of the ResNet applies a ReLU to it"),
        (x + np.maximum(change, 0), "the ReLU comes after the sum; yours comes before it"),
        (np.maximum(change, 0), "your block forgets x; that is the plain network"),
        (np.maximum(x, 0) + np.maximum(change, 0), "the ReLU comes after the sum; apply one, at the end"),
    ), *CLOSE)  # fmt: skip
    raise Wrong("where x and residual have one shape, the answer isn't relu(x + residual)")


def _smaller(found: Array, x: Array, change: Array) -> None:
    channels = x.shape[-1]
    half = channels // 2, channels - channels // 2
    if np.allclose(found, np.maximum(_padded(_pooled(x), *half) + change, 0), *CLOSE):
        return
    sparse = x[:, ::2, ::2]
    shortcuts = (
        (_padded(sparse, *half), "you take every second pixel, as He et al. do; here it is the mean of 2×2"),
        (_padded(_pooled(x), 0, channels), "put half of the zero channels in front of x and half behind it"),
        (_padded(sparse, 0, channels), "take the mean of each 2×2 pixels, with zero channels on both sides"),
        (np.concatenate([_pooled(x)] * 2, axis=-1), "the new channels of the shortcut are zeros, not copies"),
        (np.zeros_like(change), "where the shape changes, the shortcut stays: mean of 2×2 and zeros"),
    )  # fmt: skip
    explain(found, ((np.maximum(shortcut + change, 0), hint) for shortcut, hint in shortcuts), *CLOSE)
    raise Wrong("where the residual is smaller, the shortcut isn't the mean of 2×2 pixels with zero channels")


@tests("02.2", "an initialization that keeps the signal")
def _initial_std(answer: Any) -> str:
    std = a_function(answer)
    widths = [int(draws(22, width).integers(width, width + 30)) for width in (100, 200)]
    values = [a_number(std(width), "your answer") for width in widths]
    if min(values) <= 0:
        raise Wrong(f"your standard deviation is {min(values):.3g}; it must be above 0")
    kept = [_kept(value, width, layers=16) for value, width in zip(values, widths, strict=True)]
    if all(0.3 < share < 3 for share in kept):
        return (
            f"after 16 layers the mean square is {kept[0]:.2f} and {kept[1]:.2f} of the input's: by chance, "
            "with these random weights; on average it is exactly 1"
        )
    variances = [width * value**2 for value, width in zip(values, widths, strict=True)]
    if np.allclose(variances, 1, rtol=0.1):
        raise Wrong(
            "that keeps the signal of linear layers; a ReLU halves the mean square, so double the variance"
        )
    if np.allclose(values, [2 / width for width in widths], rtol=0.1):
        raise Wrong("that is a variance; return its square root")
    if np.isclose(values[0], values[1], rtol=0.1):
        raise Wrong("your value doesn't depend on fan_in; the more inputs a sum has, the smaller the weights")
    grows = "grows" if kept[0] > 1 else "shrinks"
    raise Wrong(f"the signal {grows}: after 16 layers its mean square is {kept[0]:.2g} of the input's")


def _kept(std: float, width: int, layers: int) -> float:
    """Return the mean square after dense ReLU layers, divided by that of the inputs; median of 21 seeds."""
    shares = []
    for seed in range(21):
        random = draws(22, seed)
        x = np.maximum(random.normal(size=(20, width)), 0)
        before = np.mean(x**2)
        for _ in range(layers):
            x = np.maximum(x @ random.normal(0, std, size=(width, width)), 0)
        shares.append(float(np.mean(x**2) / before))
    return float(np.median(shares))


@tests("02.3", "batch normalization in training and prediction")
def _batch_norm(answer: Any) -> str:
    norm = a_function(answer)
    random = draws(23)
    for shape in ((4, 3, 5, 2), (7, 2, 2, 3)):
        x = random.normal(3, 2, size=shape) * np.arange(1, shape[-1] + 1)
        gamma, beta, mean = random.normal(size=(3, shape[-1]))
        variance = random.uniform(0.5, 4, size=shape[-1])
        for training in (True, False):
            found = an_array(norm(x.copy(), gamma, beta, mean, variance, training), shape)
            _normalized(found, x, gamma, beta, (mean, variance), training)
    tiny = np.zeros((3, 2, 2, 1))
    one = np.ones(1)
    with np.errstate(all="ignore"):
        dead = np.asarray(norm(tiny, one, one, one, one, True), np.float64)
    if dead.shape != tiny.shape or not np.isfinite(dead).all():
        raise Wrong("a channel that is 0 everywhere gives NaN; add 1e-5 to the variance")
    small = random.normal(0, 0.01, size=(4, 3, 5, 1))
    found = an_array(norm(small.copy(), one, 0 * one, 0 * one, one, True), small.shape)
    if not np.allclose(found, (small - small.mean()) / np.sqrt(small.var() + 1e-5), atol=0.02):
        raise Wrong(
            "where a channel varies little, the 1e-5 counts: add 1e-5 to the variance, under the root"
        )
    return "each channel is normalized by its batch in training and by the moving statistics in prediction"


def _normalized(found: Array, x: Array, gamma: Array, beta: Array, moving: Any, training: bool) -> None:
    def by(mean: Any, variance: Any) -> Array:
        return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta

    def over(*axes: int) -> tuple[Array, Array]:
        return x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)

    batch = over(0, 1, 2)
    centred = x - batch[0]
    if np.allclose(found, by(*(batch if training else moving)), rtol=1e-3, atol=1e-3):
        return
    ways = (
        (by(*over(0)), "you normalize each pixel on its own; average over height and width too"),
        (by(*over(1, 2)), "you normalize each image on its own; average over the batch too"),
        (by(*over(0, 1, 2, 3)), "you mix the channels; each channel has its own mean and variance"),
        (gamma * centred / (batch[1] + 1e-5) + beta, "you divide by the variance; divide by its square root"),
        (centred / np.sqrt(batch[1] + 1e-5), "gamma and beta are missing: scale and shift at the end"),
        (
            by(*(moving if training else batch)),
            "in training the statistics are those of the batch"
            if training
            else "in prediction the moving statistics count; no output may depend on other images",
        ),
    )  # fmt: skip
    explain(found, ways, 1e-3, 1e-3)
    raise Wrong(f"with training={training} a channel isn't gamma * (x - mean) / sqrt(variance + 1e-5) + beta")


@tests("02.4", "the receptive field of a stack of layers")
def _receptive_field(answer: Any) -> str:
    field = a_function(answer)
    random = draws(24)
    stacks = [[(3, 1)], [(3, 1)] * 6, [(3, 2), (3, 1), (3, 1)], [(1, 2), (5, 1)]]
    for _ in range(4):
        count = int(random.integers(3, 8))
        stacks.append([(int(random.choice([1, 3, 5])), int(random.integers(1, 3))) for _ in range(count)])
    for stack in stacks:
        found = a_number(field(list(stack)), f"your answer for {stack}")
        _field(found, stack)
    return f"right for {len(stacks)} stacks; each was found anew by marking the pixels that an output reads"


def _field(found: float, stack: list[tuple[int, int]]) -> None:
    if found == _marked(stack):
        return
    kernels, strides = zip(*stack, strict=True)
    own_first = 1 + sum((k - 1) * math.prod(strides[: n + 1]) for n, k in enumerate(kernels))
    explain(found, (
        (1 + sum(kernels) - len(kernels), "the strides are missing: after one, neighbours are farther apart"),
        (_marked(stack) - 1, "you are one short; a stack of no layers sees 1 pixel"),
        (own_first, "a layer's own stride counts only for the layers after it"),
        (sum(kernels), "neighbouring windows overlap: a kernel of k adds k - 1 windows, not k"),
    ))  # fmt: skip
    raise Wrong(
        f"for {stack} your answer is {found:g}; an output there reads {_marked(stack)} pixels in a row"
    )


def _marked(stack: list[tuple[int, int]]) -> int:
    """Return how far the pixels that one output reads are apart, found from the output backwards."""
    first = last = 0
    for kernel, stride in reversed(stack):
        first, last = first * stride, last * stride + kernel - 1
    return last - first + 1
