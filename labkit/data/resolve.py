"""Choose the data set of a run, including the rule for ``dataset=auto``."""

import os
from collections.abc import Callable
from pathlib import Path

from labkit.config.data_sets import AUTO, GENERATED, checked_choice
from labkit.data.cifar10 import sources
from labkit.data.folder import path_errors
from labkit.data.manifest import Manifest, OtherVersion, find_manifest, load_manifest
from labkit.data.prepare import prepare
from labkit.errors import InputError
from labkit.home import expanded

CONNECT_TIMEOUT = 8.0


def find_data_set(dataset: str, data_dir: Path, *, may_prepare: bool) -> tuple[Manifest | None, str]:
    """Return the prepared data set to use and a line that names it, or (None, "") if none is prepared.

    ``auto`` uses CIFAR-10. It uses `shapes` only if nothing may be prepared; otherwise downloading CIFAR-10
    is tried first.

    Args:
        dataset: ``auto``, or the name of a data set.
        data_dir: the folder of data sets.
        may_prepare: see :func:`resolve`.

    Raises:
        InputError: the manifest of the prepared data set cannot be read.
    """
    manifest = _usable(data_dir, "cifar10" if dataset == AUTO else dataset, may_prepare=may_prepare)
    if manifest is not None:
        return manifest, _choice(manifest)
    shapes = find_manifest(data_dir, "shapes") if dataset == AUTO and not may_prepare else None
    return (shapes, _choice(shapes, "cifar10 is not prepared there")) if shapes else (None, "")


def resolve(
    dataset: str,
    data_dir: str | os.PathLike[str],
    *,
    may_prepare: bool = True,
    timeout: float = CONNECT_TIMEOUT,
    announce: Callable[[str], None] = print,
) -> tuple[Manifest, str]:
    """Return the data set to train on, preparing it if allowed, and one line that names it and says why.

    ``cifar10`` and people's own data sets must be prepared already. A generated data set is generated if it
    is missing. ``auto`` uses CIFAR-10 if it is prepared; otherwise it downloads CIFAR-10, and falls back to
    ``shapes`` if that fails.

    Args:
        dataset: ``auto``, or the name of a data set.
        data_dir: the folder of data sets.
        may_prepare: whether to download or generate a missing data set. True for labkit's own folder. False
            for a folder that the user named: only what is prepared there is used.
        timeout: seconds to wait for the download server before falling back.
        announce: called with lines about slow operations.

    Raises:
        InputError: the data set is unknown, or it is not prepared and these rules don't allow preparing it.
    """
    dataset = checked_choice(dataset)
    data_dir = expanded(data_dir).absolute()
    with path_errors(data_dir):
        manifest, choice = find_data_set(dataset, data_dir, may_prepare=may_prepare)
        if manifest is not None:
            return manifest, choice
        if dataset == AUTO:
            if not may_prepare:
                raise InputError(
                    f"no prepared data set in {data_dir}; prepare one with: labkit data prepare "
                    f"--data-dir {data_dir} (add --dataset shapes for the generated data set, --archive PATH "
                    "for CIFAR-10 from a file)"
                )
            return _make_cifar10_or_shapes(data_dir, timeout, announce)
        if dataset in GENERATED and may_prepare:
            manifest = prepare(dataset, data_dir, progress=announce).manifest
        else:
            manifest = load_manifest(data_dir, dataset)
        return manifest, _choice(manifest)


def _make_cifar10_or_shapes(
    data_dir: Path, timeout: float, announce: Callable[[str], None]
) -> tuple[Manifest, str]:
    try:
        sources.check_connection(sources.default_url(sources.CIFAR10), timeout)
        prepared = prepare("cifar10", data_dir, timeout=timeout, attempts=1, progress=announce)
        return prepared.manifest, _choice(prepared.manifest)
    except InputError as error:
        reason = f"cifar10 is not available: {error}"
    shapes = _usable(data_dir, "shapes", may_prepare=True)
    if shapes is None:
        shapes = prepare("shapes", data_dir, progress=announce).manifest
    return shapes, _choice(shapes, reason)


def _usable(data_dir: Path, dataset: str, *, may_prepare: bool) -> Manifest | None:
    """Return the manifest, or None if it is missing or may be generated again for this version."""
    try:
        return find_manifest(data_dir, dataset)
    except OtherVersion:
        if dataset in GENERATED and may_prepare:
            return None
        raise


def _choice(manifest: Manifest, why: str = "") -> str:
    return f"data set: {manifest.dataset} in {manifest.directory}{why and f' ({why})'}"
