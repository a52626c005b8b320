"""The page of what callbacks and recorded runs kept: images, histograms and texts, at any step."""

import base64
import html
from pathlib import Path
from threading import Lock

import streamlit as st

from app import state
from app.charts.store import store_of
from app.live_update import heading
from app.markup import draw_markup, plain, visible
from labkit.config.config import recorded_by
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.media import INDEX, MediaReader, Medium, media_that_count, read_image

REFRESH_SECONDS = 2.0
SMALL = 160  # pixels: below, an image is drawn with visible pixels
KEPT = "media-step-kept"
MOST_NAMES = 30  # drawn on one page
EXAMPLE = """class Kernels(labkit.Callback):
    def after_validation(self, training, row):
        training.log_histogram("weights", training.weights()["stem_conv1/kernel"])"""


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    heading(run, "Media")
    st.fragment(_panel, run_every=REFRESH_SECONDS, key="media")(run)


class _Media:
    """The media of a run, which several sessions may look at."""

    def __init__(self, path: Path) -> None:
        self.reader, self.lock = MediaReader(path), Lock()


def _panel(run: RunDirectory) -> None:
    path = run.metrics_path
    try:
        resume_points = state.curves(run).resume_points
        path = run.media_path
        kept = store_of(_Media, run.media_path / INDEX)
        with kept.lock:
            kept.reader.poll()
            found = media_that_count(kept.reader.rows, resume_points)
    except OSError as error:
        st.error(f"{state.as_code(path)} can't be read: {error.strerror}")
        return
    if not found and recorded_by(run):
        st.info(
            "Another program recorded this run: `run.log_image`, `run.log_figure`, `run.log_histogram` and "
            "`run.log_text` in it keep what this page shows."
        )
        return
    if not found:
        st.info("No callback has kept an image, a figure, a histogram or a text of this run. One that does:")
        st.code(EXAMPLE, language="python")
        return
    step = _step(found)
    columns = st.columns(2, gap="large")
    for number, (name, media) in enumerate(list(found.items())[:MOST_NAMES]):
        with columns[number % 2]:
            st.markdown(f"**{plain(name)}**")
            shown = [one for one in media if step is None or one.step <= step][-1:]
            for medium in shown:
                _draw(run, medium)
            if not shown:
                st.caption(f"nothing up to step {step:,}")
    if len(found) > MOST_NAMES:
        st.caption(f"{counted(len(found) - MOST_NAMES, 'further name')} can't be shown on one page.")


def _step(found: dict[str, list[Medium]]) -> int | None:
    """Draw the slider over the steps. Returns the step; None follows the newest."""
    steps = sorted({medium.step for media in found.values() for medium in media})
    if len(steps) < 2:
        return None
    kept = st.session_state.get(KEPT)  # the slider forgets it when there is another step to choose from
    chosen = st.select_slider(
        "Step",
        [*steps, None],
        kept if kept in steps else None,
        key="media-step",
        format_func=lambda step: "newest" if step is None else f"{step:,}",
        help="Each shows what was kept last up to this step. Arrow keys go from step to step.",
    )
    st.session_state[KEPT] = chosen
    return chosen


def _draw(run: RunDirectory, shown: Medium) -> None:
    st.caption(f"step {shown.step:,}")
    if shown.kind == "image":
        try:
            _image(shown.name, read_image(run, shown))
        except InputError as error:
            st.warning(plain(str(error)))
    elif shown.kind == "text":
        st.html(f'<pre class="lk-log" tabindex="0">{html.escape(visible(shown.content["text"]))}</pre>')
    else:
        _histogram(shown, f"media-{run.path}-{shown.name}")


def _image(name: str, content: bytes) -> None:
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    is_small = int.from_bytes(content[16:20]) < SMALL  # the width of a PNG file
    kind = "lk-media lk-pixels" if is_small else "lk-media"
    st.html(f'<img class="{kind}" src="{source}" alt="{html.escape(name, quote=True)}">')


def _histogram(shown: Medium, key: str) -> None:
    edges, counts = shown.content["edges"], shown.content["counts"]
    width, most = 400 / len(counts), max(max(counts), 1)
    bars = "".join(
        f'<rect x="{place * width:.2f}" y="{120 - 120 * count / most:.2f}" width="{max(width - 1, 0.5):.2f}" '
        f'height="{120 * count / most:.2f}"><title>{edges[place]:.4g} to {edges[place + 1]:.4g}: {count:,}'
        "</title></rect>"
        for place, count in enumerate(counts)
    )
    lost = shown.content.get("not_finite_values")
    words = f"{sum(counts):,} values from {edges[0]:.4g} to {edges[-1]:.4g}"
    if isinstance(lost, int) and lost:
        words += f"; {lost:,} further ones are NaN or infinite"
    drawn = f'<svg viewBox="0 0 400 120" fill="#2a78d0" role="img" aria-label="{words}">{bars}</svg>'
    draw_markup(drawn, key=f"{key}-bars")
    st.caption(words)
