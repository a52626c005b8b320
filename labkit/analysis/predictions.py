"""Read, sort, filter and count the predictions of a run. Doesn't import TensorFlow."""

import math
import shlex
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labkit.config.config import recorded_by, recorded_config
from labkit.config.data_sets import Targets
from labkit.config.fields import argument
from labkit.data.of_run import data_set_of
from labkit.data.shards import SplitImages
from labkit.errors import InputError, reason_of, short
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import open_run_file, read_object
from labkit.run_directory.reader import own_test_step_of
from labkit.run_directory.rows import restored
from labkit.training.recorded_predictions import predictions_name
from labkit.training.scores import class_metrics, confusion_counts, indicators, right

Indices = NDArray[np.intp]
MOST_ARRAYS = 2**33  # bytes; those of 50,000 images of 64 × 64 take 620 MB
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
SMALLEST_SHARE = 1e-45  # of float32 above zero: the loss of a probability that was rounded to zero


class ImageRows(Protocol):
    """Images that are read when they are indexed, so that those of a large split needn't be in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``n, height, width, channels``."""

    def __getitem__(self, rows: Any, /) -> NDArray[np.uint8]:
        """Return one image or several, as an array of all images would. Raises InputError."""


@dataclass(frozen=True)
class _SomeImages:
    """Those of ``images`` at some ``places``, int [n], read when they are indexed."""

    images: "NDArray[np.uint8] | ImageRows"
    places: Indices

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.places), *self.images.shape[1:])

    def __getitem__(self, rows: Any, /) -> NDArray[np.uint8]:
        return self.images[self.places[rows]]


