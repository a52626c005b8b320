"""The map page: images that the network finds alike lie close together."""

from functools import partial

import numpy as np
import streamlit as st

from app import background, state
from app.address import image_address, page_of
from app.charts.component import key_of
from app.data_set import image_map
from app.data_set.image_map import MAX_IMAGES, ImageMap, make_map
from app.images import answers, cards
from app.images.subject import ANY, class_control, name_of, split_control
from app.live_update import heading
from app.markup import one_of
from app.views.data import data_set_or_reason
from labkit.data.manifest import Manifest
from labkit.data.shards import read_rows
from labkit.run_directory import RunDirectory

PAGE_SIZE = 36
CLASS, RIGHT = "True class", "Right or wrong"
ALL, RIGHT_ONLY, WRONG_ONLY = "All", "Right only", "Wrong only"


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    heading(run, "Map")
    manifest = data_set_or_reason(run)
    if manifest is None:
        return
    if manifest.targets == "numbers":
        st.info("The map shows classes; the labels of this data set are numbers.", icon=":material/info:")
        return
    step = answers.pinned_step(run, "map")
    if step is None:
        answers.no_checkpoint(run)
        return
    splits = [name for name in manifest.splits if manifest.count(name)]
    split = split_control(splits, "map-split")
    # All images, or always the same ones at random.
    rows = np.sort(np.random.default_rng(0).permutation(manifest.count(split))[:MAX_IMAGES])
    work = partial(make_map, manifest, split, rows)
    asked = answers.ask(run, step, ("map", split, manifest.checksum), work)
    shown = background.shown(asked, "Asking the network, then placing the images", "map")
    if shown is None:
        return
    version = f"{run.path}-{split}-{step}-{answers.written(run, step)}-{manifest.checksum}"
    st.fragment(_panel, key="map-panel")(run, manifest, split, step, shown, version)


def _panel(
    run: RunDirectory, manifest: Manifest, split: str, step: int, shown: ImageMap, version: str
) -> None:
    classes = [str(name) for name in manifest.classes]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        colour = one_of("Colour", [CLASS, RIGHT], "map-colour", bind=None)
        number = class_control(
            classes, key="map-class", help="The images of a class are listed below the map, too."
        )
        kept = one_of("List", [ALL, RIGHT_ONLY, WRONG_ONLY], "map-list", bind=None)
        st.button("Clear selection", on_click=_clear, icon=":material/deselect:")
    chosen = None if number == ANY else number
    marks = (
        image_map.marks_of_right(shown)
        if colour == RIGHT
        else image_map.marks_of_classes(shown, classes, chosen)
    )
    st.html(image_map.legend(marks))
    selection = f"{version}-{st.session_state.get('map-cleared', 0)}"
    key = key_of("map", run.path, split)
    image_map.draw(
        shown,
        marks,
        _sheet(version, shown),
        ["\n".join(_words(manifest, shown, split, number)) for number in range(len(shown))],
        key=key,
        version=selection,
        label=f"Map of {len(shown):,} {split} images. The list below it shows a class without the mouse.",
    )
    few = "" if len(shown) == shown.of else f" of {shown.of:,}, drawn at random"
    st.caption(
        f"{len(shown):,} {split} images{few}, placed by t-SNE of the inputs of the last layer at step "
        f"{step:,}. Images close together are alike to the network; distances between far groups mean "
        "little. Draw around points to list them, with Shift in a rectangle."
    )
    _list(manifest, shown, split, image_map.picked(key, selection, len(shown)), chosen, kept)


def _clear() -> None:
    st.session_state["map-cleared"] = st.session_state.get("map-cleared", 0) + 1
    st.session_state["map-class"] = ANY


@st.cache_data(max_entries=8, show_spinner=False)
def _sheet(version: str, _shown: ImageMap) -> tuple[str, tuple[int, int], int]:
    return image_map.sprite(_shown.predictions.images[:])


def _words(manifest: Manifest, shown: ImageMap, split: str, number: int) -> list[str]:
    found = shown.predictions
    said, _ = cards.verdict(found, number)
    place = name_of(manifest, split, int(found.index[number]))
    return [said, f"true: {found.names(found.has[number])}", place]


def _list(
    manifest: Manifest, shown: ImageMap, split: str, points: list[int], chosen: int | None, kept: str
) -> None:
    """Draw the images of the selection, or of the chosen class."""
    if not points and chosen is None and kept == ALL:
        st.caption("Nothing is selected yet.")
        return
    found, numbers = shown.predictions, np.array(points or range(len(shown)), np.int64)
    if chosen is not None:
        numbers = numbers[found.has[numbers, chosen]]
    if kept != ALL:
        numbers = numbers[found.wrong[numbers] == (kept == WRONG_ONLY)]
    wrong = int(found.wrong[numbers].sum())
    st.write(f"**{len(numbers):,} images**, {wrong:,} of them predicted wrongly")
    part = numbers[page_of(len(numbers), PAGE_SIZE, "map-page", numbers.tobytes())]
    with cards.readable():
        index = found.index[part]
        images, _ = read_rows(manifest, split, index)
        st.html(
            cards.grid(
                cards.Card(image, _words(manifest, shown, split, number), image_address(split, place))
                for number, place, image in zip(part.tolist(), index.tolist(), images, strict=True)
            )
        )
