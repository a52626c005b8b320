"""A folder of pictures, as somebody would bring one: a folder for each class, a PNG file for each picture."""

from pathlib import Path

import numpy as np
from PIL import Image

from course.lessons.transfer.several import SHAPES
from labkit.data import shapes

__all__ = ["write_pictures"]

WIDTH, HEIGHT = 120, 96  # of each picture


def write_pictures(folder: Path, count: int = 60, seed: int = 0) -> Path:
    """Draw ``count`` pictures of each of ``SHAPES`` into a folder of its class; return ``folder``."""
    generator = np.random.default_rng((seed, 0x6F776E))
    for name in SHAPES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        targets = np.zeros((count, len(shapes.CLASSES)), np.int32)
        targets[:, shapes.CLASSES.index(name)] = 1
        images, _ = shapes.draw(targets, generator)
        for number, image in enumerate(images):
            # A photograph is wider than high: strips at both sides that the preparation will cut off.
            square = Image.fromarray(image).resize((HEIGHT, HEIGHT), Image.Resampling.BICUBIC)
            picture = Image.new("RGB", (WIDTH, HEIGHT), "grey")
            picture.paste(square, ((WIDTH - HEIGHT) // 2, 0))
            picture.save(folder / name / f"{name}_{number:03d}.png")
    return folder
