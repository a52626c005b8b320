"""Measurements that find bugs, and ways to show a debugger and tests in a lesson."""

import bdb
import contextlib
import io
import logging
import pdb
import re
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from course.lessons.debug.patients import SIZE, Patient, digits, leaky_split, train_on
from labkit.figures.style import GREY, OKABE_ITO, TRAIN, drawing
from labkit.training.scores import single_label_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
STEPS, LONG = 60, 400  # of trainings of patients
REASON = 100  # characters of a failed test that are shown


def dependency(network: Callable[[Any], Any], images: NDArray[np.float32]) -> Array:
    """Measure which image each output depends on.

    Args:
        network: takes images [n, …], returns outputs [n, classes].
        images: n of them, all different.

    Returns float64 [n, n]: in row i and column j the largest change of output i when image j is replaced by
    its negative.
    """
    before = np.asarray(network(images), np.float64)
    changes = np.zeros((len(images), len(images)))
    for changed in range(len(images)):
        shown = images.copy()
        shown[changed] = -shown[changed]
        changes[:, changed] = np.abs(np.asarray(network(shown), np.float64) - before).max(axis=1)
    return changes


def first_loss(model: Any, batch: Any) -> float:
    """Return the mean cross-entropy, in nats, of a model that gives logits, in training mode.

    Args:
        batch: with ``standardized`` and ``labels``, as ``run.batch`` returns it.
    """
    logits = np.asarray(model(batch.standardized, training=True), np.float64)
    return single_label_scores(batch.labels, logits)["loss"]


def one_batch_losses(patient: Any, steps: int) -> Array:
    """Train a patient on its first batch alone. Returns the loss of each step, float64 [steps]."""
    batch = patient.batch(1)
    return np.array([patient.step(*batch) for _ in range(steps)])


def baseline_losses(patient: Any, steps: int) -> Array:
    """Train a patient on images of zeros, with the true labels. Returns the losses, float64 [steps]."""
    batches = [patient.batch(step) for step in range(1, steps + 1)]
    return np.array([patient.step(np.zeros_like(images), labels) for images, labels in batches])


def run_tests(case: type[unittest.TestCase]) -> bool:
    """Run the tests of a class, and print a line for each: how it ended, its name, and why it failed.

    Returns whether all passed.
    """
    logging.getLogger("tensorflow").setLevel(logging.WARNING)  # tf.test.TestCase logs the time of each test
    passed = True
    for name in unittest.TestLoader().getTestCaseNames(case):
        if name == "test_session":  # a method of tf.test.TestCase, which isn't a test
            continue
        result = unittest.TestResult()
        with np.errstate(all="ignore"):
            case(name).run(result)
        reasons = [_reason(trace) for _, trace in (*result.failures, *result.errors)]
        print(f"{'FAIL' if reasons else 'ok  '} {name}{': ' + reasons[0] if reasons else ''}")
        passed = passed and result.wasSuccessful()
    return passed


def _reason(trace: str) -> str:
    """Return what a traceback's text says from the class of the exception on, in one line."""
    said = re.split(r"(?m)^(?=[\w.]*(?:Error|Exception)\b)", trace, maxsplit=1)[-1]
    return " ".join(said.split())[:REASON]


def scripted_pdb(function: Callable[[], Any], commands: Sequence[str]) -> str:
    """Call a function that has a ``breakpoint()``, and type ``commands`` where it stops.

    Returns the transcript, without names of files.
    """
    # IPython replaces pdb.Pdb by a class of its own, which colours its text.
    plain = next(kind for kind in pdb.Pdb.__mro__ if kind.__module__ == "pdb")
    said, typed = io.StringIO(), io.StringIO("\n".join(commands) + "\n")
    debugger = plain(stdin=typed, stdout=said, nosigint=True, readrc=False)
    debugger.use_rawinput = False

    def echo(line: str) -> str:
        said.write(f"{line}\n")
        return line

    def stop() -> None:
        debugger.set_trace(sys._getframe(1))

    debugger.precmd = echo
    try:
        with mock.patch("sys.breakpointhook", stop), contextlib.suppress(bdb.BdbQuit):
            function()
    finally:
        sys.settrace(None)
    return re.sub(r"(?m)^> .*\(\d+\)", "> in ", said.getvalue())


def draw_patients(panels: Mapping[str, Mapping[str, tuple[Any, Any]]]) -> "Figure":
    """Draw the curves of the patients, one panel for each; a curve named ``sound`` is grey.

    Args:
        panels: by title; in each, (steps, values) by the name of the curve. The values of a title with
            ``accuracy`` are fractions, the others losses.
    """
    with drawing(9.5, 5.0, f"Training curves: {', '.join(panels)}") as figure:
        axes = list(figure.subplots(2, 3).flat)
        for axis, (title, curves) in zip(axes, panels.items(), strict=False):
            colors = iter(OKABE_ITO)
            for name, (steps, values) in curves.items():
                color = GREY if name == "sound" else next(colors)
                axis.plot(steps, values, color=color, label=name, linewidth=1.3)
            is_accuracy = "accuracy" in title
            axis.set(title=title, xlabel="step", ylabel="fraction right" if is_accuracy else "loss (nats)")
            axis.set_ylim(0, 1.05 if is_accuracy else min(8.0, axis.get_ylim()[1]))
            axis.grid(axis="y")
            axis.legend(frameon=True, framealpha=0.9, edgecolor="none")
        _draw_digits(axes[-1])
    return figure


