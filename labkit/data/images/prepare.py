"""Turn people's pictures into a prepared data set: find, check, choose, write, then the manifest.

Everything that can be refused is found before a shard is written. An interrupted call leaves a journal, with
which the next one goes on.
"""

from pathlib import Path
from typing import Any

import numpy as np
import PIL

from labkit.data.folder import check_space, clean, recall_manifest, retire_manifest, writing_errors
from labkit.data.images.check import check_pictures, source_sha256
from labkit.data.images.journal import Journal, Written
from labkit.data.images.layouts import Listing, find_folders, with_classes
from labkit.data.images.names import shown
from labkit.data.images.plan import KIND, Plan, Settings, make_plan
from labkit.data.images.remarks import remarks
from labkit.data.images.table import find_rows
from labkit.data.images.write import JPEG_ABOVE, bytes_of, write_shards
from labkit.data.manifest import Manifest, Split, find_manifest, write_manifest
from labkit.data.request import PrepareResult, Request
from labkit.data.shard_files import verify_shards
from labkit.data.subset import class_names, counted_statistics
from labkit.errors import InputError
from labkit.plurals import counted, listed

__all__ = ["prepare_pictures"]

_DEFAULT_RESIZE = "crop"


def prepare_pictures(request: Request) -> PrepareResult:
    """Prepare a data set of pictures; the caller holds the lock of its folder.

    Raises:
        InputError: the pictures cannot be prepared as requested.
    """
    present, messages = _present(request)
    known = present or recall_manifest(request.directory)
    location = _location(request, known, messages)
    settings = _settings(request, known)
    if present is not None:
        messages = _changes(request, present, settings)
        if not messages and request.images is None:
            damaged = verify_shards(present)
            if not damaged:
                return _nothing_to_do(request, present)
            return _repaired(request, present, settings, location, damaged)
    listing = _listing(location, settings)
    elsewhere = present is not None and Path(present.source["location"]) != location
    if present is not None and (elsewhere or not messages):
        sha256 = source_sha256(listing, check_pictures(listing, 0, None, request.announce, "comparing"))
        if sha256 != present.source["sha256"]:
            if elsewhere:
                raise _other_pictures(request, present, location)
            messages = [f"preparing again: the pictures in {shown(location)} have changed"]
        elif not messages:
            damaged = verify_shards(present)
            if not damaged:
                return _nothing_to_do(request, present)
            return _repaired(request, present, settings, location, damaged)
    for message in messages:
        request.announce(message)
    return _prepared(request, settings, listing, messages)


def _settings(request: Request, known: Manifest | None) -> Settings:
    source = known.source if known is not None else {}
    asked = source.get("asked", {})

    def chosen(now: Any, earlier: Any) -> Any:
        return earlier if now is None else now

    return Settings(
        image_size=chosen(request.image_size, asked.get("image_size")),
        resize=chosen(request.resize, source.get("resize", _DEFAULT_RESIZE)),
        validation_size=chosen(request.validation_size, asked.get("validation_size")),
        classes=chosen(request.classes, known.classes if known and known.all_classes else None),
        train_examples=chosen(request.train_examples, known.train_examples if known else None),
        skip_damaged=request.skip_damaged,
        accepted=frozenset(source.get("skipped", ())),
    )


def _present(request: Request) -> tuple[Manifest | None, list[str]]:
    try:
        return find_manifest(request.data_dir, request.dataset), []
    except InputError as error:
        return None, [f"starting over: {str(error).split(';')[0]}"]


def _location(request: Request, known: Manifest | None, messages: list[str]) -> Path:
    """Return the folder or CSV file to read."""
    if known is not None and known.source["kind"] != KIND:
        raise InputError(f"{request.directory} holds another kind of data set; give another --name")
    if request.images is not None:
        return request.images
    if known is None:
        raise InputError(
            f"data set {request.dataset!r} is {'damaged' if messages else 'not prepared'} in "
            f"{request.data_dir}; give its pictures with "
            f"--images PATH --name {request.dataset}"
        )
    return Path(known.source["location"])


def _other_pictures(request: Request, present: Manifest, location: Path) -> InputError:
    """Return the error for pictures of another folder, which only has the same name."""
    return InputError(
        f"data set {request.dataset!r} was prepared from {shown(present.source['location'])}, and the "
        f"pictures in {shown(location)} are others; give another --name, or delete {request.directory}"
    )


def _changes(request: Request, present: Manifest, settings: Settings) -> list[str]:
    """Return a line for each difference between the prepared data set and the request."""
    size, asked = present.image_shape[0], present.source.get("asked", {})
    pairs = [
        ("image size", settings.image_size or size, size),
        ("resize", settings.resize, present.source.get("resize")),
        ("seed", request.seed, present.seed),
        ("training examples", settings.train_examples, present.train_examples),
    ]
    if settings.validation_size != asked.get("validation_size"):
        pairs.append(("validation size", settings.validation_size, present.validation_size))
    if settings.classes is not None:
        names = class_names(settings.classes, present.all_classes or present.classes)
        if names != present.classes:
            now, was = (listed([*map(shown, classes)]) for classes in (names, present.classes))
            pairs.append(("classes", now, was))
    return [f"preparing again: {name} {now} instead of {was}" for name, now, was in pairs if now != was]


