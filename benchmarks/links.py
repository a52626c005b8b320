"""How fast is a cluster by its number of workers and the rate of its links, and was that to be expected?

Each worker of `labkit cluster local --hosts --link RATE` has one thread, 64 images in a step and a link of
its own. The prediction has two terms: the step of as many processes that train beside each other and exchange
nothing, and the time of the exchanged bytes on the link.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import at_least, make_parser, measure_and_report
from benchmarks.processes import Row, Training, images_per_second, train_command
from benchmarks.report import Figure
from labkit.cluster.hosts import check_link
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import read_worker_metrics

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

    def images(self, batch_size: int) -> int:
        """Return the images of one of its steps."""
        return batch_size * (self.workers if self.mode.startswith("sync") else 1)

    def command(self, manifest: Manifest, options: argparse.Namespace) -> list[str]:
        """Return the arguments of ``labkit``."""
        fields: dict[str, object] = {
            "num_intra_threads": 1,
            "train_batch_size": self.images(options.batch_size),
            "eval_batch_size": math.lcm(*options.workers),
        }
        if self.mode != SEPARATE:
            fields["sync"] = self.mode != "async"
        if self.mode == "sync bfloat16":
            fields["gradient_compression"] = "bfloat16"
        train = train_command(options, manifest, **fields)
        if self.mode == SEPARATE:
            return train
        link = [] if self.link == UNSHAPED else ["--link", self.link]
        servers = ["--ps", "1"] if self.mode == "async" else []
        return ["cluster", "local", "--workers", str(self.workers), "--hosts", *link, *servers, "--", *train]


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


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Train on each cluster for some seconds."""
    found: list[Measured] = []
    for number, case in enumerate(cases(options)):
        logs, command = folder / str(number), case.command(manifest, options)
        images = case.images(options.batch_size)
        if case.mode == SEPARATE:
            together = rows_of_separate(command, logs, case.workers, options)
            each = [speeds_of(rows, images, options.repeats) for rows in together]
            found.append(Measured(case, tuple(map(sum, zip(*each, strict=True)))))
        else:
            with Training(logs, command) as cluster:
                rows = cluster.wait_for_rows(
                    lambda rows: lasts(rows[WARMUP_STEPS:], options.seconds, options.repeats)
                )
            speeds = speeds_of(rows[WARMUP_STEPS:], images, options.repeats)
            found.append(Measured(case, speeds, *bytes_of(cluster.run)))
        speed = statistics.median(found[-1].speeds)
        print(f"{case.mode}, {case.workers}, {case.link}: {speed:.0f} images/s", flush=True)
    height, width, channels = manifest.image_shape
    return figures(found, options.batch_size, height * width * channels + 4)


def rows_of_separate(
    command: Sequence[str], folder: Path, count: int, options: argparse.Namespace
) -> list[list[Row]]:
    """Train ``count`` times at the same time. Returns the rows of the seconds in which all were warm."""
    with ExitStack() as stack:
        runs = [stack.enter_context(Training(folder / str(index), command)) for index in range(count)]
        together: list[list[Row]] = []

        def enough(_: list[Row]) -> bool:
            warm = [run.poll()[WARMUP_STEPS:] for run in runs]
            for run in runs:
                run.check()
            if not all(warm):
                return False
            begin = max(min(row["wall_time"] for row in rows) for rows in warm)
            together[:] = [[row for row in rows if row["wall_time"] >= begin] for rows in warm]
            return all(lasts(rows, options.seconds, options.repeats) for rows in together)

        runs[0].wait_for_rows(enough)
    return together


def lasts(rows: Sequence[Row], seconds: float, steps: int) -> bool:
    """Return whether there are more than ``steps`` rows, and ``seconds`` between the first and the last."""
    timed = [row["wall_time"] for row in rows]
    return len(timed) > steps and max(timed) - min(timed) >= seconds


def speeds_of(rows: Sequence[Row], images: int, windows: int) -> tuple[float, ...]:
    """Return the images per second of windows with equal numbers of steps. ``images``: of a step."""
    rows = sorted(rows, key=lambda row: row["wall_time"])
    edges = [round(index * (len(rows) - 1) / windows) for index in range(windows + 1)]
    return tuple(
        images_per_second([rows[begin], rows[end]], images) for begin, end in itertools.pairwise(edges)
    )


def bytes_of(run: RunDirectory) -> tuple[float, float]:
    """Return the bytes that a worker sends and receives in a step; zeros for one process."""
    rows = [rows[-1] for rows in read_worker_metrics(run.cluster_path).values()]
    each = [(row["bytes_sent_per_step"], row["bytes_received_per_step"]) for row in rows]
    return max((sent for sent, _ in each), default=0.0), max((received for _, received in each), default=0.0)


def figures(measured: Sequence[Measured], batch_size: int, image: int) -> list[Figure]:
    """Return speed and ratio to one process of each cluster, and how far the prediction was off."""
    separate: dict[int, list[float]] = {}
    for each in measured:
        if each.case.mode == SEPARATE:
            separate.setdefault(each.case.workers, []).extend(each.speeds)
    alone = statistics.median(separate[1])

    def over_alone(name: str, speeds: Sequence[float]) -> Figure:
        return Figure(f"{name} over one process", "x", [speed / alone for speed in speeds])

    found = [Figure("one process of one thread", "images/s", separate[1])]
    for count, speeds in separate.items():
        if count > 1:
            found.append(over_alone(f"{SEPARATE}, {count} workers, {UNSHAPED}", speeds))
    for each in measured:
        case = each.case
        if case.mode == SEPARATE:
            continue
        name = f"{case.mode}, {case.workers} workers, {case.link}"
        step = batch_size * case.workers / statistics.median(separate[case.workers])
        expected = predicted(
            case, step=step, batch_size=batch_size, sent=each.sent, received=each.received, image=image
        )
        found.append(over_alone(name, each.speeds))
        found.append(Figure(f"{name}, predicted", "x", [expected / alone]))
    return found


def markdown(figures: Sequence[Figure]) -> str:
    """Return the table of the documentation: rows are modes and links, columns are numbers of workers.

    A cell has the speed over that of one process, and in parentheses what was predicted.
    """
    medians = {figure.name: figure.median for figure in figures}
    end = " over one process"
    ratio = {
        tuple(name.removesuffix(end).split(", ")): medians[name] for name in medians if name.endswith(end)
    }
    expected = {parts: medians.get(f"{', '.join(parts)}, predicted") for parts in ratio}
    workers = sorted({count for _, count, _ in ratio})
    lines = [f"| | link | {' | '.join(workers)} |", "| --- | --- |" + " --- |" * len(workers)]
    for mode, link in dict.fromkeys((mode, link) for mode, _, link in ratio):
        cells = []
        for key in ((mode, count, link) for count in workers):
            predicted = f" ({expected[key]:.2f})" if expected.get(key) else ""
            cells.append(f"{ratio[key]:.2f}{predicted}" if key in ratio else "–")
        lines.append(f"| {mode} | {link} | {' | '.join(cells)} |")
    errors = [abs(ratio[key] / value - 1) for key, value in expected.items() if value]
    median, most = statistics.median(errors), max(errors)
    off = f"Measured speed is off by {median:.0%} of the predicted one (median), {most:.0%} at most."
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
    print(markdown(measure_and_report("links", __doc__, parser.parse_args(arguments), measure)))


if __name__ == "__main__":
    main()
