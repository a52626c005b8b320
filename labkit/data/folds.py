"""A fold of a data set, for cross-validation: its training and validation images, parted anew.

It is a data set of its own, in the same folder, so that all that reads data sets knows nothing of folds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from labkit.config.data_sets import FOLD, fold_of_name
from labkit.data.corrected import KEPT, Stored, beside, labels_and_pictures
from labkit.data.manifest import Manifest, columns_of, files_of, find_manifest, load_manifest, verify_shards
from labkit.data.related import Part, Step
from labkit.data.request import Request
from labkit.data.shards import damage_error
from labkit.data.subset import lacking, random_order, strata
from labkit.data.write import Journal, Plan, shard_tasks
from labkit.errors import InputError
from labkit.plurals import counted

SPLITS = ("train", "validation", "test")  # the first two are parted
# What is asked of the data set that is parted, not of a fold.
_OF_THE_WHOLE = ("validation_size", "classes", "train_examples", "image_size", "resize")


def folds_of(labels: NDArray[Any], num_classes: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each image, from 0, int64 [n].

    The sizes of two folds differ by one at most, and so does what they have of a class.

    Args:
        labels: as of ``labkit.data.subset.strata``.
        num_classes: the number of classes.
        count: how many folds there are.
        seed: of the data set; the same one gives the same folds.
    """
    order = random_order(len(labels), seed, "folds")
    order = order[np.argsort(strata(labels, num_classes)[0][order], kind="stable")]
    folds = np.empty(len(labels), np.int64)
    folds[order] = np.arange(len(labels)) % count
    return folds


@dataclass(frozen=True)
class _Pooled:
    """Images of a shard: rows of another data set, counted through all its splits in order of ``SPLITS``."""

    base: Manifest
    rows: NDArray[np.int64]
    parallel: ClassVar[bool] = False

    def _parts(self) -> Iterator[Stored]:
        first = 0
        for split in SPLITS:
            own = self.rows[(self.rows >= first) & (self.rows < first + self.base.count(split))] - first
            first += self.base.count(split)
            if len(own):
                yield Stored(self.base, split, own)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for part in self._parts():
            yield from part

    def bytes(self) -> int:
        return sum(part.bytes() for part in self._parts())

    def identity(self) -> Any:
        return [self.base.checksum, self.rows.tolist()]


def is_made_of(base: Manifest, fold: Manifest) -> bool:
    """Return whether a data set hasn't changed since the fold was made of it."""
    now = beside(base)
    return base.checksum == fold.source["sha256"] and fold.source.get("beside", now) == now


class FoldSource:
    """The data set that a fold is named after; see ``labkit.data.prepare.Source``.

    Args:
        request: what is asked for; its data set has a name of ``labkit.config.data.fold_name``.
    """

    def __init__(self, request: Request) -> None:
        found = fold_of_name(request.dataset)
        assert found is not None, "the request names a fold"
        self._request, (self._name, self._fold) = request, found
        given = next((name for name in _OF_THE_WHOLE if getattr(request, name) is not None), None)
        if given is not None:
            flag = "--" + given.replace("_", "-")
            raise InputError(
                f"{flag} is given with --dataset {request.dataset}, a fold of {self._name}; prepare "
                f"{self._name} with it, and then the fold without"
            )

    def changes(self, present: Manifest, *, decided: bool) -> list[str]:
        base = find_manifest(self._request.data_dir, self._name)  # a fold is whole without it
        if base is None or is_made_of(base, present):
            return []
        return [f"preparing again: {self._name} has changed"]

    def plan(self, journal: Journal | None) -> Plan:
        base = load_manifest(self._request.data_dir, self._name)
        if damaged := verify_shards(base):
            raise damage_error(base, damaged)
        splits = [name for name in SPLITS if base.count(name)]
        parts = [labels_and_pictures(base, name) for name in splits]
        labels = np.concatenate([part for part, _ in parts])
        pictures = [picture for _, part in parts for picture in part]
        number, count = map(int, self._fold.split("/"))
        tests = base.count("test")
        parted = len(labels) - tests
        if count > parted:
            raise InputError(f"--fold is {self._fold}; {base.dataset} has {parted} images: give fewer folds")
        folds = folds_of(labels[:parted], base.num_classes, count, base.seed)
        rows = {
            "train": np.flatnonzero(folds != number - 1),
            "validation": np.flatnonzero(folds == number - 1),
        } | ({"test": np.arange(parted, len(labels))} if tests else {})
        trained = {pictures[row] for row in rows["train"]}
        repeated = sum(pictures[row] in trained for row in rows["validation"])
        warning = (
            f"warning: {counted(repeated, 'picture')} of fold {self._fold} with the same pixels as a "
            "training picture, so that validation scores are too good"
        )
        tasks = shard_tasks(
            self._request.directory,
            {name: (own, labels[own]) for name, own in rows.items()},
            partial(_Pooled, base),
            self._request.examples_per_shard,
        )
        paths = [files_of(base, name) for name in splits]
        known = [columns_of(base, name) for name in splits]
        names = [name for name in known[0] if all(name in each for each in known)]
        of_each = {name: _parted([value for each in known for value in each[name]], rows) for name in names}
        step = Step(base.dataset, base.checksum, {"test": Part(tests, [], [])} if tests else {})
        return Plan(
            tasks,
            source={
                "kind": FOLD,
                "location": base.dataset,
                "sha256": base.checksum,
                "beside": beside(base),
                "matches_published": None,
                "fold": self._fold,
                **{name: base.source[name] for name in KEPT if name in base.source},
                "lineage": [*base.source.get("lineage", []), msgspec.to_builtins(step)],
            },
            classes=base.classes,
            all_classes=None,
            multi_label=base.multi_label,
            image_shape=base.image_shape,
            image_format=base.image_format,
            validation_size=len(rows["validation"]),
            train_examples=None,
            files=_parted([path for each in paths for path in each or ()], rows) if all(paths) else {},
            columns={part: {name: values[part] for name, values in of_each.items()} for part in rows},
            lines=(
                f"parting {base.dataset}: fold {self._fold}",
                *lacking(labels, base.classes, {name: rows[name] for name in SPLITS[:2]}),
                *([warning] if repeated else []),
            ),
        )


def _parted(values: list[str], rows: Mapping[str, NDArray[np.int64]]) -> dict[str, list[str]]:
    """Return the values of the images of each split of a fold, from those of all images."""
    return {split: [values[row] for row in own.tolist()] for split, own in rows.items()}
