"""Flags, data set, turns and folders that all scripts share."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.report import Figure, Report
from labkit import home
from labkit.data.manifest import Manifest, find_manifest
from labkit.data.prepare import prepare
from labkit.distributed.cpu import bfloat16_instructions

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PRECISIONS = ("float32", "mixed_bfloat16")
Side, Value = TypeVar("Side"), TypeVar("Value")


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type for integers of at least ``minimum``."""

    def convert(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is too small; give {minimum} or more")
        return value

    convert.__name__ = "integer"  # argparse prints the type's name in errors
    return convert


def make_parser(
    description: str | None,
    *,
    of_resnet: bool = True,
    steps: int | None = None,
    warmup_steps: int | None = None,
) -> argparse.ArgumentParser:
    """Return a parser with the flags of every script, and with ``of_resnet`` those of a ResNet.

    ``steps`` and ``warmup_steps``: the defaults of scripts whose turns are training steps.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--repeats", type=at_least(1), default=5, help="repeats; the median counts")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON result")
    parser.add_argument(
        "--data-dir", type=Path, default=home.data_home(), help="folder of prepared data sets"
    )
    if of_resnet:
        parser.add_argument("--num-layers", type=at_least(8), default=20, help="depth of the ResNet")
        parser.add_argument("--batch-size", type=at_least(1), default=128, help="examples per training step")
    if steps is not None:
        parser.add_argument("--steps", type=at_least(1), default=steps, help="steps of a turn")
    if warmup_steps is not None:
        words = "steps before the first turn"
        parser.add_argument("--warmup-steps", type=at_least(1), default=warmup_steps, help=words)
    return parser


def fast_precisions() -> tuple[str, ...]:
    """Return the precisions that the CPU has instructions for, the fastest one last."""
    return PRECISIONS if bfloat16_instructions() else PRECISIONS[:1]


def add_precisions_flag(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Declare the precisions to measure; by default those that the CPU has instructions for."""
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=PRECISIONS,
        default=fast_precisions(),
        help=help,
    )


def add_runs_flag(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the folder of whole trainings, which are kept."""
    words = "folder of the runs, which are kept"
    parser.add_argument("--runs", type=Path, default=home.runs_home() / name, help=words)


def cifar10_archive() -> Path | None:
    """Return the published archive in the folder LABKIT_CIFAR10; None if that is unset."""
    folder = os.environ.get("LABKIT_CIFAR10")
    return Path(folder) / "cifar-10-python.tar.gz" if folder else None


def archive_of(manifest: Manifest) -> Path | None:
    """Return the archive or folder that a data set was prepared from; None if unknown or gone."""
    if manifest.dataset == "cifar10" and (named := cifar10_archive()) is not None:
        return named
    kind, location = manifest.source["kind"], manifest.source.get("location")
    return Path(location) if kind in ("archive", "folder") and location and Path(location).exists() else None


def prepared_data(data_dir: Path) -> Manifest:
    """Return CIFAR-10 if it is prepared or in LABKIT_CIFAR10, else the embedded shapes."""
    found = find_manifest(data_dir, "cifar10")
    if found is not None:
        return found
    archive = cifar10_archive()
    if archive is not None:
        return prepare("cifar10", data_dir, archive=archive, progress=print).manifest
    return find_manifest(data_dir, "shapes") or prepare("shapes", data_dir, progress=print).manifest


def missing(package: str) -> str:
    """Return why a peer can't be measured; empty if its package is installed, which labkit doesn't need."""
    return "" if find_spec(package) else f"{package} is not installed; run make peers"


def choose_sides(
    parser: argparse.ArgumentParser, flag: str, named: list[str] | None, packages: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the sides to measure, and those that are left out here, with the reason.

    Args:
        parser: ends the script where a side is named whose package is missing.
        flag: names sides.
        named: those that it named; None: all of ``packages``.
        packages: the package that each side needs.
    """
    reasons = {name: missing(packages[name]) for name in named or packages}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    for name, reason in left_out.items():
        if named:
            parser.error(f"{flag} {name}: {reason}")
        print(f"without {name}: {reason}", flush=True)
    return [name for name in reasons if name not in left_out], left_out


def write_arrays(manifest: Manifest, split: str, path: Path) -> None:
    """Write a split for ``torch_peer``: images uint8 [n, height, width, channels], labels, mean and std."""
    from labkit.data.shards import load_split  # imports TensorFlow

    images, labels = load_split(manifest, split)
    whole = path.with_name(f"unfinished-{path.name}")  # an interrupted call leaves no half file of this name
    np.savez(whole, images=images, labels=labels, mean=manifest.channel_mean, std=manifest.channel_std)
    os.replace(whole, path)


def take_turns(
    turns: Mapping[Side, Callable[[], Value]], repeats: int, show: Callable[[Value], str] = "{:,.0f}".format
) -> dict[Side, list[Value]]:
    """Return what each of ``turns`` measures, one value per repeat, and print it as ``show`` does."""
    measured: dict[Side, list[Value]] = {side: [] for side in turns}
    for repeat in range(repeats):
        # In alternating order, so that a drift favours neither side.
        for side in list(turns) if repeat % 2 == 0 else list(turns)[::-1]:
            measured[side].append(turns[side]())
        line = "  ".join(f"{side} {show(values[-1])}" for side, values in measured.items())
        print(f"repeat {repeat + 1}/{repeats}: {line}", flush=True)
    return measured


def measure_and_report(
    name: str,
    description: str | None,
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Manifest, Path], list[Figure]],
) -> list[Figure]:
    """Measure with a prepared data set and a work folder, write the report and return its figures."""
    manifest = prepared_data(options.data_dir)
    report = Report(name, description, vars(options) | {"dataset": manifest.dataset})
    with work_folder() as folder:
        figures = measure(options, manifest, folder)
    report.finish(figures, options.output)
    return figures


@contextmanager
def work_folder() -> Iterator[Path]:
    """Create a folder for run directories and logs that is removed with the end of the block.

    Within the block SIGTERM ends the script as Ctrl-C does, so that paused processes and the folder are
    removed.
    """
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-bench-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    finally:
        signal.signal(signal.SIGTERM, previous)
