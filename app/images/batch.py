"""The batch of a training step: its images as the network saw them, and their losses at a kept checkpoint."""

import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from app import background, state
from app.address import image_address, page_below
from app.ask.client import AskedNetwork, Prediction
from app.charts import component, picked
from app.charts.metric_charts import look_of
from app.charts.store import Snapshot
from app.images import answers, cards
from app.images.subject import known_config
from app.markup import facts_html, number_text, plain, show_command
from app.state import changed_at
from labkit.analysis.predictions import Predictions
from labkit.data.batch import StepBatch
from labkit.data.manifest import MANIFEST_NAME
from labkit.data.of_run import data_set_of
from labkit.errors import InputError
from labkit.experiments.replay.batch import (
    NeedsReplay,
    RunBatch,
    batch_note,
    batch_without_tensorflow,
    checkpoint_for,
)
from labkit.plurals import counted, numbers_in_words
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import MAX_STEP_NOTE, change_notes, read_notes
from labkit.run_directory.rows import result_name

MOST_ASKED = 512  # in one question
FAILED = "step-note-failed"  # in the session, with the step: why a note was not kept


def section(run: RunDirectory, metrics: Snapshot | None, step: int) -> None:
    """Draw the batch of a step, with the buttons to leave it and the largest jumps of the loss.

    Args:
        run: the run directory.
        metrics: of the run; None if they can't be read.
        step: from 1; anything else is refused in words.
    """
    component.scroll_anchor(f"Batch of step {step:,}", picked.scrolls(), key="batch-anchor")
    about = _head(run, step)
    if metrics is not None:
        if 0 < step <= metrics.last_step():
            _note(run, step)
        _values(metrics, step)
        _jumps(run, metrics, step)
    try:
        batch = _batch(run.path, step, _signature(run))
    except NeedsReplay as error:
        st.info(plain(str(error)))
        _command(run, step, "--batch-only")
        return
    except InputError as error:
        st.warning(plain(str(error)), icon=":material/error:")
        return
    with about:
        _words(run, batch)
    _images(run, metrics, batch, about)


def _head(run: RunDirectory, step: int) -> DeltaGenerator:
    """Draw the step and the buttons. Returns where to say how images and losses were made."""
    last = config.run.train_steps if (config := known_config(run)) else 0
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", key="batch-head"):
        st.subheader(f"Batch of step {step:,}", anchor=False, width="content")
        for name, icon, other in (("Previous", "left", step - 1), ("Next", "right", step + 1)):
            picked.step_button(
                name,
                run,
                other,
                icon=f":material/chevron_{icon}:",
                key=f"batch-{name}",
                type="tertiary",
                help=f"The batch of step {other:,}: arrow keys, here and on the chart",
                disabled=other < 1 or other > last,
            )
        picked.step_button("Close", run, None, icon=":material/close:", key="batch-close", type="tertiary")
        return st.popover("About", icon=":material/info:", type="tertiary")


def _note(run: RunDirectory, step: int) -> None:
    """Draw the note on the step, with a field to write it where the page may."""
    text, key = dict(read_notes(run).steps).get(step, ""), f"step-note-{step}"
    if not state.may_act():
        st.caption(plain(text))
        return
    st.session_state[key] = text

    def save() -> None:
        state.check_may_act()
        change_notes(run, at_step=(step, st.session_state[key]))

    what = "Note on this step: Enter puts it on the charts"
    st.text_input(
        what,
        key=key,
        on_change=state.attempt,
        args=(f"{FAILED}-{step}", save),
        max_chars=MAX_STEP_NOTE,
        placeholder=what,
        label_visibility="collapsed",
    )
    state.say_failure(f"{FAILED}-{step}")


# ---- what the run recorded -------------------------------------------------------------------------------


def _values(metrics: Snapshot, step: int) -> None:
    values = picked.values_at(metrics, step)
    if not values:
        if step > metrics.last_step():
            st.caption("The run hasn't made this step yet. This is the batch that it will take.")
        return
    loss, around = values.get("loss"), picked.neighbourhood(metrics.curve("train", "loss"), step)
    facts = [("Loss", number_text(loss))]
    if loss is not None and around:
        facts.append((f"Median ±{picked.AROUND}", f"{around:.4g}"))
        facts.append(("Loss / median", number_text(loss / around, ".3g")))
    name = result_name(values)
    look = look_of(name)
    facts.append((look.title, number_text(values.get(name), ".1%" if look.unit == "percent" else ".4g")))
    facts.append(("Learning rate", number_text(values.get("learning_rate"), ".4g")))
    facts.append(("Epoch", number_text(values.get("epoch"), ".2f")))
    st.html(facts_html(facts))


