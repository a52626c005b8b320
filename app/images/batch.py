"""The batch of a training step: its images as the network saw them, and their losses at a kept checkpoint."""

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.charts import component, picked
from app.charts.store import Snapshot
from app.images import answers, cards
from app.images.links import image_address
from app.images.subject import given_by
from app.images.text import plain
from labkit.analysis.ask.client import AskedNetwork, Prediction
from labkit.analysis.replay.batch import (
    NeedsReplay,
    RunBatch,
    batch_note,
    batch_without_tensorflow,
    checkpoint_for,
)
from labkit.config.recorded import recorded_config
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.training.scores import indicators

__all__ = ["highest_share", "section"]

SHOWN = 96  # images at once
MOST_ASKED = 512  # in one question
FEW = 10  # images whose part of the loss is told: a tenth of the batch, at most these


def section(run: RunDirectory, metrics: Snapshot | None, step: int) -> None:
    """Draw the batch of a step below the charts, with the buttons to leave it.

    Args:
        run: the run directory.
        metrics: of the run; None if they can't be read.
        step: from 1; anything else is refused in words.
    """
    st.divider()
    component.scroll_anchor(f"Batch of step {step:,}", picked.scrolls(), key="batch-anchor")
    _head(run, step)
    if metrics is not None:
        _values(metrics, step)
    try:
        batch = _batch(run.path, step, _signature(run))
    except NeedsReplay as error:
        st.info(plain(str(error)))
        _command(run, step, "--batch-only")
        return
    except InputError as error:
        st.warning(plain(str(error)), icon=":material/error:")
        return
    _words(run, metrics, batch)
    _images(run, metrics, batch)


def _head(run: RunDirectory, step: int) -> None:
    last = _last_step(run)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader(f"Batch of step {step:,}", anchor=False, width="content")
        for name, icon, other in (
            ("Previous step", ":material/chevron_left:", step - 1),
            ("Next step", ":material/chevron_right:", step + 1),
        ):
            st.button(
                name,
                icon=icon,
                key=f"batch-{name}",
                disabled=other < 1 or other > last,
                on_click=picked.choose_step,
                args=(run, other),
            )
        st.button(
            "Close", icon=":material/close:", key="batch-close", on_click=picked.choose_step, args=(run, None)
        )


def _last_step(run: RunDirectory) -> int:
    try:
        return recorded_config(run).run.train_steps
    except InputError:
        return 0


# ---- what the run recorded -------------------------------------------------------------------------------


def _values(metrics: Snapshot, step: int) -> None:
    values = picked.values_at(metrics, step)
    if not values:
        if step > metrics.last_step():
            st.caption("The run hasn't made this step yet. This is the batch that it will take.")
        return
    loss, around = values.get("loss"), picked.neighbourhood(metrics, step)
    facts = [("Loss", _text(loss))]
    if loss is not None and around:
        facts.append((f"Median, {picked.AROUND} steps each side", f"{around:.4g}"))
        facts.append(("Loss / median", _text(loss / around, ".3g")))
    facts.append(("Accuracy", _text(values.get("accuracy"), ".1%")))
    facts.append(("Learning rate", _text(values.get("learning_rate"), ".4g")))
    facts.append(("Epoch", _text(values.get("epoch"), ".2f")))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts)
    st.html(f'<dl class="lk-facts">{cells}</dl>')


def _text(value: float | None, form: str = ".4g") -> str:
    if value is None:
        return "–"
    return format(value, form) if np.isfinite(value) else str(value).replace("inf", "∞").replace("nan", "NaN")


# ---- the batch -------------------------------------------------------------------------------------------


@st.cache_resource(max_entries=8, show_spinner=False)
def _batch(path: Path, step: int, files: tuple[int, ...]) -> RunBatch:
    # `files` is part of the cache's key: a run that was started over has other batches.
    return batch_without_tensorflow(RunDirectory(path), step)


def _signature(run: RunDirectory) -> tuple[int, ...]:
    def changed(path: Path) -> int:
        try:
            return path.stat().st_mtime_ns
        except OSError:
            return 0

    return changed(run.config_path), changed(run.environment_path)


def _words(run: RunDirectory, metrics: Snapshot | None, batch: RunBatch) -> None:
    seen = batch.seen
    size = len(seen)
    side = f"{seen.images.shape[2]}×{seen.images.shape[1]}"
    epochs = " and ".join(f"{epoch:,}" for epoch in np.unique(seen.epoch).tolist())
    words = [
        f"{counted(size, 'image')} of epoch {epochs} (from 0), as the network saw them: "
        f"distorted as configured, {side} pixels."
    ]
    replicas = run.read_environment().get("replicas")
    if note := batch_note(run, seen.step):
        words.append(note[:1].upper() + note[1:] + ".")
    elif type(replicas) is int and replicas > 1:
        words.append(
            f"This is the global batch: each of the {replicas} replicas took {size // replicas} of it."
        )
    st.caption(plain(" ".join(words)))


