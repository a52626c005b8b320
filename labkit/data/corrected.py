"""A data set made of another one and of what people marked in it."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from labkit.config.data_sets import CORRECTED
from labkit.data.manifest import Manifest, columns_of, files_of, verify_shards
from labkit.data.marks import nothing_marked
from labkit.data.related import Part, Step
from labkit.data.request import Request
from labkit.data.shards import damage_error, decoded, read_stored, read_stored_with_labels
from labkit.data.write import Journal, Plan, ShardTask, shard_tasks
from labkit.errors import InputError
from labkit.plurals import counted, listed

KEPT = ("resize", "white", "licence", "license")  # facts of a source that hold for what is made of it, too


@dataclass(frozen=True)
class Stored:
    """The images of a shard, as the records of the other data set hold them."""

    base: Manifest
    split: str
    rows: NDArray[np.int64]
    parallel: ClassVar[bool] = False

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for stored in read_stored(self.base, self.split, self.rows):
            is_jpeg = self.base.image_format == "jpeg"
            yield decoded(stored, self.base.image_shape).tobytes() if is_jpeg else stored, stored

    def bytes(self) -> int:
        split = self.base.splits[self.split]
        return sum(shard.bytes for shard in split.shards) * len(self.rows) // max(split.count, 1)

    def identity(self) -> Any:
        return [self.base.checksum, self.split, self.rows.tolist()]


class CorrectedSource:
    """Another data set with its marks; see ``labkit.data.prepare.Source``.

    Args:
        request: what is asked for.
        known: the manifest of an earlier preparation.
    """

    def __init__(self, request: Request, known: Manifest | None) -> None:
        self._request, self._known = request, known

    def changes(self, present: Manifest, *, decided: bool) -> list[str]:
        """Raises InputError for other data or marks under the name of a data set that is there."""
        found, source = self._request.corrections, present.source
        if found is None:
            return []
        if (found.base.checksum, found.sha256) == (source["sha256"], source["marks_sha256"]):
            changed = source.get("beside", now := beside(found.base)) != now
            return ["preparing again: what is known beside the labels has changed"] if changed else []
        raise InputError(
            f"data set {present.dataset!r} is there, made of other data or marks; give another --name, or "
            f"delete {present.directory}"
        )

    def plan(self, journal: Journal | None) -> Plan:
        found = self._request.corrections
        if found is None:
            assert self._known is not None  # else nothing says that it is a corrected one
            raise InputError(
                f"{self._known.dataset} was made of {self._known.source['location']} and its marks; make it "
                f"again with: {self._known.prepare_command}"
            )
        base = found.base
        if damaged := verify_shards(base):
            raise damage_error(base, damaged)
        tasks: list[ShardTask] = []
        steps, files, sizes, columns = {}, {}, {}, {}
        for name, split in base.splits.items():
            labels, _ = labels_and_pictures(base, name)
            given = labels.copy()
            for row, label in found.labels.get(name, {}).items():
                given[row] = label
            excluded = list(found.excluded.get(name, []))
            rows = np.setdiff1d(np.arange(split.count), excluded)
            _check_left(base, name, labels, given[rows])
            steps[name] = Part(split.count, np.flatnonzero(given != labels).tolist(), excluded)
            sizes[name] = len(rows)
            if (paths := files_of(base, name)) is not None:
                files[name] = [paths[row] for row in rows.tolist()]
            known = columns_of(base, name)
            columns[name] = {each: [values[row] for row in rows.tolist()] for each, values in known.items()}
            tasks += shard_tasks(
                self._request.directory,
                {name: (rows, given[rows])},
                partial(Stored, base, name),
                self._request.examples_per_shard,
            )
        if not any(part.changed or part.excluded for part in steps.values()):
            raise nothing_marked(base)
        step = Step(base.dataset, base.checksum, steps)
        return Plan(
            tasks,
            source={
                "kind": CORRECTED,
                "location": base.dataset,
                "sha256": base.checksum,
                "matches_published": None,
                "marks_sha256": found.sha256,
                "beside": beside(base),
                "changed": {name: len(part.changed) for name, part in steps.items()},
                "excluded": {name: len(part.excluded) for name, part in steps.items()},
                **{name: base.source[name] for name in KEPT if name in base.source},
                "lineage": [*base.source.get("lineage", []), msgspec.to_builtins(step)],
            },
            classes=base.classes,
            all_classes=None,
            multi_label=False,
            image_shape=base.image_shape,
            image_format=base.image_format,
            validation_size=sizes.get("validation", 0),
            train_examples=None,
            files=files,
            columns=columns,
            lines=tuple(
                f"{name}: {counted(len(part.changed), 'label')} changed, "
                f"{counted(len(part.excluded), 'image')} excluded"
                for name, part in steps.items()
            ),
        )


def labels_and_pictures(manifest: Manifest, split: str) -> tuple[NDArray[Any], list[bytes]]:
    """Return the labels of a split, and a digest of each image. Reads a shard at a time, to spare memory."""
    labels, pictures, first = [np.zeros((0, *manifest.target_shape), manifest.target_dtype)], list[bytes](), 0
    for shard in manifest.splits[split].shards:
        stored, own = read_stored_with_labels(manifest, split, np.arange(first, first + shard.count))
        labels.append(own)
        pictures += [hashlib.blake2b(picture, digest_size=16).digest() for picture in stored]
        first += shard.count
    return np.concatenate(labels), pictures


def beside(manifest: Manifest) -> str:
    """Return a digest of what is known of the images beside their labels: their files and columns."""
    content = [(files_of(manifest, name), columns_of(manifest, name)) for name in manifest.splits]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_left(base: Manifest, split: str, before: NDArray[Any], after: NDArray[Any]) -> None:
    """Raise InputError where the marks leave a split, or a class of the training split, without an image."""
    if len(before) and not len(after):
        raise InputError(f"the marks exclude all {split} images of {base.dataset}; keep some")
    gone = np.setdiff1d(before, after)
    if split == "train" and len(gone):
        names = listed([base.classes[number] for number in gone.tolist()])
        raise InputError(f"the marks leave no training image of {names}; keep some")