def _jumps(run: RunDirectory, metrics: Snapshot, step: int) -> None:
    """Draw a button for each of the largest jumps of the loss."""
    if not (jumps := picked.jumps(metrics)):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", key="batch-jumps"):
        st.caption("Largest jumps:", width="content")
        for other, ratio in jumps:
            label = f"{other:,} ({number_text(ratio, '.2g')} ×)"
            look: dict[str, Any] = {"type": "tertiary", "disabled": other == step}
            picked.step_button(label, run, other, key=f"jump-{other}", **look)


# ---- the batch -------------------------------------------------------------------------------------------


@st.cache_resource(max_entries=2, show_spinner=False)
def _batch(path: Path, step: int, files: tuple[int, ...]) -> RunBatch:
    # `files` is part of the cache's key: a run that was started over, or whose data set was replaced, has
    # other batches. The standardized images aren't shown, and take four times the memory of the others.
    batch = batch_without_tensorflow(RunDirectory(path), step)
    seen = replace(batch.seen, standardized=batch.seen.standardized[:0].copy())
    return replace(batch, seen=seen)


def _signature(run: RunDirectory) -> tuple[int, ...]:
    paths = [run.config_path, run.environment_path]
    with suppress(InputError):
        paths.append(data_set_of(run).directory / MANIFEST_NAME)
    return tuple(map(changed_at, paths))


def _words(run: RunDirectory, batch: RunBatch) -> None:
    seen = batch.seen
    size = len(seen)
    side = f"{seen.images.shape[2]}×{seen.images.shape[1]}"
    epochs = " and ".join(f"{epoch:,}" for epoch in np.unique(seen.epoch).tolist())
    words = [
        f"{counted(size, 'image')} of epoch {epochs} (from 0), as the network saw them: "
        f"augmented as configured, {side} pixels."
    ]
    replicas = run.read_environment().get("replicas")
    if note := batch_note(run, seen.step):
        words.append(note[:1].upper() + note[1:] + ".")
    elif type(replicas) is int and replicas > 1:
        words.append(
            f"This is the global batch: each of the {replicas} replicas took {size // replicas} of it."
        )
    st.caption(plain(" ".join(words)))