@dataclass(frozen=True)
class Predictions:
    """The predictions of one split.

    ``images``: uint8 [n, height, width, channels], 1 or 3 channels. ``labels``: int [n]; with several labels
    per image, zeros and ones [n, classes]; or numbers, float32 [n, numbers]. ``probabilities``: float32
    [n, classes], or the predicted numbers. ``index``: int64 [n], the
    position in the split. ``classes``: their names. ``summary``: content of the JSON file beside the
    arrays, or empty. ``computed_losses``: float64 [n] where the network gave them.
    """

    images: NDArray[np.uint8] | ImageRows
    labels: NDArray[Any]
    probabilities: NDArray[np.float32]
    index: NDArray[np.int64]
    classes: list[str]
    summary: Mapping[str, Any] = field(default_factory=dict)
    computed_losses: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def are_numbers(self) -> bool:
        """Whether a label isn't a class but one or several numbers, whose names ``classes`` then are."""
        return self.labels.dtype.kind == "f"

    @property
    def targets(self) -> Targets:
        """What a label is, as of ``Manifest.targets``."""
        return "numbers" if self.are_numbers else "classes" if self.multi_label else "class"

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of classes rather than exactly one."""
        return self.labels.ndim == 2 and not self.are_numbers

    def only(self, rows: NDArray[np.integer[Any]]) -> "Predictions":
        """Return the predictions of the examples whose position in the split is in ``rows``, int [m]."""
        places = np.flatnonzero(np.isin(self.index, rows))
        losses = self.computed_losses
        return replace(
            self,
            images=_SomeImages(self.images, places),
            labels=self.labels[places],
            probabilities=self.probabilities[places],
            index=self.index[places],
            computed_losses=None if losses is None else losses[places],
        )

    def need_classes(self) -> None:
        """Raise InputError where labels are numbers."""
        if self.are_numbers:
            names = ", ".join(self.classes)
            raise InputError(
                f"labels here are numbers ({names}), and this needs classes; probabilities has the predicted "
                "numbers, errors how far off each is"
            )

    @cached_property
    def errors(self) -> NDArray[np.float64]:
        """How far each predicted number is from the true one, float64 [n, numbers], in its unit."""
        return np.abs(self.probabilities.astype(np.float64) - self.labels)

    @cached_property
    def worst_first(self) -> Indices:
        """The examples by the error of their numbers, each as a share of how much that number varies."""
        spread = self.labels.std(axis=0, dtype=np.float64)
        return np.argsort(-(self.errors / np.where(spread > 0, spread, 1)).mean(axis=1), kind="stable")

    @cached_property
    def predicted(self) -> NDArray[Any]:
        """The most probable class, int64 [n]; with several labels, those over 0.5, bool [n, classes]."""
        self.need_classes()
        return self.probabilities > 0.5 if self.multi_label else self.probabilities.argmax(axis=1)

    @cached_property
    def has(self) -> NDArray[np.bool_]:
        """Which classes each example has, bool [n, classes]."""
        self.need_classes()
        return indicators(self.labels, len(self.classes))

    @cached_property
    def given(self) -> NDArray[np.bool_]:
        """Which classes each example is predicted to have, bool [n, classes]."""
        return indicators(self.predicted, len(self.classes))

    @cached_property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether the prediction of each example is wrong, bool [n]; one wrong label makes it wrong."""
        return ~right(self.predicted, self.labels)

    def names(self, classes: NDArray[np.bool_]) -> str:
        """Return the names of ``classes``, bool [classes] (a row of ``has`` or ``given``), as text."""
        return ", ".join(self.classes[number] for number in np.flatnonzero(classes)) or "none"

    @cached_property
    def confusion(self) -> NDArray[np.int64] | None:
        """Counts, int64 [true class, predicted class]; None: see ``confusion_counts``."""
        return confusion_counts(self.labels, self.predicted, len(self.classes))

    def most_confused(self, count: int) -> list[tuple[int, int, int]]:
        """Return the most frequent confusions as (true class, predicted class, number of images)."""
        assert not self.multi_label
        pairs = np.stack([self.labels[self.wrong], self.predicted[self.wrong]], axis=1)
        found, counts = np.unique(pairs, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:count]
        return [(int(found[row, 0]), int(found[row, 1]), int(counts[row])) for row in order]

    @cached_property
    def confidence(self) -> NDArray[np.floating[Any]]:
        """The probability of the predicted class, [n]; with several labels, the largest error of a label."""
        self.need_classes()
        if not self.probabilities.shape[1]:
            return np.zeros(len(self), np.float32)
        if self.multi_label:
            return np.asarray(np.abs(self.probabilities - self.has).max(axis=1))
        return np.asarray(self.probabilities.max(axis=1))

    @cached_property
    def margin(self) -> NDArray[np.floating[Any]]:
        """The difference of the two largest probabilities, [n]: 0 where the network is undecided.

        With several labels it is the smallest difference, of any label, between having it and not.
        """
        self.need_classes()
        shares = self.probabilities
        if self.multi_label:
            return np.asarray(np.abs(2 * shares - 1).min(axis=1, initial=1.0))
        if shares.shape[1] < 2:
            return np.ones(len(self), np.float32)
        two = np.partition(shares, -2, axis=1)[:, -2:]
        return np.asarray(two[:, 1] - two[:, 0])

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """The cross-entropy of each example in nats, float64 [n]; of several labels, their sum."""
        self.need_classes()
        if self.computed_losses is not None:
            return self.computed_losses
        shares = self.probabilities.astype(np.float64)
        if self.multi_label:
            wanted = np.where(self.has, shares, 1 - shares)
        else:
            wanted = shares[np.arange(len(self)), self.labels][:, None]
        return np.asarray(0.0 - np.log(np.clip(wanted, SMALLEST_SHARE, 1.0)).sum(axis=1))

    @cached_property
    def undefined(self) -> NDArray[np.bool_]:
        """Whether an example has a probability that isn't a number, as after a training that failed."""
        return np.asarray(~np.isfinite(self.probabilities).all(axis=1))

    @cached_property
    def wrong_first(self) -> Indices:
        """The confident mistakes first, then the other mistakes, then the least confident right ones."""
        rank = (
            -self.confidence if self.multi_label else np.where(self.wrong, -self.confidence, self.confidence)
        )
        return np.lexsort((rank, ~self.wrong))

    def select(
        self, true: int | None = None, predicted: int | None = None, wrong_only: bool = False
    ) -> Indices:
        """Return the positions of the selected examples, int [m], the most confident mistakes first.

        Args:
            true: number of a class that the examples have; None: any.
            predicted: number of a class that is predicted for them; None: any.
            wrong_only: leaves out right predictions.
        """
        order = self.wrong_first
        kept = np.ones(len(order), bool)
        if true is not None:
            kept &= self.has[order, true]
        if predicted is not None:
            kept &= self.given[order, predicted]
        if wrong_only:
            kept &= self.wrong[order]
        return order[kept]

    def per_class(self) -> list[dict[str, Any]]:
        """Return a row for each class: its name, its number of examples, and its ``class_metrics``."""
        rows = class_metrics(self.labels, self.predicted, self.classes)
        return [{"class": row.pop("name"), "examples": row.pop("count"), **row} for row in rows]


