"""Turn a source into a prepared data set: write the shards, then the manifest.

The manifest is written last, so an interrupted call leaves none and the next call writes the shards again.
TensorFlow isn't needed.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit import home
from labkit.config.data_sets import is_own
from labkit.data import shapes
from labkit.data.cifar10 import sources
from labkit.data.cifar10.archives import read_archive
from labkit.data.folder import (
    check_space,
    clean,
    locked,
    path_errors,
    recall_manifest,
    retire_manifest,
    writing_errors,
)
from labkit.data.manifest import (
    DATASETS,
    GENERATED,
    MULTI_LABEL,
    Manifest,
    Shard,
    Split,
    find_manifest,
    write_manifest,
)
from labkit.data.request import PrepareResult, Request, check_request, check_whole, name_of
from labkit.data.shard_files import verify_shards
from labkit.data.subset import (
    ImageData,
    channel_statistics,
    class_names,
    strata,
    stratified_rows,
    with_classes,
    with_train_examples,
)
from labkit.data.tfrecord import write_shard
from labkit.errors import InputError
from labkit.plurals import counted

__all__ = ["DEFAULT_EXAMPLES_PER_SHARD", "PrepareResult", "prepare"]

DEFAULT_EXAMPLES_PER_SHARD = 2_500
# Hold out one example in 10, so 5,000 of CIFAR-10's 50,000: He et al. 2016 (arXiv:1512.03385), section 4.2.
_VALIDATION_DIVISOR = 10
_RECORD_OVERHEAD = 128  # bytes of a record in addition to the pixels, rounded up


def prepare(
    dataset: str | None,
    data_dir: str | os.PathLike[str] | None,
    *,
    archive: str | os.PathLike[str] | None = None,
    validation_size: int | None = None,
    url: str | None = None,
    seed: int = 0,
    examples_per_shard: int = DEFAULT_EXAMPLES_PER_SHARD,
    timeout: float = sources.DEFAULT_TIMEOUT,
    attempts: int = sources.DEFAULT_ATTEMPTS,
    progress: Callable[[str], None] | None = None,
    classes: Sequence[str] | None = None,
    train_examples: int | None = None,
    images: str | os.PathLike[str] | None = None,
    name: str | None = None,
    image_size: int | None = None,
    resize: str | None = None,
    skip_damaged: bool = False,
) -> PrepareResult:
    """Prepare `dataset` under `data_dir`, doing only what is not done yet.

    If the data set is already prepared, this only verifies its shards. Concurrent calls wait for each other.

    Args:
        dataset: one of ``DATASETS``, or the name of pictures that were prepared before; None with `images`.
        data_dir: the folder of data sets, made where it is missing; None: ``data`` in labkit's home, which
            holds whole data sets only.
        archive: a published CIFAR-10 archive, or the folder extracted from one; downloaded where None.
        validation_size: number of training examples to hold out for validation, with each class (or each set
            of labels) in proportion. None keeps the prepared size, or holds out a tenth in a new data set.
        url: a mirror to download from.
        seed: decides which examples are held out, and the content of a generated data set.
        examples_per_shard: number of examples per shard file.
        timeout: seconds without an answer after which a download attempt fails.
        attempts: how often to try a download.
        progress: called with one line for each slow operation; None prints nothing.
        classes: names, or numbers as text, of the classes to keep; a class's label is its index here. None
            keeps the prepared classes, or all in a new data set.
        train_examples: number of training examples to keep after the validation split, with each class in
            proportion. None keeps the prepared number, or all in a new data set.
        images: pictures of one's own: a folder or a CSV file, see docs/data.md.
        name: the name of their data set; None for that of the folder or file.
        image_size: the side of each image in pixels; None for one that suits the pictures.
        resize: ``crop`` or ``letterbox``; None for the first, or as prepared before.
        skip_damaged: leaves out files that cannot be used instead of refusing all.

    Raises:
        InputError: an argument is out of range, the source cannot be downloaded or read, or `data_dir` cannot
            be written to or has too little space.
    """
    if data_dir is None and images is None:
        check_whole(classes, train_examples)
    if images is not None and dataset is not None:
        raise InputError(f"--dataset is {dataset!r} together with --images; name your pictures with --name")
    if images is None and name is not None:
        raise InputError(f"--name is {name!r} without --images; choose a prepared data set with --dataset")
    folder = Path(os.path.abspath(home.expanded(images))) if images is not None else None
    request = Request(
        dataset=name_of(folder, name) if folder is not None else dataset or DATASETS[0],
        data_dir=home.expanded(data_dir or home.data_home()).absolute(),
        archive=home.expanded(archive).absolute() if archive is not None else None,
        validation_size=validation_size,
        seed=seed,
        url=url,
        timeout=timeout,
        attempts=attempts,
        examples_per_shard=examples_per_shard,
        announce=progress or (lambda line: None),
        classes=tuple(classes) if classes is not None else None,
        train_examples=train_examples,
        images=folder,
        image_size=image_size,
        resize=resize,
        skip_damaged=skip_damaged,
    )
    with path_errors(request.data_dir, request.archive):
        check_request(request)
        with locked(request.directory, request.announce):
            if not is_own(request.dataset):
                return _prepare_locked(request)
            from labkit.data.images.prepare import prepare_pictures

            return prepare_pictures(request)


def _prepare_locked(request: Request) -> PrepareResult:
    present, damage = _readable_manifest(request)
    if present is None:
        messages = [damage] if damage else []
        return _rebuild(request, recall_manifest(request.directory), messages)
    changes = _changes(request, present)
    if changes:
        return _rebuild(request, present, changes)
    damaged = verify_shards(present)
    if damaged:
        return _repair(request, present, damaged)
    clean(request.directory, present)
    return PrepareResult(present, False, (f"{request.dataset} is prepared in {request.directory}",))


def _readable_manifest(request: Request) -> tuple[Manifest | None, str | None]:
    try:
        return find_manifest(request.data_dir, request.dataset), None
    except InputError as error:
        return None, f"starting over: {str(error).split(';')[0]}"


def _changes(request: Request, present: Manifest) -> list[str]:
    """Return a line for each difference between the prepared data set and the request."""
    changes = []
    if request.validation_size is not None and request.validation_size != present.validation_size:
        changes.append(
            f"splitting again: {counted(request.validation_size, 'validation example')} instead of "
            f"{present.validation_size}"
        )
    if request.seed != present.seed:
        changes.append(f"preparing again: seed {request.seed} instead of {present.seed}")
    if request.classes is not None:
        names = class_names(request.classes, present.all_classes or present.classes)
        if names != present.classes:
            changes.append(
                f"preparing again: classes {', '.join(names)} instead of {', '.join(present.classes)}"
            )
    if request.train_examples not in (None, present.train_examples):
        before = "all" if present.train_examples is None else present.train_examples
        changes.append(
            f"preparing again: {counted(request.train_examples, 'training example')} instead of {before}"
        )
    if request.archive is not None and sources.source_sha256(request.archive) != present.source["sha256"]:
        changes.append(
            f"preparing again: {request.archive} differs from the source {present.source['location']}"
        )
    return changes


def _rebuild(request: Request, known: Manifest | None, messages: list[str]) -> PrepareResult:
    """Write every shard, then the manifest."""
    for message in messages:
        request.announce(message)
    data, source = _read_source(request, known)
    all_classes = data.classes
    kept = request.classes or (known.classes if known and known.all_classes else None)
    if kept:
        data = with_classes(data, class_names(kept, all_classes))
    size, train_examples = request.validation_size, request.train_examples
    if size is None:
        size = len(data.train_labels) // _VALIDATION_DIVISOR
        if known is not None and known.classes == data.classes:
            size = known.validation_size
    if train_examples is None and known is not None:
        train_examples = known.train_examples
    parts = _split(data, size, request.seed, train_examples)
    check_space(request.directory, _bytes_of(*(images for images, _ in parts.values())))
    with writing_errors(request.directory):
        retire_manifest(request.directory)
        splits = {}
        for name, (images, labels) in parts.items():
            request.announce(f"writing {counted(len(images), f'{name} example')}")
            splits[name] = _write_split(request, name, images, labels)
        mean, std = channel_statistics(parts["train"][0])
        manifest = Manifest(
            dataset=request.dataset,
            directory=request.directory,
            classes=data.classes,
            image_shape=data.train_images.shape[1:],
            splits=splits,
            channel_mean=mean,
            channel_std=std,
            source=source,
            validation_size=size,
            seed=request.seed,
            multi_label=data.multi_label,
            all_classes=all_classes if data.classes != all_classes else None,
            train_examples=train_examples,
        )
        write_manifest(manifest)
        clean(request.directory, manifest)
    counts = ", ".join(f"{split.count:,} {name}" for name, split in splits.items())
    done = f"{request.dataset} is prepared in {request.directory}: {counts}"
    return PrepareResult(manifest, True, (*messages, *_source_notes(source), done))


def _write_split(request: Request, name: str, images: np.ndarray, labels: np.ndarray) -> Split:
    starts = range(0, len(images), request.examples_per_shard)
    shards = []
    for number, start in enumerate(starts):
        rows = slice(start, start + request.examples_per_shard)
        path = request.directory / f"{name}-{number:05d}-of-{len(starts):05d}.tfrecord"
        shards.append(write_shard(path, images[rows], labels[rows], start))
    return Split(name, len(images), tuple(shards))


def _repair(request: Request, present: Manifest, damaged: list[str]) -> PrepareResult:
    """Write only the damaged shards again."""
    problem = f"damaged or missing: {', '.join(damaged)}"
    request.announce(problem)
    try:
        data, _ = _read_source(request, present)
    except InputError as error:
        raise InputError(
            f"{problem} in {request.directory}, and the source cannot be read: {error}"
        ) from None
    if present.all_classes:
        data = with_classes(data, present.classes)
    splits = _split(data, present.validation_size, present.seed, present.train_examples)
    check_space(request.directory, sum(s.bytes for _, _, s in _shards(present) if s.file in damaged))
    for name, first, shard in _shards(present):
        if shard.file not in damaged:
            continue
        images, labels = (array[first : first + shard.count] for array in splits[name])
        with writing_errors(request.directory):
            written = write_shard(present.shard_path(shard), images, labels, first)
        if written != shard:
            raise InputError(
                f"{shard.file} cannot be rebuilt, because {present.source['location']} has changed since the "
                f"data set was prepared; give the original with --archive, or delete {request.directory}"
            )
    clean(request.directory, present)
    return PrepareResult(
        present, True, (problem, f"rebuilt {counted(len(damaged), 'shard')} in {request.directory}")
    )


def _shards(manifest: Manifest) -> list[tuple[str, int, Shard]]:
    """List every shard with the name of its split and the row of its first example."""
    rows = []
    for name, split in manifest.splits.items():
        first = 0
        for shard in split.shards:
            rows.append((name, first, shard))
            first += shard.count
    return rows


def _split(
    data: ImageData, size: int, seed: int, train_examples: int | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images and labels by split; depends only on the arguments."""
    total = len(data.train_labels)
    if size >= total:
        raise InputError(f"validation size {size} leaves nothing to train on; give less than {total}")
    held_out = stratified_rows(*strata(data.train_labels, len(data.classes)), size, seed)
    splits = {"train": (data.train_images[~held_out], data.train_labels[~held_out])}
    if train_examples is not None:
        splits["train"] = with_train_examples(*splits["train"], len(data.classes), train_examples, seed)
    if size:
        splits["validation"] = (data.train_images[held_out], data.train_labels[held_out])
    splits["test"] = (data.test_images, data.test_labels)
    return splits


