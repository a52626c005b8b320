"""Pixels and labels of arrays, checked and brought to one form; files that hold them: NumPy's ``.npz``, and
the TFRecords of TensorFlow's ``cifar10_estimator`` of 2017.
"""

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from labkit.data.images.layouts import MAX_CLASSES, SPLITS, in_float32
from labkit.data.images.walk import shown
from labkit.errors import InputError, short
from labkit.plurals import counted, listed
from labkit.startup.quiet_import import import_tensorflow

_WHITE = 255
_DARK = 16  # of 255: images without a value above it have another scale, as scikit-learn's digits
_BLOCK = 1_000  # images that are converted at once
_SHAPES = "[n, height, width], [n, height, width, 1 or 3] or [n, 1 or 3, height, width]"
_SCALES = "whole numbers from 0 to 255, or floats from 0 to 1 or from 0 to 255"
_LABELS = "whole numbers from 0, [n] or [n, 1]; zeros and ones, [n, classes]; or floats, [n] or [n, numbers]"
NUMBERED = (
    "number the texts: names = numpy.unique(labels), numpy.searchsorted(names, labels) in every split, and "
    "class_names=list(names)"
)


@dataclass(frozen=True)
class Part:
    """The examples of a split.

    Args:
        images: by row, uint8 [height, width, 1 or 3]; they may have different sizes.
        labels: int32 [n], zeros and ones [n, classes], or float32 [n, numbers].
        sizes: width and height of each image, as it was given.
        sha256: of all pixels and sizes that were given.
        classes: names of the classes, where whoever gives the examples knows them.
        notes: lines that say how the pixels were read.
        columns: what else is known of each image, by name: a text for each row.
    """

    images: Any
    labels: np.ndarray
    sizes: Sequence[tuple[int, int]] = field(repr=False)
    sha256: str
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)


_ENTRIES = ("image", "img"), ("label", "labels", "fine_label")  # of dicts
EXAMPLE_FORMS = "a pair (image, label), or a dict with image or img and label, labels or fine_label"


def entries(here: str, example: Mapping[Any, Any]) -> tuple[str, str]:
    """Return the names of image and label in a dict. Raises InputError where one of them is missing."""
    image, label = (next((name for name in names if name in example), "") for names in _ENTRIES)
    if not (image and label):
        raise InputError(
            f"{here} has the entries {listed([*map(str, example)], 10)}; allowed: {EXAMPLE_FORMS}"
        )
    return image, label


def as_text(value: Any) -> str | None:
    """Return what a column keeps of a value: text, numbers, dates, True and False; None of others."""
    if isinstance(value, np.datetime64 | date):  # first, as datetime64[ns] would become a number
        return str(value)
    value = value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    return str(value) if isinstance(value, str | int | float) else None


def part_of_named_arrays(where: str, arrays: Mapping[str, Any], part_of: Callable[..., Part]) -> Part:
    """Return the examples of a dict of arrays: images, labels, and columns, each with a value for a row.

    Raises InputError as ``part_of``, which takes (images, labels), and for a column of another length.
    """
    image, label = entries(where, arrays)
    part = part_of((arrays[image], arrays[label]))
    columns = {}
    for name in arrays:
        if name not in (image, label):
            columns[name] = [text for value in arrays[name] if (text := as_text(value)) is not None]
            if len(columns[name]) != len(part.labels):
                raise InputError(
                    f"the column {name!r} of {where} has {len(columns[name]):,} texts, numbers and dates for "
                    f"{counted(len(part.labels), 'image')}; give one for each"
                )
    return replace(part, columns=columns)


def part_of_arrays(where: str, images: Any, labels: Any) -> Part:
    """Return the examples of two arrays. Raises InputError for arrays that can't be images and their labels.

    Args:
        where: how the user calls them: ``train``.
        images: [n, height, width], [n, height, width, 1 or 3] or [n, 1 or 3, height, width]: whole numbers
            from 0 to 255, or floats from 0 to 1 or from 0 to 255.
        labels: whole numbers [n] or [n, 1], zeros and ones [n, classes], or floats [n] or [n, numbers].
    """
    pixels, scale = as_pixels(f"the images of {where}", as_array(f"the images of {where}", images))
    targets = as_labels(f"the labels of {where}", as_array(f"the labels of {where}", labels, NUMBERED))
    if len(pixels) != len(targets):
        raise lengths_error(where, len(pixels), len(targets))
    check_brightness(where, int(pixels.max()))
    height, width = pixels.shape[1:3]
    digest = hashlib.sha256()
    for image in pixels:
        add_image(digest, image)
    sizes = [(width, height)] * len(pixels)
    return Part(pixels, targets, sizes, digest.hexdigest(), notes=scale_notes(where, scale))