def of_another_checkpoint(run: RunDirectory, predictions: Predictions) -> str:
    """Return a sentence if these test predictions aren't those of the run's own test result; else "".

    ``labkit evaluate`` writes over them, with whichever checkpoint it is given.
    """
    step = predictions.summary.get("checkpoint_step")
    if predictions.summary.get("split") != "test" or not isinstance(step, int):
        return ""
    try:
        own = own_test_step_of(run)
    except OSError as error:
        return f"the metrics of {run.name} can't be read ({error.strerror}), nor the step of its test result"
    if own is None or own == step:
        return ""
    return (
        f"these test predictions are of step {step}, and the test result of {run.name} is that of step "
        f"{own}; {how_to_predict(run, f' --checkpoint {own}')}"
    )


Signature = tuple[tuple[int, int], ...]
Known = dict[str, tuple[Signature, Predictions]]


def signature(run: RunDirectory, name: str = "test") -> Signature:
    """Return the modification times (ns) and sizes of a split's files, which change when the files do."""
    found = []
    for path in (run.predictions_path / f"{name}.npz", run.predictions_path / f"{name}.json"):
        try:
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def load_predictions(
    run: RunDirectory, split: str = "test", known: Known | None = None, step: int | None = None
) -> Predictions:
    """Read and check the predictions of one split. The arrays are read-only.

    Large images aren't in the file: they are read from the run's data set when they are indexed.

    Args:
        run: the run.
        split: the split.
        known: of earlier calls for this run, by name. Those are returned as long as the files are the same.
        step: of the checkpoint; None: those that are recorded for the run.

    Raises FileNotFoundError if there are none, InputError if the file is damaged or its arrays are invalid,
    or if its images are those of a data set that is gone.
    """
    name = split if step is None else predictions_name(run, split, step)
    path, now = run.predictions_path / f"{name}.npz", signature(run, name)
    if known and name in known and known[name][0] == now:
        return known[name][1]
    try:
        with open_run_file(path) as file, np.load(_checked(file), allow_pickle=False) as archive:
            names = (*(["images"] if "images" in archive else []), "labels", "probabilities")
            arrays = {name: archive[name] for name in names}
            index = archive["index"] if "index" in archive else np.arange(len(arrays["labels"]))
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        # NumPy's advice to load objects of Python nevertheless would run code of the file.
        reason = "it holds no arrays of numbers" if "pickle" in str(error) else reason_of(error)
        raise InputError(f"{path} is damaged: {reason}") from None
    for array in (*arrays.values(), index):
        array.setflags(write=False)
    none = np.zeros((len(index), 1, 1, 3), np.uint8)
    if not _fit_together(**({"images": none} | arrays), index=index):
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items())
        raise InputError(f"{path} is damaged: {shapes} don't fit together")
    images: NDArray[np.uint8] | ImageRows = arrays.pop("images", none)
    if images is none:
        images = SplitImages(data_set_of(run), split, index)
    probabilities = arrays["probabilities"]
    summary = _summary(run, name, len(arrays["labels"]))
    classes = summary.get("classes")
    if not isinstance(classes, list) or len(classes) != probabilities.shape[1]:
        classes = [f"class {number}" for number in range(probabilities.shape[1])]
    found = Predictions(
        images, **arrays, index=index, classes=[str(name) for name in classes], summary=summary
    )
    if known is not None:
        known[name] = now, found
    return found


