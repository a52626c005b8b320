"""Flags, data set and folders that the scripts share."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit import home
from labkit.data.manifest import Manifest, find_manifest
from labkit.data.prepare import prepare

__all__ = ["RESULTS", "ROOT", "at_least", "cifar10_archive", "make_parser", "prepared_data", "work_folder"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type: a whole number of at least ``minimum``."""

    def convert(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is too small; give {minimum} or more")
        return value

    convert.__name__ = "whole number"  # argparse names the type in its error
    return convert


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that every script has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--repeats", type=at_least(1), default=5, help="repeats; the median counts")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON result")
    parser.add_argument(
        "--data-dir", type=Path, default=home.data_home(), help="folder of prepared data sets"
    )
    parser.add_argument("--num-layers", type=at_least(8), default=20, help="depth of the ResNet")
    parser.add_argument("--batch-size", type=at_least(1), default=128, help="examples per training step")
    return parser


def cifar10_archive() -> Path | None:
    """Return the published archive in the folder that LABKIT_CIFAR10 names; None where that is unset."""
    folder = os.environ.get("LABKIT_CIFAR10")
    return Path(folder) / "cifar-10-python.tar.gz" if folder else None


def prepared_data(data_dir: Path) -> Manifest:
    """Return CIFAR-10 where it is prepared or LABKIT_CIFAR10 names it, else the embedded shapes."""
    found = find_manifest(data_dir, "cifar10")
    if found is not None:
        return found
    archive = cifar10_archive()
    if archive is not None:
        return prepare("cifar10", data_dir, archive=archive, progress=print).manifest
    return find_manifest(data_dir, "shapes") or prepare("shapes", data_dir, progress=print).manifest


@contextmanager
def work_folder() -> Iterator[Path]:
    """Give a folder for run directories and logs that is removed afterwards.

    Within the block SIGTERM ends the script like Ctrl-C does: held processes and the folder go with it.
    """
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-bench-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    finally:
        signal.signal(signal.SIGTERM, previous)
