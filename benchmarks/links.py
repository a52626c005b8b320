"""How fast is a cluster by its number of workers and the rate of its links, and was that to be expected?

Each worker of `labkit cluster local --hosts --link RATE` has one thread, 64 images in a step and a link of
its own. The prediction has two terms: the step of as many processes that train beside each other and exchange
nothing, and the time of the exchanged bytes on the link.
"""

import argparse
import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
SEPARATE = "separate processes"
WARMUP_STEPS = 6


@dataclass(frozen=True)
class Case:
    """``workers`` of one of ``MODES``, or as many ``SEPARATE`` processes that know nothing of each other."""

    mode: str
    workers: int
    link: str = UNSHAPED

    def command(self, flags: Sequence[str], batch_size: int) -> list[str]:
        """Return the arguments of ``labkit``."""
        train = ["train", "--num-intra-threads", "1", *flags]
        if self.mode == SEPARATE:
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
        step: seconds that a process with one thread takes for ``batch_size`` images, beside as many others as
            there are workers.
        batch_size: images of each worker in a step.
        sent, received: bytes of a worker in a step.
        image: bytes of an image and its label.
    """
    rate = (check_link(None if case.link == UNSHAPED else case.link) or float("inf")) / 8
    if case.mode != "async":  # a ring sends and receives at the same time
        return case.workers * batch_size / (step + sent / rate)
    batch = batch_size * image
    cycle = step + (sent + received) / rate
    # The server's link carries the weights and gradients of all workers, the coordinator's the batches.
    most = min(rate / max(sent, received - batch, 1.0), rate / batch)
    return batch_size * min(case.workers / cycle, most)


def cases(options: argparse.Namespace) -> list[Case]:
    """Return the clusters to measure, behind processes without exchange, of which one is measured again."""
    alone = Case(SEPARATE, 1)
    separate = [Case(SEPARATE, workers) for workers in options.workers if workers > 1]
    clusters = [
        Case(mode, workers, link)
        for mode in options.modes
        for link in options.links
        for workers in options.workers
        if mode == "async" or workers > 1
    ]
    return [alone, *separate, *clusters, alone]


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Measured]:
    """Train on each cluster for some seconds."""
    flags = train_flags(manifest, num_layers=options.num_layers, batch_size=options.batch_size)
    at = flags.index("--train-batch-size")
    flags = [*flags[:at], *flags[at + 2 :], "--eval-batch-size", str(math.lcm(*options.workers))]
    found: list[Measured] = []
    for number, case in enumerate(cases(options)):
        job_dir, command = folder / str(number), case.command(flags, options.batch_size)
        if case.mode == SEPARATE:
            rows = rows_of_separate(command, job_dir, case.workers, options)
            each = [speeds_of(beside, options.batch_size, options.repeats) for beside in rows]
            found.append(Measured(case, tuple(map(sum, zip(*each, strict=True)))))
        else:
            images = options.batch_size * (1 if case.mode == "async" else case.workers)
            _, timed = rows_of_run(
                command, job_dir, lambda rows: lasts(rows[WARMUP_STEPS:], options.seconds, options.repeats)
            )
            speeds = speeds_of(timed[WARMUP_STEPS:], images, options.repeats)
            found.append(Measured(case, speeds, *bytes_of(RunDirectory(job_dir))))
        print(f"{case.mode}, {case.workers}, {case.link}: {statistics.median(found[-1].speeds):.0f} images/s",
              flush=True)  # fmt: skip
    return found


def rows_of_separate(
    command: Sequence[str], folder: Path, count: int, options: argparse.Namespace
) -> list[list[dict[str, Any]]]:
    """Train ``count`` times at the same time. Returns the rows of the seconds in which all were warm."""
    warm: dict[int, list[dict[str, Any]]] = {}

    def common() -> float:
        """Return when all of them were warm, in seconds since 1970."""
        return max(min(row["wall_time"] for row in rows) for rows in warm.values())

    def enough(rows: list[dict[str, Any]], index: int) -> bool:
        warm[index] = rows[WARMUP_STEPS:]
        if any(run.done() for run in runs):  # all have enough, or one failed
            return True
        if len(warm) < count or not all(warm.values()):
            return False
        begin = common()
        return all(
            lasts([row for row in beside if row["wall_time"] >= begin], options.seconds, options.repeats)
            for beside in list(warm.values())
        )

    runs: list[Future[Any]] = []
    with ThreadPoolExecutor(count) as pool:
        for index in range(count):
            job_dir = folder.with_name(f"{folder.name}-{index}")
            runs.append(pool.submit(rows_of_run, command, job_dir, functools.partial(enough, index=index)))
    for run in runs:
        run.result()
    begin = common()
    return [[row for row in warm[index] if row["wall_time"] >= begin] for index in range(count)]


def lasts(rows: Sequence[dict[str, Any]], seconds: float, steps: int) -> bool:
    """Return whether there are more than ``steps`` rows, and ``seconds`` between the first and the last."""
    timed = [row["wall_time"] for row in rows]
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
    separate: dict[int, list[float]] = {}
    for each in measured:
        if each.case.mode == SEPARATE:
            separate.setdefault(each.case.workers, []).extend(each.speeds)
    alone = statistics.median(separate[1])
    found = [Figure("one process of one thread", "images/s", tuple(separate[1]))]
    for count, speeds in separate.items():
        if count > 1:
            name = f"{SEPARATE}, {count} workers, {UNSHAPED}"
            found.append(Figure(f"{name} over one process", "x", tuple(value / alone for value in speeds)))
    for each in measured:
        if each.case.mode == SEPARATE:
            continue
        name = f"{each.case.mode}, {each.case.workers} workers, {each.case.link}"
        found.append(Figure(f"{name} over one process", "x", tuple(value / alone for value in each.speeds)))
        step = batch_size * each.case.workers / statistics.median(separate[each.case.workers])
        expected = predicted(each.case, step=step, batch_size=batch_size, sent=each.sent,
                             received=each.received, image=image)  # fmt: skip
        found.append(Figure(f"{name}, predicted", "x", (expected / alone,)))
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
            cell = f"{ratios[f'{name} over one process']:.2f}" if name in names else "–"
            expected = ratios.get(f"{name}, predicted")
            cells.append(cell if expected is None else f"{cell} ({expected:.2f})")
        lines.append(f"| {mode} | {link} | {' | '.join(cells)} |")
    errors = [
        abs(ratios[f"{name} over one process"] / ratios[f"{name}, predicted"] - 1)
        for name in names
        if f"{name}, predicted" in ratios
    ]
    off = f"The prediction is off by {statistics.median(errors):.0%} (median), {max(errors):.0%} at most."
    return "\n".join([*lines, "", off])


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
