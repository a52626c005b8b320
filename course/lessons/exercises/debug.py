"""Exercises of lesson 06: five broken trainings, to diagnose or to fix."""

import math
from functools import partial
from typing import Any

import numpy as np

from course.lessons.debug.patients import CLASSES, Patient, leaky_split, train_on
from course.lessons.debug.probes import dependency, one_batch_losses
from course.lessons.verdict import Wrong, a_choice, a_function, a_number, an_array, draws, tests

FLAT = ("labels", "input", "dead", "rate")
HIGH = ("softmax twice", "learning rate too small", "labels shuffled", "layer frozen")


_MEASURE = {
    "input": "look at the numbers in its images before anything else: their spread is almost zero",
    "dead": "its images are fine, but its outputs are the same for every image",
    "rate": "images and outputs differ as they should, but compare its weights before and after a step",
    "labels": "its weights change, and it can learn one batch by heart; only new batches don't get better",
}


class _Covered(Patient):
    """A patient of which only what can be measured is reached."""

    def __init__(self, fault: str, seed: int) -> None:
        patient = Patient(fault, seed=seed)
        for name in [name for name in vars(Patient) if not name.startswith("_")]:
            setattr(self, name, partial(getattr(patient, name)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Wrong(f"your function reads patient.{name}, which no training tells; measure the patient")


@tests("06.1", "patient 1: why is the loss flat?")
def _why_flat(answer: Any) -> str:
    diagnose = a_function(answer)
    given = []
    for seed in draws(61).integers(10_000, size=3).tolist():
        for fault in FLAT:
            given.append((fault, a_choice(diagnose(_Covered(fault, seed)), FLAT)))
    if len({said for _, said in given}) == 1:
        raise Wrong(f"your function says {given[0][1]!r} of every patient; it has to measure each")
    # The first confusion in the order of the measurements.
    for fault in ("input", "dead", "rate", "labels"):
        for truth, said in given:
            if truth == fault and said != fault:
                raise Wrong(f"a patient with the fault {fault!r} was taken for {said!r}: {_MEASURE[fault]}")
    return f"{len(given)} patients with flat losses, each with the right one of {len(FLAT)} faults"


@tests("06.2", "patient 2: why does the loss stop high?")
def _why_high(answer: Any) -> str:
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise Wrong('two things are asked for: check("06.2", (fault, lowest_loss))')
    fault = a_choice(answer[0], HIGH)
    if fault != "softmax twice":
        raise Wrong(_against(fault))
    lowest_loss = a_function(answer[1], "lowest_loss")
    for classes in (CLASSES, 2, 3, 100, *draws(62).integers(4, 1000, 3).tolist()):
        what = f"lowest_loss({classes})"
        value, expected = a_number(lowest_loss(classes), what), math.log(1 + (classes - 1) / math.e)
        if math.isclose(value, expected, rel_tol=1e-3):
            continue
        if abs(value) < 1e-6:
            raise Wrong(f"{what} is 0, the limit for logits, which may grow; a probability ends at 1")
        if math.isclose(value, math.log(classes), rel_tol=1e-3):
            raise Wrong(f"{what} is ln {classes}, the loss of equal outputs; what if one is 1 and others 0?")
        if classes != CLASSES:
            raise Wrong(f"right for {CLASSES} classes, but {what} is {value:.4f}; how many outputs are 0?")
        raise Wrong(f"{what} is {value:.4f}; take the softmax of the best outputs (one 1, the others 0)")
    reached = one_batch_losses(Patient("softmax"), 1500)[-1]
    return f"no loss can be below {lowest_loss(CLASSES):.3f}; with one batch, patient 2 reaches {reached:.3f}"


def _against(fault: str) -> str:
    """Return the measurement that speaks against ``fault`` of patient 2."""
    patient = Patient("softmax")
    if fault == "learning rate too small":
        losses = one_batch_losses(patient, 1000)
        return (
            f"on one batch its loss is {losses[499]:.2f} after 500 steps and {losses[-1]:.2f} after 1,000: a "
            "small rate would only be late, but this loss has come to a floor"
        )
    before = patient.weights()
    patient.train(200)
    if fault == "labels shuffled":
        accuracy = patient.accuracy(*patient.batch(9_999))
        return f"it gets {accuracy:.0%} of new digits right; with shuffled labels it would be about 10 %"
    changes = {name: np.abs(value - before[name]).max() for name, value in patient.weights().items()}
    least = min(changes, key=lambda name: changes[name])
    return f"every weight changes; even in {least} one changes by {changes[least]:.2g} in 200 steps"


@tests("06.3", "patient 3: fix the update")
def _fixed_update(answer: Any) -> str:
    make_update = a_function(answer)
    for seed, steps in ((1, 12), (2, 7)):
        _known_updates(make_update, draws(seed), steps)
    from course.lessons.debug.broken import broken_update, train_scheduled

    losses, broken = train_scheduled(make_update, 60)[-10:], train_scheduled(broken_update, 60)[-10:]
    if not losses.max() < 1.0:
        raise Wrong(f"after 60 steps the loss is still up to {losses.max():.2f}; a sound training is below 1")
    return f"each update has its rate; the loss ends at {losses.mean():.2f} instead of {broken.mean():.1f}"


def _known_updates(make_update: Any, random: np.random.Generator, steps: int) -> None:
    """Make updates with a gradient of 1. Raises Wrong where the weights don't move by the rates."""
    import tensorflow as tf

    rates = random.uniform(0.5, 2.0, steps).tolist()
    weights, calls = [tf.Variable([0.0, 1.0]), tf.Variable(2.0)], []

    def gradients_of(images: Any, labels: Any) -> list[Any]:
        calls.append(images)
        return [tf.ones_like(weight) for weight in weights]

    update = a_function(
        make_update(weights, gradients_of, lambda step: rates[step]), "what your function returns"
    )
    images, labels = tf.zeros([4, 12, 12]), tf.zeros([4], tf.int64)
    moved = [0.0]
    for _ in range(steps):
        update(images, labels)
        moved.append(2.0 - float(weights[1]))
    made = np.diff(moved)
    if not made.any():
        raise Wrong("the weights are as before; the returned function must update them in place")
    if np.allclose(made, rates[0], atol=1e-4):
        raise Wrong("every update had the rate of step 0: which lines ran only while TensorFlow traced it?")
    if np.allclose(made[:-1], rates[1:], atol=1e-4):
        raise Wrong("the first update had the rate of step 1; steps are counted from 0")
    if not np.allclose(made, rates, atol=1e-4):
        first = int(np.argmax(~np.isclose(made, rates, atol=1e-4)))
        raise Wrong(f"update {first} hadn't the rate of its step")
    if not np.allclose(weights[0].numpy(), [-moved[-1], 1 - moved[-1]], atol=1e-4):
        raise Wrong("only the last weight moved as it should; zip goes through all of them")
    if len(calls) > 3:
        raise Wrong(
            f"the rates are right, but Python computed gradients {len(calls)} times in {steps} updates: keep "
            "tf.function, and give it the rate as a tensor, because a new Python number means a new trace"
        )


@tests("06.4", "patient 4: fix the network")
def _fixed_network(answer: Any) -> str:
    network = a_function(answer)
    from course.lessons.debug.broken import broken_network, mixing_weights, train_network

    seed = int(draws(64).integers(10_000))
    weights = mixing_weights(seed)
    for count in (5, 1, 8):
        images, _ = Patient(seed=seed + count).batch(1)
        images = images[:count]
        logits = an_array(network(images, weights), (count, CLASSES), f"network of {count} images")
        others = dependency(lambda shown: network(shown, weights), images)
        mixed = np.argwhere((others > 1e-4) & ~np.eye(count, dtype=bool))
        if len(mixed):
            output, image = mixed[0]
            raise Wrong(f"the logits of image {output} change when image {image} of the batch is changed")
        # With one image in the batch, there is nothing to mix.
        alone = np.concatenate([broken_network(images[i : i + 1], weights) for i in range(count)])
        turned = np.concatenate([images[:, 6:], images[:, :6]], axis=1)
        swapped = np.concatenate([broken_network(turned[i : i + 1], weights) for i in range(count)])
        if np.allclose(logits, swapped, atol=1e-3):
            raise Wrong("the halves are in a wrong order: the upper half comes first, as the weights expect")
        if not np.allclose(logits, alone, atol=1e-3):
            raise Wrong("nothing is mixed, but the logits aren't those of each image: fix only the mixing")
    try:
        losses = train_network(network, 40)
    except ValueError as error:
        raise Wrong(f"it can't be trained: {error}; compute with operations of TensorFlow only") from None
    if not losses[-5:].mean() < 1.0:
        raise Wrong(f"after 40 steps the loss is {losses[-5:].mean():.2f}; a sound training is below 1")
    return f"no output depends on another image, and the loss falls from {losses[0]:.1f} to {losses[-1]:.1f}"


@tests("06.5", "patient 5: find the leak")
def _leaked(answer: Any) -> str:
    find = a_function(answer)
    cases = ((90, 0.5, 0.02), (150, 0.1, 0.01), (60, 0.0, 0.02), (40, 1.0, 0.03))
    seeds = draws(65).integers(10_000, size=len(cases)).tolist()
    for seed, (count, copied, noise) in zip(seeds, cases, strict=True):
        split = leaky_split(count, copied, seed=seed, noise=noise)
        kept = count * 2 // 3  # another number than of training images
        images, truth = split.validation[0][:kept], split.is_copy[:kept]
        found = an_array(find(split.train[0], images), (kept,), "the mask of validation images") > 0.5
        missed, wrong = int((truth & ~found).sum()), int((found & ~truth).sum())
        if missed == truth.sum() > 0 and not wrong:
            raise Wrong(f"none of {missed} copies was found; they got noise and aren't equal bit by bit")
        if missed:
            raise Wrong(f"{missed} of {truth.sum()} copies were missed; sort the distances: there is a gap")
        if wrong:
            raise Wrong(
                f"with {truth.sum()} copies in the validation split, your function also names {wrong} images "
                "that aren't copies; a copy is much nearer to its original than two digits of one class are "
                "to each other"
            )
    split = leaky_split(200, 0.9, seed=1)
    _, accuracy = train_on(split, 60)
    return (
        f"every copy is found and nothing else; patient 5 had {accuracy['validation'][-1]:.0%} of validation "
        f"images right, and of new ones {accuracy['new'][-1]:.0%}"
    )
