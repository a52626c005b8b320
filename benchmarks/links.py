"""How fast is a cluster by its number of workers and the rate of its links, and was that to be expected?

Each worker of `labkit cluster local --hosts --link RATE` has one thread, 64 images in a step and a link of
its own. The prediction has two terms: the step of one process with one thread, longer where there are fewer
cores than workers, and the time of the exchanged bytes on the link.
"""

import argparse
import functools
import itertools
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import at_least, make_parser, prepared_data, work_folder
from benchmarks.processes import train_flags
from benchmarks.report import Figure, Report
from benchmarks.scaling import images_per_second, rows_of_run
from labkit.cluster.hosts import check_link
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import read_worker_metrics

QUESTION = "How fast is a cluster by its workers and links, and what do step time and bytes predict?"
UNSHAPED = "unshaped"
LINKS = ("10mbit", "100mbit", "1000mbit", UNSHAPED)
MODES = ("sync", "sync bfloat16", "async")
WARMUP_STEPS = 6


@dataclass(frozen=True)
class Case:
    """A cluster: ``mode`` is one of ``MODES``, or ``one process``."""

    mode: str
    workers: int
    link: str

    def command(self, flags: Sequence[str], batch_size: int) -> list[str]:
        """Return the arguments of ``labkit``."""
        train = ["train", "--num-intra-threads", "1", *flags]
        if self.mode == "one process":
            return [*train, "--train-batch-size", str(batch_size)]
        cluster = ["cluster", "local", "--workers", str(self.workers), "--hosts"]
        if self.link != UNSHAPED:
            cluster += ["--link", self.link]
        if self.mode == "async":
            return [*cluster, "--ps", "1", "--", *train, "--no-sync", "--train-batch-size", str(batch_size)]
        if self.mode == "sync bfloat16":
            train += ["--gradient-compression", "bfloat16"]
        return [*cluster, "--", *train, "--sync", "--train-batch-size", str(self.workers * batch_size)]


@dataclass(frozen=True)
class Measured:
    """Images per second of each window, and the bytes that a worker sends and receives in a step."""

    case: Case
    speeds: tuple[float, ...]
    sent: float = 0.0
    received: float = 0.0


def predicted(case: Case, *, step: float, batch_size: int, sent: float, received: float, image: int) -> float:
    """Return images per second of a cluster.

    Args:
        case: the cluster.
        step: seconds that one process with one thread takes for ``batch_size`` images.
        batch_size: images of each worker in a step.
        sent, received: bytes of a worker in a step.
        image: bytes of an image and its label.
    """
    rate = (check_link(None if case.link == UNSHAPED else case.link) or float("inf")) / 8
    computing = step * max(1.0, case.workers / (os.cpu_count() or 1))
    if case.mode != "async":  # a ring sends and receives at the same time
        return case.workers * batch_size / (computing + sent / rate)
    batch = batch_size * image
    cycle = computing + (sent + received) / rate
    # The server's link carries the weights and gradients of all workers, the coordinator's the batches.
    most = min(rate / max(sent, received - batch, 1.0), rate / batch)
    return batch_size * min(case.workers / cycle, most)


def cases(options: argparse.Namespace) -> list[Case]:
    """Return the clusters to measure, between two measurements of one process."""
    alone = Case("one process", 1, UNSHAPED)
    clusters = [
        Case(mode, workers, link)
        for mode in options.modes
        for link in options.links
        for workers in options.workers
        if mode == "async" or workers > 1
    ]
    return [alone, *clusters, alone]


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Measured]:
    """Train on each cluster for some seconds."""
    flags = train_flags(manifest, num_layers=options.num_layers, batch_size=options.batch_size)
    at = flags.index("--train-batch-size")
    flags = flags[:at] + flags[at + 2 :]
    found: list[Measured] = []
    for number, case in enumerate(cases(options)):
        job_dir = folder / str(number)
        images = options.batch_size * (1 if case.mode == "async" else case.workers)
        enough = functools.partial(lasts, seconds=options.seconds, steps=options.repeats)
        _, rows = rows_of_run(case.command(flags, options.batch_size), job_dir, enough)
        speeds = speeds_of(rows[WARMUP_STEPS:], images, options.repeats)
        found.append(Measured(case, speeds, *bytes_of(RunDirectory(job_dir))))
        print(f"{case.mode}, {case.workers}, {case.link}: {statistics.median(found[-1].speeds):.0f} images/s",
              flush=True)  # fmt: skip
    return found