def add_image(digest: Any, pixels: np.ndarray) -> None:
    """Add an image to a checksum: its pixels, uint8 [height, width, 1 or 3], and their shape."""
    digest.update(f"{pixels.shape}".encode())
    digest.update(pixels.tobytes())


def lengths_error(where: str, images: int, labels: int) -> InputError:
    """Return the error of a split that has another number of labels than of images."""
    return InputError(f"{where} has {images:,} images and {labels:,} labels; give a label for each image")


def as_array(what: str, values: Any, way_of_texts: str = "") -> np.ndarray:
    """Return what NumPy can read as an array of numbers.

    Raises InputError, with the name ``what``, for other things; for texts it ends with ``way_of_texts``.
    """
    try:
        array = np.asarray(values)
    except Exception as error:  # of any library whose tensors these are
        raise InputError(f"{what} can't be read as an array: {short(str(error))}") from None
    if array.dtype.kind not in "biuf":
        texts = array.dtype.kind in "US" or (array.size and isinstance(array.flat[0], str))
        way = f"; {way_of_texts}" if texts and way_of_texts else ""
        raise InputError(f"{what}: {array.dtype} {list(array.shape)}; allowed: numbers{way}")
    return array


def as_pixels(what: str, images: np.ndarray, scale: int | None = None) -> tuple[np.ndarray, int]:
    """Return images as uint8 [n, height, width, 1 or 3], and what floats were multiplied by; 0 for integers.

    Args:
        what: their name in messages.
        images: numbers, see ``part_of_arrays``.
        scale: 255 or 1 where other images have decided; None: the values of these do.

    Raises:
        InputError: no image, a shape that no images have, or values beyond the scales.
    """
    given = list(images.shape)
    if images.ndim == 3:
        images = images[..., None]
    elif images.ndim == 4 and given[3] not in (1, 3) and given[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        raise InputError(f"{what}: the shape {given}; allowed: {_SHAPES}")
    if not len(images):
        raise InputError(f"{what}: none; give one at least")
    if images.dtype == np.uint8:
        return images, 0
    low, high = images.min(), images.max()  # NaN if one of the values is
    whole = images.dtype.kind != "f"
    if images.dtype == bool or not (low >= 0 and high <= _WHITE):
        raise InputError(f"{what}: {images.dtype} from {low} to {high}; allowed: {_SCALES}")
    factor = scale or (1 if whole or high > 1 else _WHITE)
    if (scale == _WHITE and high > 1) or (scale == 1 and not whole and 0 < high <= 1):
        raise InputError(f"{what}: floats up to {high:.4g}, others to {_WHITE // scale}; give all as uint8")
    pixels = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK]
        pixels[start : start + _BLOCK] = block if whole else np.rint(block.astype(np.float32) * factor)
    return pixels, 0 if whole else factor


def check_brightness(where: str, highest: int) -> None:
    """Raise InputError for images that would be nearly black, because their values have another scale."""
    if highest <= _DARK:
        raise InputError(
            f"the images of {where} have no value above {highest}, of 255; give floats from 0 to 1, or scale "
            "them to 0 to 255"
        )


def scale_notes(where: str, scale: int | None) -> tuple[str, ...]:
    """Return the line that says how floats were read; none for other images."""
    if not scale:
        return ()
    how = "1 are multiplied by 255 and" if scale == _WHITE else "255 are"
    return (f"{where}: values from 0 to {how} rounded",)


