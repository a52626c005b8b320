"""The manifest of a prepared data set: its splits, classes, checksums and statistics; and whether its shards
are there.

Needs neither TensorFlow nor NumPy, so quick commands and the dashboard can read it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from labkit import home
from labkit.config.data_sets import PUBLISHED, Targets, is_own, prepare_command, unknown_data_set
from labkit.errors import InputError, reason_of
from labkit.plurals import facts_html, facts_text, listed, printable
from labkit.run_directory.files import open_regular

FORMAT_VERSION = 3
MANIFEST_NAME = "manifest.json"
_SHARD_NAME = re.compile(r"[a-z]+-\d{5}-of-\d{5}\.tfrecord")


class OtherVersion(InputError):
    """A data set was prepared by another version of labkit."""


class _OtherFormat(ValueError):
    """A manifest is whole, but of another format."""


@dataclass(frozen=True)
class Shard:
    """One TFRecord file: name within the data set's folder, number of examples, SHA-256, size in bytes."""

    file: str
    count: int
    sha256: str = field(repr=False)
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)]

    def __post_init__(self) -> None:
        # Anyone can edit a manifest; a name that contains a path must not reach other folders.
        if not _SHARD_NAME.fullmatch(self.file):
            raise ValueError(f"shard name {self.file!r} is not of the form split-00000-of-00001.tfrecord")


@dataclass(frozen=True)
class Split:
    """A split (``train``, ``validation`` or ``test``): its number of examples and its shards in order."""

    name: str
    count: int
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        if self.count != sum(shard.count for shard in self.shards):
            raise ValueError(f"split {self.name!r} has {self.count} examples, but its shards have others")


@dataclass(frozen=True)
class Manifest:
    """A prepared data set.

    Args:
        dataset: its name: one of ``BUILT_IN`` of labkit.config.data, or somebody's own.
        directory: the folder with the shards; not stored in the file, so a data set can be moved.
        classes: class names; a label is an index into them.
        image_shape: (height, width, channels) of every image.
        splits: by name; a split without examples is absent.
        channel_mean, channel_std: mean and standard deviation of each channel over the training split, for
            pixels from 0 to 1.
        source: ``kind`` (download, archive, folder, generated, images, npz, tfrecords, examples, corrected,
            fold), ``location``, ``sha256`` and ``matches_published`` (None if no checksum is published for
            this kind of source).
        validation_size: number of examples held out of the training data.
        seed: decides which examples are held out, and the content of a generated data set.
        format_version: version of the file format; other versions are refused.
        multi_label: whether an image can have several classes; its target is then a row of zeros and ones.
        target_mean, target_std: of each number over the training split, where the label of an image isn't a
            class but one or several numbers, float32, and ``classes`` are their names; None for classes.
        all_classes: the source's classes if only some of them were chosen; None otherwise.
        train_examples: number of training examples chosen after the validation split; None for all.
        image_format: how a record holds its image: ``pixels``, or ``jpeg``, whose decoded image has
            ``image_shape``, too.
    """

    dataset: str
    directory: Path
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    splits: dict[str, Split]
    channel_mean: tuple[float, ...]
    channel_std: tuple[float, ...]
    source: dict[str, Any]
    validation_size: int
    seed: int
    format_version: int = field(default=FORMAT_VERSION)
    multi_label: bool = False
    all_classes: tuple[str, ...] | None = None
    train_examples: int | None = None
    image_format: Literal["pixels", "jpeg"] = "pixels"
    target_mean: tuple[float, ...] | None = None
    target_std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for values in (self.target_mean, self.target_std):
            if values is not None and (len(values) != len(self.classes) or self.multi_label):
                raise ValueError("its labels are numbers and classes at once")

    def facts(self) -> list[tuple[str, str]]:
        """Return what people want to know of the data set, by name."""
        counts = ", ".join(f"{split.count:,} {name}" for name, split in self.splits.items())
        labels = "; several for an image" if self.multi_label else ""
        what = "numbers" if self.targets == "numbers" else "classes"
        return [
            ("data set", self.dataset),
            ("images", f"{counts}; {'×'.join(map(str, self.image_shape))}"),
            (what, listed(self.classes) + labels),
            ("folder", str(self.directory)),
            ("checksum", self.checksum[:12]),
        ]

    def __repr__(self) -> str:
        return facts_text(self.facts())

    def _repr_html_(self) -> str:
        return facts_html(self.facts())

    @property
    def num_classes(self) -> int:
        """The number of classes, or of numbers in a label: of the network's outputs."""
        return len(self.classes)

    @property
    def targets(self) -> Targets:
        """What the label of an image is: a ``class``, several ``classes``, or ``numbers``."""
        if self.target_mean is not None:
            return "numbers"
        return "classes" if self.multi_label else "class"

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one image's label: (), or (num_classes,) for several classes and for numbers."""
        return () if self.targets == "class" else (self.num_classes,)

    @property
    def target_dtype(self) -> str:
        """The type of a label in memory: ``float32`` for numbers, else ``int32``."""
        return "float32" if self.targets == "numbers" else "int32"

    def count(self, split: str) -> int:
        """Return the number of examples of `split`; 0 if the data set has no such split."""
        return self.splits[split].count if split in self.splits else 0

    def shard_path(self, shard: Shard) -> Path:
        """Return where `shard` is stored."""
        return self.directory / shard.file

    @property
    def prepare_command(self) -> str:
        """The command that prepares this data set again."""
        kind, location = (str(self.source[name]) for name in ("kind", "location"))
        return prepare_command(self.dataset, str(self.directory.parent), kind=kind, location=location)

    @property
    def checksum(self) -> str:
        """SHA-256 of everything that affects training: classes, splits, shard checksums and statistics.

        The folder of the data set and the source that it was read from are not included.
        """
        content: dict[str, Any] = {
            "dataset": self.dataset,
            "classes": self.classes,
            "image_shape": self.image_shape,
            "channel_mean": self.channel_mean,
            "channel_std": self.channel_std,
            "validation_size": self.validation_size,
            "seed": self.seed,
            "splits": {
                name: [(shard.file, shard.count, shard.sha256) for shard in split.shards]
                for name, split in self.splits.items()
            },
        }
        if self.multi_label:  # only then, so that data sets prepared before this field existed stay valid
            content["multi_label"] = True
        if self.image_format != "pixels":
            content["image_format"] = self.image_format
        if self.target_mean is not None:
            content["targets"] = [self.target_mean, self.target_std]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the file's content."""
        content = asdict(self)
        del content["directory"]
        content["checksum"] = self.checksum
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, directory: Path, *, any_format: bool = False) -> "Manifest":
        """Return the manifest that :meth:`to_json` wrote; raise ValueError for any other text.

        ``any_format``: also return that of a data set whose records another version of labkit wrote.
        """
        try:
            content = json.loads(text)
            if content["format_version"] != FORMAT_VERSION and not any_format:
                raise _OtherFormat(
                    f"was written by another version of labkit (format {content['format_version']}, "
                    f"here {FORMAT_VERSION})"
                )
            manifest = msgspec.convert({**content, "directory": directory}, cls)
            msgspec.convert(manifest.source, _Source)
            if manifest.checksum != content["checksum"]:
                raise ValueError("its checksum does not match its content")
        except KeyError as error:
            raise ValueError(f"it has no {error}") from None
        except (RecursionError, TypeError) as error:  # JSON nested too deeply, or a list instead of a dict
            raise ValueError(str(error)) from None
        return manifest


