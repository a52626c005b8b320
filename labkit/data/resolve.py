"""Which data set a run uses: the rule behind ``dataset=auto``."""

import os
from collections.abc import Callable
from pathlib import Path

from labkit.data import prepare as preparing
from labkit.data import sources
from labkit.data.folder import path_errors
from labkit.data.manifest import DATASETS, DRAWN, Manifest, find_manifest, load_manifest
from labkit.errors import InputError

__all__ = ["CHOICES", "CONNECT_TIMEOUT", "resolve"]

CHOICES = ("auto", *DATASETS)
CONNECT_TIMEOUT = 8.0


def resolve(
    dataset: str,
    data_dir: str | os.PathLike[str],
    *,
    data_dir_is_default: bool = True,
    prepare_missing: bool = True,
    timeout: float = CONNECT_TIMEOUT,
    announce: Callable[[str], None] = print,
) -> Manifest:
    """Return the data set to train on, and announce in one line which it is.

    ``cifar10`` must be prepared. What is drawn is drawn where it is missing. ``auto`` takes CIFAR-10 if it is
    prepared; otherwise it downloads CIFAR-10, and draws ``shapes`` where that fails. In a `data_dir` that the
    user named, ``auto`` takes what is prepared there and never anything else.

    Args:
        dataset: ``auto`` or one of ``DATASETS``.
        data_dir: the folder of data sets.
        data_dir_is_default: whether `data_dir` is labkit's own rather than one that the user named.
        prepare_missing: whether anything may be downloaded, drawn or written.
        timeout: seconds to wait for the download's server before going without.
        announce: takes the line on the choice, and lines on what takes time.

    Raises:
        InputError: the data set is unknown, or not prepared and not to be had under these rules.
    """
    if dataset not in CHOICES:
        raise InputError(f"data set {dataset!r} is unknown; choose one of {', '.join(CHOICES)}")
    data_dir = Path(data_dir).expanduser().absolute()
    with path_errors(data_dir):
        if dataset == "auto":
            return _resolve_auto(data_dir, data_dir_is_default, prepare_missing, timeout, announce)
        if dataset in DRAWN and prepare_missing and find_manifest(data_dir, dataset) is None:
            return _announced(preparing.prepare(dataset, data_dir, progress=announce).manifest, announce)
        return _announced(load_manifest(data_dir, dataset), announce)


def _announced(manifest: Manifest, announce: Callable[[str], None], why: str = "") -> Manifest:
    announce(f"data set: {manifest.dataset} in {manifest.directory}{why}")
    return manifest


def _resolve_auto(
    data_dir: Path,
    data_dir_is_default: bool,
    prepare_missing: bool,
    timeout: float,
    announce: Callable[[str], None],
) -> Manifest:
    cifar10 = find_manifest(data_dir, "cifar10")
    if cifar10 is not None:
        return _announced(cifar10, announce)
    shapes = find_manifest(data_dir, "shapes")
    if not data_dir_is_default or not prepare_missing:
        if shapes is not None:
            return _announced(shapes, announce, " (cifar10 is not prepared there)")
        raise InputError(
            f"no prepared data set in {data_dir}; prepare one with: labkit data prepare --data-dir {data_dir}"
            " (add --dataset shapes for the embedded set, --archive PATH for CIFAR-10 from a file)"
        )
    try:
        sources.check_connection(sources.DEFAULT_URL, timeout)
        prepared = preparing.prepare("cifar10", data_dir, timeout=timeout, attempts=1, progress=announce)
        return _announced(prepared.manifest, announce)
    except InputError as error:
        reason = f" (cifar10 is not to be had: {error})"
    if shapes is None:
        shapes = preparing.prepare("shapes", data_dir, progress=announce).manifest
    return _announced(shapes, announce, reason)