def as_labels(what: str, labels: np.ndarray) -> np.ndarray:
    """Return labels as int32 [n], as zeros and ones int32 [n, classes], or as numbers, float32 [n, numbers].

    Floats are numbers, but for several in a row that are zeros and ones.

    Raises InputError, with the name ``what``, for another shape, and for values that are no labels.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f" and not (labels.ndim == 2 and np.isin(labels, (0, 1)).all()):
        return _numbers(what, labels)
    if labels.ndim not in (1, 2):
        raise InputError(f"{what}: {labels.dtype} {list(labels.shape)}; allowed: {_LABELS}")
    most = 1 if labels.ndim == 2 else MAX_CLASSES - 1
    if labels.size and not (labels.min() >= 0 and labels.max() <= most):
        raise InputError(f"{what}: from {labels.min()} to {labels.max()}; allowed: {_LABELS}")
    return labels.astype(np.int32)


def _numbers(what: str, labels: np.ndarray) -> np.ndarray:
    if labels.ndim not in (1, 2) or not labels.size:
        raise InputError(f"{what}: {labels.dtype} {list(labels.shape)}; allowed: {_LABELS}")
    numbers = in_float32(what, labels.reshape(len(labels), -1))
    if numbers.shape[1] > 1 and (numbers >= 0).all() and np.allclose(numbers.sum(axis=1), 1, atol=1e-3):
        raise InputError(f"{what}: shares of classes, which sum to 1; give the class of each image")
    return numbers


_WORDS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
_PAIRS = (("x_{}", "y_{}"), ("{}_images", "{}_labels"), ("{}_x", "{}_y"), ("images_{}", "labels_{}"))
_ALLOWED = "pairs such as x_train and y_train, or train_images and train_labels"
# As generate_cifar10_tfrecords.py of github.com/tensorflow/models wrote them, with rows of colour planes.
_FILES_OF_2017 = {"train": "train.tfrecords", "validation": "validation.tfrecords", "test": "eval.tfrecords"}
_PLANES = (3, 32, 32)
_CIFAR10 = "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"


def parts_of_npz(path: Path) -> dict[str, Part]:
    """Return the examples of an ``.npz`` file by split.

    Raises InputError where it is damaged, holds Python objects, or lacks images or labels to train on.
    """
    if not zipfile.is_zipfile(path):
        raise InputError(f"{shown(path)} is no .npz file, or cut off; give one that numpy.savez wrote")
    try:
        with np.load(path, allow_pickle=False) as file:
            pairs = {split: pair for split in SPLITS if (pair := _pair(file.files, split))}
            used = [name for pair in pairs.values() for name in pair]
            left = shown(listed([name for name in file.files if name not in used], 10))
            if "train" not in pairs:
                raise InputError(
                    f"{shown(path)} has the arrays {shown(listed(file.files, 10))}; allowed: {_ALLOWED}"
                )
            arrays = {name: file[name] for name in used}
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{shown(path)} does not fit in memory; give its examples in Python") from None
    except Exception as error:  # of zip files, compression and headers; and for objects, which are pickled
        reason = shown(short(str(error))[1:-1])
        if "allow_pickle" in reason:
            reason = "it holds Python objects, which could run code"
        raise InputError(f"{shown(path)} is refused: {reason}; give arrays of numbers") from None
    parts = {
        split: part_of_arrays(f"{split} in {shown(path.name)}", arrays[images], arrays[labels])
        for split, (images, labels) in pairs.items()
    }
    if left:
        note = f"{shown(path.name)} has other arrays, which are not read: {left}"
        parts["train"] = replace(parts["train"], notes=(*parts["train"].notes, note))
    return parts


def _pair(stored: list[str], split: str) -> tuple[str, str] | None:
    """Return the names of a split's images and labels, whatever the case of their letters."""
    names = {name.lower(): name for name in stored}
    for word in _WORDS[split]:
        for pair in _PAIRS:
            images, labels = (names.get(form.format(word)) for form in pair)
            if images and labels:
                return images, labels
    return None


def parts_of_tfrecords(folder: Path) -> dict[str, Part]:
    """Return the examples of the three files of 2017, with their split as it is.

    Raises InputError where a file is missing or damaged, or holds something else than images of CIFAR-10.
    """
    missing = [name for name in _FILES_OF_2017.values() if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{shown(folder)} lacks {', '.join(missing)}; give the folder that generate_cifar10_tfrecords.py "
            "wrote"
        )
    return {split: _part_of_tfrecord(split, folder / name) for split, name in _FILES_OF_2017.items()}


def _part_of_tfrecord(split: str, path: Path) -> Part:
    import_tensorflow()
    import tensorflow as tf

    form = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    try:
        payloads = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        parsed = tf.io.parse_example(payloads, form)
        planes = np.frombuffer(b"".join(parsed["image"].numpy().tolist()), np.uint8)
        planes = planes.reshape(len(parsed["label"]), *_PLANES)
    except tf.errors.InvalidArgumentError:
        raise InputError(f"{shown(path)} has records without image, as bytes, and label, int64") from None
    except (tf.errors.OpError, ValueError):  # also of a file that may not be read
        raise InputError(f"{shown(path)} can't be read, is damaged or no TFRecords; write it again") from None
    return replace(part_of_arrays(f"{split} in {path.name}", planes, parsed["label"]), classes=_CIFAR10)
