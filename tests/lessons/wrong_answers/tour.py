"""Wrong answers to lesson 00, each with words of the hint that it deserves."""

import json
import math

import numpy as np


def rows(path, split=None):
    every = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in every if "split" in row and split in (None, row["split"])]


def without_get(path):
    every = [json.loads(line) for line in path.read_text().splitlines()]
    return max((row["accuracy"], row["step"]) for row in every if row["split"] == "validation")[1]


def mistakes(probabilities, labels):
    return np.flatnonzero(probabilities.argmax(axis=1) != labels)


WRONG = {
    "00.1": [
        (lambda epochs, examples, batch: epochs * examples // batch, "round up"),
        (lambda epochs, examples, batch: epochs * -(-examples // batch), "round once"),
        (lambda epochs, examples, batch: epochs * examples / batch, "no half steps"),
        (lambda epochs, examples, batch: epochs * batch, "examples"),
    ],
    "00.2": [
        (lambda classes: 1 / classes, "minus its logarithm"),
        (lambda classes: math.log2(classes), "in bits"),
        (lambda classes: math.log(1 / classes), "the sign is wrong"),
        (lambda classes: 2.302585092994046, "the loss for 10 classes"),
        (lambda classes: 1 - 1 / classes, "share of mistakes"),
    ],
    "00.3": [
        (without_get, "not every line has the field 'split'"),
        (lambda path: max(rows(path), key=lambda row: row["accuracy"])["step"], "choose by validation"),
        (lambda path: max(row["accuracy"] for row in rows(path, "validation")), "return its step"),
        (
            lambda path: max(rows(path, "train"), key=lambda row: row["accuracy"])["step"],
            "chosen by the training batches",
        ),
        (lambda path: min(rows(path, "validation"), key=lambda row: row["loss"])["step"], "smallest loss"),
        (
            lambda path: max(rows(path, "validation"), key=lambda row: (row["accuracy"], row["step"]))[
                "step"
            ],
            "take the earlier one",
        ),
    ],
    "00.4": [
        (lambda p, labels, count: np.argsort(-p.max(axis=1))[:count], "keep only the mistakes"),
        (lambda p, labels, count: p.argmax(axis=1) != labels, "indices of the mistakes"),
        (
            lambda p, labels, count: sorted(mistakes(p, labels), key=lambda i: p[i].max())[:count],
            "low confidence",
        ),
        (
            lambda p, labels, count: sorted(mistakes(p, labels), key=lambda i: -p[i].max())[:count][::-1],
            "come first",
        ),
        (lambda p, labels, count: np.sort(-p.max(axis=1))[:count], "not their probabilities"),
        (lambda p, labels, count: mistakes(p, labels)[:count], "not the most confident"),
    ],
}
