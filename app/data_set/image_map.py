"""A map of images: those that a network finds alike lie close together. Its places, and its canvas."""

import html
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from PIL import Image

from app.ask.client import AskedNetwork, Progress, silent
from app.ask.process import IMPORTS, NoAnswer
from app.charts.board import PALETTE, ends
from app.images.cards import data_uri, pil_image, shrunk
from app.markup import component
from labkit.analysis.predictions import Predictions
from labkit.data.manifest import Manifest
from labkit.data.shards import find_split, read_rows
from labkit.errors import InputError
from labkit.startup.child import python_command
from labkit.startup.process import Child

MAX_IMAGES = 2_000  # t-SNE of so many takes 6.6 s of one core
THUMBNAIL = 32  # pixels of its longer side, at most
PART = 100  # images in one question
EMBED_SECONDS = 300.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, eq=False)
class ImageMap:
    """Images of a split on a plane.

    ``positions``: float32 [n, 2], within −1 … 1. ``predictions``: of a network for these images, ascending by
    their positions in the split; its images are small ones. ``of``: the number of images in the split.
    """

    positions: NDArray[np.float32]
    predictions: Predictions
    of: int

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def shown_class(self) -> NDArray[np.int64]:
        """The class that colours each image, int64 [n]: with several labels the first; −1 without any."""
        has = self.predictions.has
        return np.where(has.any(axis=1), has.argmax(axis=1), -1)


def make_map(
    manifest: Manifest,
    split: str,
    rows: NDArray[np.int64],
    network: AskedNetwork,
    progress: Progress = silent,
) -> ImageMap:
    """Ask a network for the features of some images and arrange them; takes seconds to minutes.

    Args:
        manifest: the prepared data set that the network was trained on.
        split: ``train``, ``validation`` or ``test``.
        rows: positions in the split, ascending, at least one.
        network: the network.
        progress: called with the number of images whose features are ready, and of all.

    Raises InputError if the images can't be read, ``NoAnswer`` if a process fails.
    """
    images, labels = read_rows(manifest, split, rows)
    features, probabilities = [], []
    for start in range(0, len(rows), PART):
        part = images[start : start + PART]
        features.append(network.features(part))
        probabilities.append(network.predict(part).probabilities)
        progress(min(start + PART, len(rows)), len(rows))
    where = positions(np.concatenate(features))
    small, shares = shrunk(images, THUMBNAIL, Image.Resampling.BOX), np.concatenate(probabilities)
    found = Predictions(small, labels, shares.astype(np.float32), rows, list(manifest.classes))
    return ImageMap(where, found, find_split(manifest, split).count)


