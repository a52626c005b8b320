"""Turn a source into a prepared data set: choose the examples, write the shards, then the manifest.

Everything that can be refused is found before a shard is written. The manifest is written last, so an
interrupted call leaves none; the next call goes on after the shards that are already there. TensorFlow isn't
needed.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import PIL

from labkit import home
from labkit.config.data_sets import (
    CORRECTED,
    EXAMPLES,
    FOLD,
    GENERATED,
    IMAGES,
    MARKS_NAME,
    OWN_FILES,
    TARGETS,
    checked_name,
    fold_of_name,
    is_own,
)
from labkit.data import shapes
from labkit.data.cifar10 import sources
from labkit.data.corrected import CorrectedSource
from labkit.data.folder import (
    check_space,
    clean,
    locked,
    path_errors,
    recall_manifest,
    retire_manifest,
    writing_errors,
)
from labkit.data.folds import FoldSource
from labkit.data.images.walk import shown
from labkit.data.manifest import (
    Manifest,
    Shard,
    Split,
    find_manifest,
    load_manifest,
    replace_file,
    verify_shards,
    write_columns,
    write_files,
    write_manifest,
)
from labkit.data.marks import corrections_of, read_marks
from labkit.data.request import PrepareResult, Request, requested
from labkit.data.subset import DIVISOR, ImageData, class_names, counted_statistics, split_rows, with_classes
from labkit.data.write import ArrayExamples, Journal, Plan, Written, shard_tasks, write_shards
from labkit.errors import InputError
from labkit.plurals import counted, listed


class ArraySource:
    """A published data set, or images that labkit draws; see ``labkit.data.prepare.Source``.

    Args:
        request: what is asked for.
        known: the manifest of an earlier preparation; its source is read where no other one is named.
    """

    def __init__(self, request: Request, known: Manifest | None) -> None:
        self._request, self._known = request, known
        self._form = sources.FORMS.get(request.dataset, sources.CIFAR10)

    def changes(self, present: Manifest, *, decided: bool) -> list[str]:
        archive = self._request.archive
        if archive is None or self._form.sha256(archive) == present.source["sha256"]:
            return []
        return [f"preparing again: {archive} differs from the source {present.source['location']}"]

    def plan(self, journal: Journal | None) -> Plan:
        request, known = self._request, self._known
        data, source, lines = self._read()
        all_classes = data.classes
        if request.classes:
            data = with_classes(data, class_names(request.classes, all_classes))
        size = request.validation_size
        if size is None:
            size = len(data.train_labels) // DIVISOR
            if known is not None and known.classes == data.classes:
                size = known.validation_size
        return Plan(
            shard_tasks(
                request.directory,
                _split(data, size, request.seed, request.train_examples),
                ArrayExamples,
                request.examples_per_shard,
            ),
            source=source,
            classes=data.classes,
            all_classes=all_classes if data.classes != all_classes else None,
            multi_label=data.multi_label,
            image_shape=data.train_images.shape[1:],
            image_format="pixels",
            validation_size=size,
            train_examples=request.train_examples,
            lines=lines,
        )

    def _read(self) -> tuple[ImageData, dict[str, Any], tuple[str, ...]]:
        """Read the requested source, else the known one, else a download."""
        request = self._request
        if request.dataset in GENERATED:
            request.announce(f"generating the {request.dataset} data set")
            data = shapes.generate(request.seed, targets=TARGETS.get(request.dataset, "class"))
            return data, shapes.describe(data), ()
        path, kind, location = self._locate()
        request.announce(f"reading {path}")
        source = sources.describe(path, kind, location, self._form)
        note = (
            f"note: {source['location']} is not one of the published archives "
            f"(SHA-256 {source['sha256']}); the manifest records this"
        )
        return self._form.read(path), source, (note,) if source["matches_published"] is False else ()

    def _locate(self) -> tuple[Path, str, str]:
        """Return the path to read the data from, and the kind and location of the source to record."""
        request, known = self._request, self._known.source if self._known else {}
        if request.archive is not None:
            kind = "folder" if request.archive.is_dir() else "archive"
            return request.archive, kind, str(request.archive)
        if request.url is None and known.get("kind") in ("archive", "folder"):
            path = Path(known["location"])
            if not path.exists():
                raise InputError(f"{path}, the source of the data set, no longer exists; give --archive PATH")
            return path, known["kind"], known["location"]
        url = request.url or known.get("location") or sources.default_url(self._form)
        # The archive itself, and about the same again for its records.
        check_space(request.directory, 2 * max(published.bytes for published in sources.PUBLISHED.values()))
        path = sources.download(
            request.data_dir / "downloads",
            form=self._form,
            url=url,
            timeout=request.timeout,
            attempts=request.attempts,
            announce=request.announce,
        )
        return path, "download", url


def _split(
    data: ImageData, size: int, seed: int, train_examples: int | None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images and labels by split; depends only on the arguments."""
    rows = split_rows(data.train_labels, len(data.classes), size, seed, train_examples)
    splits = {name: (data.train_images[part], data.train_labels[part]) for name, part in rows.items()}
    return splits | {"test": (data.test_images, data.test_labels)}


