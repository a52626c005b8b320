"""Plausible wrong answers to the exercises of lesson 03, and words of the hint that each gets."""

import math

import numpy as np


def naive(logits, labels):
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return -np.log(p[np.arange(len(labels)), labels])


def guarded(logits, labels):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = shifted / shifted.sum(axis=1, keepdims=True)
    return -np.log(p[np.arange(len(labels)), labels] + 1e-12)


def decay_all(weights, velocities, gradients, rate, momentum, decay):
    pairs = zip(weights, velocities, gradients, strict=True)
    velocities = [momentum * v + g + decay * w for w, v, g in pairs]
    return [w - rate * v for w, v in zip(weights, velocities, strict=True)], velocities


def decay_none(weights, velocities, gradients, rate, momentum, decay):
    return decay_all(weights, velocities, gradients, rate, momentum, 0.0)


def with_rate(weights, velocities, gradients, rate, momentum, decay):
    pairs = zip(weights, velocities, gradients, strict=True)
    velocities = [momentum * v + rate * (g + decay * w * (w.ndim > 1)) for w, v, g in pairs]
    return [w - v for w, v in zip(weights, velocities, strict=True)], velocities


def old_velocity(weights, velocities, gradients, rate, momentum, decay):
    pairs = list(zip(weights, velocities, gradients, strict=True))
    return (
        [w - rate * v for w, v, _ in pairs],
        [momentum * v + g + decay * w * (w.ndim > 1) for w, v, g in pairs],
    )


def cosine(progress):
    return 0.5 * (1 + math.cos(math.pi * progress))


def from_zero(step, total, warmup, peak):
    return peak * step / warmup if step < warmup else peak * cosine((step - warmup) / (total - warmup))


def too_early(step, total, warmup, peak):
    ramp = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return peak * ramp * cosine(step / total)


def whole_period(step, total, warmup, peak):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * cosine(2 * (step - warmup) / (total - warmup))


def loop(*bugs):
    def run(gradient, weights, batches, rate, parts):
        total = np.zeros_like(weights)
        for batch in batches:
            if "kept" not in bugs:
                total = np.zeros_like(weights)
            for part in np.split(batch, parts):
                total = total + gradient(weights, part) / (1 if "sum" in bugs else parts)
                if "inside" in bugs:
                    weights = weights - rate * total
            if "inside" not in bugs:
                weights = weights - rate * total
        return weights

    return run


WRONG = {
    "03.1": [
        (naive, "subtract the largest logit"),
        (guarded, "don't limit the probability"),
        (lambda logits, labels: naive(logits, labels).mean(), "return the loss of each"),
        (lambda logits, labels: -naive(logits, labels), "the sign is wrong"),
        (lambda logits, labels: np.exp(-naive(logits, labels)), "the probability of the label"),
        (lambda logits, labels: -logits[np.arange(len(labels)), labels], "softmax is missing"),
    ],
    "03.2": [
        (decay_all, "also shrinks vectors"),
        (decay_none, "the weight decay is missing"),
        (with_rate, "contains the rate"),
        (old_velocity, "by the old velocity"),
        (lambda weights, *others: weights, "return two lists"),
    ],
    "03.3": [
        (from_zero, "learns nothing"),
        (too_early, "starts where the warm-up ends"),
        (whole_period, "half a period of the cosine"),
        (
            lambda step, total, warmup, peak: peak * cosine(max(0, step - warmup) / (total - warmup)),
            "the warm-up is missing",
        ),
    ],
    "03.4": [
        (loop("kept"), "set it to 0 for each batch"),
        (loop("sum"), "their sum divided by parts"),
        (loop("inside"), "after its last part"),
        (loop("kept", "sum", "inside"), "all three mistakes"),
    ],
}