def positions(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return places on a plane, float32 [n, 2] within −1 … 1, by PCA and then t-SNE.

    It is computed by a process of low priority, which ends with this one. The same features give the same
    places.

    Args:
        features: float32 [n, d].

    Raises InputError for features that aren't numbers, ``NoAnswer`` if the process fails.
    """
    if not np.isfinite(features).all():
        raise InputError("the network's features aren't numbers (NaN), so there is no map of them")
    with tempfile.TemporaryDirectory(prefix="labkit-map-") as folder:
        given, found = Path(folder) / "features.npy", Path(folder) / "positions.npy"
        np.save(given, features)
        command = python_command("-m", "app.data_set.embed", given, found)
        with Child(command, IMPORTS | ONE_THREAD, stdout=DEVNULL, stderr=DEVNULL) as child:
            child.wait(EMBED_SECONDS)
        try:
            return np.load(found)
        except (OSError, ValueError):
            raise NoAnswer("The process that arranges the map has failed. Try again.") from None


SCRIPT = Path(__file__).parent / "assets" / "image_map.js"
SHAPES = ("circle", "square", "up", "cross", "diamond", "down", "ring", "plus", "right", "left")
GLYPHS = dict(zip(SHAPES, "●■▲✕◆▼○+▶◀", strict=True))
GREY = "#7a7f87"
COLORS = (*PALETTE[:7], "#8a63f0", "#d6457a", "#6b8e23")  # as many as shapes: 100 pairs of them


@dataclass(frozen=True, eq=False)
class Marks:
    """How points are drawn. ``kind``: int64 [n], an index into the others. ``faint``: almost invisible."""

    kind: NDArray[np.int64]
    names: Sequence[str]
    colors: Sequence[str]
    shapes: Sequence[str]
    faint: Sequence[bool]


def marks_of_classes(shown: ImageMap, classes: Sequence[str], highlighted: int | None) -> Marks:
    """Return a mark for each class: colour and shape together tell 100 classes apart.

    ``highlighted``: the number of a class; the others are faint. None: none is.
    """
    numbers = range(len(classes))
    kind = np.where(shown.shown_class < 0, len(classes), shown.shown_class)
    return Marks(
        kind,
        [*classes, "no class"],
        [*(COLORS[number % len(COLORS)] for number in numbers), GREY],
        [*(SHAPES[(number + number // len(COLORS)) % len(SHAPES)] for number in numbers), "ring"],
        [*(highlighted not in (None, number) for number in numbers), highlighted is not None],
    )


def marks_of_right(shown: ImageMap) -> Marks:
    """Return a mark for right predictions and one for wrong ones."""
    kind = shown.predictions.wrong.astype(np.int64)
    return Marks(kind, ["right", "wrong"], PALETTE[:2], ["circle", "cross"], [False, False])


def sprite(thumbnails: NDArray[np.uint8]) -> tuple[str, tuple[int, int], int]:
    """Return a sheet of all images as a data URI, the (width, height) of each, and how many are in a row.

    Args:
        thumbnails: uint8 [n, height, width, channels], n > 0.
    """
    size = thumbnails.shape[2], thumbnails.shape[1]
    columns = int(np.ceil(np.sqrt(len(thumbnails))))
    sheet = Image.new("RGB", (columns * size[0], -(-len(thumbnails) // columns) * size[1]))
    for number, image in enumerate(thumbnails):
        tile = pil_image(image)
        sheet.paste(tile, (number % columns * size[0], number // columns * size[1]))
    return data_uri(sheet, "JPEG", quality=88), size, columns


def draw(
    shown: ImageMap,
    marks: Marks,
    sheet: tuple[str, tuple[int, int], int],
    tips: Sequence[str],
    *,
    key: str,
    version: str,
    label: str,
) -> None:
    """Draw the map. ``picked`` reads what the reader selects.

    Args:
        shown: the map.
        marks: of its points.
        sheet: the result of ``sprite`` for its images.
        tips: the text shown beside each thumbnail.
        key: of the widget.
        version: a selection on another version doesn't count.
        label: for screen readers.
    """
    # One image, or all in a line, have equal ends.
    across, down = (ends(float(places.min()), float(places.max())) for places in shown.positions.T)
    faint = np.asarray(marks.faint)[marks.kind]
    data: dict[str, Any] = {
        "x": shown.positions[:, 0].round(4).tolist(),
        "y": shown.positions[:, 1].round(4).tolist(),
        "extent": [across[0], down[0], across[1], down[1]],
        "kind": marks.kind.tolist(),
        "colors": list(marks.colors),
        "shapes": list(marks.shapes),
        "faint": list(marks.faint),
        # The faint ones below the others; otherwise as they come, with rare kinds on top.
        "order": np.lexsort((-np.bincount(marks.kind)[marks.kind], ~faint)).tolist(),
        "sprite": sheet[0],
        "tile": sheet[1],
        "columns": sheet[2],
        "tips": list(tips),
        "version": version,
        "label": label,
    }
    component(SCRIPT)(key=key, data=data, height="content", on_picked_change=lambda: None)


def picked(key: str, version: str, count: int) -> list[int]:
    """Return the points that the reader has selected on the map ``key``, ascending."""
    found: Any = getattr(st.session_state.get(key), "picked", None)
    try:
        if found["version"] != version:
            return []
        return sorted({int(point) for point in found["points"] if 0 <= int(point) < count})
    except (TypeError, KeyError, ValueError):
        return []


def legend(marks: Marks) -> str:
    """Return the HTML of the legend."""
    counts = np.bincount(marks.kind, minlength=len(marks.names))
    items = "".join(
        f'<li style="opacity:{0.55 if marks.faint[kind] else 1}">'
        f'<span aria-hidden="true" style="color:{marks.colors[kind]}">{GLYPHS[marks.shapes[kind]]}</span> '
        f"{html.escape(str(name))} ({counts[kind]:,})</li>"
        for kind, name in enumerate(marks.names)
        if counts[kind]
    )
    style = (
        "display:flex;flex-wrap:wrap;gap:2px 14px;list-style:none;margin:0;padding:0;font-size:13px;"
        "max-height:9em;overflow:auto"
    )
    return f'<ul style="{style}">{items}</ul>'
