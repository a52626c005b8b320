"""Files of examples: NumPy's ``.npz``, and the TFRecords of TensorFlow's ``cifar10_estimator`` of 2017."""

import mmap
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit.data.given.arrays import Part, part_of_arrays
from labkit.data.images.layouts import SPLITS
from labkit.data.images.names import shown
from labkit.data.tfrecord import FOOTER, HEADER, masked_checksums
from labkit.errors import InputError, short
from labkit.plurals import listed
from labkit.startup.quiet_import import import_tensorflow

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
        parsed = tf.io.parse_example(_payloads(path), form)
        planes = np.frombuffer(b"".join(parsed["image"].numpy().tolist()), np.uint8)
        planes = planes.reshape(len(parsed["label"]), *_PLANES)
    except tf.errors.InvalidArgumentError:
        raise InputError(f"{shown(path)} has records without image, as bytes, and label, int64") from None
    except (struct.error, ValueError) as error:
        raise InputError(f"{shown(path)} is damaged: {shown(str(error))}; write it again") from None
    return replace(part_of_arrays(f"{split} in {path.name}", planes, parsed["label"]), classes=_CIFAR10)


def _payloads(path: Path) -> list[bytes]:
    """Return the payload of each record. Raises ValueError or struct.error for a wrong checksum or length."""
    starts, lengths, payloads, stored = [], [], [], []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = 0
        while start < len(content):
            length, of_length = struct.unpack_from("<QI", content, start)
            end = start + HEADER + length
            starts.append(start)
            stored.append((of_length, *struct.unpack_from("<I", content, end)))
            lengths.append(content[start : start + 8])
            payloads.append(content[start + HEADER : end])
            start = end + FOOTER
    found = zip(masked_checksums(lengths), masked_checksums(payloads), strict=True)
    for start, checksums, wanted in zip(starts, found, stored, strict=True):
        if checksums != wanted:
            raise ValueError(f"the checksum at byte {start:,} is wrong")
    return payloads