def tested_split(run: RunDirectory) -> str:
    """Return the split that gives a run's result: ``validation`` where the test set isn't used."""
    if recorded_by(run):
        has = (split for split in ("test", "validation") if (run.predictions_path / f"{split}.npz").is_file())
        return next(has, "test")
    return "test" if recorded_config(run).run.evaluate_test else "validation"


def how_to_predict(run: RunDirectory, flags: str = "") -> str:
    """Return, as the end of a sentence, what writes predictions of a run. ``flags``: of labkit evaluate."""
    if recorded_by(run):
        return "the program that recorded it can add them: Recorder.predictions"
    return f"labkit evaluate {shlex.quote(str(run.path))}{flags} writes them"


def predictions_of_run(
    run: RunDirectory,
    split: str,
    known: Known | None = None,
    step: int | None = None,
    *,
    stacklevel: int = 2,
) -> Predictions:
    """Return the predictions of a split as ``load_predictions`` does, for a user who asked for them.

    Without a ``step``, warns if these test predictions are of another checkpoint than the run's own test
    result.

    Raises InputError where the checkpoint wasn't evaluated on the split, and as ``load_predictions``.
    """
    split, step = argument("split", split, str), argument("checkpoint", step, int, optional=True)
    found = None
    with suppress(FileNotFoundError):
        found = load_predictions(run, split, known, step)
    if found is None or step not in (None, found.summary.get("checkpoint_step")):
        of, way = (f" of step {step}", f" --checkpoint {step}") if step is not None else ("", "")
        way = how_to_predict(run, f" --split {split}{way}")
        raise InputError(f"run {run.name} has no predictions{of} of the split {split!r}; {way}")
    if step is None and (other := of_another_checkpoint(run, found)):
        warnings.warn(other, stacklevel=stacklevel + 1)
    return found


def _fit_together(
    images: NDArray[Any], labels: NDArray[Any], probabilities: NDArray[Any], index: NDArray[Any]
) -> bool:
    """Return whether the arrays have the dtypes, shapes and values that ``Predictions`` describes."""
    count = len(labels) if labels.ndim in (1, 2) else -1
    return bool(
        images.dtype == np.uint8
        and images.ndim == 4
        and images.shape[3] in (1, 3)
        and probabilities.ndim == 2
        and np.issubdtype(probabilities.dtype, np.floating)
        and labels.dtype.kind in "iuf"
        and len(images) == len(probabilities) == len(index) == count
        and (labels.ndim == 1 or labels.shape == probabilities.shape)
        and (labels.dtype.kind != "f" or labels.ndim == 2)
        and (
            labels.size == 0
            or labels.dtype.kind == "f"
            or (labels.min() >= 0 and labels.max() < (probabilities.shape[1] if labels.ndim == 1 else 2))
        )
    )


def _checked(file: IO[bytes]) -> IO[bytes]:
    """Return an open ``.npz`` file. Raises ValueError if it declares larger arrays than it holds.

    NumPy allocates what the header of an array declares before it reads the values.
    """
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > MOST_ARRAYS:
            raise ValueError(f"its arrays take more than {MOST_ARRAYS >> 30} GB")
        for member in archive.infolist():
            with archive.open(member) as content:
                version = np.lib.format.read_magic(content)
                read = _HEADERS[version]
                shape, _, dtype = read(content)
                if math.prod(shape) * dtype.itemsize > member.file_size:
                    raise ValueError(f"{member.filename} declares {short(shape)} values and has fewer")
    file.seek(0)
    return file


def _summary(run: RunDirectory, name: str, count: int) -> dict[str, Any]:
    value = restored(read_object(run.predictions_path / f"{name}.json"))
    # The two files are replaced one after the other, so the summary may be of another evaluation.
    return value if value.get("examples") == count else {}


def forgetting_events(right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how often each example goes from right to wrong, int64 [n] (Toneva et al., 2019).

    Args:
        right: bool [records, n], in the order of the training.
    """
    return (right[:-1] & ~right[1:]).sum(axis=0)
