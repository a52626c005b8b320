"""Compare two configurations: statistically, and image by image on the same test images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.inference import (
    Discordance,
    Interval,
    mcnemar,
    paired_interval,
    single_interval,
    welch_interval,
)
from labkit.analysis.predictions import Predictions, how_to_predict, load_predictions, of_another_checkpoint
from labkit.analysis.results import MEASURES, Group, Result, runs_for_images, title_of, told_apart
from labkit.data.related import Common, common_images
from labkit.errors import InputError
from labkit.plurals import counted, listed
from labkit.run_directory import RunDirectory

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class OnImages:
    """Two runs on the same images, which stand in the same order in both.

    ``fixed``: the positions, int [m], of images that only the second classifies correctly; ``broken``: that
    only the first does. Both begin with the image on which the probabilities moved most. ``whole``: the
    predictions of both for all their test images. ``left_out``: how many of each's aren't compared, because
    one data set was made by correcting the other one, which changed or excluded them.
    """

    first: Predictions
    second: Predictions
    fixed: Indices
    broken: Indices
    difference: Interval
    test: Discordance
    whole: tuple[Predictions, Predictions]
    left_out: tuple[int, int] = (0, 0)

    @property
    def count(self) -> int:
        return len(self.first)

    def per_class(self) -> list[dict[str, Any]]:
        """Return a row for each class: images that have it, fixed and broken ones, and the difference."""
        has = self.first.has
        rows = []
        for number, name in enumerate(self.first.classes):
            of_class = has[:, number]
            fixed, broken = (int(of_class[places].sum()) for places in (self.fixed, self.broken))
            images = int(of_class.sum())
            gain = (fixed - broken) / images if images else None
            rows.append({"class": name, "images": images, "fixed": fixed, "broken": broken, "gain": gain})
        return sorted(rows, key=lambda row: -(row["gain"] or 0.0))


def load_on_same_images(first: RunDirectory, second: RunDirectory) -> OnImages:
    """Read the predictions of two runs for the test set and compare them.

    Raises InputError, which says why, where they can't be compared.
    """
    loaded = []
    for run in (first, second):
        try:
            loaded.append(load_predictions(run))
        except FileNotFoundError:
            raise InputError(f"{run.name} has no predictions; {how_to_predict(run)}") from None
    return on_same_images(first, second, (loaded[0], loaded[1]))


def on_same_images(
    first: RunDirectory, second: RunDirectory, predictions: tuple[Predictions, Predictions]
) -> OnImages:
    """Compare the predictions of two runs for the same images.

    Raises InputError, which says why, where they aren't of the same images.
    """
    mine, theirs = predictions
    common = _check_data(first.read_environment(), second.read_environment())
    for run, found in ((first, mine), (second, theirs)):
        if reason := of_another_checkpoint(run, found):
            raise InputError(reason)
    expected = mine.index, mine.index
    if common is not None:
        mine, theirs = mine.only(common.first), theirs.only(common.second)
        expected = common.first, common.second
    if len(mine) != len(theirs):
        raise InputError(f"one predicted {len(mine):,} test images and the other {len(theirs):,}")
    if not len(mine):
        raise InputError("their predictions hold no image")
    if not all(map(np.array_equal, expected, (mine.index, theirs.index))):
        raise InputError("they predicted other images of the test set, or in another order")
    if mine.classes != theirs.classes:
        raise InputError("their classes differ")
    if not np.array_equal(mine.labels, theirs.labels):
        raise InputError("the true classes of their test images differ")
    right = ~mine.wrong, ~theirs.wrong
    moved = np.abs(theirs.probabilities - mine.probabilities).max(axis=1)
    fixed, broken = np.flatnonzero(~right[0] & right[1]), np.flatnonzero(right[0] & ~right[1])
    return OnImages(
        mine,
        theirs,
        fixed[np.argsort(-moved[fixed], kind="stable")],
        broken[np.argsort(-moved[broken], kind="stable")],
        paired_interval(*right),
        mcnemar(*right),
        predictions,
        common.left_out if common is not None else (0, 0),
    )


def _check_data(first: Mapping[str, Any], second: Mapping[str, Any]) -> Common | None:
    """Return the test images that two runs have in common, or None where their data are the same.

    Raises InputError where neither data set was made by correcting the other one.
    """
    data = [found if isinstance(found := record.get("data"), dict) else {} for record in (first, second)]
    checksums = [str(found.get("checksum") or "") for found in data]
    if not all(checksums):
        raise InputError("the checksum of a run's data set isn't recorded")
    if checksums[0] == checksums[1]:
        return None
    common = common_images(data[0], data[1], "test")
    if common is None:
        names = [
            f"{found.get('dataset')} ({checksum[:8]})"
            for found, checksum in zip(data, checksums, strict=True)
        ]
        raise InputError(f"their data sets differ: {' and '.join(names)}")
    return common


ON_IMAGES = "test_accuracy"  # the measure that the predictions of two single runs tell

SAME = 1e-6  # between an accuracy that was recorded and that of the predictions

# Titles of columns that don't fit a sentence.
SPOKEN = {
    "Best validation": "best validation accuracy",
    "Final validation": "final validation accuracy",
    "Duration": "training time",
}


@dataclass(frozen=True)
class Versus:
    """The answer for one measure.

    ``difference``: of the second to the first, in the unit of the measure; None where a result is missing or
    nothing tells how sure it is. ``headline`` and ``notes``: plain text.
    """

    measure: str
    difference: Interval | None
    headline: str
    notes: tuple[str, ...]


def versus(
    first: Group,
    second: Group,
    measure: str,
    images: OnImages | None = None,
    *,
    names: tuple[str, str] = ("A", "B"),
    candidates: int = 2,
) -> Versus:
    """Return which of two configurations is better by one measure, and how sure that is.

    Args:
        first, second: the configurations.
        measure: of ``MEASURES``; higher or lower must be better.
        images: both on the same test images; counts where both have one run and the measure is the accuracy.
        names: what the sentences call the two.
        candidates: how many configurations the two were chosen from.
    """
    values = first.values(measure), second.values(measure)
    title = title_of(measure, (first, second))
    title = SPOKEN.get(title) or title[0].lower() + title[1:]
    missing = [name for name, found in zip(names, values, strict=True) if not found]
    if missing:
        which = " and ".join(missing)
        return Versus(measure, None, f"{which} {'has' if len(missing) == 1 else 'have'} no {title}.", ())
    if others := told_apart((first, second), measure):
        why = f"{names[0]}'s and {names[1]}'s {title} can't be compared: {listed(others)} differ"
        return Versus(measure, None, f"{why}{'s' * (len(others) == 1)}, so each measures something else.", ())
    difference, basis = _interval(values, measure, images, names)
    if images is not None and difference is images.difference and any(images.left_out):
        title += " on the test images that both have"
    if difference is None:
        plain = sum(values[1]) / len(values[1]) - sum(values[0]) / len(values[0])
        apart = difference_text(measure, plain)
        headline = f"{names[1]}'s {title} is {apart}. How sure that is, isn't known."
    else:
        alone = len(values[0]) == len(values[1]) == 1
        headline = _headline(difference, measure, title, names, alone)
    tested_apart = measure.startswith("test_") and (images is None or difference is not images.difference)
    notes = [] if difference is not None and difference.low == difference.high else [basis]
    notes += _cautions(first, second, values, measure, names, tested_apart)
    if candidates > 2:
        notes.append(
            f"{names[0]} and {names[1]} are two of {candidates} configurations. If you chose them for their "
            "results, they look further apart than they are: the best of many was partly lucky."
        )
    return Versus(measure, difference, headline, tuple(notes))


def told_of_two(
    first: Group,
    second: Group,
    measure: str,
    *,
    names: tuple[str, str] = ("A", "B"),
    candidates: int = 2,
) -> list[str]:
    """Return what is known of two configurations, as sentences: which is better, on what that rests, and how
    they differ on single test images. Reads their predictions; the arguments are those of ``versus``.
    """
    runs = runs_for_images(first, second)
    images: OnImages | None = None
    left_out = ""
    try:
        images = load_on_same_images(runs[0].run, runs[1].run)
        on_images = chance_sentence(images, runs, names)
        left_out = left_out_sentence(images, names)
    except InputError as error:
        on_images = f"Not compared on single test images: {error}."
    counting, differ = images_that_count((first, second), runs, images)
    answer = versus(first, second, measure, counting, names=names, candidates=candidates)
    which = f"{names[0]}: {first.title}. {names[1]}: {second.title}."
    return [answer.headline, which, *answer.notes, *filter(None, [differ, left_out]), on_images]


def images_that_count(
    groups: tuple[Group, Group], runs: tuple[Result, Result], images: OnImages | None
) -> tuple[OnImages | None, str]:
    """Return the images if they tell the difference of the test accuracies, and a note where they don't.

    They do where each configuration has one accuracy, that of the run whose predictions were compared, and
    the predictions have that accuracy.
    """
    if images is None:
        return None, ""
    for group, run in zip(groups, runs, strict=True):
        having = [result for result in group.counted if ON_IMAGES in result.values]
        if len(having) != 1 or having[0] is not run:
            return None, ""
    for run, predictions in zip(runs, images.whole, strict=True):
        accuracy, recorded = 1 - float(predictions.wrong.mean()), run.values[ON_IMAGES]
        if not abs(accuracy - recorded) <= SAME:
            return None, (
                f"The predictions of {run.label} have a test accuracy of {accuracy:.2%}, its metrics "
                f"{recorded:.2%}: they may be of another checkpoint, so the headline leaves them out."
            )
    return images, ""


def _interval(
    values: tuple[list[float], list[float]], measure: str, images: OnImages | None, names: tuple[str, str]
) -> tuple[Interval | None, str]:
    """Return the interval of the difference, and what it rests on."""
    first, second = values
    if len(first) > 1 and len(second) > 1:
        return welch_interval(first, second), (
            f"Welch's interval from {len(first)} runs of {names[0]} and {len(second)} of {names[1]}: it "
            "tells what to expect of other seeds."
        )
    if len(first) > 1 or len(second) > 1:
        one, many = (names[0], names[1]) if len(second) > 1 else (names[1], names[0])
        found = single_interval(first, second[0]) if len(first) > 1 else -single_interval(second, first[0])
        return found, (
            f"{one} has one run. The interval assumes that other seeds of {one} would spread as much as "
            f"those of {many}, which nothing here shows."
        )
    alone = (
        "One seed each says nothing about the spread over seeds: another seed may reverse the order. "
        "To learn that, train both with other values of --seed."
    )
    if images is not None and measure == ON_IMAGES:
        return images.difference, (
            f"{alone} The interval rests on the {images.count:,} test images alone: it tells how these two "
            "networks would differ on other images."
        )
    return None, alone


def _headline(difference: Interval, measure: str, title: str, names: tuple[str, str], alone: bool) -> str:
    """``alone``: whether each has one run, whose network is all that was compared."""
    low = amount(measure, difference.low).partition(" ")[0]
    high = amount(measure, difference.high)
    found = f"{names[1]}'s {title} is {difference_text(measure, difference.mean)}"
    interval = f"95 % interval {low} to {high}"
    if difference.low == difference.high:
        return f"{found}. The runs of each don't differ at all, so there is no interval."
    if difference.contains_zero:
        return f"Neither is shown to be better: {found} ({interval}, which includes zero)."
    better = names[1] if difference.mean * MEASURES[measure].better > 0 else names[0]
    who = f"The network of {better} is better on this test set" if alone else f"{better} is better"
    return f"{who}: {found} ({interval})."


def amount(measure: str, value: float, *, sign: bool = True) -> str:
    """Return a difference with its unit: fractions in points, such as ``+1.20 points``."""
    form = "+" if sign else ""
    known = {"percent": f"{100 * value:{form}.2f} points", "seconds": f"{value:{form},.1f} s"}
    text = known.get(MEASURES[measure].unit, f"{value:{form}.4g}")
    return text.replace("-", "−")


def difference_text(measure: str, value: float) -> str:
    """Return a difference in words: ``1.20 points higher``."""
    if abs(value) < 1e-12:  # rounding of two means
        return "the same"
    more, less = ("longer", "shorter") if MEASURES[measure].unit == "seconds" else ("higher", "lower")
    return f"{amount(measure, abs(value), sign=False)} {more if value > 0 else less}"


def chance_sentence(
    images: OnImages, runs: tuple[Result, Result], names: tuple[str, str] = ("A", "B")
) -> str:
    """Return what McNemar's test found for the predictions of two runs, in words."""
    test, count, which = images.test, images.count, []
    for name, run, predictions in zip(names, runs, images.whole, strict=True):
        step = predictions.summary.get("checkpoint_step")
        which.append(f"run {run.label} of {name}" + (f" (step {step:,})" if isinstance(step, int) else ""))
    if not test.only_first + test.only_second:
        both = f"{which[0]} and {which[1]}"
        return f"On {counted(count, 'test image')}, {both} are right and wrong on the same ones."
    chance = f"{test.p:.2g}" if test.p >= 0.001 else "less than 0.001"
    told = (
        "which is rare: these two networks differ. Other seeds give other networks"
        if test.p < 0.05
        else "so chance alone may explain it"
    )
    return (
        f"Of {counted(count, 'test image')}, {test.only_second:,} are right in {which[1]} only and "
        f"{test.only_first:,} in {which[0]} only. If both were equally good, the counts would be at least as "
        f"unequal with probability {chance} (McNemar's exact test), {told}."
    )