def lasts(rows: Sequence[dict[str, Any]], *, seconds: float, steps: int) -> bool:
    """Return whether there are so many steps, and so many seconds of them, behind the warm-up."""
    timed = [row["wall_time"] for row in rows[WARMUP_STEPS:]]
    return len(timed) > steps and max(timed) - min(timed) >= seconds


def speeds_of(rows: Sequence[dict[str, Any]], images: int, windows: int) -> tuple[float, ...]:
    """Return the images per second of windows with equal numbers of steps. ``images``: of a step."""
    rows = sorted(rows, key=lambda row: row["wall_time"])
    edges = [round(index * (len(rows) - 1) / windows) for index in range(windows + 1)]
    return tuple(
        images_per_second([rows[begin], rows[end]], images) for begin, end in itertools.pairwise(edges)
    )


def bytes_of(run: RunDirectory) -> tuple[float, float]:
    """Return the bytes that a worker sends and receives in a step; zeros for one process."""
    rows = [rows[-1] for rows in read_worker_metrics(run.cluster_path).values()]
    return tuple(max((row[f"bytes_{way}_per_step"] for row in rows), default=0.0)
                 for way in ("sent", "received"))  # type: ignore[return-value] # fmt: skip


def figures(measured: Sequence[Measured], batch_size: int, image: int) -> list[Figure]:
    """Return speed and ratio to one process of each cluster, and how far the prediction was off."""
    alone = [each for each in measured if each.case.mode == "one process"]
    speed = statistics.median(value for each in alone for value in each.speeds)
    found = [Figure("one process of one thread", "images/s", tuple(v for each in alone for v in each.speeds))]
    for each in measured:
        if each.case.mode == "one process":
            continue
        name = f"{each.case.mode}, {each.case.workers} workers, {each.case.link}"
        found.append(Figure(f"{name} over one process", "x", tuple(value / speed for value in each.speeds)))
        expected = predicted(each.case, step=batch_size / speed, batch_size=batch_size, sent=each.sent,
                             received=each.received, image=image)  # fmt: skip
        found.append(Figure(f"{name}, predicted", "x", (expected / speed,)))
    return found


def markdown(figures: Sequence[Figure]) -> str:
    """Return the table of the documentation: rows are modes and links, columns are numbers of workers.

    A cell has the speed over that of one process, and in parentheses what was predicted.
    """
    ratios = {figure.name: figure.median for figure in figures}
    names = [name.removesuffix(" over one process") for name in ratios if name.endswith(" over one process")]
    parts = [name.split(", ") for name in names]
    workers = sorted({part[1] for part in parts})
    lines = [f"| | link | {' | '.join(workers)} |", "| --- | --- |" + " --- |" * len(workers)]
    for mode, link in dict.fromkeys((part[0], part[2]) for part in parts):
        cells = []
        for count in workers:
            name = f"{mode}, {count}, {link}"
            known = name in names
            cells.append(
                f"{ratios[f'{name} over one process']:.2f} ({ratios[f'{name}, predicted']:.2f})"
                if known
                else "–"
            )
        lines.append(f"| {mode} | {link} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(batch_size=64)
    parser.add_argument("--links", nargs="+", default=list(LINKS), help="rates of the links")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="clusters to measure")
    parser.add_argument(
        "--workers", nargs="+", type=at_least(1), default=[1, 2, 3], help="numbers of workers"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="to measure each; a repeat is an equal part of its steps"
    )
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    report = Report("links", QUESTION, vars(options) | {"dataset": manifest.dataset})
    with work_folder() as folder:
        measured = measure(options, manifest, folder)
    height, width, channels = manifest.image_shape
    found = figures(measured, options.batch_size, height * width * channels + 4)
    report.finish(found, options.output)
    print(markdown(found))


if __name__ == "__main__":
    main()