class _Source(TypedDict):
    """What the source of each data set has."""

    kind: str
    location: str
    sha256: str | None
    matches_published: bool | None


def find_manifest(data_dir: str | os.PathLike[str], dataset: str) -> Manifest | None:
    """Return the manifest of `dataset` under `data_dir`, or None if the data set is not prepared.

    Raises:
        InputError: the manifest exists but cannot be read or is damaged.
        OtherVersion: another version of labkit wrote it.
    """
    path = Path(data_dir) / dataset / MANIFEST_NAME
    try:
        with open_regular(path) as file:
            text = file.read().decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {reason_of(error)}; {_way_out(data_dir, dataset)}"
        ) from None
    try:
        manifest = Manifest.from_json(text, path.parent)
    except _OtherFormat as error:
        raise OtherVersion(f"{path} {printable(str(error))}; {_way_out(data_dir, dataset)}") from None
    except ValueError as error:
        raise InputError(
            f"{path} is damaged ({printable(str(error))}); {_way_out(data_dir, dataset)}"
        ) from None
    if manifest.dataset != dataset:  # a folder that was copied or renamed
        raise InputError(
            f"{path} is of the data set {manifest.dataset!r}; give its folder that name again, or "
            f"{_way_out(data_dir, dataset)}"
        )
    return manifest


def load_manifest(data_dir: str | os.PathLike[str], dataset: str) -> Manifest:
    """Return the manifest of `dataset` under `data_dir`.

    Raises:
        InputError: it is not prepared there, or its manifest cannot be read or is damaged.
    """
    manifest = find_manifest(data_dir, dataset)
    if manifest is not None:
        return manifest
    if is_own(dataset):
        is_home = Path(data_dir) == home.data_home()
        raise unknown_data_set(dataset, str(data_dir), prepared_names(data_dir), is_home=is_home)
    raise InputError(f"no prepared {dataset!r} data set in {data_dir}; {_way_out(data_dir, dataset)}")


