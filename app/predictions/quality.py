"""Calibration, precision–recall curves and the metrics of each class, with their figures as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.charts import component
from app.charts.board import PALETTE, Chart, Line, encode
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


def calibration(predictions: Predictions, label: int | None = None) -> Calibration:
    """Return the calibration of a split's predictions in ``BINS`` bins, which include their upper edge.

    With one label per image, the probability of each predicted class is compared with how often that class
    is right. With several, each label's probability is compared with how often images have the label.

    Args:
        predictions: of a split.
        label: with several labels, the one to look at; None: all together.
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
    place = np.clip(np.ceil(shares * BINS).astype(np.int64) - 1, 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    with np.errstate(invalid="ignore"):  # an empty bin
        confidence = np.bincount(place, shares, BINS) / counts
        frequency = np.bincount(place, true, BINS) / counts
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


BLUE, GREY = PALETTE[0], PALETTE[-1]
POINTS = 60  # of a drawn curve


def calibration_charts(found: Calibration, frequency: str) -> list[Chart]:
    """Return the reliability diagram, and the number of probabilities in each bin.

    ``frequency``: what stands up in the diagram.
    """
    some, ends, middles = found.counts > 0, np.array([0.0, 1.0]), (np.arange(BINS) + 0.5) / BINS
    equal = Line("equal", ends, ends, GREY, "dashed")
    bins = Line(frequency, found.confidence[some], found.frequency[some], BLUE, "marked")
    number = Line("number", middles, found.counts.astype(np.float64), BLUE, "bars")
    return [
        Chart("calibration", frequency.capitalize(), [equal, bins], "percent"),
        Chart("counts", "Probabilities in a bin", [number]),
    ]


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
    component.prepare()
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
    axis, frequency, what = "confidence", "accuracy", "the accuracy of its images"
    if predictions.multi_label:
        axis, frequency = "probability of the label", "images with the label"
        what = "the fraction of images that have the label"
    st.html(sentence(f"Expected calibration error {found.error:.4f}"))
    charts = calibration_charts(found, frequency)
    board = encode(charts, axis="percent", x_title=axis.capitalize(), height=190)
    component.draw(board, key="calibration")
    left_out = f" {found.left_out:,} values that aren't numbers are left out." if found.left_out else ""
    st.caption(
        f"A point for each of {BINS} bins of equal width that has probabilities. The error is the "
        f"mean distance between {what} and the mean probability of a bin, weighted by its count. "
        f"On the dashed line they are equal; below it, the network is too confident.{left_out}"
    )


def _per_class(predictions: Predictions) -> None:
    st.markdown("**Per class**")
    columns = st.column_config
    share = {"format": "percent", "min_value": 0.0, "max_value": 1.0}
    shares: dict[str, Any] = {
        name: columns.ProgressColumn(name.capitalize(), **share)  # type: ignore[arg-type]
        for name in ("accuracy", "recall", "precision", "f1")
    }
    st.dataframe(
        predictions.per_class(),
        hide_index=True,
        height="content" if len(predictions.classes) <= 20 else 640,
        column_config={"class": "Class", "examples": columns.NumberColumn("Examples", format="localized")}
        | shares,
    )
