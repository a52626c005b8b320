"""The predictions page: images of a split with true and predicted classes, and how good they are."""

from collections.abc import Callable

import streamlit as st

from app import state
from app.images import answers, marking
from app.live_update import heading
from app.markup import facts_html, number_text, plain
from app.predictions import images, numbers, pairs, parts, quality
from app.predictions import source as sources
from app.predictions.kept import Forgotten
from labkit.analysis.predictions import Predictions, of_another_checkpoint
from labkit.data.of_run import data_set_of
from labkit.errors import InputError
from labkit.plurals import counted


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    answers.expect(run)
    state.watch(f"predictions-{run.path}", lambda: sources.watched(run))
    heading(run, "Predictions")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        split = sources.choose_split(run)
        source = sources.choose_checkpoint(run, split, "checkpoint")
    predictions = sources.predictions_of(source, run, split)
    if predictions is None or source is None:
        return
    if source.step is None and (other := of_another_checkpoint(run, predictions)):
        st.warning(plain(f"{other[0].upper()}{other[1:]}."), icon=":material/compare_arrows:")
    if predictions.are_numbers:
        numbers.panel(source, predictions)
        return
    st.html(facts_html(_facts(predictions, split)))
    if undefined := int(predictions.undefined.sum()):
        st.warning(
            f"{counted(undefined, 'image')} of {len(predictions):,} have probabilities that aren't numbers "
            "(NaN). They count as class 0 here, as in the evaluation; calibration leaves them out.",
            icon=":material/warning:",
        )
    forgotten = sources.forgotten(run, split)
    panels: dict[str, Callable[[], object]] = {
        "Images": lambda: _images(source, predictions, forgotten),
        "Calibration and classes": lambda: quality.panel(predictions),
        "Parts": lambda: parts.panel(source, predictions),
        "Side by side": lambda: pairs.panel(source, predictions),
    }
    tabs = st.tabs(list(panels), key="view", on_change="rerun", bind="query-params")
    for tab, draw in zip(tabs, panels.values(), strict=True):
        with tab:
            if tab.open:
                draw()


def _images(source: sources.Source, predictions: Predictions, forgotten: Forgotten | None) -> None:
    try:
        manifest = data_set_of(source.run)
    except InputError:  # the images of these predictions can't be marked
        manifest = None
    images.panel(source, predictions, forgotten, manifest)
    marking.summary(source.run, manifest)


def _facts(predictions: Predictions, split: str) -> list[tuple[str, str]]:
    summary = predictions.summary
    wrong = int(predictions.wrong.sum())
    accuracy = number_text(1 - wrong / len(predictions) if len(predictions) else None, ".2%")
    if predictions.multi_label:
        scores = [
            ("Exact match", accuracy),
            ("Micro F1", number_text(summary.get("f1_micro"), ".4f")),
            ("Macro F1", number_text(summary.get("f1_macro"), ".4f")),
        ]
    else:
        scores = [("Accuracy", accuracy)]
        if "top5_accuracy" in summary:  # not of five classes or fewer
            scores.append(("Top-5 accuracy", number_text(summary["top5_accuracy"], ".2%")))
    return [
        (f"{split.capitalize()} images", f"{len(predictions):,}"),
        ("Wrong", f"{wrong:,}"),
        *scores,
        ("Loss", number_text(summary.get("loss"))),
        ("Checkpoint of step", number_text(summary.get("checkpoint_step"), ",")),
    ]
