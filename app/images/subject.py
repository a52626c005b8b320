"""The image that its own page is about, of the data set or one's own, and the checkpoint to ask about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.images import cards
from app.markup import one_of
from labkit.analysis.predictions import Predictions
from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.config.data_sets import Targets
from labkit.data.images.walk import shown
from labkit.data.manifest import Manifest, files_of
from labkit.data.shards import find_split, read_rows
from labkit.errors import InputError
from labkit.plurals import numbers_in_words
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import best_checkpoint
from labkit.run_directory.files import read_object
from labkit.training.scores import indicators


@dataclass(frozen=True)
class Subject:
    """An image with what is known of it before a network is asked.

    ``image``: uint8 [height, width, channels]. ``classes``: their names. ``targets``: as of
    ``Manifest.targets``. ``label``: the number of its class, zeros and ones [classes], or numbers; None if it
    is unknown. ``split`` and ``index``: its place in the data set; None for one's own picture.
    ``probabilities``: float [classes], or the predicted numbers, that the run's evaluation recorded at step
    ``recorded_step``.
    """

    image: NDArray[np.uint8]
    classes: Sequence[str]
    targets: Targets
    label: NDArray[Any] | None = None
    split: str | None = None
    index: int | None = None
    probabilities: NDArray[Any] | None = None
    recorded_step: int | None = None

    @property
    def are_numbers(self) -> bool:
        """Whether the label isn't a class."""
        return self.targets == "numbers"

    def predicted(self, probabilities: NDArray[Any]) -> Predictions:
        """Return a prediction [classes] for the image as those of a split of one; no label is class 0."""
        label = 0 if self.targets == "class" else np.zeros(len(self.classes), int)
        labels = np.asarray(label if self.label is None else self.label)[None]
        return Predictions(self.image[None], labels, probabilities[None], np.zeros(1, int), [*self.classes])

    def in_words(self, probabilities: NDArray[Any]) -> str:
        """Return what is predicted: the names of classes, or numbers with their names."""
        if self.are_numbers:
            return numbers_in_words(probabilities, self.classes)
        return names_of(self.classes, self.predicted(probabilities).given[0])

    @property
    def true(self) -> str:
        """The label in words; "" if it is unknown."""
        return "" if self.label is None else names_of(self.classes, self.label)

    @property
    def has(self) -> NDArray[np.bool_]:
        """Which classes the image has, bool [classes]; none if that is unknown."""
        if self.label is None:
            return np.zeros(len(self.classes), bool)
        return indicators(np.asarray(self.label)[None], len(self.classes))[0]

    def is_right(self, probabilities: NDArray[Any]) -> bool:
        """Return whether a prediction [classes] is right. The image must have a label."""
        return not self.predicted(probabilities).wrong[0]

    def loss(self, probabilities: NDArray[Any]) -> float | None:
        """Return the cross-entropy in nats of probabilities [classes]; None without a label."""
        return None if self.label is None else float(self.predicted(probabilities).losses[0])

    def bars(self, probabilities: NDArray[Any], top: int | None = None, **more: Any) -> str:
        """Return the HTML of a bar for each class. ``top``, ``more``: of ``cards.bars``."""
        given, known = self.predicted(probabilities).given[0], self.label is not None
        return cards.bars(self.classes, probabilities, self.has, given, top, known=known, **more)


ANY = -1  # in place of the number of a class


def split_control(splits: Sequence[str], key: str, first: str = "test", **settings: Any) -> str:
    """Draw the choice of a split, of the ``first`` one at first. ``settings``: of the widget."""
    return one_of("Split", splits, key, first if first in splits else splits[0], **settings)


def class_control(classes: Sequence[str], **settings: Any) -> int:
    """Draw the choice of a class; return its number, or ``ANY``. ``settings``: of the widget."""
    names = {ANY: "all", **dict(enumerate(classes))}
    return st.selectbox("Class", list(names), format_func=names.__getitem__, width=200, **settings)


def names_of(classes: Sequence[str], label: NDArray[Any]) -> str:
    """Return the name of a label's class; of several, zeros and ones [classes], and of numbers, all."""
    if np.asarray(label).dtype.kind == "f":
        return numbers_in_words(np.asarray(label), classes)
    has = indicators(np.asarray(label)[None], len(classes))[0]
    return ", ".join(classes[number] for number in np.flatnonzero(has).tolist()) or "none"


@st.cache_resource(max_entries=8, show_spinner=False)
def _files(_manifest: Manifest, folder: str, checksum: str, split: str) -> list[str] | None:
    return files_of(_manifest, split)


def file_of(manifest: Manifest, split: str, index: int) -> str:
    """Return the file that an image was made from, in the folder of its source; "" where that isn't known."""
    files = _files(manifest, str(manifest.directory), manifest.checksum, split)
    return shown(files[index]) if files is not None and 0 <= index < len(files) else ""


def name_of(manifest: Manifest, split: str, index: int) -> str:
    """Return the file that an image was made from; where that isn't known, its split and number."""
    return file_of(manifest, split, index) or f"{split} #{index}"


def of_predictions(predictions: Predictions, split: str, index: int) -> Subject | None:
    """Return the image of a split's recorded predictions; None if it isn't among them."""
    places = np.flatnonzero(predictions.index == index)
    if not len(places):
        return None
    place = int(places[0])
    step = predictions.summary.get("checkpoint_step")
    return Subject(
        image=predictions.images[place],
        classes=predictions.classes,
        targets=predictions.targets,
        label=predictions.labels[place],
        split=split,
        index=index,
        probabilities=predictions.probabilities[place],
        recorded_step=step if isinstance(step, int) else None,
    )


def check_index(manifest: Manifest, split: str, index: int) -> None:
    """Raise InputError if a split has no image of this number."""
    count = find_split(manifest, split).count
    if not 0 <= index < count:
        numbers = f"{count:,} images, numbered 0 to {count - 1:,}"
        raise InputError(f"the {split} split has {numbers}; there is no number {index:,}")


def read_example(manifest: Manifest, split: str, index: int) -> Subject:
    """Read one image with its label.

    Args:
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        index: position in the split.

    Raises InputError if there is no such image, or if its file is missing or damaged.
    """
    check_index(manifest, split, index)
    images, labels = read_rows(manifest, split, np.array([index]))
    return Subject(images[0], manifest.classes, manifest.targets, labels[0], split, index)


def checkpoint_to_ask(run: RunDirectory, preferred: Any = None) -> int | None:
    """Return the step of the checkpoint whose network to ask; None if the run has kept none.

    Args:
        run: the run directory.
        preferred: taken if this step is kept; otherwise the best on validation, otherwise the newest.
    """
    return int(preferred) if preferred in run.checkpoint_steps() else best_checkpoint(run.checkpoints_path)


def recorded_step(run: RunDirectory, split: str = "test") -> object:
    """Return the step of a recorded evaluation. The page of an image asks the network of that on ``test``."""
    return read_object(run.predictions_path / f"{split}.json").get("checkpoint_step")


def known_config(run: RunDirectory) -> Config | None:
    """Return the configuration of a run; None if it is damaged."""
    try:
        return recorded_config(run)
    except InputError:
        return None
