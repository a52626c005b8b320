"""Write the shards of a data set, and note what an interrupted preparation has done.

A source plans its shards as tasks. Those of pictures are done by several processes at a time.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import PIL

from labkit.data.manifest import FORMAT_VERSION, Shard, file_sha256
from labkit.data.pool import Display, do_tasks
from labkit.data.subset import target_statistics
from labkit.data.tfrecord import temporary_path, write_shard

_BLOCK_BYTES = 2**18  # of pixels that are counted at once; then progress is told
_RECORD_OVERHEAD = 128  # bytes of a record in addition to the image, rounded up


class Examples(Protocol):
    """The images of a shard; other processes get a copy of the object where it is ``parallel``."""

    parallel: ClassVar[bool]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pixels of each image, uint8 row-major HWC, and what its record holds."""
        ...

    def bytes(self) -> int:
        """Return about how many bytes the images of the records have."""
        ...

    def identity(self) -> Any:
        """Return what decides the content, ready for JSON."""
        ...


@dataclass(frozen=True)
class ArrayExamples:
    """Images in memory, uint8 [n, height, width, channels]."""

    images: np.ndarray
    parallel: ClassVar[bool] = False

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for image in self.images:
            pixels = image.tobytes()
            yield pixels, pixels

    def bytes(self) -> int:
        return self.images.nbytes

    def identity(self) -> Any:
        return hashlib.sha256(self.images.tobytes()).hexdigest()


@dataclass(frozen=True)
class ShardTask:
    """A shard to write: its path and split, its images and labels, and the row of the first in the split."""

    path: Path
    split: str
    examples: Examples
    labels: np.ndarray
    first_index: int

    @property
    def bytes(self) -> int:
        """About how many bytes the shard will have."""
        return self.examples.bytes() + len(self.labels) * _RECORD_OVERHEAD


@dataclass(frozen=True)
class Written:
    """A finished shard: its description, how often each value occurs in each channel, and hashes of pixels.

    ``counts``: 3 · 256 numbers. ``hashes``: of each image, 64 bits.
    """

    shard: Shard
    counts: list[int]
    hashes: list[int]


def shard_tasks(
    directory: Path,
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]],
    examples: Callable[[np.ndarray], Examples],
    examples_per_shard: int,
) -> list[ShardTask]:
    """Return the shards to write, split by split in the order of their rows.

    Args:
        directory: the data set's folder.
        splits: by name, what ``examples`` takes of each image, and the labels.
        examples: returns the images of a shard.
        examples_per_shard: how many they are, at most.
    """
    tasks = []
    for split, (rows, labels) in splits.items():
        starts = range(0, len(labels), examples_per_shard)
        for number, start in enumerate(starts):
            part = slice(start, start + examples_per_shard)
            path = directory / f"{split}-{number:05d}-of-{len(starts):05d}.tfrecord"
            tasks.append(ShardTask(path, split, examples(rows[part]), labels[part], start))
    return tasks


@dataclass(frozen=True)
class Plan:
    """Everything about a data set that is decided before a shard is written.

    Args:
        tasks: the shards.
        source: what the manifest records of the source.
        doubts: returns what people should know of the result, from what was written, by the shards' names.
        files: of each split, the path of each image in the source; empty where images have numbers only.
        columns: of each split, what else is known of its images: a text for each row, by the column's name.
        lines: what is said before the work starts.
    """

    tasks: list[ShardTask]
    source: dict[str, Any]
    classes: tuple[str, ...]
    all_classes: tuple[str, ...] | None
    multi_label: bool
    image_shape: tuple[int, int, int]
    image_format: Literal["pixels", "jpeg"]
    validation_size: int
    train_examples: int | None
    doubts: Callable[[Mapping[str, Written]], list[str]] = lambda written: []
    files: Mapping[str, list[str]] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    @property
    def target_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
        """Mean and standard deviation of each number over the training labels; None of classes."""
        labels = [task.labels for task in self.tasks if task.split == "train"]
        if not labels or labels[0].dtype.kind != "f":
            return None, None
        return target_statistics(np.concatenate(labels))

    @property
    def key(self) -> str:
        """A checksum of what the shards will be, by which a later call knows those of an earlier one."""
        content = [
            [task.path.name, task.first_index, task.labels.tolist(), task.examples.identity()]
            for task in self.tasks
        ]
        return hashlib.sha256(json.dumps([FORMAT_VERSION, content]).encode()).hexdigest()


