"""The predictions page: test images with true and predicted classes, the most confident mistakes first."""

from pathlib import Path
from typing import Any

import streamlit as st

from app import state
from app.images import cards
from app.images.confusion import confusion_figure
from app.images.links import image_address
from labkit.analysis.predictions import Predictions, load_predictions, signature
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["page"]

PAGE_SIZE = 18
ANY = "any"


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    st.subheader(f"Predictions · {run.name}", anchor=False)
    state.watch(f"predictions-{run.path}", lambda: signature(run))
    predictions = _read(run)
    if predictions is None:
        return
    _summary(predictions)
    true, predicted, wrong_only = _filters(predictions)
    _grid(predictions, true, predicted, wrong_only)
    left, right = st.columns([3, 2], gap="large")
    with left:
        _confusion(predictions, run)
    with right:
        _per_class(predictions)


@st.cache_resource(max_entries=4, show_spinner="Reading predictions…")
def _load(path: Path, files: tuple[tuple[int, int], ...]) -> Predictions:
    # `files` is part of the cache's key, so that replaced files are read again.
    return load_predictions(RunDirectory(path))


def _read(run: RunDirectory) -> Predictions | None:
    try:
        return _load(run.path, signature(run))
    except FileNotFoundError:
        st.info("This run has no predictions yet. To write them:", icon=":material/grid_view:")
        st.code(f"labkit evaluate {run.path}", language="bash")
    except InputError as error:
        st.error(f"{error}. To write it again:", icon=":material/broken_image:")
        st.code(f"labkit evaluate {run.path}", language="bash")
    return None


def _summary(predictions: Predictions) -> None:
    summary = predictions.summary
    wrong = int(predictions.wrong.sum())
    accuracy = f"{1 - wrong / len(predictions):.2%}" if len(predictions) else "–"
    if predictions.multi_label:
        scores = [
            ("Exact match", accuracy),
            ("Micro F1", _number(summary.get("f1_micro"), ".4f")),
            ("Macro F1", _number(summary.get("f1_macro"), ".4f")),
        ]
    else:
        scores = [
            ("Accuracy", accuracy),
            ("Top-5 accuracy", _number(summary.get("top5_accuracy"), ".2%")),
        ]
    cells = [
        ("Test images", f"{len(predictions):,}"),
        ("Wrong", f"{wrong:,}"),
        *scores,
        ("Loss", _number(summary.get("loss"), ".4f")),
        ("Checkpoint of step", _number(summary.get("checkpoint_step"), ",")),
    ]
    for column, (label, value) in zip(st.columns(len(cells)), cells, strict=True):
        column.metric(label, value)


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else "–"


def _filters(predictions: Predictions) -> tuple[int | None, int | None, bool]:
    classes = predictions.classes
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        true = st.selectbox("True class", [ANY, *classes], key="true", bind="query-params", width=200)
        predicted = st.selectbox(
            "Predicted class", [ANY, *classes], key="predicted", bind="query-params", width=200
        )
        shown = st.segmented_control(
            "Show", ["All", "Wrong only"], default="All", key="show", required=True, bind="query-params"
        )
        st.button(
            "Clear", on_click=_clear, icon=":material/filter_alt_off:", disabled=true == predicted == ANY
        )
    return (
        None if true == ANY else classes.index(true),
        None if predicted == ANY else classes.index(predicted),
        shown == "Wrong only",
    )


def _clear() -> None:
    st.session_state.update({"true": ANY, "predicted": ANY, "page": 1})


def _grid(predictions: Predictions, true: int | None, predicted: int | None, wrong_only: bool) -> None:
    indices = predictions.select(true, predicted, wrong_only)
    if not len(indices):
        st.info("No test image matches this selection.")
        return
    pages = -(-len(indices) // PAGE_SIZE)
    number = min(st.session_state.get("page", 1), pages)
    first = (number - 1) * PAGE_SIZE
    part = indices[first : first + PAGE_SIZE]
    st.caption(
        f"{first + 1:,}–{first + len(part):,} of {len(indices):,}, the most confident mistakes first. "
        "A click on an image opens its own page."
    )
    st.html(cards.grid(predictions, part, link=lambda index: image_address("test", index)))
    if pages > 1:
        st.pagination(pages, key="page", bind="query-params")


def _confusion(predictions: Predictions, run: RunDirectory) -> None:
    if predictions.confusion is None:
        st.markdown("**Confusion**")
        st.caption(
            "There is no confusion matrix for images with several labels. A prediction is wrong if a label "
            "is missing or wrongly added."
        )
        return
    st.markdown("**Confusion matrix** · click a cell to show its images")
    key = f"confusion-{run.path}"

    def pick() -> None:
        points = st.session_state[key].selection.points
        if points:
            true, predicted = points[0]["customdata"][:2]
            st.session_state.update(
                {"true": predictions.classes[true], "predicted": predictions.classes[predicted], "page": 1}
            )

    st.plotly_chart(
        confusion_figure(predictions.confusion, predictions.classes),
        key=key,
        on_select=pick,
        selection_mode="points",
        config={"displayModeBar": False},
        alt="Confusion matrix: true classes in rows, predicted classes in columns",
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
