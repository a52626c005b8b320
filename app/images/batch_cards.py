"""Cards of a batch's images, and what their losses say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.ask.client import Prediction
from app.images import cards
from app.images.links import image_address
from app.images.subject import given_by
from app.paging import page_of
from labkit.experiments.replay.batch import RunBatch
from labkit.training.scores import indicators

__all__ = ["grid", "highest_share", "number_text"]

SHOWN = 96  # images at once
FEW = 10  # images whose part of the loss is told: a tenth of the batch, at most these


def number_text(value: float | None, form: str = ".4g") -> str:
    """Return a number as text; a dash if it is unknown."""
    if value is None:
        return "–"
    return format(value, form) if np.isfinite(value) else str(value).replace("inf", "∞").replace("nan", "NaN")


def highest_share(losses: NDArray[np.float64]) -> tuple[int, float] | None:
    """Return how many images are a tenth of a batch, at most ten, and the part of the loss they make up.

    None where the batch is small or the losses aren't finite.
    """
    total = float(losses.sum())
    if len(losses) < FEW or not np.isfinite(total) or total <= 0:
        return None
    few = min(FEW, len(losses) // FEW)
    return few, float(np.sort(losses)[-few:].sum()) / total


def grid(batch: RunBatch, found: Prediction | None) -> None:
    """Draw the cards; with losses, the highest first."""
    seen = batch.seen
    order = np.arange(len(seen))
    if found is not None and found.losses is not None:  # NaN first: it is what a reader looks for
        order = np.argsort(-np.where(np.isnan(found.losses), np.inf, found.losses), kind="stable")
    page = page_of(len(seen), SHOWN, "batch-page", seen.index.tobytes())
    if len(seen) > SHOWN:
        st.caption(f"Images {page.start + 1:,} to {page.stop:,} of {len(seen):,}")
    shown = order[page]
    st.html(
        cards.small_grid(
            seen.images[shown],
            [seen.names(place) for place in shown.tolist()],
            [_note(batch, found, place) for place in shown.tolist()],
            [image_address("train", int(seen.index[place])) for place in shown.tolist()],
            _wrong(batch, found, shown),
        )
    )


def _note(batch: RunBatch, found: Prediction | None, place: int) -> str:
    number = f"#{int(batch.seen.index[place])}"
    if found is None or found.losses is None:
        return number
    shares = found.probabilities[place]
    given = given_by(shares, batch.multi_label)
    names = " + ".join(batch.seen.classes[label] for label in np.flatnonzero(given).tolist()) or "none"
    if not batch.multi_label:
        names += f" {float(shares.max()):.0%}"
    mark = "✗" if _is_wrong(batch, given, place) else "✓"
    return ", ".join((f"loss {number_text(float(found.losses[place]), '.3g')}", f"{mark} {names}", number))


def _wrong(batch: RunBatch, found: Prediction | None, shown: NDArray[Any]) -> Sequence[bool]:
    if found is None:
        return [False] * len(shown)
    return [
        _is_wrong(batch, given_by(found.probabilities[place], batch.multi_label), place)
        for place in shown.tolist()
    ]


def _is_wrong(batch: RunBatch, given: NDArray[np.bool_], place: int) -> bool:
    has = indicators(batch.seen.labels[place][None], len(batch.seen.classes))[0]
    return bool((has != given).any())