def _images(run: RunDirectory, metrics: Snapshot | None, batch: RunBatch, about: DeltaGenerator) -> None:
    kept = run.checkpoint_steps()
    step = batch.seen.step
    checkpoint = checkpoint_for(kept, step)
    if checkpoint is None:
        st.caption(
            "The run has kept no checkpoint yet, so no network can be asked for each image's loss. "
            "*About* has a command that makes the step again and finds it."
        )
        with about:
            _command(run, step)
        grid(batch, None)
        return

    at_once = min(MOST_ASKED, max(1, len(batch.seen) // _parts(run)))  # normalized together in training

    def work(network: AskedNetwork, report: background.Progress) -> Prediction:
        return _predict(network, report, batch, checkpoint, at_once)

    key = ("batch", step, checkpoint, answers.digest(batch.pixels))
    # The process that is asked about the other checkpoints, too.
    asked = answers.ask(run, answers.pinned_step(run, "batch") or checkpoint, key, work)
    found = background.shown(asked, f"Asking the network of step {checkpoint:,}", "batch")
    if found is not None:
        _comparison(run, metrics, batch, checkpoint, found, about)
    grid(batch, found)


def _parts(run: RunDirectory) -> int:
    """Return into how many parts a step divides a batch, each with its own statistics."""
    if (config := known_config(run)) is None:
        return 1
    replicas = run.read_environment().get("replicas")
    if not isinstance(replicas, int) or config.model.sync_batch_norm:
        replicas = 1
    return config.data.parts_of_replica * replicas


def _predict(
    network: AskedNetwork, report: background.Progress, batch: RunBatch, checkpoint: int, at_once: int
) -> Prediction:
    seen = batch.seen
    shares, losses, size = [], [], len(seen)
    for start in range(0, size, at_once):
        part = slice(start, start + at_once)

        def ask(labels: np.ndarray, part: slice = part) -> Prediction:
            return network.predict(batch.pixels[part], labels[part], step=checkpoint, as_in_training=True)

        own = ask(seen.labels)
        assert own.losses is not None
        found = own.losses
        if seen.partners is not None:  # cross-entropy is linear in the target
            partner = ask(seen.labels[seen.partners]).losses
            assert partner is not None
            found = seen.share * found + (1 - seen.share) * partner
        shares.append(own.probabilities)
        losses.append(found)
        report(min(part.stop, size), size)
    return Prediction(np.concatenate(shares), np.concatenate(losses))


def _comparison(
    run: RunDirectory,
    metrics: Snapshot | None,
    batch: RunBatch,
    checkpoint: int,
    found: Prediction,
    about: DeltaGenerator,
) -> None:
    """Say which network was asked; ``about`` it, how its losses compare with the recorded one."""
    step = batch.seen.step
    assert found.losses is not None
    recorded = picked.values_at(metrics, step).get("loss") if metrics is not None else None
    seen = f"Highest loss first, by the weights of step {checkpoint:,} ({_distance(step, checkpoint)})."
    mean = float(found.losses.mean())
    if recorded is not None and not 0.5 < mean / max(recorded, 1e-9) < 2:
        # Weights far from those of the step see other losses: which images made it high isn't known.
        seen += f" Their mean is {number_text(mean)}, the step recorded {number_text(recorded)}: by these "
        seen += "weights the images don't explain it. *About* has the command that makes the step again."
    elif (share := highest_share(found.losses)) is not None:
        few, part = share
        first = "The first image makes" if few == 1 else f"The first {few} images make"
        seen += f" {first} up {number_text(part, '.0%')} of the loss."
    st.caption(plain(seen).replace(plain("*About*"), "*About*"))
    words = [
        "The losses are those of the nearest kept checkpoint, with batch normalization as in training.",
        f"Their mean is {number_text(mean)}"
        + ("." if recorded is None else f"; the step recorded {number_text(recorded)}."),
    ]
    if recorded is not None:
        words += _differences(run)
    if batch.pixels is not batch.seen.images:
        words.append("The images are smaller in this step; the network was asked about them at full size.")
    if len(batch.seen) > MOST_ASKED:
        words.append(f"It was asked about at most {MOST_ASKED} images at a time.")
    with about:
        st.caption(plain(" ".join(words)))
        if checkpoint != step - 1:
            st.caption("The exact losses: this command makes the step again, with the weights that it had.")
            _command(run, step)


def _distance(step: int, checkpoint: int) -> str:
    if checkpoint > step:
        return f"{counted(checkpoint - step, 'step')} later: none is kept from before"
    if checkpoint == step:
        return "right after this step"
    between = step - 1 - checkpoint
    return f"{counted(between, 'step')} earlier" if between else "right before this step"


def _differences(run: RunDirectory) -> list[str]:
    """Return sentences on what the recorded loss has and these losses don't."""
    if (config := known_config(run)) is None:
        return []
    data, words = config.data, []
    if config.optimizer.label_smoothing:
        words.append("The recorded loss has label smoothing, these don't.")
    if config.model.dropout_rate:
        words.append("The recorded loss has dropout, these don't.")
    if data.brightness or data.contrast or data.mixup_alpha:
        words.append("The network was asked about the images as shown, in whole grey levels from 0 to 255.")
    if config.optimizer.ema_decay:
        words.append("The network that was asked is the moving average of the weights.")
    return words


def _command(run: RunDirectory, step: int, *flags: str) -> None:
    command = ["labkit", "replay", str(run.path), "--step", str(step), *flags]
    show_command(shlex.join(command))


SHOWN = 96  # images at once
FEW = 10  # images whose part of the loss is told: a tenth of the batch, at most these


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
    seen, order, predictions = batch.seen, np.arange(len(batch.seen)), None
    if found is not None and found.losses is not None:  # NaN first: it is what a reader looks for
        order = np.argsort(-np.where(np.isnan(found.losses), np.inf, found.losses), kind="stable")
        predictions = Predictions(
            seen.images,
            seen.labels,
            found.probabilities.astype(np.float32),
            seen.index,
            list(seen.classes),
            computed_losses=found.losses,
        )
    page, above = page_below(len(seen), SHOWN, "batch-page", seen.index.tobytes())
    if len(seen) > SHOWN:
        st.caption(f"Images {page.start + 1:,} to {page.stop:,} of {len(seen):,}")
    above.html(cards.grid((_card(seen, predictions, place) for place in order[page].tolist()), cards.NARROW))


def _card(seen: StepBatch, predictions: Predictions | None, place: int) -> cards.Card:
    number, kind = int(seen.index[place]), ""
    lines: list[str | tuple[str, str]] = [seen.names(place)]
    if predictions is not None and predictions.computed_losses is not None:
        lines.append(f"loss {number_text(float(predictions.computed_losses[place]), '.3g')}")
        if predictions.are_numbers:
            words = numbers_in_words(predictions.probabilities[place], seen.classes)
            lines.append(f"predicted: {words}")
        else:
            lines.append(cards.verdict(predictions, place))
            kind = "wrong" if predictions.wrong[place] else ""
    return cards.Card(seen.images[place], [*lines, f"#{number}"], image_address("train", number), kind)