def _draw_digits(axis: "Axes") -> None:
    """Draw the images that the patients learn from."""
    images, labels = digits(24)
    rows = images.reshape(4, 6, SIZE, SIZE).transpose(0, 2, 1, 3)
    axis.imshow(rows.reshape(4 * SIZE, 6 * SIZE), cmap="gray", interpolation="nearest")
    for number, label in enumerate(labels):
        row, column = divmod(number, 6)
        axis.text(column * SIZE + 0.3, row * SIZE + 0.3, str(label), color="#f0e442", fontsize=8, va="top")
    axis.set_title("some images, with their labels")
    axis.set_axis_off()


def draw_values(groups: Mapping[str, NDArray[Any]]) -> "Figure":
    """Draw the histogram of the values of each group, with mean and standard deviation in its title.

    All but the first have one x axis.
    """
    others = np.concatenate([np.ravel(values) for values in list(groups.values())[1:]])
    span = float(others.min()), float(others.max())
    with drawing(9.5, 2.6, f"Histograms of the values of {', '.join(groups)}") as figure:
        axes = figure.subplots(1, len(groups))
        for number, (axis, (name, values)) in enumerate(zip(axes, groups.items(), strict=True)):
            flat = np.asarray(values, np.float64).ravel()
            axis.hist(flat, bins=50, range=span if number else None, color=TRAIN)
            axis.set(title=f"{name}\nmean {flat.mean():.2f}, std {flat.std():.2g}", xlabel="value of a pixel")
        figure.axes[0].set_ylabel("pixels")
    return figure


def draw_curves(curves: Mapping[str, Array], classes: int, title: str) -> "Figure":
    """Draw loss curves together, and the loss of a network that knows nothing."""
    with drawing(8.0, 3.6, f"Loss over steps of {', '.join(curves)}") as figure:
        axis = figure.subplots()
        for color, (name, losses) in zip(OKABE_ITO, curves.items(), strict=False):
            axis.plot(np.arange(1, len(losses) + 1), losses, color=color, label=name, linewidth=1.6)
        axis.axhline(np.log(classes), color=GREY, linestyle="--", linewidth=1)
        beside = axis.get_yaxis_transform()  # x as a fraction of the width, y in nats
        axis.text(
            1.01, np.log(classes), f"ln {classes}", color=GREY, va="center", fontsize=8, transform=beside
        )
        axis.set(xlabel="step", ylabel="loss (nats)", title=title)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y")
        axis.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
    return figure


def draw_dependency(matrices: Mapping[str, Array]) -> "Figure":
    """Draw matrices of ``dependency``: dark where the output of a row depends on the image of a column."""
    with drawing(3.1 * len(matrices), 3.3, f"Output against image of {', '.join(matrices)}") as figure:
        for axis, (name, values) in zip(figure.subplots(1, len(matrices)), matrices.items(), strict=True):
            shown = values / max(values.max(), 1e-30)
            image = axis.imshow(shown, cmap="Blues", vmin=0, vmax=1)
            axis.set(title=name, xlabel="image that is changed", ylabel="output that is compared")
            ticks = range(0, len(values), 2)
            axis.set(xticks=ticks, yticks=ticks)
        figure.colorbar(image, ax=figure.axes, label="change / largest", shrink=0.8)
    return figure


def numerics_report(function: Callable[[], Any]) -> str:
    """Call ``function`` while TensorFlow checks the result of each operation.

    Returns what TensorFlow says of the first NaN or Infinity: the operation, how many values, and the inputs;
    "every result is finite" if there is none.
    """
    import tensorflow as tf

    logging.getLogger("tensorflow").setLevel(logging.WARNING)  # it logs that checks begin and end
    tf.debugging.enable_check_numerics()
    try:
        function()
    except tf.errors.InvalidArgumentError as error:
        said = error.message.partition("!!! ")[2].partition(" : Tensor had")[0]
        return "\n".join(line for line in said.replace(" !!!", "").splitlines() if line.strip())
    finally:
        tf.debugging.disable_check_numerics()
    return "every result is finite"


def mixing() -> Any:
    """Return the ``dependency`` of patient 4 on a batch of 8 images, float64 [8, 8]."""
    from course.lessons.debug.broken import broken_network, mixing_weights

    weights = mixing_weights()
    images, _ = Patient().batch(1)
    return dependency(lambda shown: broken_network(shown, weights), images[:8])


def symptoms() -> dict[str, dict[str, tuple[Any, Any]]]:
    """Train the five patients, and a sound network beside the first four.

    Returns, by the title of a panel, (steps, values) by the name of a curve, for ``draw_patients``.
    """
    from course.lessons.debug.broken import broken_network, broken_update, train_network, train_scheduled

    sound = Patient().train(LONG)
    patients = {
        "patient 1": Patient("labels").train(STEPS),
        "patient 2": Patient("softmax").train(LONG),
        "patient 3": train_scheduled(broken_update, STEPS),
        "patient 4": train_network(broken_network, STEPS),
    }
    panels: dict[str, dict[str, tuple[Any, Any]]] = {}
    for name, losses in patients.items():
        steps = np.arange(1, len(losses) + 1)
        panels[name] = {"sound": (steps, sound[: len(losses)]), name: (steps, losses)}
    steps, accuracy = train_on(leaky_split(200, 0.9, seed=1), STEPS, every=5)
    shown = {"train": "train", "validation": "validation", "new": "images from users"}
    panels["patient 5: accuracy"] = {shown[name]: (steps, values) for name, values in accuracy.items()}
    return panels
