"""The tests of the exercises of lesson 00."""

import json
import math
import operator
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from course.lessons.verdict import Wrong, a_function, a_number, an_array, any_array, compare, draws, tests

RESUMED = {"resumed_at_step": 10, "wall_time": 1.7e9}  # a line that a continued run writes


@tests("00.1", "count the steps of a training")
def _test_steps(answer: Any) -> str:
    steps = a_function(answer)
    generator = draws(1)
    cases = [(1, 9000, 100), (3, 1000, 128), *map(tuple, generator.integers(2, 5000, (30, 3)).tolist())]
    for epochs, examples, batch in cases:
        needed = -(-epochs * examples // batch)
        given = a_number(steps(epochs, examples, batch), "the number of steps")
        if given == needed:
            continue
        where = f"{epochs} epochs of {examples} examples in batches of {batch}"
        if given == epochs * examples // batch:
            raise Wrong(f"{where}: after {given:.0f} steps some examples are still missing; round up")
        if given == epochs * (examples // batch):
            raise Wrong(f"{where}: the rest of an epoch isn't dropped; batches go on into the next epoch")
        if given == epochs * -(-examples // batch):
            raise Wrong(f"{where}: round once, at the end; a batch may hold parts of two epochs")
        if given != round(given):
            raise Wrong(f"{where}: {given:.2f} isn't a whole number; there are no half steps")
        raise Wrong(f"{where}: your {given:.0f} steps see {given * batch:.0f} examples")
    return f"right for {len(cases)} sizes, also where the batches don't divide the epochs"


@tests("00.2", "predict the first loss")
def _test_ignorance(answer: Any) -> str:
    loss = a_function(answer)
    for classes in (10, 2, 3, 100, 1000, *draws(2).integers(4, 1000, 3).tolist()):
        what, wanted = f"the loss for {classes} classes", math.log(classes)
        hints = (
            (-wanted, "the sign is wrong: a loss is minus the logarithm of a probability"),
            (math.log2(classes), "this is in bits; labkit's loss uses the natural logarithm, math.log"),
            (math.log10(classes), "this is the logarithm to base 10; use the natural one, math.log"),
            (1 / classes, "this is the probability of the true class; the loss is minus its logarithm"),
            (1 - 1 / classes, "this is the share of mistakes, not a logarithm of a probability"),
            (math.log(10), "this is the loss for 10 classes; compute it from the argument"),
        )  # fmt: skip
        compare(a_number(loss(classes), what), wanted, what, hints, "which probability does each class get?")
    return "right for 2 to 1000 classes; a first loss far above it means that something is wrong"


@tests("00.3", "read the best step from metrics.jsonl")
def _test_best_step(answer: Any) -> str:
    best = a_function(answer)
    generator = draws(3)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(6):
            path = Path(folder) / f"metrics-{number}.jsonl"
            rows = _rows(generator, tie=number == 5)
            lines = [json.dumps(row) + "\n" for row in (*rows[:15], RESUMED, *rows[15:])]
            path.write_text("".join(lines))
            try:
                step = best(path)
            except KeyError as error:
                if error.args[0] not in ("split", "step", "accuracy", "loss"):
                    raise
                raise Wrong(f"not every line has the field {error}: {json.dumps(RESUMED)}; use get") from None
            _compare_step(a_number(step, "the step"), rows)
    return "right for six runs; among equal accuracies it takes the first"


def _rows(generator: np.random.Generator, tie: bool) -> list[dict[str, Any]]:
    """Return the rows of a pretended run, whose other splits and losses have their best step elsewhere."""
    last = int(generator.integers(5, 12)) * 10
    rows: list[dict[str, Any]] = []
    validated = list(range(10, last + 1, 10))
    # The best validation is neither the last one nor the one of the smallest loss.
    winner, smallest, second = generator.permutation(len(validated) - 1)[:3]
    for step in range(1, last + 1):
        rows.append(_row("train", step, 0.97 - 0.001 * abs(step - last + 5), 1.0 / step))
        if step in validated:
            at = validated.index(step)
            accuracy = 0.9 if at == winner or (tie and at == second) else generator.uniform(0.3, 0.8)
            rows.append(_row("validation", step, accuracy, 0.1 if at == smallest else 0.5))
    rows.append(_row("test", last, 0.99, 0.05))
    return rows


def _row(split: str, step: int, accuracy: float, loss: float) -> dict[str, Any]:
    return {"split": split, "step": step, "accuracy": round(float(accuracy), 6), "loss": round(loss, 6)}


def _compare_step(given: float, rows: list[dict[str, Any]]) -> None:
    validation = [row for row in rows if row["split"] == "validation"]
    wanted = max(validation, key=lambda row: row["accuracy"])
    train = [row for row in rows if row["split"] == "train"]
    accuracy, loss = operator.itemgetter("accuracy"), operator.itemgetter("loss")
    hints = [
        (wanted["accuracy"], "this is the accuracy; return its step"),
        (max(rows, key=accuracy)["step"], "this is the best row of all splits; choose by validation"),
        (max(train, key=accuracy)["step"], "chosen by the training batches; take the split validation"),
        (min(validation, key=loss)["step"], "this has the smallest loss; take the highest accuracy"),
        (min(rows, key=loss)["step"], "this is the last evaluation; an earlier one may be better"),
        (validation[-1]["step"], "this is the last evaluation; an earlier one may be better"),
    ]
    equal = [row["step"] for row in validation if row["accuracy"] == wanted["accuracy"]]
    hints += [(step, "two validations are equally good; take the earlier one") for step in equal]
    compare(given, wanted["step"], "the step", hints, f"the highest accuracy is at step {wanted['step']}")


@tests("00.4", "find the most confident mistakes")
def _test_confident_mistakes(answer: Any) -> str:
    find = a_function(answer)
    generator = draws(4)
    for count, classes, wanted in ((60, 10, 5), (200, 4, 12), (35, 3, 7)):
        probabilities = generator.dirichlet(np.full(classes, 0.4), count)
        labels = generator.integers(0, classes, count)
        raw = any_array(find(probabilities.copy(), labels.copy(), wanted), "what you return")
        if raw.dtype == bool:
            raise Wrong("return the indices of the mistakes, not a true or false for each image")
        given = an_array(raw, (wanted,), "what you return")
        if not np.equal(given, given.round()).all():
            raise Wrong("return the indices of the images, not their probabilities")
        _compare_mistakes(given, probabilities, labels, wanted)
    return "right for three sets of predictions, in the right order"


def _compare_mistakes(given: Any, probabilities: Any, labels: Any, count: int) -> None:
    confidence, wrong = probabilities.max(axis=1), probabilities.argmax(axis=1) != labels
    order = np.argsort(-confidence, kind="stable")
    right_answer = order[wrong[order]][:count]
    if np.array_equal(given, right_answer):
        return
    if not set(given.astype(int)) <= set(range(len(labels))):
        raise Wrong(f"return indices from 0 to {len(labels) - 1}")
    if not wrong[given.astype(int)].all():
        raise Wrong("some of these images are classified right; keep only the mistakes")
    if set(given) == set(right_answer):
        raise Wrong("these are the right images, but the most confident mistake has to come first")
    if confidence[given.astype(int)].mean() < np.median(confidence[wrong]):
        raise Wrong("these are mistakes with a low confidence; sort from the highest probability down")
    raise Wrong("these are mistakes, but not the most confident; rank by the predicted class's probability")