def left_out_sentence(images: OnImages, names: tuple[str, str] = ("A", "B")) -> str:
    """Return which test images weren't compared, where data sets were corrected; "" where all were."""
    if not any(images.left_out):
        return ""
    of_each = " and ".join(
        f"{left:,} of {len(whole):,} in {name}"
        for left, whole, name in zip(images.left_out, images.whole, names, strict=True)
    )
    return (
        f"One data set was made by correcting the other one, or both by correcting a third: {images.count:,} "
        f"test images are the same, with the same label, in both. Not compared are {of_each}. Where images "
        "were marked because one of the networks contradicted their labels, it looks better without them."
    )


def _cautions(
    first: Group,
    second: Group,
    values: tuple[list[float], list[float]],
    measure: str,
    names: tuple[str, str],
    tested_apart: bool,
) -> list[str]:
    found = []
    for name, group, known in zip(names, (first, second), values, strict=True):
        if left := len(group.results) - len(known):
            found.append(f"Not counted in {name}: {counted(left, 'run')} unfinished or without this result.")
        if not any(result.finished for result in group.results):
            found.append(f"No run of {name} is finished: what it reaches may still change.")
        seeds = [result.seed for result in group.counted if result.seed is not None]
        if len(set(map(repr, seeds))) < len(seeds):  # a damaged one may be a list
            found.append(f"Runs of {name} share a seed, so their spread isn't that of different seeds.")
    data = {result.data for group in (first, second) for result in group.results if result.data}
    runs = [result.summary for group in (first, second) for result in group.results]
    sets = {run.dataset for run in runs}
    if any(run.dataset is None and not run.recorded_by for run in runs):  # a damaged configuration
        found.append("Not every configuration can be read; the table shows only what is known.")
    elif None in sets:
        found.append("Not every run recorded its data set: they may have been trained on different data.")
    if len(data) > 1 or len(sets - {None}) > 1:
        own = " and each was tested on its own" if tested_apart else ""
        found.append(f"The two were trained on different data{own}, which may be what makes the difference.")
    if "validation" in measure:
        found.append(
            "Checkpoints and settings are often chosen on validation, so its results are too optimistic."
        )
    return found
