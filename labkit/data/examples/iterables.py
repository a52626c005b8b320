"""Examples that come one after the other: their pixels wait in a file until the data set is planned."""

import hashlib
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from labkit.data.examples.arrays import (
    EXAMPLE_FORMS,
    NUMBERED,
    Part,
    add_image,
    as_array,
    as_labels,
    as_pixels,
    as_text,
    check_brightness,
    entries,
    scale_notes,
)
from labkit.data.folder import check_space
from labkit.data.images.decode import pixels_of_picture, square_of_pixels
from labkit.data.pool import Display
from labkit.errors import InputError, short
from labkit.plurals import counted

MOST = 2_000_000  # examples of a source that has no length, and so may be endless
_BLOCK_BYTES = 2**26  # of pixels, before the space on the disk is looked at again
_ONE_IMAGE = (
    "[height, width], [height, width, 1 or 3] or [1 or 3, height, width], of one image; of batches give a "
    "tf.data.Dataset with .unbatch(), or the .dataset of a DataLoader"
)


def part_of_examples(
    where: str,
    source: Any,
    folder: Path,
    announce: Callable[[str], None],
    squared: tuple[int, str] | None = None,
) -> Part:
    """Return the examples that a source gives, in its order.

    Args:
        where: how the user calls them: ``train``.
        source: an iterable or sequence, or a function that returns one. An example is a pair (image, label)
            or a dict of both; an image is a picture of Pillow or an array, see ``part_of_arrays``. Texts and
            numbers that all dicts have besides become columns.
        folder: where the pixels wait, in a file without a name, which goes when this process does.
        announce: called with lines about the progress.
        squared: side and ``resize`` of the images, where they are known: larger ones needn't wait.

    Raises:
        InputError: the source fails, is empty or endless, or gives something else; the example is named.
        OSError: the disk is full.
    """
    source = _called(where, source)
    total = _length(where, source)
    digest = hashlib.sha256()
    images = _Waiting(folder)
    labels: list[np.ndarray] = []
    sizes: list[tuple[int, int]] = []
    names: tuple[str, ...] = ()
    more: list[Mapping[str, str]] = []
    scale, highest = None, 0
    with Display("reading", total, announce) as display:
        for number, example in _each(where, source, total):
            here = f"example {number:,} of {where}"
            image, label, key, texts = _taken_apart(here, example)
            pixels, scale = _pixels(here, image, scale)
            highest = max(highest, int(pixels.max()))
            target = as_array(f"the label of {here}", label, NUMBERED)
            if labels and target.shape != labels[0].shape:
                raise InputError(
                    f"the label of {here} has the shape {list(target.shape)}, those before "
                    f"{list(labels[0].shape)}; give all in one shape"
                )
            if not labels:
                names = _class_names(source, key)
            add_image(digest, pixels)
            labels.append(target)
            more.append(texts)
            sizes.append((pixels.shape[1], pixels.shape[0]))
            if squared is not None:
                pixels = np.asarray(square_of_pixels(pixels, *squared))
            images.add(pixels)
            display.advance(1)
    if not labels:
        raise InputError(f"{where} has no examples; an iterator can be used once, give what makes a new one")
    if total is not None and len(labels) < total:
        raise InputError(f"{where} has {counted(total, 'example')} by its length, and gives {len(labels):,}")
    check_brightness(where, highest)
    targets = as_labels(f"the labels of {where}", np.stack(labels))
    images.close()
    columns = {name: [each[name] for each in more] for name in more[0] if all(name in each for each in more)}
    return Part(images, targets, sizes, digest.hexdigest(), names, scale_notes(where, scale), columns)