def _images(run: RunDirectory, metrics: Snapshot | None, batch: RunBatch) -> None:
    kept = run.checkpoint_steps()
    step = batch.seen.step
    checkpoint = checkpoint_for(kept, step)
    if checkpoint is None:
        st.caption(
            "The run has kept no checkpoint yet, so no network can be asked for each image's loss. "
            "This command makes the step again and finds it:"
        )
        _command(run, step)
        _grid(batch, None)
        return
    key = ("batch", step, answers.digest(batch.pixels))
    asked = answers.ask(run, checkpoint, key, lambda network, report: _predict(network, report, batch))
    found = answers.shown(asked, f"Asking the network of step {checkpoint:,}", "batch")
    if found is not None:
        _comparison(run, metrics, batch, checkpoint, found)
    _grid(batch, found)


def _predict(network: AskedNetwork, report: answers.Progress, batch: RunBatch) -> Prediction:
    parts, size = [], len(batch.seen)
    for start in range(0, size, MOST_ASKED):
        part = slice(start, start + MOST_ASKED)
        parts.append(network.predict(batch.pixels[part], batch.seen.labels[part]))
        report(min(part.stop, size), size)
    losses = [part.losses for part in parts if part.losses is not None]
    return Prediction(np.concatenate([part.probabilities for part in parts]), np.concatenate(losses))


def _comparison(
    run: RunDirectory, metrics: Snapshot | None, batch: RunBatch, checkpoint: int, found: Prediction
) -> None:
    """Say which network was asked, and how its losses compare with the recorded one."""
    step = batch.seen.step
    assert found.losses is not None
    recorded = picked.values_at(metrics, step).get("loss") if metrics is not None else None
    when = (
        f"{counted(step - 1 - checkpoint, 'step')} before it began"
        if checkpoint < step - 1
        else "just before it"
        if checkpoint < step
        else "just after it"
        if checkpoint == step
        else f"{counted(checkpoint - step, 'step')} after it; the run kept none before"
    )
    words = [
        f"Losses and predictions are those of the checkpoint of step {checkpoint:,}, the nearest ({when}), "
        "asked as in an evaluation. The highest loss is first.",
        f"Their mean is {_text(float(found.losses.mean()))}"
        + ("." if recorded is None else f"; the step recorded {_text(recorded)}."),
    ]
    if (share := highest_share(found.losses)) is not None:
        few, part = share
        words.append(f"The {counted(few, 'image')} with the highest loss make up {part:.0%} of it.")
    st.caption(plain(" ".join(words)))
    if batch.pixels is not batch.seen.images:
        st.caption("The images are smaller in this step; the network was asked about them at full size.")
    with st.popover("The exact losses", icon=":material/terminal:"):
        st.caption("This command makes the step again, with the weights that it had:")
        _command(run, step)


def highest_share(losses: NDArray[np.float64]) -> tuple[int, float] | None:
    """Return how many images are a tenth of a batch, at most ten, and the part of the loss they make up.

    None where the batch is small or the losses aren't finite.
    """
    total = float(losses.sum())
    if len(losses) < FEW or not np.isfinite(total) or total <= 0:
        return None
    few = min(FEW, len(losses) // FEW)
    return few, float(np.sort(losses)[-few:].sum()) / total


def _command(run: RunDirectory, step: int, *flags: str) -> None:
    command = ["labkit", "replay", str(run.path), "--step", str(step), *flags]
    st.code(shlex.join(command), language="bash")


def _grid(batch: RunBatch, found: Prediction | None) -> None:
    seen = batch.seen
    order = np.arange(len(seen))
    if found is not None and found.losses is not None:  # NaN first: it is what a reader looks for
        order = np.argsort(-np.where(np.isnan(found.losses), np.inf, found.losses), kind="stable")
    pages = -(-len(seen) // SHOWN)
    first = 0
    if pages > 1:
        page = st.pagination(pages, key=f"batch-page-{pages}")
        first = (min(page, pages) - 1) * SHOWN
        st.caption(f"Images {first + 1:,} to {min(first + SHOWN, len(seen)):,} of {len(seen):,}")
    shown = order[first : first + SHOWN]
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
    return ", ".join((f"loss {_text(float(found.losses[place]), '.3g')}", f"{mark} {names}", number))


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
