"""Calibration, precision–recall curves and the metrics of each class, with their figures as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.images.cards import sentence
from app.markup import draw_markup, visible
from labkit.analysis.predictions import Predictions

BINS = 15  # Guo et al., 2017, "On Calibration of Modern Neural Networks"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Probabilities in bins of equal width.

    ``counts``: int64 [bins]. ``confidence`` and ``frequency``: float64 [bins], mean probability and fraction
    of what was true among those of a bin; NaN for an empty bin. ``error``: the expected calibration error;
    NaN without any probability. ``left_out``: probabilities that aren't numbers.
    """

    counts: NDArray[np.int64]
    confidence: Floats
    frequency: Floats
    error: float
    left_out: int


def calibration(predictions: Predictions, label: int | None = None, bins: int = BINS) -> Calibration:
    """Return the calibration of a split's predictions.

    With one label per image, the probability of each predicted class is compared with how often that class
    is right. With several, each label's probability is compared with how often images have the label.

    Args:
        predictions: of a split.
        label: with several labels, the one to look at; None: all together.
        bins: number of bins between 0 and 1; a bin includes its upper edge.
    """
    if predictions.multi_label:
        which: Any = slice(None) if label is None else [label]
        shares = predictions.probabilities[:, which].ravel().astype(np.float64)
        true = predictions.has[:, which].ravel()
    else:
        shares = predictions.confidence.astype(np.float64)
        true = ~predictions.wrong
    known = np.isfinite(shares)
    shares, true = shares[known], true[known]
    place = np.clip(np.ceil(shares * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):  # an empty bin
        confidence = np.bincount(place, shares, bins) / counts
        frequency = np.bincount(place, true, bins) / counts
    gaps = np.nan_to_num(np.abs(frequency - confidence))
    error = float((counts * gaps).sum() / counts.sum()) if counts.sum() else float("nan")
    return Calibration(counts, confidence, frequency, error, int((~known).sum()))


@dataclass(frozen=True)
class PrecisionRecall:
    """``precision`` and ``recall``: float64 [thresholds + 1], recall falling to 0. ``average``: average
    precision. ``examples``: with the class. Without any, the arrays are empty and ``average`` is NaN.
    """

    precision: Floats
    recall: Floats
    average: float
    examples: int


def precision_recall(predictions: Predictions) -> list[PrecisionRecall]:
    """Return the curve of each class, one against the rest. Examples with NaN are left out."""
    known, has = ~predictions.undefined, predictions.has
    return [
        _precision_recall(has[known, number], predictions.probabilities[known, number])
        for number in range(len(predictions.classes))
    ]


def _precision_recall(has: NDArray[np.bool_], shares: NDArray[Any]) -> PrecisionRecall:
    """Return the curve of one class. scikit-learn's takes 3 ms, half a minute for 10,000 classes."""
    examples = int(has.sum())
    if not examples:
        nothing = np.zeros(0)
        return PrecisionRecall(nothing, nothing, float("nan"), 0)
    order = np.argsort(-shares, kind="stable")
    last = np.flatnonzero(np.append(np.diff(shares[order]) != 0, True))  # of equal probabilities
    right = np.cumsum(has[order])[last]
    precision, recall = right / (last + 1), right / examples
    average = float((np.diff(recall, prepend=0.0) * precision).sum())
    return PrecisionRecall(np.append(precision[::-1], 1.0), np.append(recall[::-1], 0.0), average, examples)


BLUE, ORANGE = "#2f7fd1", "#d9772b"
WIDTH, HEIGHT, COUNTS = 350, 190, 58  # of the diagram, and of the bars below it
LEFT, TOP, GAP, BOTTOM = 38, 8, 22, 34
POINTS = 60  # of a drawn curve


def calibration_figure(found: Calibration, axis: str, frequency: str) -> str:
    """Return the reliability diagram with the number of probabilities in each bin below it.

    Args:
        found: the bins.
        axis, frequency: names of the two axes.
    """
    bins = len(found.counts)
    step = WIDTH / bins
    parts = [_frame(), _diagonal()]
    for place in range(bins):
        if not found.counts[place]:
            continue
        mean, true = float(found.confidence[place]), float(found.frequency[place])
        left = LEFT + place * step
        top, end = _y(max(mean, true)), _y(min(mean, true))
        count = f"{int(found.counts[place]):,}"
        limits = f"{place / bins:.2f}–{(place + 1) / bins:.2f}"
        words = escape(f"{limits}: {count} · {axis} {mean:.3f} · {frequency} {true:.3f}")
        colour = ORANGE if mean > true else BLUE
        parts.append(
            f"<g><title>{words}</title>"
            f'<rect x="{left + 1:.1f}" y="{_y(true):.1f}" width="{step - 2:.1f}" '
            f'height="{_y(0) - _y(true):.1f}" fill="{BLUE}" fill-opacity=".28"/>'
            f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{step - 2:.1f}" height="{end - top:.1f}" '
            f'fill="{colour}" fill-opacity=".22"/>'
            f'<line x1="{left + 1:.1f}" x2="{left + step - 1:.1f}" y1="{_y(true):.1f}" y2="{_y(true):.1f}" '
            f'stroke="{BLUE}" stroke-width="2.5"/></g>'
        )
    parts += [_counts(found.counts, step), _labels(axis, frequency)]
    height = TOP + HEIGHT + GAP + COUNTS + BOTTOM
    title = escape(f"Reliability diagram, expected calibration error {found.error:.4f}", quote=True)
    return (
        f'<svg class="lk-svg" viewBox="0 0 {LEFT + WIDTH + 4} {height}" role="img" '
        f'aria-label="{title}" font-size="11">{"".join(parts)}</svg>{_table(found, axis, frequency)}'
    )


def _table(found: Calibration, axis: str, frequency: str) -> str:
    bins = len(found.counts)
    rows = "".join(
        f"<tr><td>{place / bins:.2f}–{(place + 1) / bins:.2f}</td><td>{int(found.counts[place]):,}</td>"
        f"<td>{_share(found.confidence[place])}</td><td>{_share(found.frequency[place])}</td></tr>"
        for place in range(bins)
    )
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("bin", "count", axis, frequency))
    return f"<details><summary>As a table</summary><table><tr>{names}</tr>{rows}</table></details>"