def prepared_names(data_dir: str | os.PathLike[str]) -> list[str]:
    """Return the names of the data sets in a folder, in alphabetical order; a damaged one is among them."""
    try:
        return sorted(path.parent.name for path in Path(data_dir).glob(f"*/{MANIFEST_NAME}"))
    except OSError:  # the folder may not be searched
        return []


def _way_out(data_dir: str | os.PathLike[str], dataset: str) -> str:
    archive = " (without a network, add --archive PATH)" if dataset in PUBLISHED else ""
    return f"prepare it with: {prepare_command(dataset, str(data_dir))}{archive}"


def write_manifest(manifest: Manifest) -> Path:
    """Write `manifest` into its folder atomically and return the file's path."""
    return replace_file(manifest.directory / MANIFEST_NAME, manifest.to_json())


def write_files(manifest: Manifest, files: Mapping[str, list[str]]) -> None:
    """Write which file each image was made from, by split and row; ``files`` may be empty."""
    _write_beside(manifest, "files", files)


def files_of(manifest: Manifest, split: str) -> list[str] | None:
    """Return the path of the file that each image of a split was made from, in the folder of its source.

    None where images have numbers only, and where an earlier version of labkit prepared the data set.
    """
    files = _read_beside(manifest, "files", dict[str, list[str]]).get(split, [])
    return files if len(files) == manifest.count(split) else None


def write_columns(manifest: Manifest, columns: Mapping[str, Mapping[str, list[str]]]) -> None:
    """Write what else is known of each image, by split, column and row; there may be no columns."""
    _write_beside(manifest, "columns", columns)


def columns_of(manifest: Manifest, split: str) -> dict[str, list[str]]:
    """Return what else is known of the images of a split: a text for each row, by column."""
    columns = _read_beside(manifest, "columns", dict[str, dict[str, list[str]]]).get(split, {})
    return {name: values for name, values in columns.items() if len(values) == manifest.count(split)}


def _write_beside(manifest: Manifest, what: str, content: Mapping[str, Any]) -> None:
    """Write ``<what>.json`` beside the manifest, and whose it is; nothing without content."""
    if any(content.values()):
        text = json.dumps({"checksum": manifest.checksum, what: content})
        replace_file(manifest.directory / f"{what}.json", text)


def _read_beside(manifest: Manifest, what: str, kind: type) -> Any:
    """Return what ``<what>.json`` beside the manifest holds as a ``kind``; empty unless it is this one's.

    Earlier versions of labkit wrote the names of files alone.
    """
    try:
        with open_regular(manifest.directory / f"{what}.json") as file:
            found = msgspec.json.decode(file.read(), type=dict[str, Any])
        if found.pop("checksum", manifest.checksum) == manifest.checksum:
            return msgspec.convert(found.get(what, found), kind)
    except (OSError, ValueError):
        pass
    return kind()


def replace_file(path: Path, text: str) -> Path:
    """Write a file whole, or not at all, and return its path. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


def check_same_data(manifest: Manifest, recorded: str | None, run: Path) -> None:
    """Raise InputError if ``recorded``, the checksum of a run's data, isn't that of ``manifest``."""
    if recorded not in (None, manifest.checksum):
        raise InputError(
            f"{run} was trained on other data than {manifest.directory} holds now, or another version of "
            f"labkit prepared it (checksum {str(recorded)[:12]} there, {manifest.checksum[:12]} here); "
            "prepare the same data again with that version, name its folder with --data-dir, or train anew "
            "with --overwrite"
        )


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_size(manifest: Manifest, shard: Shard) -> bool:
    """Return whether a shard exists and has the size recorded in the manifest."""
    try:
        return manifest.shard_path(shard).stat().st_size == shard.bytes
    except OSError:
        return False


def verify_shards(manifest: Manifest, splits: Iterable[str] | None = None) -> list[str]:
    """Return the file names of shards that are missing or whose checksum is wrong.

    Reads every shard, in parallel threads because hashing releases the interpreter lock.

    Args:
        manifest: the data set.
        splits: the splits to check; None checks all.
    """
    names = list(manifest.splits) if splits is None else list(splits)
    shards = [shard for name in names for shard in manifest.splits[name].shards]

    def is_intact(shard: Shard) -> bool:
        try:
            return has_size(manifest, shard) and file_sha256(manifest.shard_path(shard)) == shard.sha256
        except OSError:
            return False

    with ThreadPoolExecutor(max_workers=4) as pool:
        intact = list(pool.map(is_intact, shards))
    return [shard.file for shard, ok in zip(shards, intact, strict=True) if not ok]
