"""A part of a data set: some of its classes, few of its training examples."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from labkit.config.fields import unknown_name_error
from labkit.data.archives import ImageData
from labkit.data.splitting import strata, stratified_validation_rows
from labkit.errors import InputError

__all__ = ["class_names", "with_classes", "with_train_examples"]


def class_names(wanted: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the wanted classes, which are given by name or by number, from 0, in ``known``.

    Raises InputError for one that isn't there, one that is named twice, and fewer than two.
    """
    names = []
    for name in wanted:
        if name.isdecimal() and name not in known:
            if int(name) >= len(known):
                raise InputError(
                    f"class {name} is not there; give names or numbers from 0 to {len(known) - 1}"
                )
            name = known[int(name)]
        if name not in known:
            raise unknown_name_error("class", name, known)
        if name in names:
            raise InputError(f"class {name!r} is named twice; name each once")
        names.append(name)
    if len(names) < 2:
        raise InputError(f"--classes names {len(names)}; name two or more of {', '.join(known)}")
    return tuple(names)


def with_classes(data: ImageData, names: tuple[str, ...]) -> ImageData:
    """Return the examples of these classes alone, whose labels are then places in ``names``.

    Raises InputError where images have several labels: what would become of the others?
    """
    if data.multi_label:
        raise InputError("--classes is for data sets with one label per image; leave it out")
    places = np.full(len(data.classes), -1, np.int32)
    places[[data.classes.index(name) for name in names]] = range(len(names))
    train, test = places[data.train_labels], places[data.test_labels]
    return dataclasses.replace(
        data,
        train_images=data.train_images[train >= 0],
        train_labels=train[train >= 0],
        test_images=data.test_images[test >= 0],
        test_labels=test[test >= 0],
        classes=names,
    )


def with_train_examples(
    images: np.ndarray, labels: np.ndarray, num_classes: int, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` of the examples, in their order, of each class in proportion (±1).

    The same seed chooses the same ones, and of a larger count those of a smaller one are a part.
    Raises InputError where there are fewer, or ``count`` doesn't reach for one of each class.
    """
    if not num_classes <= count <= len(labels):
        raise InputError(
            f"--train-examples is {count}; allowed: from {num_classes}, one of each class, to {len(labels)}"
        )
    rows = stratified_validation_rows(*strata(labels, num_classes), count, seed)
    return images[rows], labels[rows]