class Source(Protocol):
    """Where the examples of a data set come from."""

    def changes(self, present: Manifest, *, decided: bool) -> list[str]:
        """Return a line where the source isn't what the prepared data set was made from.

        ``decided``: whether it is prepared again anyway.
        """
        ...

    def plan(self, journal: Journal | None) -> Plan:
        """Read and check the examples, and decide everything. Writes nothing but the journal."""
        ...


def prepare(
    dataset: str | None = None, data_dir: str | os.PathLike[str] | None = None, **options: Any
) -> PrepareResult:
    """Prepare `dataset` under `data_dir`, doing only what is not done yet.

    If the data set is already prepared, this only verifies its shards. Concurrent calls wait for each other.

    Args:
        dataset: one of ``DATASETS``, or the name of pictures that were prepared before; None with ``images``.
        data_dir: the folder of data sets, made where it is missing; None: ``data`` in labkit's home, which
            holds whole data sets only.
        **options: ``name``, of the data set made from ``images``, and the fields of
            :class:`labkit.data.request.Request`.

    Raises:
        InputError: an argument is out of range, the source cannot be downloaded or read, or `data_dir` cannot
            be written to or has too little space.
    """
    return _prepare(requested(dataset, data_dir, **options))


def correct(
    dataset: str,
    name: str,
    marks: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> PrepareResult:
    """Make the data set ``name`` of ``dataset`` and its marks; see ``labkit.correct_data``.

    Raises InputError before anything is written.
    """
    folder = home.expanded(data_dir or home.data_home()).absolute()
    base = load_manifest(folder, dataset)
    name = checked_name(name)
    if name == dataset:
        raise InputError(f"--name is {name!r}, the data set that is corrected; give the new one another name")
    corrections = corrections_of(base, read_marks(base, None if marks is None else home.expanded(marks)))
    largest = max(shard.count for split in base.splits.values() for shard in split.shards)
    request = Request(name, folder, seed=base.seed, examples_per_shard=largest, progress=progress)
    result = _prepare(replace(request, corrections=corrections))
    with writing_errors(result.manifest.directory):
        replace_file(result.manifest.directory / MARKS_NAME, corrections.text)
    return result


def _prepare(request: Request) -> PrepareResult:
    with path_errors(request.data_dir, request.archive):
        request.check()
        with locked(request.directory, request.announce):
            return _prepare_locked(request)


def _prepare_locked(request: Request) -> PrepareResult:
    present, messages = None, []
    try:
        present = find_manifest(request.data_dir, request.dataset)
    except InputError as error:
        messages = [f"starting over: {str(error).split(';')[0]}"]
    known = present or recall_manifest(request.directory)
    source = _source_of(request, known, is_damaged=bool(messages))
    if present is not None:
        messages = _changes(request, present)
        messages += source.changes(present, decided=bool(messages))
        damaged = [] if messages else verify_shards(present)
        if damaged:
            return _repair(request, present, damaged)
        if not messages:
            clean(request.directory, present)
            return PrepareResult(present, False, (f"{request.dataset} is prepared in {request.directory}",))
    for message in messages:
        request.announce(message)
    return _write(request, source, messages)


def _source_of(request: Request, known: Manifest | None, *, is_damaged: bool = False) -> Source:
    """Return the source that is asked for, or that a known data set was prepared from."""
    if not is_own(request.dataset):
        return ArraySource(request.completed(known), known)
    kinds = {known.source["kind"]} if known is not None else set()
    kinds |= {request.own_source[0]} if request.own_source is not None else set()
    if kinds <= {FOLD} and fold_of_name(request.dataset) is not None:
        return FoldSource(request)
    if kinds - {*OWN_FILES, EXAMPLES, CORRECTED} or (len(kinds) > 1 and kinds & {IMAGES, CORRECTED}):
        raise InputError(f"{request.directory} holds another kind of data set; give another --name")
    if not kinds:
        raise InputError(
            f"data set {request.dataset!r} is {'damaged' if is_damaged else 'not prepared'} in "
            f"{request.data_dir}; give its pictures with --images PATH --name {request.dataset}"
        )
    if kinds == {IMAGES}:
        from labkit.data.images.source import ImageSource  # which reads five formats of images

        return ImageSource(request.completed(known), known)
    if kinds == {CORRECTED}:
        return CorrectedSource(request, known)
    from labkit.data.examples.source import ExampleSource  # which imports the other

    return ExampleSource(request.completed(known), known)


def _changes(request: Request, present: Manifest) -> list[str]:
    """Return a line for each difference between the prepared data set and the request."""
    pairs: list[tuple[str, Any, Any]] = [
        ("image size", request.image_size, present.image_shape[0]),
        ("resize", request.resize, present.source.get("resize")),
        ("seed", request.seed, present.seed),
        ("validation examples", request.validation_size, present.validation_size),
        ("training examples", request.train_examples, present.train_examples or "all"),
    ]
    if request.classes is not None:
        names = class_names(request.classes, request.class_names or present.all_classes or present.classes)
        if names != present.classes:
            now, was = (listed([*map(shown, each)]) for each in (names, present.classes))
            pairs.append(("classes", now, was))
    return [
        f"preparing again: {name} {now} instead of {was}"
        for name, now, was in pairs
        if now not in (None, was)
    ]


def _write(request: Request, source: Source, messages: list[str]) -> PrepareResult:
    """Write every shard that isn't there yet, then the manifest."""
    journal = Journal(request.directory)
    try:
        plan = source.plan(journal)
        for line in plan.lines:
            request.announce(line)
        finished = journal.shards(plan.key)
        waiting = [task for task in plan.tasks if task.path.name not in finished]
        check_space(request.directory, sum(task.bytes for task in waiting))
    except InputError:
        if not journal.existed:
            journal.remove()
        raise
    if finished:
        request.announce(
            f"going on: {len(finished)} of {counted(len(plan.tasks), 'shard')} are already written"
        )
    with writing_errors(request.directory):
        retire_manifest(request.directory)
        written = finished | write_shards(waiting, plan.key, journal, request.announce)
        manifest = _manifest(request, plan, written)
        write_files(manifest, plan.files)
        write_columns(manifest, plan.columns)
        write_manifest(manifest)
        clean(request.directory, manifest)
    counts = ", ".join(f"{split.count:,} {name}" for name, split in manifest.splits.items())
    done = f"{request.dataset} is prepared in {request.directory}: {counts}"
    return PrepareResult(manifest, True, (*messages, *plan.lines, *plan.doubts(written), done))


def _manifest(request: Request, plan: Plan, written: dict[str, Written]) -> Manifest:
    shards: dict[str, list[Shard]] = {}
    for task in plan.tasks:
        shards.setdefault(task.split, []).append(written[task.path.name].shard)
    splits = {
        name: Split(name, sum(shard.count for shard in part), tuple(part)) for name, part in shards.items()
    }
    counts = [written[task.path.name].counts for task in plan.tasks if task.split == "train"]
    mean, std = counted_statistics(np.array(counts).sum(axis=0).reshape(3, 256))
    return Manifest(
        dataset=request.dataset,
        directory=request.directory,
        classes=plan.classes,
        image_shape=plan.image_shape,
        splits=splits,
        channel_mean=mean,
        channel_std=std,
        source=plan.source,
        validation_size=plan.validation_size,
        seed=request.seed,
        multi_label=plan.multi_label,
        all_classes=plan.all_classes,
        train_examples=plan.train_examples,
        image_format=plan.image_format,
        target_mean=plan.target_statistics[0],
        target_std=plan.target_statistics[1],
    )


def _repair(request: Request, present: Manifest, damaged: list[str]) -> PrepareResult:
    """Write only the damaged shards again, from the same source."""
    problem = f"damaged or missing: {', '.join(damaged)}"
    request.announce(problem)
    before = {shard.file: shard for split in present.splits.values() for shard in split.shards}
    largest = max(shard.count for shard in before.values())
    source = _source_of(replace(request, examples_per_shard=largest), present)
    try:
        plan = source.plan(None)
    except InputError as error:
        raise InputError(
            f"{problem} in {request.directory}, and the source cannot be read: {error}"
        ) from None
    tasks = [task for task in plan.tasks if task.path.name in damaged]
    is_same = plan.source["sha256"] == present.source["sha256"]
    flag = f"--{present.source['kind']}" if is_own(request.dataset) else "--archive"
    changed = InputError(
        f"{', '.join(damaged)} cannot be rebuilt, because {shown(present.source['location'])} has changed "
        f"since the data set was prepared; give the original with {flag}, or delete {request.directory}"
    )
    if len(tasks) < len(damaged) or (is_own(request.dataset) and not is_same):
        raise changed
    check_space(request.directory, sum(task.bytes for task in tasks))
    with writing_errors(request.directory):
        written = write_shards(tasks, plan.key, Journal(request.directory), request.announce)
    if any(before[name] != entry.shard for name, entry in written.items()):
        if not is_same:  # it isn't the same archive, packed again
            raise changed
        reason = f"preparing again: Pillow {PIL.__version__} makes other images than the one before"
        request.announce(reason)
        return _write(request, source, [problem, reason])
    clean(request.directory, present)
    return PrepareResult(
        present, True, (problem, f"rebuilt {counted(len(damaged), 'shard')} in {request.directory}")
    )
