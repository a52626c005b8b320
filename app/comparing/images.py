"""Test images that only one of two runs classifies correctly."""

from pathlib import Path

import numpy as np
import streamlit as st

from app import state
from app.address import page_below
from app.images import cards
from app.images.subject import ANY, class_control
from app.markup import one_of, table_html
from app.predictions.images import part_of
from app.predictions.pairs import Pair, cards_of
from app.predictions.source import evaluate_command, recorded
from labkit.analysis.predictions import signature
from labkit.analysis.results import Result
from labkit.analysis.versus import OnImages, on_same_images
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

PAGE_SIZE = 16

Signature = tuple[tuple[int, int], ...]


@st.cache_resource(max_entries=4, show_spinner=False)
def _on_images(paths: tuple[Path, Path], files: tuple[Signature, Signature], checked: object) -> OnImages:
    first, second = (RunDirectory(path) for path in paths)
    return on_same_images(first, second, (recorded(first), recorded(second)))


def same_images(first: RunDirectory, second: RunDirectory) -> tuple[OnImages | None, str]:
    """Return both on the same test images; otherwise None, and why, as the end of a sentence."""
    for run in (first, second):
        command = evaluate_command(run, "test")
        try:
            recorded(run)
        except FileNotFoundError:
            way = f"; {command} writes them"
            if not run.checkpoint_steps():
                way = ", and no checkpoint to make them from"
            return None, state.clean(f"{run.name} has no predictions{way}")
        except InputError as error:
            return None, state.clean(f"{error}; {command} writes it again")
    data = tuple(str(run.read_environment().get("data")) for run in (first, second))
    try:
        return _on_images((first.path, second.path), (signature(first), signature(second)), data), ""
    except (InputError, FileNotFoundError) as error:
        return None, state.clean(error)


def show_galleries(images: OnImages, runs: tuple[Result, Result]) -> None:
    """Draw the images that B fixed and those that it broke, those with the greatest change first."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = class_control(images.first.classes, key="compare-class")
        titles = {
            "fixed": f"Fixed by B: {len(images.fixed):,}",
            "broken": f"Broken by B: {len(images.broken):,}",
        }
        shown = one_of("Images", titles, "compare-images", bind=None, format_func=titles.get)
    places = images.broken if shown == "broken" else images.fixed
    if chosen != ANY:
        places = places[images.first.has[places, chosen]]
    if not len(places):
        st.info(f"No image{' of this class' * (chosen != ANY)} was {shown} by B.")
    else:
        page, above = page_below(len(places), PAGE_SIZE, "compare-page", (shown, places.tobytes()))
        with above:
            words = "The greatest changes of probability come first. A click opens the image's page."
            part = part_of(places, page, f"only {'B' if shown == 'fixed' else 'A'} is right. {words}")
            every = np.arange(len(images.first))
            pair = Pair(images.first, images.second, every, every)
            st.html(cards.grid(cards_of(pair, part, "test", runs[1].label), 104))
    with st.expander("Classes"):
        rows = [
            (
                str(row["class"]),
                *(f"{row[name]:,}" for name in ("images", "fixed", "broken")),
                "–" if row["gain"] is None else f"{100 * row['gain']:+.1f} points",
            )
            for row in images.per_class()
        ]
        st.html(table_html(("Class", "Test images", "Fixed by B", "Broken by B", "B − A"), rows))