def _share(value: float) -> str:
    return "–" if value != value else f"{value:.3f}"


def _y(share: float) -> float:
    return TOP + HEIGHT * (1 - share)


def _frame() -> str:
    return "".join(
        f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{_y(at):.1f}" y2="{_y(at):.1f}" stroke="currentColor" '
        f'stroke-opacity=".15"/><text x="{LEFT - 5}" y="{_y(at) + 4:.1f}" text-anchor="end">{at:g}</text>'
        for at in (0, 0.25, 0.5, 0.75, 1)
    )


def _diagonal() -> str:
    return (
        f'<line x1="{LEFT}" y1="{_y(0)}" x2="{LEFT + WIDTH}" y2="{_y(1)}" stroke="currentColor" '
        'stroke-opacity=".55" stroke-dasharray="4 4"/>'
    )


def _counts(counts: NDArray[np.int64], step: float) -> str:
    top = TOP + HEIGHT + GAP
    largest = max(int(counts.max(initial=0)), 1)
    parts = []
    for place, count in enumerate(counts.tolist()):
        height = (COUNTS - 12) * count / largest
        left = LEFT + place * step
        parts.append(
            f'<rect x="{left + 1:.1f}" y="{top + COUNTS - height:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}" fill="currentColor" fill-opacity=".25"/>'
            f'<text x="{left + step / 2:.1f}" y="{top + COUNTS - height - 3:.1f}" text-anchor="middle" '
            f'font-size="8.5">{_short(count)}</text>'
        )
    return "".join(parts)


def _short(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1000:.0f}k"


def _labels(axis: str, frequency: str) -> str:
    base = TOP + HEIGHT + GAP + COUNTS
    ticks = "".join(
        f'<text x="{LEFT + WIDTH * at:.1f}" y="{base + 13}" text-anchor="middle">{at:g}</text>'
        for at in (0, 0.25, 0.5, 0.75, 1)
    )
    middle = TOP + HEIGHT / 2
    return (
        f'{ticks}<text x="{LEFT + WIDTH / 2}" y="{base + 29}" text-anchor="middle">{escape(axis)}</text>'
        f'<text x="10" y="{middle}" text-anchor="middle" transform="rotate(-90 10 {middle})">'
        f"{escape(frequency)}</text>"
    )


