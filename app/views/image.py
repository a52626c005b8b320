"""An image's own page: what the network makes of it, why, and what it would make of a changed one."""

from contextlib import suppress

import numpy as np
import streamlit as st

from app import background, state
from app.images import answers, cards, sections
from app.images.subject import (
    Subject,
    checkpoint_to_ask,
    file_of,
    known_config,
    of_predictions,
    read_example,
    recorded_step,
    split_control,
)
from app.images.what_if import panel
from app.live_update import heading
from app.markup import one_of, plain
from app.predictions.source import SPLITS, recorded
from labkit.data.images.decode import FORMATS
from labkit.data.images.pictures import MAX_BYTES, read_picture
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_set_of
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

FROM_DATA, OWN = "Data set", "My own picture"
FEW = 12  # bars that are shown without a click


def page() -> None:
    """Draw the page of the selected run and image."""
    run = state.selected_run()
    answers.expect(run)
    heading(run, "Image")
    try:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            source = one_of("Picture", [FROM_DATA, OWN], "picture")
            place = _place() if source == FROM_DATA else None
        subject = _own(run) if place is None else _of_data(run, *place)
    except InputError as error:
        st.warning(plain(str(error)), icon=":material/image_not_supported:")
        return
    if subject is None:
        return
    preferred = subject.recorded_step
    step = checkpoint_to_ask(run, preferred if preferred is not None else recorded_step(run))
    shares = _head(run, step, subject)
    if step is None:
        answers.no_checkpoint(run)
        return
    # Asked even where the evaluation recorded it: the rest of the page needs the network.
    asked = sections.prediction(run, step, subject.image)
    sections.ask_the_rest(run, step, subject)
    found = background.shown(asked, "Computing the prediction", "network")
    if found is None:
        return
    if shares is None:
        st.rerun()  # now the head of the page has it
    if not subject.are_numbers:
        sections.saliency(run, step, subject, found)
    st.markdown("#### What if the image were different")
    panel(run, step, subject, found)
    sections.nearest(run, step, subject)
    if not subject.are_numbers:
        sections.history(run, step, subject, found)
    sections.other_run(run, subject, found)


# ---- The image ------------------------------------------------------------------------------------------


def _place() -> tuple[str, int]:
    """Draw the choice of an image; return its split and number. Raises InputError for an invalid address."""
    raw = st.query_params.get("index", "0")
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 16):
        raise InputError(f"index is {raw[:40]!r} in the address; allowed: a whole number from 0")
    split = split_control(SPLITS[::-1], "split")
    index = st.number_input(
        "Number in the split", min_value=0, step=1, key="index", bind="query-params", width=160
    )
    return split, int(index)


def _of_data(run: RunDirectory, split: str, index: int) -> Subject | None:
    """Return an image of the data set. Raises InputError if there is none."""
    with suppress(FileNotFoundError, InputError):  # the page can do without them
        if found := of_predictions(recorded(run, split), split, index):
            return found
    return read_example(data_set_of(run), split, index)


def _own(run: RunDirectory) -> Subject | None:
    """Return the reader's picture, or None before there is one. Raises InputError if it can't be used."""
    manifest: Manifest = data_set_of(run)
    uploaded = st.file_uploader(
        f"A picture of any size, at most {MAX_BYTES // 2**20} MB ({', '.join(FORMATS)})",
        type=["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"],
        key="upload",
        help="It stays in the memory of this server until the page is closed.",
    )
    if uploaded is None:
        names = plain(", ".join(manifest.classes[:30]))
        knows = f"knows {len(manifest.classes):,} classes: {names}. It sees any picture as one of them."
        if manifest.targets == "numbers":
            knows = f"gives numbers: {names}. It gives them for any picture."
        st.caption(f"The network {knows}")
        return None
    picture = read_picture(
        uploaded.getvalue(),
        manifest.image_shape,
        manifest.source.get("resize"),
        manifest.source.get("white"),
    )
    st.caption(plain(" ".join(picture.notes)))
    return Subject(picture.image, manifest.classes, manifest.targets)


# ---- The prediction -------------------------------------------------------------------------------------


def _head(run: RunDirectory, step: int | None, subject: Subject) -> "np.ndarray | None":
    """Draw the image and its prediction; return the probabilities [classes] once they are known."""
    left, right = st.columns([2, 3], gap="large")
    with left:
        name = "Your picture" if subject.index is None else f"Image {subject.index:,} of {subject.split}"
        height, width = subject.image.shape[:2]
        true = f", {subject.true}" if subject.true else ""
        caption = " · ".join(filter(None, (name, f"{width}×{height} pixels", _file(run, subject))))
        st.html(cards.picture(subject.image, name + true, caption))
    with right:
        shares = subject.probabilities
        if shares is not None:
            _verdict(subject, shares, f"Recorded by the evaluation at step {subject.recorded_step}.")
            if step not in (None, subject.recorded_step):
                st.caption(f"That checkpoint isn't kept. The parts below ask the one of step {step:,}.")
            return shares
        if step is not None:
            asked = sections.prediction(run, step, subject.image)
            if asked.wait(background.SHORT_SECONDS) and asked.result is not None:
                source = f"Computed with the checkpoint of step {step:,}.{_precision(run)}"
                _verdict(subject, asked.result, source)
                return asked.result
        if subject.label is not None:
            st.html(cards.sentence(f"True: {subject.true}"))
        return None


def _file(run: RunDirectory, subject: Subject) -> str:
    if subject.split is None or subject.index is None:
        return ""
    try:
        return file_of(data_set_of(run), subject.split, subject.index)
    except InputError:  # the data set is gone, and a recorded prediction has the image
        return ""


def _verdict(subject: Subject, shares: np.ndarray, source: str) -> None:
    mark = "" if subject.label is None or subject.are_numbers else "✓ " if subject.is_right(shares) else "✗ "
    true = f" · true: {subject.true}" if subject.true else ""
    st.html(cards.sentence(f"{mark}Predicted: {subject.in_words(shares)}{true}"))
    if subject.are_numbers:
        st.caption(source)
        return
    if subject.label is not None:
        st.caption(f"Loss {subject.loss(shares):.4f} nats")
    many = len(subject.classes) > FEW
    st.html(subject.bars(shares, FEW if many else None))
    if many:
        with st.expander(f"All {len(subject.classes):,} classes"):
            st.html(subject.bars(shares))
    st.caption(source)


def _precision(run: RunDirectory) -> str:
    precision = config.model.precision if (config := known_config(run)) else "float32"
    if precision == "float32":
        return ""
    return f" In float32; the run used {plain(precision)}, so recorded values may differ slightly."
