"""Labels that are probably wrong, by the predictions of the run's network."""

import numpy as np
import streamlit as st

from app import background
from app.ask.client import AskedNetwork
from app.data_set import tiles
from app.data_set.overview import read_images
from app.data_set.scan import DataScan
from app.data_set.suspected_labels import IN_SAMPLE_SPLIT, SuspectedLabels, find_suspected
from app.data_set.tiles import Tile
from app.images import answers
from app.images.examples import checkpoint_to_ask
from app.images.links import image_address
from app.images.text import plain
from app.paging import page_of
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["NO_CHECKPOINT", "wrong_labels"]

PAGE_SIZE = 24
NO_CHECKPOINT = "labkit train --checkpoint-every-steps 100 --keep-checkpoints 20"


def wrong_labels(run: RunDirectory, scan: DataScan) -> None:
    """Draw the choice of a split and its suspected labels, once the reader asks for them."""
    st.caption(
        "Confident learning estimates from the network's predictions how many labels of each class are "
        "wrong, and lists the images whose labels it contradicts most. The network may be wrong instead, so "
        "look before you change a label."
    )
    step = checkpoint_to_ask(run)
    if step is None:
        st.info("This run has kept no checkpoint, so its network can't be asked. To keep some:")
        st.code(NO_CHECKPOINT, language="bash")
        return
    splits = [name for name, found in scan.splits.items() if len(found)]
    split = str(
        st.segmented_control(
            "Split",
            splits,
            default="test" if "test" in splits else splits[0],
            key="labels-split",
            required=True,
            bind="query-params",
        )
    )
    _what_it_is_worth(split)
    wanted = f"labels-wanted-{run.path}-{split}-{step}"
    count = len(scan.splits[split])
    if not st.session_state.get(wanted):
        st.button(
            f"Look through the {count:,} {split} images",
            icon=":material/search:",
            on_click=lambda: st.session_state.update({wanted: True}),
            help=f"The network of step {step:,} predicts all of them, at some hundred images per second.",
        )
        return
    found = background.shown(_asked(run, scan, split, step), f"Predicting the {split} images", "labels")
    if found is not None:
        _found(scan, split, step, found)


def _what_it_is_worth(split: str) -> None:
    if split == IN_SAMPLE_SPLIT:
        st.warning(
            "The network was trained on these labels, so its predictions are in sample: it has learned many "
            "wrong labels by heart. Take the list as a hint; it misses most wrong labels of a long training.",
            icon=":material/info:",
        )
    elif split == "validation":
        st.caption(
            "Out of sample: the network wasn't trained on these images. The checkpoint may have been chosen "
            "by them."
        )
    else:
        st.caption("Out of sample: the network wasn't trained on these images.")


def _asked(
    run: RunDirectory, scan: DataScan, split: str, step: int
) -> answers.Asked[tuple[SuspectedLabels, int]]:
    labels = scan.splits[split].labels

    def work(network: AskedNetwork, progress: background.Progress) -> tuple[SuspectedLabels, int]:
        probabilities = network.evaluate(split, step, progress).probabilities
        if len(labels) != len(probabilities):
            raise InputError("the data set was prepared again meanwhile; reload the page")
        return find_suspected(labels, probabilities), step

    return answers.ask(run, step, ("suspected", split, scan.manifest.checksum), work)


def _found(scan: DataScan, split: str, step: int, answer: tuple[SuspectedLabels, int]) -> None:
    found, step = answer
    if not len(found):
        st.success(
            f"No label of the {found.looked_at:,} {split} images is suspected by the network of step "
            f"{step:,}.",
            icon=":material/check_circle:",
        )
        return
    above, below = st.container(), st.container()
    with below:
        part = page_of(len(found), PAGE_SIZE, "labels-page", (split, step, found.index.tobytes()))
    with above:
        _suspected(scan, split, found, part, step)


def _suspected(scan: DataScan, split: str, found: SuspectedLabels, part: slice, step: int) -> None:
    st.write(
        f"**{len(found):,} of {found.looked_at:,} labels are suspected** by the network of step {step:,}, "
        "the most suspicious first. The score is the quality of the label, from 0 to 1."
    )
    rows = found.index[part]
    try:
        images, _ = read_images(scan.manifest, split, rows)
    except InputError as error:
        st.warning(plain(str(error)), icon=":material/broken_image:")
        return
    st.html(tiles.grid(_tiles(scan, split, found, part, images), 132))


def _tiles(
    scan: DataScan, split: str, found: SuspectedLabels, part: slice, images: "np.ndarray"
) -> list[Tile]:
    classes = scan.manifest.classes

    def named(which: "np.ndarray") -> str:
        return ", ".join(classes[number] for number in np.flatnonzero(which)) or "none"

    return [
        Tile(
            image,
            [
                f"{named(suggested)}?",
                f"given: {named(given)}",
                f"score {score:.3f}" if score >= 0.0005 else "score < 0.001",
                f"{split} #{index}",
            ],
            image_address(split, int(index)),
        )
        for image, suggested, given, score, index in zip(
            images,
            found.suggested[part],
            found.given[part],
            found.score[part],
            found.index[part],
            strict=True,
        )
    ]