def _listing(location: Path, settings: Settings) -> Listing:
    """Return the pictures of the chosen classes."""
    if not location.exists():
        raise InputError(f"{shown(location)}, the source of the data set, does not exist; give --images PATH")
    if location.is_dir():
        listing = find_folders(location, settings.classes or ())
    else:
        listing = find_rows(location)
    if settings.classes is None:
        return listing
    return with_classes(listing, class_names(settings.classes, listing.classes))


def _nothing_to_do(request: Request, present: Manifest) -> PrepareResult:
    clean(request.directory, present)
    return PrepareResult(present, False, (f"{request.dataset} is prepared in {request.directory}",))


def _prepared(request: Request, settings: Settings, listing: Listing, messages: list[str]) -> PrepareResult:
    """Write every shard that isn't there yet, then the manifest."""
    journal = Journal(request.directory)
    try:
        plan = make_plan(request, settings, listing, journal)
        for line in plan.lines:
            request.announce(line)
        key = plan.key
        finished = journal.shards(key)
        waiting = [task for task in plan.tasks if task.path.name not in finished]
        check_space(request.directory, bytes_of(waiting))
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
        written = finished | write_shards(waiting, key, journal, request.announce)
        manifest = _manifest(request, settings, plan, written)
        write_manifest(manifest)
        clean(request.directory, manifest)
    counts = ", ".join(f"{split.count:,} {name}" for name, split in manifest.splits.items())
    done = f"{request.dataset} is prepared in {request.directory}: {counts}"
    doubts = remarks(plan.listing, plan.facts, plan.parts.rows, _hashes(plan, written))
    return PrepareResult(manifest, True, (*messages, *plan.lines, *doubts, done))


def _hashes(plan: Plan, written: dict[str, Written]) -> dict[str, np.ndarray]:
    return {
        split: np.concatenate(
            [
                np.array(written[task.path.name].hashes, np.uint64)
                for task in plan.tasks
                if task.split == split
            ]
        )
        for split in plan.parts.rows
    }


def _manifest(request: Request, settings: Settings, plan: Plan, written: dict[str, Written]) -> Manifest:
    splits = {}
    for name, rows in plan.parts.rows.items():
        shards = tuple(written[task.path.name].shard for task in plan.tasks if task.split == name)
        splits[name] = Split(name, len(rows), shards)
    counts = [written[task.path.name].counts for task in plan.tasks if task.split == "train"]
    mean, std = counted_statistics(np.array(counts).sum(axis=0).reshape(3, 256))
    return Manifest(
        dataset=request.dataset,
        directory=request.directory,
        classes=plan.listing.classes,
        image_shape=(plan.size, plan.size, 3),
        splits=splits,
        channel_mean=mean,
        channel_std=std,
        source=plan.source,
        validation_size=plan.parts.held_out,
        seed=request.seed,
        multi_label=plan.listing.multi_label,
        all_classes=plan.listing.all_classes,
        train_examples=settings.train_examples,
        image_format="jpeg" if plan.size > JPEG_ABOVE else "pixels",
    )


def _repaired(
    request: Request, present: Manifest, settings: Settings, location: Path, damaged: list[str]
) -> PrepareResult:
    """Write only the damaged shards again, from the same pictures."""
    problem = f"damaged or missing: {', '.join(damaged)}"
    request.announce(problem)
    way_out = f"give the original with --images, or delete {request.directory}"
    try:
        listing = _listing(location, settings)
        plan = make_plan(request, settings, listing, None)
    except InputError as error:
        raise InputError(
            f"{problem} in {request.directory}, and the source cannot be read: {error}"
        ) from None
    tasks = [task for task in plan.tasks if task.path.name in damaged]
    if plan.source["sha256"] != present.source["sha256"] or len(tasks) < len(damaged):
        raise InputError(
            f"{', '.join(damaged)} cannot be rebuilt, because the pictures in {shown(location)} have "
            f"changed since the data set was prepared; {way_out}"
        )
    check_space(request.directory, bytes_of(tasks))
    with writing_errors(request.directory):
        written = write_shards(tasks, plan.key, Journal(request.directory), request.announce)
    before = {shard.file: shard for split in present.splits.values() for shard in split.shards}
    if any(before[name] != entry.shard for name, entry in written.items()):
        again = f"preparing again: Pillow {PIL.__version__} makes other images than the one before"
        request.announce(again)
        return _prepared(request, settings, listing, [problem, again])
    clean(request.directory, present)
    return PrepareResult(
        present, True, (problem, f"rebuilt {counted(len(damaged), 'shard')} in {request.directory}")
    )
