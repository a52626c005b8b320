"""Plausible wrong answers of lesson 04, each with words of its hint."""

import numpy as np


def _all_to_all(arrays, send):
    workers = range(len(arrays))
    return [sum(arrays[s] if s == r else send(s, r, arrays[s]) for s in workers) for r in workers]


def _one_worker(arrays, send):
    total = arrays[0] + sum(send(worker, 0, arrays[worker]) for worker in range(1, len(arrays)))
    return [total, *(send(0, worker, total) for worker in range(1, len(arrays)))]


def _sums_locally(arrays, send):
    workers = len(arrays)
    for _ in range(2 * (workers - 1)):
        for worker in range(workers):
            send(worker, (worker + 1) % workers, np.zeros(len(arrays[0]) // workers))
    return [np.sum(arrays, 0)] * workers


def _first_half_only(arrays, send):
    workers = len(arrays)
    parts = [np.split(array, workers) for array in arrays]
    for step in range(workers - 1):
        chunks = [(worker - step) % workers for worker in range(workers)]
        sent = [send(w, (w + 1) % workers, parts[w][chunks[w]]) for w in range(workers)]
        for worker in range(workers):
            receiver = (worker + 1) % workers
            parts[receiver][chunks[worker]] = parts[receiver][chunks[worker]] + sent[worker]
    return [np.concatenate(part) for part in parts]


WRONG = {
    "04.1": [
        (lambda gradients, sizes: gradients.mean(0), "weight each gradient by its number of images"),
        (lambda gradients, sizes: gradients.sum(0), "N times too large"),
        (lambda gradients, sizes: (gradients * sizes[:, None]).sum(0), "the summed loss"),
        (lambda gradients, sizes: gradients[0], "isn't the gradient of the mean over all images"),
    ],
    "04.2": [
        (lambda arrays, send: [np.sum(arrays, 0)] * len(arrays), "nothing was sent"),
        (lambda arrays, send: [np.mean(arrays, 0)] * len(arrays), "returns the sum"),
        (_all_to_all, "the busiest one sent"),
        (_one_worker, "one of them sent 2 arrays"),
        (_first_half_only, "aren't the sum"),
        (_sums_locally, "message 1 makes no difference"),
        (lambda arrays, send: np.sum(arrays, 0), "return a list of 2 arrays"),
    ],
    "04.3": [
        (lambda means, variances, sizes: (means.mean(0), variances.mean(0)), "add the variance of"),
        (lambda means, variances, sizes: (means.mean(0), variances.mean(0) + means.var(0)), "needs weights"),
        (
            lambda m, v, n: (
                np.average(m, 0, n),
                np.sqrt(np.average(v + m**2, 0, n) - np.average(m, 0, n) ** 2),
            ),
            "standard deviation",
        ),
        (lambda means, variances, sizes: means.mean(0), "return two arrays"),
    ],
    "04.4": [
        (lambda small, big, s, b: s / b, "the ratio of what was measured"),
        (lambda small, big, s, b: (s - b) / (1 / small - 1 / big) / b, "isn't free of noise"),
        (lambda small, big, s, b: (s - b) / (1 / small - 1 / big), "divide it by |G|²"),
        (
            lambda small, big, s, b: (big * b - small * s) / (big - small) * (1 / small - 1 / big) / (s - b),
            "the other way round",
        ),
    ],
}