def precision_recall_figures(curves: Sequence[PrecisionRecall], classes: Sequence[str]) -> str:
    """Return a small curve of each class with its average precision, the lowest first."""
    averages = [curve.average if curve.examples else 2.0 for curve in curves]
    order = np.argsort(averages, kind="stable")
    items = "".join(_curve(curves[number], classes[number]) for number in order.tolist())
    opening = '<ul class="lk-curves" tabindex="0" aria-label="Precision and recall of each class">'
    return f"{opening}{items}</ul>"


def _curve(curve: PrecisionRecall, name: str) -> str:
    name = visible(name)
    shown = f"{curve.average:.3f}" if curve.examples else "no images"
    words = escape(f"{name}: average precision {shown}, {curve.examples:,} images", quote=True)
    path = ""
    if curve.examples:
        # scikit-learn's recall falls; thresholds crowd at its end.
        places = np.searchsorted(-curve.recall, -np.linspace(0, 1, POINTS))
        kept = np.unique(np.append(np.minimum(places, len(curve.recall) - 1), [0, len(curve.recall) - 1]))
        points = " ".join(
            f"{2 + 96 * recall:.1f},{2 + 60 * (1 - precision):.1f}"
            for recall, precision in zip(curve.recall[kept], curve.precision[kept], strict=True)
        )
        path = f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.6"/>'
    frame = '<path d="M2 2V62H98" fill="none" stroke="currentColor" stroke-opacity=".4" stroke-width=".8"/>'
    return (
        f'<li title="{words}"><div><span>{escape(name)}</span><span>{shown}</span></div>'
        f'<svg class="lk-svg" viewBox="0 0 100 64" role="img" aria-label="{words}">{frame}{path}</svg></li>'
    )


ALL_LABELS = "all labels"


@st.fragment
def panel(predictions: Predictions) -> None:
    """Draw the three parts."""
    if not len(predictions):
        st.info("There are no images, so there is nothing to measure.")
        return
    left, right = st.columns(2, gap="large")
    with left:
        _calibration(predictions)
    with right:
        st.markdown("**Precision and recall** · lowest average precision first")
        curves = precision_recall_figures(precision_recall(predictions), predictions.classes)
        draw_markup(curves, key="precision-recall")
        st.caption(
            "One class against the rest at every threshold of its probability: recall to the right, "
            "precision up, both from 0 to 1. The number is the average precision: the mean of the "
            "precision, weighted by the gain of recall."
        )
    _per_class(predictions)


def _calibration(predictions: Predictions) -> None:
    st.markdown("**Calibration**")
    label = None
    if predictions.multi_label:
        names = [ALL_LABELS, *predictions.classes]
        picked = st.selectbox(
            "Label", range(len(names)), format_func=names.__getitem__, key="calibration-label", width=220
        )
        label = picked - 1 if picked else None
    found = calibration(predictions, label)
    axis, frequency = (
        ("probability of the label", "images with the label")
        if predictions.multi_label
        else ("confidence", "accuracy")
    )
    st.html(sentence(f"Expected calibration error {found.error:.4f}"))
    draw_markup(calibration_figure(found, axis, frequency), key="calibration")
    what = (
        "the fraction of images that have the label"
        if predictions.multi_label
        else "the accuracy of its images"
    )
    left_out = f" {found.left_out:,} values that aren't numbers are left out." if found.left_out else ""
    st.caption(
        f"{BINS} bins of equal width; the number of probabilities in each stands below. The error is the "
        f"mean distance between {what} and the mean probability of a bin, weighted by its count. "
        f"On the dashed line they are equal. Orange: too confident.{left_out}"
    )


def _per_class(predictions: Predictions) -> None:
    st.markdown("**Per class**")
    share = {"format": "percent", "min_value": 0.0, "max_value": 1.0}
    st.dataframe(
        predictions.per_class(),
        hide_index=True,
        height="content" if len(predictions.classes) <= 20 else 640,
        column_config={
            "class": "Class",
            "examples": st.column_config.NumberColumn("Examples", format="localized"),
            "accuracy": st.column_config.ProgressColumn("Accuracy", **share),  # type: ignore[arg-type]
            "recall": st.column_config.ProgressColumn("Recall", **share),  # type: ignore[arg-type]
            "precision": st.column_config.ProgressColumn("Precision", **share),  # type: ignore[arg-type]
            "f1": st.column_config.ProgressColumn("F1", **share),  # type: ignore[arg-type]
        },
    )
