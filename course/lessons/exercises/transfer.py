"""The exercises of lesson 07."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from course.lessons.verdict import Wrong, a_function, a_number, an_array, draws, tests

Shapes = dict[str, tuple[int, ...]]


def _random_shapes(rng: np.random.Generator) -> Shapes:
    """Return the weights of a made-up network: stem, stage1, stage2, stage10 and a head."""
    shapes: Shapes = {}
    width = before = int(rng.integers(3, 9))
    for stage in ("stem", "stage1", "stage2", "stage10"):
        for block in range(int(rng.integers(1, 3))):
            name = f"{stage}_block{block + 1}"
            shapes[f"{name}_conv1/kernel"] = (3, 3, before, width)
            for part in ("gamma", "beta", "moving_mean", "moving_variance"):
                shapes[f"{name}_norm1/{part}"] = (width,)
            before, width = width, width + int(rng.integers(1, 9))
    shapes["logits/kernel"], shapes["logits/bias"] = (before, 5), (5,)
    return shapes


def _count(shapes: Shapes, frozen: Iterable[str], moving: bool = False) -> int:
    """Return the scalars outside of the frozen stages, with or without moving averages."""
    return sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if name.split("_")[0].split("/")[0] not in frozen and (moving or "moving" not in name)
    )


@tests("07.1", "count what is trained")
def _test_count(answer: Any) -> str:
    function, rng = a_function(answer), draws(7)
    for frozen in (
        (),
        ("stem",),
        ("stem", "stage1"),
        ("stage2", "logits"),
        ("stem", "stage1", "stage2", "stage10"),
    ):
        shapes = _random_shapes(rng)
        found = a_number(function(dict(shapes), list(frozen)), f"your count with {list(frozen)} frozen")
        expected = _count(shapes, frozen)
        if found == expected:
            continue
        if found == _count(shapes, frozen, moving=True):
            raise Wrong(
                "moving averages are not trained by gradients: leave out moving_mean and moving_variance"
            )
        if found == _count(shapes, ()):
            raise Wrong(f"{list(frozen)} are frozen, and your count is that of the whole network")
        if found == sum(
            sum(s) for n, s in shapes.items() if "moving" not in n and n.split("_")[0] not in frozen
        ):
            raise Wrong("a kernel of the shape (3, 3, 16, 32) has 3 · 3 · 16 · 32 numbers, not their sum")
        if "stage1" in frozen and found == _count(shapes, [*frozen, "stage10"]):
            raise Wrong(
                "freezing stage1 froze stage10 too: the stage is all that comes before the first _ or /"
            )
        raise Wrong(f"with {list(frozen)} frozen, {expected:,} numbers are trained, not {found:,.0f}")
    return "your counts are right for five networks with different stages frozen"


def _network(seed: int) -> Any:
    """Return a small Keras network with stages stem, stage1, stage10 and a head."""
    import keras

    dtype = "float32"
    images = keras.Input((8, 8, 3), dtype=dtype)
    x = images
    for stage in ("stem", "stage1", "stage10"):
        start = keras.initializers.GlorotUniform(seed + len(stage))
        x = keras.layers.Conv2D(
            4,
            3,
            padding="same",
            data_format="channels_last",
            kernel_initializer=start,
            dtype=dtype,
            name=f"{stage}_conv",
        )(x)
        x = keras.layers.BatchNormalization(dtype=dtype, name=f"{stage}_norm")(x)
        x = keras.layers.ReLU(dtype=dtype, name=f"{stage}_relu")(x)
    x = keras.layers.GlobalAveragePooling2D("channels_last", dtype=dtype, name="head_pool")(x)
    return keras.Model(images, keras.layers.Dense(5, dtype=dtype, name="logits")(x))


def _changed_by_training(model: Any, rng: np.random.Generator) -> set[str]:
    """Train two steps; return the names of the layers that changed."""
    import tensorflow as tf

    before = {layer.name: [w.numpy() for w in layer.weights] for layer in model.layers}
    for _ in range(2):
        images = tf.constant(rng.normal(1.0, 2.0, (16, 8, 8, 3)), tf.float32)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.constant(rng.integers(0, 5, 16)), model(images, training=True)
            )
            loss = tf.reduce_mean(losses)
        weights = model.trainable_variables
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
    return {
        layer.name
        for layer in model.layers
        if any(
            not np.array_equal(a, b.numpy()) for a, b in zip(before[layer.name], layer.weights, strict=True)
        )
    }


@tests("07.3", "freeze stages of a Keras model")
def _test_freeze(answer: Any) -> str:
    freeze, rng = a_function(answer), draws(3)
    for frozen in (["stem", "stage1"], ["stage10"], []):
        model = _network(int(rng.integers(1000)))
        freeze(model, list(frozen))
        changed = _changed_by_training(model, rng)
        layers = [layer.name for layer in model.layers if layer.weights]
        held = [name for name in layers if name.split("_")[0] in frozen]
        norms = [name for name in held if name.endswith("norm") and name in changed]
        kernels = [name for name in held if not name.endswith("norm") and name in changed]
        if norms and not kernels:
            raise Wrong(
                f"with {frozen} frozen, two steps changed {norms[0]}: its moving averages follow the "
                "new images; freeze the normalization too"
            )
        if norms or kernels:
            raise Wrong(
                f"with {frozen} frozen, two steps changed {(kernels + norms)[0]}; set layer.trainable "
                "to False for the layers of these stages"
            )
        stuck = [name for name in layers if name not in held and name not in changed]
        if "logits" in stuck:
            raise Wrong(f"with {frozen} frozen, the head did not learn; keep logits trainable")
        if stuck:
            raise Wrong(
                f"with {frozen} frozen, {stuck[0]} did not change either; its stage "
                f"is {stuck[0].split('_')[0]}, which is not in the list"
            )
    return (
        "two training steps changed no weight and no statistic of frozen stages, and changed all other layers"
    )


def _weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    weights: dict[str, np.ndarray] = {}
    for layer in ("stem_conv", "stage1_conv", "stage2_conv", "stage3_conv"):
        weights[f"{layer}/kernel"] = rng.normal(size=(3, 3, 4, 4)).astype(np.float32)
    for layer in ("stem_norm", "stage1_norm", "stage2_norm"):
        for part in ("gamma", "beta", "moving_mean", "moving_variance"):
            weights[f"{layer}/{part}"] = rng.normal(size=4).astype(np.float32)
    weights["logits/kernel"] = rng.normal(size=(4, 5)).astype(np.float32)
    weights["logits/bias"] = np.zeros(5, np.float32)
    return weights


def _names(changed_layers: Any, before: Any, after: Any) -> set[str]:
    found = changed_layers(before, after)
    names = list(found) if isinstance(found, Iterable) and not isinstance(found, str | bytes) else [found]
    if isinstance(found, str) or not all(isinstance(name, str) for name in names):
        raise Wrong(
            f"changed_layers(before, after) gave {type(found).__name__}; expected a set of names of layers"
        )
    if any("/" in str(name) for name in names):
        raise Wrong("you return names of weights; a layer's name is what comes before the slash")
    return {str(name) for name in names}


@tests("07.2", "find the layers that changed")
def _test_changed(answer: Any) -> str:
    function, rng = a_function(answer), draws(9)

    def expect(change: Any, expected: set[str], hint: str) -> None:
        before = _weights(rng)
        after = {name: array.copy() for name, array in before.items()}
        change(after)
        if _names(function, before, after) != expected:
            raise Wrong(hint)

    def swap(weights: dict[str, np.ndarray]) -> None:
        weights["stage1_conv/kernel"] = weights["stage1_conv/kernel"][::-1].copy()

    def nudge(weights: dict[str, np.ndarray]) -> None:
        weights["stage2_conv/kernel"][0, 0, 0, 0] = np.nextafter(
            weights["stage2_conv/kernel"][0, 0, 0, 0], np.float32(9)
        )

    def drift(weights: dict[str, np.ndarray]) -> None:
        weights["stage1_norm/moving_mean"] += 0.01

    def several(weights: dict[str, np.ndarray]) -> None:
        weights["logits/bias"] += 1
        weights["logits/kernel"] -= 1
        weights["stem_norm/beta"][2] = 5

    expect(
        lambda weights: None,
        set(),
        "nothing changed, and you name layers; compare the values, not the objects",
    )
    expect(
        several, {"logits", "stem_norm"}, "logits and one value of stem_norm changed; name exactly these two"
    )
    expect(
        drift, {"stage1_norm"}, "a moving average of stage1_norm changed: that is a change of the layer too"
    )
    expect(
        swap, {"stage1_conv"}, "a kernel was turned round, which keeps its sum and norm; compare each element"
    )
    expect(
        nudge,
        {"stage2_conv"},
        "one number changed in its last bit; frozen means equal, not close: no tolerance",
    )
    return "found each changed layer, down to the last bit of one number, and no other"


@tests("07.4", "softmax or sigmoid")
def _test_probabilities(answer: Any) -> str:
    function, rng = a_function(answer), draws(4)
    for scale in (1.0, 8.0):
        logits = scale * rng.normal(size=(6, 4))
        for exclusive in (True, False):
            what = f"probabilities(logits, {exclusive})"
            with np.errstate(all="ignore"):
                found = an_array(function(logits.copy(), exclusive), logits.shape, what)
            sums = found.sum(axis=1)
            if exclusive and np.allclose(found.sum(axis=0), 1) and not np.allclose(sums, 1):
                raise Wrong("your columns sum to 1; the classes of one image stand in a row")
            if exclusive and not np.allclose(sums, 1):
                raise Wrong(
                    "exactly one class is true, so the probabilities of an image have to sum to 1: softmax"
                )
            if not exclusive and np.allclose(sums, 1):
                raise Wrong(
                    "any number of classes may be true, so their probabilities need not sum to 1: sigmoid"
                )
            powers = np.exp(logits)
            right = powers / powers.sum(axis=1, keepdims=True) if exclusive else powers / (1 + powers)
            if not np.allclose(found, right, atol=1e-6):
                name = "softmax, e^z / Σ e^z" if exclusive else "sigmoid, 1 / (1 + e^−z)"
                raise Wrong(f"{what} differs from {name} by up to {abs(found - right).max():.2g}")
    big = np.array([[1000.0, 0.0, -1000.0], [-800.0, -801.0, -900.0]])
    for exclusive in (True, False):
        with np.errstate(all="ignore"):
            found = np.asarray(function(big.copy(), exclusive), np.float64)
        if not np.isfinite(found).all():
            raise Wrong(
                "a logit of 1000 gave NaN or Infinity: e^1000 overflows; subtract the row's largest first"
            )
        powers, small = np.exp(big - big.max(axis=1, keepdims=True)), np.exp(-np.abs(big))
        sigmoid = np.where(big >= 0, 1, small) / (1 + small)
        right = powers / powers.sum(axis=1, keepdims=True) if exclusive else sigmoid
        if found.shape != big.shape or not np.allclose(found, right, atol=1e-6):
            raise Wrong(
                "with logits of ±1000 or −800 your probabilities are finite but wrong; don't cut or replace "
                "numbers, subtract the row's largest logit before the exponential"
            )
    return "softmax where one class is true, sigmoid where any number may be, also for logits of ±1000"


def _photographs(rng: np.random.Generator) -> list[str]:
    """Return names of files such as ``cat/tom_03.jpg``: several photographs of six animals of each class."""
    names = []
    for kind, animals in (("cat", "tom kit mia leo zoe ivy"), ("dog", "rex bo ace max sky tom")):
        for animal in animals.split():
            numbers = range(int(rng.integers(2, 7)))
            names += [f"{kind}/{animal}_{number:02d}.jpg" for number in numbers]
    return [names[place] for place in rng.permutation(len(names))]


@tests("07.5", "hold out whole animals")
def _test_split(answer: Any) -> str:
    function, rng = a_function(answer), draws(5)
    for _ in range(4):
        names = _photographs(rng)
        found = function(list(names))
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise Wrong(f"your function gave a {type(found).__name__}; expected a set of names of files")
        held = set(found)
        if not held <= set(names):
            raise Wrong("some of what you hold out are no names of the list; return the names as they are")
        groups = {name: name.rsplit("_", 1)[0] for name in names}
        split = {groups[name] for name in held} & {groups[name] for name in names if name not in held}
        if split:
            raise Wrong(
                f"photographs of {min(split)} are in training and in validation: the network may know the "
                "animal again; hold out all photographs of an animal, or none"
            )
        for kind in ("cat", "dog"):
            animals = {group for group in groups.values() if group.startswith(kind)}
            kept_out = {groups[name] for name in held if name.startswith(kind)}
            if not kept_out or kept_out == animals:
                where = "validation" if not kept_out else "training"
                raise Wrong(f"no {kind} is left for {where}; choose some animals of each class")
        if set(function(names[::-1])) != held:
            raise Wrong("another order of the same files gives another split; sort before you choose")
    return "no animal is on both sides, both have each class, and the order of the files doesn't matter"
