"""Plausible wrong answers of lesson 08, each with words of its hint."""

import math

import numpy as np

from labkit.analysis.inference import t_quantile


def _interval(width):
    def answer(first, second):
        differences = first - second
        half = width(differences, first, second)
        return differences.mean(), differences.mean() - half, differences.mean() + half

    return answer


def _standard_error(differences, ddof=1):
    return differences.std(ddof=ddof) / math.sqrt(len(differences))


def _unpaired(differences, first, second):
    error = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / len(first))
    return t_quantile(0.975, 2 * len(first) - 2) * error


def _tail(first, second):
    one, two = int((first & ~second).sum()), int((~first & second).sum())
    return sum(math.comb(one + two, k) for k in range(min(one, two) + 1)) / 2 ** (one + two), one, two


def _chi_squared(first, second):
    _, one, two = _tail(first, second)
    return math.erfc(math.sqrt((one - two) ** 2 / (one + two) / 2))


def _best(accuracy, images, k, choose=np.max):
    scores = np.random.default_rng(0).binomial(images, accuracy, (20000, k)) / images
    return choose(scores, axis=1).mean()


WRONG = {
    "08.1": [
        (_interval(lambda d, a, b: 1.96 * _standard_error(d)), "1.96 belongs to many values"),
        (_interval(_unpaired), "two unpaired groups"),
        (_interval(lambda d, a, b: t_quantile(0.975, len(d) - 1) * d.std(ddof=1)), "√n times smaller"),
        (_interval(lambda d, a, b: t_quantile(0.975, len(d) - 1) * _standard_error(d, 0)), "ddof=1"),
        (_interval(lambda d, a, b: t_quantile(0.95, len(d) - 1) * _standard_error(d)), "quantile of 0.975"),
        (_interval(lambda d, a, b: _standard_error(d)), "one standard error"),
        (lambda first, second: _interval(_unpaired)(second, first), "the sign is reversed"),
    ],
    "08.2": [
        (lambda first, second: _tail(first, second)[0], "so double it"),
        (lambda first, second: 2 * _tail(first, second)[0], "at most 1 is possible"),
        (_chi_squared, "χ² approximation"),
        (lambda first, second: (first != second).mean(), "the probability is"),
    ],
    "08.3": [
        (lambda accuracy, images, k: accuracy, "this is the true accuracy"),
        (lambda accuracy, images, k: _best(accuracy, images, k) - accuracy, "the bias alone"),
        (lambda accuracy, images, k: _best(accuracy, images, k, np.min), "the worst of"),
        (
            lambda accuracy, images, k: (
                accuracy + math.sqrt(2 * math.log(k)) * math.sqrt(accuracy * (1 - accuracy) / images)
            ),
            "too much here",
        ),
    ],
    "08.4": [
        ("ABD", "A is fine"),
        ("BD", "count the trainings"),
        (["D", "F"], "tuned harder"),
        ("BXF", "there is no sentence X"),
        ("BF", "what the test set was used for"),
    ],
}
