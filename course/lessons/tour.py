"""What lesson 00 shows: the files of a run, and pictures that the network never saw."""

import numpy as np
from numpy.typing import NDArray

from labkit.run import Run

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


def files_of(run: Run) -> list[tuple[str, str, str]]:
    """Return name, purpose and size of what is in a run directory; a folder counts with everything in it."""
    rows = []
    for name, purpose in PURPOSE.items():
        path = run.path / name
        if path.exists():
            inside = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
            size = sum(part.stat().st_size for part in inside)
            rows.append((name + ("/" if path.is_dir() else ""), purpose, f"{size / 1024:,.0f} KiB"))
    return rows


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