def write_shards(
    tasks: list[ShardTask], plan: str, journal: "Journal", announce: Callable[[str], None]
) -> dict[str, Written]:
    """Write shards and return them by name; each is noted in the journal when it is finished.

    Raises:
        InputError: a picture has changed since it was checked.
        OSError: the disk is full or the folder can't be written to.
    """
    found: dict[str, Written] = {}
    count = sum(len(task.labels) for task in tasks)
    alone = not all(task.examples.parallel for task in tasks)
    try:
        with Display("writing", count, announce) as display:
            for _, written in do_tasks(_write, tasks, count, display.advance, alone=alone):
                journal.add_shard(plan, written)
                found[written.shard.file] = written
    except BaseException:
        for task in tasks:
            temporary_path(task.path).unlink(missing_ok=True)  # on a full disk, the space is needed
        raise
    return found


def _write(task: ShardTask, report: Callable[[int], None]) -> Written:
    counts = np.zeros((3, 256), np.int64)
    hashes: list[int] = []
    block: list[bytes] = []

    def count_values() -> None:
        # Pixels before they become a JPEG: it moves the mean by less than a thousandth.
        values = np.frombuffer(b"".join(block), np.uint8).reshape(-1, 3)
        for channel in range(3):
            counts[channel] += np.bincount(values[:, channel], minlength=256)
        report(len(block))
        block.clear()

    def images() -> Iterator[bytes]:
        for pixels, stored in task.examples:
            hashes.append(int.from_bytes(hashlib.blake2b(pixels, digest_size=8).digest()))
            block.append(pixels)
            if len(block) * len(pixels) > _BLOCK_BYTES:
                count_values()
            yield stored
        count_values()

    shard = write_shard(task.path, images(), task.labels, task.first_index)
    return Written(shard, counts.ravel().tolist(), hashes)


def hashes_of(tasks: list[ShardTask], written: Mapping[str, Written]) -> dict[str, np.ndarray]:
    """Return the hashes of the pixels of each split's images, uint64 [n], of all shards by their names."""
    hashes: dict[str, list[int]] = {}
    for task in tasks:
        hashes.setdefault(task.split, []).extend(written[task.path.name].hashes)
    return {split: np.array(part, np.uint64) for split, part in hashes.items()}


class Journal:
    """What an interrupted preparation in a folder has done, so that the next one goes on there.

    Lines of JSON. Nothing in them is believed without a look at the files: a fact holds for a file whose
    content has the checksum in it, and a shard is used if its plan is the same and its own checksum is right.
    ``labkit.data.folder.clean`` removes the file behind a complete preparation.

    Args:
        directory: the data set's folder.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / ".pictures.tmp"
        self.existed = self._path.exists()

    def facts(self, size: int) -> dict[str, list[Any]]:
        """Return what was found of files by their paths, for pictures that get the side ``size``."""
        found: dict[str, list[Any]] = {}
        for line in self._lines("facts_of", [PIL.__version__, size]):
            found |= line["facts"]
        return found

    def add_facts(self, size: int, facts: Mapping[str, tuple[Any, ...]]) -> None:
        """Note what was found of files."""
        self._add({"facts_of": [PIL.__version__, size], "facts": facts})

    def shards(self, plan: str) -> dict[str, Written]:
        """Return the finished shards of a plan by name; their files are there and have the right checksum."""
        found = {}
        for line in self._lines("plan", plan):
            written = Written(Shard(**line["shard"]), line["counts"], line["hashes"])
            path = self._directory / written.shard.file
            if path.is_file() and file_sha256(path) == written.shard.sha256:
                found[written.shard.file] = written
        return found

    def add_shard(self, plan: str, written: Written) -> None:
        """Note a finished shard."""
        self._add({"plan": plan, **asdict(written)})

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _add(self, line: dict[str, Any]) -> None:
        # A line begins with the end of the one before it, which may have been torn.
        with open(self._path, "a", encoding="ascii") as file:
            file.write("\n" + json.dumps(line))

    def _lines(self, name: str, value: Any) -> Iterator[dict[str, Any]]:
        """Yield the whole lines in which a name has this value."""
        try:
            texts = self._path.read_text("ascii", "replace").splitlines()
        except OSError:
            return
        for text in texts:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and line.get(name) == value:
                yield line
