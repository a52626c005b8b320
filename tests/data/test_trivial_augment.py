"""TrivialAugment: its operations against Pillow's, and how often each comes."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from labkit.data.hashes import augmentation_key
from labkit.data.trivial_augment import LEVELS, OPERATIONS, trivially_augmented

KEY = augmentation_key(3)
LEVEL = (0, 1, 11, 20, 30)


def pillows(name: str, picture: Image.Image, level: int, sign: int) -> Image.Image:
    """What the paper's code does to a picture."""
    share = sign * level / 30
    moved = {
        "identity": (1, 0, 0, 0, 1, 0),
        "shear_x": (1, 0.99 * share, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, 0.99 * share, 1, 0),
        "translate_x": (1, 0, 32 * share, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, 32 * share),
    }
    if name in moved:
        return picture.transform(picture.size, Image.Transform.AFFINE, moved[name])
    if name == "rotate":
        return picture.rotate(135 * share)
    if name in ("brightness", "color", "contrast", "sharpness"):
        return getattr(ImageEnhance, name.title())(picture).enhance(1 + 0.99 * share)
    if name == "posterize":
        return ImageOps.posterize(picture, 8 - round(6 * level / 30))
    if name == "solarize":
        return ImageOps.solarize(picture, 255 - 255 * level / 30)
    return {"auto_contrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}[name](picture)


def pictures() -> list[np.ndarray]:
    """Pictures with many and with few grey levels, and of one colour."""
    random = np.random.default_rng(0)
    smooth = np.add.outer(np.arange(30), 2 * np.arange(41))[..., None] + [20, 60, 100]
    noisy = random.integers(30, 200, (30, 41, 3))
    dark = random.choice([7, 8, 200], (30, 41, 3))
    return [part.astype(np.uint8) for part in (smooth, noisy, dark, np.full((30, 41, 3), 9))]


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operations_are_those_of_pillow(name):
    for image in pictures():
        for level in LEVEL:
            for sign in (1, -1):
                found = OPERATIONS[name](image.astype(np.int32), np.int32(level), np.int32(sign)).clip(0, 255)
                wanted = np.asarray(pillows(name, Image.fromarray(image), level, sign)).astype(int)
                other = np.abs(found - wanted) > 1
                # Where a place is just between two pixels, another one may be the nearest.
                assert other.mean() < (0.02 if name in ("rotate", "shear_x", "shear_y") else 1e-9), (
                    level,
                    sign,
                )


@pytest.mark.parametrize("shape", [(32, 32, 3), (9, 14, 1), (12, 12, 4), (2, 2, 3)])
def test_every_operation_gives_the_same_bits_in_tensorflow(shape):
    count = len(OPERATIONS) * LEVELS
    images = np.random.default_rng(1).integers(0, 256, (count, *shape)).astype(np.uint8)
    epoch, index = np.zeros(count, int), np.arange(count)
    found = trivially_augmented(images, key=KEY, epoch=epoch, index=index)
    wanted = tf.function(trivially_augmented)(
        tf.constant(images), key=KEY, epoch=tf.constant(epoch), index=tf.constant(index)
    )
    assert found.dtype == np.uint8 and found.tobytes() == wanted.numpy().tobytes()
    same = (found == images).all(axis=(1, 2, 3)).mean()
    assert same < 0.6 and np.array_equal(
        found, trivially_augmented(images, key=KEY, epoch=epoch, index=index)
    )


def test_each_operation_comes_as_often_as_another(monkeypatch):
    named = {name: lambda image, level, sign, n=n: 0 * image + n for n, name in enumerate(OPERATIONS)}
    monkeypatch.setattr("labkit.data.trivial_augment.OPERATIONS", named)
    images, index = np.zeros((2800, 1, 1, 1), np.uint8), np.arange(2800)
    found = trivially_augmented(images, key=KEY, epoch=index, index=index)
    counts = np.bincount(found.ravel(), minlength=14)
    assert len(counts) == 14 and counts.min() > 140 and counts.max() < 260
