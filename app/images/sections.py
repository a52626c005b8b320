"""The computed parts of an image's own page. Each shows its progress until the network has answered."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import background, state
from app.address import image_address
from app.ask.client import AskedNetwork, Moment, Neighbours
from app.charts import component
from app.charts.board import PALETTE, Chart, Line, encode
from app.images import answers, cards
from app.images.subject import Subject, checkpoint_to_ask, names_of, of_predictions
from app.markup import number_text, plain, show_command
from app.predictions.source import evaluate_command
from labkit.analysis.predictions import load_predictions
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory


def learned_in_words(steps: Sequence[int], right: Sequence[bool]) -> str:
    """Return a sentence on when an image was learned and forgotten.

    Args:
        steps: of the checkpoints, ascending.
        right: whether the prediction was right at each.
    """
    if not steps:
        return "No checkpoint could be read."
    changes = [
        f"{'learned' if now else 'forgotten'} at step {step:,}"
        for step, before, now in zip(steps, [False, *right], right, strict=False)
        if before != now
    ]
    if not changes:
        return f"It was wrong at every kept checkpoint, from step {steps[0]:,} to {steps[-1]:,}."
    if len(changes) == 1 and right[0]:
        return f"It was right at every kept checkpoint, from step {steps[0]:,} to {steps[-1]:,}."
    first = (
        f"Right from the first kept checkpoint, step {steps[0]:,}" if right[0] else changes[0].capitalize()
    )
    return ", ".join([first, *changes[1:]]) + "."


def history_board(moments: Sequence[Moment], classes: Sequence[str], drawn: NDArray[np.intp]) -> bytes:
    """Return the board with the probabilities of the classes ``drawn`` at each checkpoint that was read."""
    known = [(moment.step, moment.probabilities) for moment in moments if moment.probabilities is not None]
    steps, shares = np.array([step for step, _ in known], np.float64), np.stack([found for _, found in known])
    lines = [
        Line(classes[number], steps, shares[:, number], PALETTE[place % len(PALETTE)], "marked")
        for place, number in enumerate(drawn.tolist())
    ]
    chart = Chart("history", "Probability at each kept checkpoint", lines, "percent", named=True)
    return encode([chart], axis="step", x_title="Step")


NEIGHBOURS = 8
COMPARED = {"train": "Training images", "test": "Test images"}
LISTED_RUNS = 200  # whose data set is looked up
METHODS = {
    "grad_cam": ("Grad-CAM", "Where the last layer with positions supports the class."),
    "integrated_gradients": (
        "Integrated gradients",
        "Orange pixels raise the value of the class, blue pixels lower it, compared with a grey image.",
    ),
}


def prediction(run: RunDirectory, step: int, image: NDArray[np.uint8]) -> answers.Asked[NDArray[np.float64]]:
    """Ask a network for the probabilities of an image, [classes]."""
    key = ("predict", answers.digest(image))
    return answers.ask(run, step, key, lambda network, _: network.predict(image[None]).probabilities[0])


def saliency(run: RunDirectory, step: int, subject: Subject, shares: NDArray[Any]) -> None:
    """Draw which pixels matter for a class, by two methods."""
    st.markdown("#### Which pixels matter")
    order = [int(number) for number in np.argsort(-shares, kind="stable")]
    label = st.selectbox(
        "For the class",
        order,
        format_func=lambda number: f"{subject.classes[number]} ({number_text(float(shares[number]), '.1%')})",
        key=f"class-{answers.digest(subject.image)}",
        width=320,
    )
    columns = st.columns(3, gap="medium")
    with columns[0]:
        st.html(cards.picture(subject.image, "The image", "The image"))
    for column, (method, (title, words)) in zip(columns[1:], METHODS.items(), strict=True):
        with column:
            key = ("saliency", answers.digest(subject.image), label, method)

            def work(network: AskedNetwork, _: object, method: str = method) -> NDArray[np.float32]:
                return network.saliency(subject.image, label, method)

            asked = answers.ask(run, step, key, work)
            found = background.shown(asked, title, method)
            if found is not None:
                if not np.any(found):
                    words = f"It is zero everywhere: nothing supports {subject.classes[label]}."
                heat = overlay(subject.image, found)
                st.html(cards.picture(heat, f"{title} for {subject.classes[label]}", f"{title}. {words}"))


def ask_the_rest(run: RunDirectory, step: int, subject: Subject) -> None:
    """Ask what doesn't depend on the prediction: the network needn't wait for the page to be drawn."""
    for split in COMPARED:
        _ask_nearest(run, step, subject, split)
    if not subject.are_numbers:
        _ask_history(run, step, subject)


def nearest(run: RunDirectory, step: int, subject: Subject) -> None:
    """Draw the images that the network finds most alike."""
    st.markdown("#### Most alike")
    st.caption("Nearest by the inputs of the network's last layer.")
    for split, title in COMPARED.items():
        st.caption(title)
        asked = _ask_nearest(run, step, subject, split)
        if (found := background.shown(asked, "Comparing with images", f"nearest-{split}")) is None:
            continue
        alike = zip(found.images, found.labels, found.positions.tolist(), found.distances, strict=True)
        shown = (
            cards.Card(
                image,
                [names_of(subject.classes, label), f"#{place}", f"distance {distance:.2f}"],
                image_address(split, place),
            )
            for image, label, place, distance in alike
        )
        st.html(cards.grid(shown, cards.NARROW))


def _ask_nearest(run: RunDirectory, step: int, subject: Subject, split: str) -> answers.Asked[Neighbours]:
    own = subject.index if subject.split == split else None

    def work(network: AskedNetwork, progress: background.Progress) -> Neighbours:
        return network.nearest(subject.image, split, NEIGHBOURS, exclude=own, progress=progress)

    return answers.ask(run, step, ("nearest", answers.digest(subject.image), split, own), work)


def _ask_history(run: RunDirectory, step: int, subject: Subject) -> answers.Asked[list[Moment]]:
    steps = tuple(run.checkpoint_steps())
    key = ("history", answers.digest(subject.image), steps)
    return answers.ask(
        run, step, key, lambda network, progress: network.history(subject.image, steps, progress)
    )


def history(run: RunDirectory, step: int, subject: Subject, shares: NDArray[Any]) -> None:
    """Draw the prediction at each kept checkpoint, and say when the image was learned."""
    st.markdown("#### At each kept checkpoint")
    component.prepare()
    moments = background.shown(_ask_history(run, step, subject), "Asking earlier checkpoints", "history")
    if moments is None:
        return
    known = [(found.step, found.probabilities) for found in moments if found.probabilities is not None]
    if subject.label is not None:
        right = [subject.is_right(found) for _, found in known]
        st.write(learned_in_words([found for found, _ in known], right))
    drawn = np.flatnonzero(subject.has | subject.predicted(shares).given[0])
    drawn = drawn if len(drawn) else np.array([int(np.argmax(shares))])
    if known:
        component.draw(history_board(moments, subject.classes, drawn), key="image-history")
    for found in moments:
        if found.problem:
            st.caption(f"Step {found.step:,}: {plain(found.problem)}")
    if len(moments) < 4:
        st.caption(
            f"This run kept {counted(len(moments), 'checkpoint')}. With more, this says more; train with:"
        )
        show_command(answers.KEEP_SOME)


def other_run(run: RunDirectory, subject: Subject, shares: NDArray[Any]) -> None:
    """Draw the prediction of another run of the same data set beside this one's."""
    st.markdown("#### Another run")
    others = same_data(run)
    if not others:
        st.caption("No other run in the list was trained on the same data.")
        return
    label = st.selectbox(
        "Compare with", list(others), index=None, key="other", placeholder="Choose a run", width=320
    )
    if label is None:
        return
    columns = st.columns(2, gap="large")
    for column, name, other in zip(columns, (run.name, label), (None, others[label]), strict=True):
        with column:
            st.html(cards.sentence(name))
            found = shares if other is None else _of_other(other, subject)
            if found is not None:
                words = cards.sentence(subject.in_words(found)) if subject.are_numbers else ""
                st.html(words or subject.bars(found, 10))