class _Waiting:
    """Pixels of images of any size, by row, in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end = folder, 0
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._places: list[tuple[int, tuple[int, ...]]] = []

    def add(self, pixels: np.ndarray) -> None:
        """Keep the pixels of an image, uint8 [height, width, 1 or 3]."""
        self._places.append((self._end, pixels.shape))
        self._file.write(pixels.tobytes())
        if self._end // _BLOCK_BYTES != (self._end + pixels.size) // _BLOCK_BYTES:
            check_space(self._folder, _BLOCK_BYTES)
        self._end += pixels.size

    def close(self) -> None:
        """Let the images be read; no more are added."""
        self._file.flush()
        self._content = mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_READ)
        self._file.close()

    def __getitem__(self, row: int) -> np.ndarray:
        start, shape = self._places[row]
        return np.frombuffer(self._content, np.uint8, int(np.prod(shape)), start).reshape(shape)


def _called(where: str, source: Any) -> Any:
    """Return what a function returns, and anything else as it is."""
    if not callable(source) or hasattr(source, "__iter__") or hasattr(source, "__getitem__"):
        return source
    try:
        return source()
    except Exception as error:
        raise _failure(where, 0, error) from error


def _failure(where: str, number: int, error: Exception) -> InputError:
    reason = short(str(error))[1:-1]
    return InputError(
        f"{where} failed after {counted(number, 'example')}, with {type(error).__name__}: {reason}"
    )


def _length(where: str, source: Any) -> int | None:
    """Return the number of examples; None where the source doesn't know it. Raises InputError if endless."""
    if callable(getattr(source, "cardinality", None)) and int(source.cardinality()) == -1:
        raise InputError(f"{where} is endless; give it without .repeat(), or with .take(N)")
    try:
        return len(source)
    except TypeError:
        return None


def _each(where: str, source: Any, total: int | None) -> Iterator[tuple[int, Any]]:
    """Yield the examples with their numbers. Raises InputError where the source fails or has too many."""
    number = 0
    try:
        for example in _iterated(where, source):
            if number == (MOST if total is None else total):
                raise InputError(
                    f"{where} gives more than {MOST:,} examples, and may be endless; give what has a length"
                    if total is None
                    else f"{where} has {counted(total, 'example')} by its length, and gives more"
                )
            yield number, example
            number += 1
    except InputError:
        raise
    except Exception as error:
        raise _failure(where, number, error) from error


def _iterated(where: str, source: Any) -> Iterable[Any]:
    if hasattr(source, "as_numpy_iterator"):
        return source.as_numpy_iterator()
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not hasattr(source, "__iter__"):
        return (source[row] for row in range(len(source)))
    try:
        return iter(source)
    except TypeError:
        raise InputError(
            f"{where} is {short(source)}; allowed: a pair of arrays (images, labels), or what gives one "
            "example after the other"
        ) from None


def _taken_apart(here: str, example: Any) -> tuple[Any, Any, str, Mapping[str, str]]:
    """Return image, label, the label's name, which is empty in a pair, and what else is known, as texts."""
    if isinstance(example, Mapping):
        image, label = entries(here, example)
        texts = {name: as_text(value) for name, value in example.items() if name not in (image, label)}
        known = {str(name): text for name, text in texts.items() if text is not None}
        return example[image], example[label], label, known
    if isinstance(example, Sequence) and not isinstance(example, str | bytes) and len(example) == 2:
        return example[0], example[1], "", {}
    raise InputError(f"{here} is of the type {type(example).__name__}; allowed: {EXAMPLE_FORMS}")


def _pixels(here: str, image: Any, scale: int | None) -> tuple[np.ndarray, int | None]:
    """Return the pixels of an image, uint8 [height, width, 1 or 3], and the scale of floats."""
    if isinstance(image, Image.Image) and image.mode[0] not in "IF":  # which have more than 8 bits
        return pixels_of_picture(image), scale
    what = f"the image of {here}"
    array = as_array(what, image)
    is_one = array.ndim == 2 or (array.ndim == 3 and (array.shape[2] in (1, 3) or array.shape[0] in (1, 3)))
    if not is_one:
        raise InputError(f"{what} has the shape {list(array.shape)}; allowed: {_ONE_IMAGE}")
    is_float = array.dtype.kind == "f"
    pixels, factor = as_pixels(what, array[None], scale if is_float else None)
    return pixels[0], factor if is_float and pixels.any() else scale  # black has any scale


def _class_names(source: Any, key: str) -> tuple[str, ...]:
    """Return the names that a data set of Hugging Face or PyTorch has for its classes, if it has them."""
    features = getattr(source, "features", None)
    column = features.get(key) if isinstance(features, Mapping) else None
    names = getattr(column, "names", None) or getattr(source, "classes", None)
    is_names = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if names and is_names else ()
