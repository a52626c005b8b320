"""The page of what callbacks kept: images, histograms and texts, each with a slider over the steps."""

import html
from itertools import pairwise
from pathlib import Path
from threading import Lock

import streamlit as st

from app import state
from app.markup import plain, visible
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.media import INDEX, MediaReader, Medium, media_that_count, read_image

REFRESH_SECONDS = 2.0
MOST_NAMES = 30  # drawn on one page
EXAMPLE = """class Kernels(labkit.Callback):
    def after_validation(self, training, row):
        training.log_histogram("weights", training.weights()["stem_conv1/kernel"])"""


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    st.subheader(f"Media · {plain(run.name)}", anchor=False)

    @st.fragment(run_every=REFRESH_SECONDS, key="media")
    def panel() -> None:
        _panel(run)

    panel()


@st.cache_resource(show_spinner=False, max_entries=20)
def _reader(path: str) -> tuple[MediaReader, Lock]:
    return MediaReader(Path(path)), Lock()


def _panel(run: RunDirectory) -> None:
    try:
        resume_points = state.curves(run).resume_points
        reader, lock = _reader(str(run.media_path / INDEX))
        with lock:  # several sessions may look at one run
            reader.poll()
            found = media_that_count(reader.rows, resume_points)
    except OSError as error:
        st.error(f"{state.as_code(run.media_path)} can't be read: {error.strerror}")
        return
    if not found:
        st.info("No callback has kept an image, a figure, a histogram or a text of this run. One that does:")
        st.code(EXAMPLE, language="python")
        return
    columns = st.columns(2, gap="large")
    for number, (name, media) in enumerate(list(found.items())[:MOST_NAMES]):
        with columns[number % 2]:
            _draw(run, name, media)
    if len(found) > MOST_NAMES:
        st.caption(f"{counted(len(found) - MOST_NAMES, 'further name')} can't be shown on one page.")


def _draw(run: RunDirectory, name: str, media: list[Medium]) -> None:
    st.markdown(f"**{plain(name)}**")
    steps = {medium.step: medium for medium in media}
    key = f"media-{run.path}-{name}"
    shown = media[-1]
    if len(steps) > 1:
        choices: list[int | None] = [*steps, None]  # None follows the newest
        named = st.select_slider(
            "Step", choices, None, key=key, format_func=lambda step: f"step {step:,}" if step else "newest"
        )
        shown = steps.get(named or 0, shown)
    st.caption(f"step {shown.step:,}")
    if shown.kind == "image":
        try:
            st.image(read_image(run, shown), width="stretch")
        except InputError as error:
            st.warning(plain(str(error)))
    elif shown.kind == "text":
        st.html(f'<pre class="lk-log" tabindex="0">{html.escape(visible(shown.content["text"]))}</pre>')
    else:
        _histogram(shown)


def _histogram(shown: Medium) -> None:
    edges, counts = shown.content["edges"], shown.content["counts"]
    middles = [f"{(low + high) / 2:.4g}" for low, high in pairwise(edges)]
    rows = {"value": [float(middle) for middle in middles], "count": counts}
    st.bar_chart(rows, x="value", y="count", height=220)
    if lost := shown.content.get("not_finite_values"):
        st.caption(f"{lost} values are NaN or infinite.")
