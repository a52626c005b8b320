"""What lesson 00 shows: the files of a run, and the network's answers to pictures that it never saw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.figures.style import TRAIN, drawing
from labkit.run import Run
from labkit.tables import html_table, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PURPOSE = {
    "config.json": "every setting, defaults included",
    "environment.json": "versions, devices, command, data set with its checksum",
    "metrics.jsonl": "loss, accuracy, speed: one line for each step and evaluation",
    "status.json": "state and progress; replaced several times a second",
    "out.log": "every line that was printed",
    "events": "the metrics for TensorBoard",
    "checkpoints": "all that is needed to continue or to use the network",
    "predictions": "images, labels and probabilities of the last evaluation",
}


@dataclass(frozen=True)
class Files:
    """The files of a run with their sizes, and what each is for. ``rows``: name, size, purpose."""

    rows: Sequence[tuple[str, str, str]]

    def __repr__(self) -> str:
        return text_table(
            [("file", "what it holds", "size"), *((n, w, s) for n, s, w in self.rows)], left_columns=2
        )

    def _repr_html_(self) -> str:
        return html_table(("file", "size", "what it holds"), self.rows)


def files_of(run: Run) -> Files:
    """Return what is in a run directory; a folder counts with everything in it."""
    rows = []
    for name, purpose in PURPOSE.items():
        path = run.path / name
        if path.exists():
            inside = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
            size = sum(part.stat().st_size for part in inside)
            rows.append((name + ("/" if path.is_dir() else ""), f"{size / 1024:,.0f} KiB", purpose))
    return Files(rows)


def variants(image: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    """Return an image, changed versions of it, and two pictures without any object, by name.

    All are uint8 [height, width, channels].
    """
    noise = np.random.default_rng(0).integers(0, 256, image.shape, np.uint8)
    return {
        "as it is": image,
        "mirrored": image[:, ::-1],
        "upside down": image[::-1],
        "dark": (image // 3).astype(np.uint8),
        "grey": np.full_like(image, 128),
        "noise": noise,
    }


def answers(
    pictures: Mapping[str, NDArray[np.uint8]], probabilities: NDArray[Any], classes: Sequence[str]
) -> "Figure":
    """Draw pictures, and below each the three most probable classes.

    Args:
        pictures: uint8 [height, width, channels] by name.
        probabilities: float [pictures, classes].
        classes: their names.
    """
    with drawing(9.5, 2.9, f"the network's answers to the pictures {', '.join(pictures)}") as figure:
        axes = figure.subplots(2, len(pictures), height_ratios=(1.5, 1))
        for (upper, lower), (name, picture), row in zip(axes.T, pictures.items(), probabilities, strict=True):
            upper.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=255)
            upper.set(xticks=[], yticks=[])
            upper.set_title(name, loc="center", fontsize=9)
            first = np.argsort(-row)[:3]
            lower.barh(range(3), row[first], color=TRAIN, height=0.8, alpha=0.35)
            for place, number in enumerate(first):
                lower.text(0.02, place, f"{classes[number]} {row[number]:.0%}", va="center", fontsize=8)
            lower.set(xlim=(0, 1), yticks=[])
            lower.set_xticks([0, 1], ["0", "1"])
            lower.invert_yaxis()
        axes[1, 0].set_ylabel("probability", fontsize=8)
    return figure
