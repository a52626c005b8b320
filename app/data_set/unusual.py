"""Images that stand out: dark, bright, blurred or of an odd size, and pairs that are nearly alike."""

from collections.abc import Callable, Sequence

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import background
from app.address import image_address, page_below
from app.ask.client import Pairs
from app.data_set.overview import read_images
from app.data_set.scan import DataScan
from app.images import answers, cards, marking
from app.images.subject import name_of, names_of, split_control
from app.markup import number_text, one_of
from labkit.data.manifest import columns_of
from labkit.data.marks import Place
from labkit.run_directory import RunDirectory

DARK, BRIGHT, BLURRED, SIZE, ALIKE = "Darkest", "Brightest", "Most blurred", "Odd sizes", "Nearly alike"
WORDS = {
    DARK: "By the mean of the pixels, from 0 to 1, the lowest first.",
    BRIGHT: "By the mean of the pixels, from 0 to 1, the highest first.",
    BLURRED: "By the variance of the Laplacian over that of the pixels, the lowest first. Low is blurred, or "
    "a motif without detail.",
    SIZE: "By the size of the picture's file before it was fitted: those whose width and height differ most "
    "from what is usual in the split.",
    ALIKE: "Pairs of images that the network finds most alike, by the inputs of its last layer: crops or "
    "edits of one picture, or what it can't tell apart. Equal pixels are under Duplicates.",
}
PAGE_SIZE, PAIRS_ON_A_PAGE, PAIRS = 24, 12, 240
Told = Callable[[int], str]


def unusual(run: RunDirectory, scan: DataScan) -> None:
    """Draw the images of a split that stand out in the chosen way, with boxes to tick."""
    splits = [name for name, found in scan.splits.items() if len(found)]
    sizes = {name: found for name in splits if (found := _sizes(scan, name)) is not None}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        kind = one_of("Order", [one for one in WORDS if one != SIZE or sizes], "unusual")
        split = split_control(list(sizes) if kind == SIZE else splits, "unusual-split", "train", bind=None)
    st.caption(WORDS[kind])
    if kind == ALIKE:
        _alike(run, scan, split, splits)
    else:
        order, told = _order(scan, split, kind, sizes.get(split))
        page, above = page_below(len(order), PAGE_SIZE, "unusual-page", (kind, split))
        with above, cards.readable():
            rows = [(split, int(row)) for row in order[page]]
            marking.grid(scan.manifest, [("", _cards(scan, rows, told))], 132, "unusual-grid")
    marking.summary(run, scan.manifest)


def _sizes(scan: DataScan, split: str) -> NDArray[np.float64] | None:
    """Return width and height of the files of a split's images, [n, 2]; None where they aren't known."""
    columns = columns_of(scan.manifest, split)
    try:
        found = np.array([columns["width"], columns["height"]], np.float64).T
    except (KeyError, ValueError):  # of another kind, or a column of somebody's own
        return None
    return found if len(np.unique(found, axis=0)) > 1 and np.all(found > 0) else None


def _order(
    scan: DataScan, split: str, kind: str, sizes: NDArray[np.float64] | None
) -> tuple[NDArray[np.intp], Told]:
    """Return the rows of a split, those that stand out most first, and what is told of one."""
    found = scan.splits[split]
    if kind == SIZE and sizes is not None:
        logarithms = np.log(sizes)
        far = np.abs(logarithms - np.median(logarithms, axis=0)).max(axis=1)
        order = np.argsort(-far, kind="stable")[: np.count_nonzero(far)]
        return order, lambda row: f"{sizes[row, 0]:g}×{sizes[row, 1]:g} pixels"
    values = found.sharpness if kind == BLURRED else found.brightness
    word = "sharpness" if kind == BLURRED else "brightness"
    order = np.argsort(-values if kind == BRIGHT else values, kind="stable")
    return order, lambda row: f"{word} {number_text(float(values[row]), '.3g')}"


def _cards(
    scan: DataScan, places: Sequence[Place], told: Told, like: Sequence[Place] | None = None
) -> list[marking.Markable]:
    """Return the cards of images. ``like``: of each, the image whose class is suggested; None: its own is."""
    manifest = scan.manifest
    images: dict[Place, NDArray[np.uint8]] = {}
    for split in dict.fromkeys(split for split, _ in places):
        rows = [row for name, row in places if name == split]
        found, _ = read_images(manifest, split, np.array(rows))
        images |= {(split, row): image for row, image in zip(rows, found, strict=True)}

    def number(place: Place) -> int:
        return int(scan.splits[place[0]].targets[place[1]]) if manifest.targets == "class" else 0

    return [
        marking.Markable(
            cards.Card(
                images[split, row],
                [
                    names_of(manifest.classes, scan.splits[split].targets[row]),
                    *filter(None, [told(row)]),
                    name_of(manifest, split, row),
                ],
                image_address(split, row),
            ),
            split,
            row,
            number((split, row)),
            number(suggested),
        )
        for (split, row), suggested in zip(places, like or places, strict=True)
    ]


def _alike(run: RunDirectory, scan: DataScan, split: str, splits: list[str]) -> None:
    step = answers.pinned_step(run, "unusual")
    if step is None:
        answers.no_checkpoint(run)
        return
    other = one_of("Compared with", splits, "unusual-other", "test" if "test" in splits else None, bind=None)
    wanted = f"alike-wanted-{run.path}-{split}-{other}-{step}"
    if not st.session_state.get(wanted):
        st.button(
            "Compare the images",
            icon=":material/search:",
            on_click=lambda: st.session_state.update({wanted: True}),
            help=f"The network of step {step:,} looks at all images of both splits, some thousand a second.",
        )
        return
    key = "alike", split, other, scan.manifest.checksum
    asked = answers.ask(run, step, key, lambda network, report: network.alike(split, other, PAIRS, report))
    found = background.shown(asked, "Looking at and comparing images", "alike")
    if found is not None:
        _pairs(scan, split, other, found)


def _pairs(scan: DataScan, split: str, other: str, found: Pairs) -> None:
    """Draw the pairs whose pixels aren't equal."""
    one, two = scan.splits[split].digests[found.rows], scan.splits[other].digests[found.others]
    differ = np.flatnonzero(one != two)
    if not len(differ):
        equal = len(found.rows)
        words = f"The {equal:,} nearest have equal pixels: see Duplicates." if equal else "There is none."
        st.info(f"No pair to show. {words}", icon=":material/info:")
        return
    page, above = page_below(len(differ), PAIRS_ON_A_PAGE, "alike-page", (split, other))
    with above, cards.readable():
        shown = differ[page]
        columns = found.rows[shown].tolist(), found.others[shown].tolist()
        pairs: list[Place] = [
            place for row, like in zip(*columns, strict=True) for place in ((split, row), (other, like))
        ]
        likes = [pairs[place ^ 1] for place in range(len(pairs))]  # each image's partner
        drawn = _cards(scan, pairs, lambda row: "", likes)
        headings = [f'<div class="lk-heading">distance {far:.3g}</div>' for far in found.distances[shown]]
        sections = [(words, drawn[2 * place : 2 * place + 2]) for place, words in enumerate(headings)]
        marking.grid(scan.manifest, sections, 110, "alike-grid")
