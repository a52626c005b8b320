"""Wrong answers to the exercises of lesson 07, with words of the hint that each has to get."""

import math

import numpy as np


def stage_of(name):
    return name.split("_")[0].split("/")[0]


def with_moving(shapes, frozen):
    return sum(math.prod(shape) for name, shape in shapes.items() if stage_of(name) not in frozen)


def all_of_it(shapes, frozen):
    return sum(math.prod(shape) for name, shape in shapes.items() if "moving" not in name)


def sums(shapes, frozen):
    return sum(sum(s) for n, s in shapes.items() if "moving" not in n and stage_of(n) not in frozen)


def by_prefix(shapes, frozen):
    return sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if "moving" not in name and not name.startswith(tuple(frozen))
    )


def freeze_prefix(model, stages):
    for layer in model.layers:
        layer.trainable = not layer.name.startswith(tuple(stages))


def freeze_all(model, stages):
    model.trainable = False


def freeze_kernels(model, stages):
    for layer in model.layers:
        if "conv" in layer.name and layer.name.split("_")[0] in stages:
            layer.trainable = False


def freeze_none(model, stages):
    return model


def by_identity(before, after):
    return {name.split("/")[0] for name in before if before[name] is not after[name]}


def by_sum(before, after):
    return {n.split("/")[0] for n in before if not np.isclose(before[n].sum(), after[n].sum(), rtol=1e-5)}


def by_closeness(before, after):
    return {n.split("/")[0] for n in before if not np.allclose(before[n], after[n])}


def without_moving(before, after):
    return {n.split("/")[0] for n in before if "moving" not in n and not np.array_equal(before[n], after[n])}


def weights(before, after):
    return {name for name in before if not np.array_equal(before[name], after[name])}


def softmax(logits, exclusive=True):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def sigmoid(logits, exclusive=False):
    return 1 / (1 + np.exp(-logits))


def by_columns(logits, exclusive):
    powers = np.exp(logits)
    return powers / powers.sum(axis=0) if exclusive else sigmoid(logits)


def overflowing(logits, exclusive):
    powers = np.exp(logits)
    return powers / powers.sum(axis=1, keepdims=True) if exclusive else sigmoid(logits)


def half(logits, exclusive):
    return softmax(logits) if exclusive else sigmoid(logits / 2)


def every_fifth(names):
    return set(sorted(names)[::5])


def only_cats(names):
    return {name for name in names if name.startswith("cat/tom_")}


def first_listed(names):
    groups = {}
    for name in names:
        groups.setdefault(name.split("/")[0], name.rsplit("_", 1)[0])
    return {name for name in names if name.rsplit("_", 1)[0] in groups.values()}


WRONG = {
    "07.1": [
        (with_moving, "moving averages are not trained"),
        (all_of_it, "that of the whole network"),
        (sums, "not their sum"),
        (by_prefix, "froze stage10 too"),
        (lambda shapes, frozen: 1, "numbers are trained, not 1"),
    ],
    "07.3": [
        (freeze_prefix, "which is not in the list"),
        (freeze_all, "the head did not learn"),
        (freeze_kernels, "freeze the normalization too"),
        (freeze_none, "set layer.trainable"),
    ],
    "07.2": [
        (by_identity, "compare the values, not the objects"),
        (by_sum, "compare each element"),
        (by_closeness, "no tolerance"),
        (without_moving, "a moving average of stage1_norm"),
        (weights, "names of weights"),
    ],
    "07.4": [
        (softmax, "need not sum to 1"),
        (sigmoid, "have to sum to 1"),
        (by_columns, "your columns sum to 1"),
        (overflowing, "overflows"),
        (half, "differs from sigmoid"),
    ],
    "07.5": [
        (every_fifth, "hold out all photographs of an animal"),
        (only_cats, "no dog is left for validation"),
        (first_listed, "another order of the same files"),
    ],
}