def same_data(run: RunDirectory) -> Mapping[str, RunDirectory]:
    """Return the listed runs of the same prepared data, by label."""
    wanted = _data_checksum(run)
    if wanted is None:
        return {}
    return {
        label: other
        for label, other in islice(state.listed_runs().items(), LISTED_RUNS)
        if other.path != run.path and _data_checksum(other) == wanted
    }


def _data_checksum(run: RunDirectory) -> str | None:
    return _recorded_checksum(run.path, state.changed_at(run.environment_path))


@st.cache_data(max_entries=1000, show_spinner=False)
def _recorded_checksum(path: Path, changed: int) -> str | None:
    data = RunDirectory(path).read_environment().get("data")
    checksum = data.get("checksum") if isinstance(data, dict) else None
    return checksum if isinstance(checksum, str) else None


def _of_other(run: RunDirectory, subject: Subject) -> NDArray[Any] | None:
    """Return another run's probabilities: the recorded ones, or its network's answer once it is there."""
    if subject.split is not None and subject.index is not None:
        try:
            recorded = of_predictions(load_predictions(run, subject.split), subject.split, subject.index)
        except (FileNotFoundError, InputError):
            recorded = None
        if recorded is not None and recorded.probabilities is not None:
            st.caption(f"Recorded by its evaluation at step {recorded.recorded_step}.")
            return recorded.probabilities
    step = checkpoint_to_ask(run)
    if step is None:
        st.caption("It has kept no checkpoint and recorded no prediction of this image. To record some:")
        show_command(evaluate_command(run, subject.split or "test"))
        return None
    found = background.shown(
        prediction(run, step, subject.image), "Computing the prediction", f"other-{run.name}"
    )
    if found is not None:
        st.caption(f"Computed with the checkpoint of step {step:,}.")
    return found


# Orange and blue: readers who confuse red and green can tell them apart.
RAISES, LOWERS = np.array([255.0, 120.0, 0.0]), np.array([0.0, 110.0, 255.0])
FAINT = 0.55  # of the image's contrast, so that the colours stand out
STRONGEST = 0.85  # opacity of the colour


def overlay(image: NDArray[np.uint8], values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the image in faint grey, orange where ``values`` are positive and blue where they are negative.

    The opacity grows with the value up to the 99th percentile of its amount.

    Args:
        image: uint8 [height, width, 1 or 3].
        values: [height, width].

    Returns uint8 [height, width, 3].
    """
    grey = 128 + FAINT * (image.mean(axis=2, keepdims=True) - 128)
    values = np.nan_to_num(np.asarray(values, np.float64), posinf=0.0, neginf=0.0)
    limit = np.quantile(np.abs(values), 0.99) or np.abs(values).max()
    share = STRONGEST * np.clip(np.abs(values) / limit, 0, 1)[..., None] if limit else np.zeros_like(grey)
    colour = np.where((values >= 0)[..., None], RAISES, LOWERS)
    return np.rint(grey * (1 - share) + colour * share).clip(0, 255).astype(np.uint8)
