"""Calibration, precision–recall curves and the metrics of each class."""

import streamlit as st

from app.drawing import draw
from app.images.cards import sentence
from app.predictions.calibration import BINS, calibration, precision_recall
from app.predictions.plots import calibration_figure, precision_recall_figures
from labkit.analysis.predictions import Predictions

__all__ = ["panel"]

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
        draw(curves, key="precision-recall")
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
    draw(calibration_figure(found, axis, frequency), key="calibration")
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