def _bytes_of(*images: np.ndarray) -> int:
    return sum(array.nbytes + len(array) * _RECORD_OVERHEAD for array in images)


def _read_source(request: Request, known: Manifest | None) -> tuple[ImageData, dict[str, Any]]:
    """Read the requested source, else the source of `known`, else a download; return the data and source."""
    if request.dataset in GENERATED:
        request.announce(f"generating the {request.dataset} data set")
        generated = shapes.generate(request.seed, multi_label=request.dataset in MULTI_LABEL)
        return generated, shapes.describe(generated)
    path, kind, location = _locate_cifar10(request, known.source if known else {})
    request.announce(f"reading {path}")
    return read_archive(path), sources.describe(path, kind, location)


def _locate_cifar10(request: Request, known: dict[str, Any]) -> tuple[Path, str, str]:
    """Return the path to read the data from, and the kind and location of the source to record."""
    if request.archive is not None:
        return request.archive, "folder" if request.archive.is_dir() else "archive", str(request.archive)
    if request.url is None and known.get("kind") in ("archive", "folder"):
        path = Path(known["location"])
        if not path.exists():
            raise InputError(f"{path}, the source of the data set, no longer exists; give --archive PATH")
        return path, known["kind"], known["location"]
    url = request.url or known.get("location") or sources.DEFAULT_URL
    # The archive itself, and about the same again for its records.
    check_space(request.directory, 2 * max(published.bytes for published in sources.PUBLISHED.values()))
    path = sources.download(
        request.data_dir / "downloads",
        url=url,
        timeout=request.timeout,
        attempts=request.attempts,
        announce=request.announce,
    )
    return path, "download", url


def _source_notes(source: dict[str, Any]) -> list[str]:
    if source["matches_published"] is not False:
        return []
    return [
        f"note: {source['location']} is not one of the published archives (SHA-256 {source['sha256']}); "
        "the manifest records this"
    ]
