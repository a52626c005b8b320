"""Published data sets and labkit's own data sets as a source: all images are in memory at once."""

from pathlib import Path
from typing import Any

import numpy as np

from labkit.config.data_sets import GENERATED, TARGETS
from labkit.data import shapes
from labkit.data.cifar10 import sources
from labkit.data.folder import check_space
from labkit.data.manifest import Manifest
from labkit.data.request import Request
from labkit.data.subset import DIVISOR, ImageData, class_names, split_rows, with_classes
from labkit.data.write import ArrayExamples, Journal, Plan, shard_tasks
from labkit.errors import InputError


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
