"""Plausible wrong answers to the exercises of lesson 02, and words of the hint that each gets."""

import numpy as np


def relu(x):
    return np.maximum(x, 0)


def shortcut(x, shape, *, mean=True, front=None):
    channels = shape[-1] - x.shape[-1]
    if x.shape[1] != shape[1]:
        pooled = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
        x = pooled if mean else x[:, ::2, ::2]
    front = channels // 2 if front is None else front
    return np.pad(x, ((0, 0), (0, 0), (0, 0), (front, channels - front)))


def moments(axes):
    def norm(x, gamma, beta, moving_mean, moving_variance, training):
        mean, variance = moving_mean, moving_variance
        if training:
            mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
        return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta

    return norm


def always(which):
    def norm(x, gamma, beta, moving_mean, moving_variance, training):
        mean, variance = moving_mean, moving_variance
        if which == "batch":
            mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
        return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta

    return norm


def without_epsilon(x, gamma, beta, moving_mean, moving_variance, training):
    mean, variance = moving_mean, moving_variance
    if training:
        mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    return gamma * (x - mean) / np.sqrt(variance) + beta


def by_variance(x, gamma, beta, moving_mean, moving_variance, training):
    return gamma * (x - x.mean(axis=(0, 1, 2))) / (x.var(axis=(0, 1, 2)) + 1e-5) + beta


def own_stride_first(layers):
    size, spacing = 1, 1
    for kernel, stride in layers:
        spacing *= stride
        size += (kernel - 1) * spacing
    return size


def starting_at_zero(layers):
    size, spacing = 0, 1
    for kernel, stride in layers:
        size += (kernel - 1) * spacing
        spacing *= stride
    return size


WRONG = {
    "02.1": [
        (lambda x, change: shortcut(x, change.shape) + change, "applies a ReLU to it"),
        (lambda x, change: shortcut(x, change.shape) + relu(change), "yours comes before it"),
        (lambda x, change: relu(change), "forgets x"),
        (lambda x, change: relu(shortcut(x, change.shape, mean=False) + change), "every second pixel"),
        (lambda x, change: relu(shortcut(x, change.shape, front=0) + change), "half of the zero channels"),
    ],
    "02.2": [
        (lambda fan_in: fan_in**-0.5, "double the variance"),
        (lambda fan_in: 2 / fan_in, "return its square root"),
        (lambda fan_in: 0.05, "doesn't depend on fan_in"),
        (lambda fan_in: 2 * fan_in**-0.5, "the signal grows"),
    ],
    "02.3": [
        (moments((0,)), "each pixel on its own"),
        (moments((1, 2)), "each image on its own"),
        (moments((0, 1, 2, 3)), "you mix the channels"),
        (by_variance, "divide by its square root"),
        (always("batch"), "in prediction the moving statistics count"),
        (always("moving"), "in training the statistics are those of the batch"),
        (without_epsilon, "add 1e-5 to the variance"),
    ],
    "02.4": [
        (lambda layers: 1 + sum(kernel - 1 for kernel, _ in layers), "the strides are missing"),
        (own_stride_first, "only for the layers after it"),
        (starting_at_zero, "one short"),
        (lambda layers: sum(kernel for kernel, _ in layers) + 0.0, "adds k - 1"),
    ],
}
