"""``shapes`` with few images, enlarged and as JPEGs, for tests of images over 64 pixels."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from labkit.data.manifest import Manifest
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from tests.tiny import prepare_tiny

__all__ = ["jpeg_of", "prepare_jpegs"]


def jpeg_of(image: np.ndarray, **options: object) -> bytes:
    """Return a JPEG of an image, uint8 [height, width, 3], as records hold it."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **{"quality": 95, "subsampling": 0} | options)
    return file.getvalue()


def prepare_jpegs(folder: Path, side: int = 96) -> Manifest:
    """Prepare 180 train, 20 validation and 40 test images of ``side`` pixels under ``folder``."""
    tiny = prepare_tiny(folder / "small")
    splits = {}
    for name in tiny.splits:
        images, labels = load_split(tiny, name)
        large = [Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC) for image in images]
        splits[name] = [jpeg_of(np.asarray(image)) for image in large], labels
    return write_derived(tiny, folder / "large", splits, image_shape=(side, side, 3))
