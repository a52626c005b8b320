"""The folder that a replay writes: pictures, a contact sheet, a table of the examples, and the arrays."""

import csv
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labkit.data.batch import StepBatch
from labkit.errors import InputError
from labkit.experiments.replay.step import Replay
from labkit.export.output import folder_beside
from labkit.run_directory.disk import check_writable

SUMMARY = "replay.json"  # by which a folder is known as one that may be replaced
# Of the contact sheet: side up to which an image is enlarged, pixels between two, images in a row.
SMALL, GAP, COLUMNS = 64, 4, 16


def check_folder(path: Path) -> None:
    """Raise InputError if a replay can't be written to ``path``: only an earlier one is replaced."""
    check_writable(path.parent, "--output")
    if not os.path.lexists(path):
        return
    is_ours = path.is_dir() and not path.is_symlink()
    if not is_ours or (any(path.iterdir()) and not (path / SUMMARY).is_file()):
        raise InputError(f"--output {path} is neither empty nor an earlier replay; give another path")
    check_writable(path, "--output")


def write_batch(batch: StepBatch, path: Path, run: str) -> None:
    """Write the pictures of a batch, whole or not at all. Raises InputError as ``check_folder``."""
    _write(batch, path, {"run": run, "step": batch.step}, {}, {})


def write_replay(replay: Replay, path: Path) -> None:
    """Write a replay, whole or not at all. Raises InputError as ``check_folder``."""
    first = replay.first_non_finite
    summary = {
        "run": str(replay.run.path),
        "step": replay.step,
        "metrics": replay.metrics,
        "loss_is_equal": replay.loss_is_equal,
        "row": replay.row,
        "first_non_finite": asdict(first) if first else None,
        "gradient_norms": replay.gradient_norms,
        "start": replay.start,
        "steps_before": replay.steps_before,
        "notes": replay.notes,
    }
    arrays = {"losses": replay.losses, "probabilities": replay.probabilities}
    columns = {"loss": replay.losses.tolist()}
    _write(replay.batch, path, summary, arrays, columns)


def _write(
    batch: StepBatch,
    path: Path,
    summary: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    columns: dict[str, list[Any]],
) -> None:
    check_folder(path)
    with folder_beside(path) as folder:
        written = folder / path.name
        (written / "images").mkdir(parents=True)
        names = [f"images/{_file_name(batch, position)}.png" for position in range(len(batch))]
        for name, image in zip(names, batch.images, strict=True):
            _write_png(image, written / name)
        _write_png(_contact_sheet(batch.images), written / "contact-sheet.png")
        with open(written / "examples.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["file", "index", "label", "epoch", *columns])
            for position, name in enumerate(names):
                values = [column[position] for column in columns.values()]
                table.writerow(
                    [name, batch.index[position], batch.names(position), batch.epoch[position], *values]
                )
        stored: dict[str, Any] = {
            "images": batch.images,
            "labels": batch.labels,
            "index": batch.index,
            "epoch": batch.epoch,
        }
        if batch.partners is not None:
            stored |= {"partners": batch.partners, "share": np.float32(batch.share)}
        np.savez_compressed(written / "arrays.npz", **stored, **arrays)  # type: ignore[arg-type]
        (written / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
        if path.is_dir():
            os.rename(path, folder / "previous")
        os.rename(written, path)


def _file_name(batch: StepBatch, position: int) -> str:
    label = re.sub(r"[^\w-]+", "-", batch.names(position))[:40]  # a file's name has 255 bytes at most
    return f"{position:04d}-index-{batch.index[position]}-{label}"


def _contact_sheet(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return all images in rows, small ones enlarged, on white."""
    count, height, width, channels = images.shape
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    factor = max(1, SMALL // max(height, width))
    tall, wide = height * factor + GAP, width * factor + GAP
    sheet = np.full((rows * tall + GAP, columns * wide + GAP, channels), 255, np.uint8)
    for position, image in enumerate(images.repeat(factor, axis=1).repeat(factor, axis=2)):
        top, left = GAP + position // columns * tall, GAP + position % columns * wide
        sheet[top : top + height * factor, left : left + width * factor] = image
    return sheet


def _write_png(image: NDArray[np.uint8], path: Path) -> None:
    """Write an image, uint8 [height, width, 1 or 3 channels]."""
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(path)
