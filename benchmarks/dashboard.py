"""How soon does the dashboard show what happens, and what does that take?

Pages are opened and used in Chromium. A time ends with the first frame in which the page has what was asked
for. TensorBoard is measured beside it with the same scalars.
"""

import argparse
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import dashboard_curves as curves
from benchmarks import dashboard_pages as pages
from benchmarks.common import at_least, make_parser, prepared_data, work_folder
from benchmarks.dashboard_servers import CHROMIUM
from benchmarks.report import Figure, Goal, Report
from labkit.data.manifest import Manifest

QUESTION = "Does the dashboard show everything at once, without slowing the training?"
Part = Callable[[argparse.Namespace, Manifest, Path], list[Figure]]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="what to measure"
    )
    parser.add_argument("--rows", type=at_least(1000), default=1_000_000, help="of the long run")
    parser.add_argument("--runs", type=at_least(1), default=1000, help="that are listed")
    parser.add_argument("--images", type=at_least(100), default=10_000, help="predictions that are filtered")
    parser.add_argument("--seconds", type=at_least(3), default=20, help="of a repeat of following a run")
    parser.add_argument("--ticks", type=at_least(1), default=300, help="seconds of five open sessions")
    parser.add_argument("--steps", type=at_least(1), default=30, help="training steps of a turn")
    parser.add_argument("--warmup-steps", type=at_least(1), default=10, help="steps before the first turn")
    options = parser.parse_args(arguments)
    if CHROMIUM is None:
        parser.error("no Chromium on this machine (Debian: apt-get install chromium)")
    manifest = prepared_data(options.data_dir)
    report = Report("dashboard", QUESTION, vars(options) | {"dataset": manifest.dataset})
    measured: list[Figure] = []
    failed = False
    for name in options.parts:
        print(f"-- {name}", flush=True)
        with work_folder() as folder:
            try:
                found = PARTS[name](options, manifest, folder)
            except Exception:  # what was measured before, which may be an hour's work, is kept
                traceback.print_exc()
                failed = True
                continue
        measured += found
        for figure in found:
            print(f"   {figure.name}: {figure.median:.3g} {figure.unit}", flush=True)
    if measured:
        report.finish(measured, options.output)
    if failed:
        sys.exit("a part could not be measured: see above")


def follow(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    taken = curves.follow(folder, options.repeats, options.seconds)
    return [
        _seconds("a row written to its place on the screen, median", taken["median"], 1.0),
        _seconds("a row written to its place on the screen, worst", taken["worst"], 2.0),
        Figure(
            "server's CPU with one followed run, of a core", "%", tuple(taken["cpu"]), Goal("at most", 5.0)
        ),
    ]


def follow_in_tensorboard(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    taken = curves.follow_in_tensorboard(folder, min(options.repeats, 3))
    return [_seconds("TensorBoard: an event written to its place on the screen", taken)]


def long_run(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    taken = curves.long_run(folder, options.repeats, options.rows)
    what = f"a run of {options.rows:,} rows"
    return [
        _seconds(f"{what}, opened by a new server", taken["first"], 2.0),
        _seconds(f"{what}, opened again", taken["again"], 1.0),
        _seconds(f"{what}, zoomed", taken["zoom"], 0.3),
    ]


def long_run_in_tensorboard(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    taken = curves.long_run_in_tensorboard(folder, min(options.repeats, 3), options.rows)
    return [_seconds(f"TensorBoard: {options.rows:,} rows (1,000 points of each curve), opened", taken)]


def cold_browser(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    taken = pages.cold_browser(folder, options.repeats)
    return [_seconds("charts in a browser that has just started", taken, 2.5)]


def listing(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    first, again = pages.listing(folder, options.repeats, options.runs)
    return [
        _seconds(f"{options.runs:,} runs listed by a new server", first, 1.5),
        _seconds(f"{options.runs:,} runs listed again", again, 1.5),
    ]


def switches(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    taken = pages.switches(folder, options.repeats)
    return [_seconds(f"a click on {name} to its page", values, 0.7) for name, values in taken.items()]


def filters(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    taken = pages.filters(folder, options.repeats, options.images)
    return [_seconds(f"a filter of {options.images:,} predictions to its images", taken, 0.3)]


def what_if(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    (folder / "data").symlink_to(manifest.directory.parent)
    taken = pages.what_if(folder, options.repeats, manifest, options.num_layers)
    return [_seconds("a step of a what-if slider to the network's answer", taken, 0.5)]


def memory(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    megabytes, growth = curves.memory(folder, options.ticks)
    return [
        Figure("server's memory with five sessions", "MB", (megabytes,), Goal("at most", 400.0)),
        Figure(f"its growth in {options.ticks} s", "%", (growth,), Goal("at most", 5.0)),
    ]


def training(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    alone, beside = curves.training_beside(options, manifest, folder)
    ratios = tuple(open_ / closed for open_, closed in zip(beside, alone, strict=True))
    return [
        Figure("training with an open page over without", "x", ratios, Goal("at least", 0.99)),
        Figure("training without an open page", "images/s", tuple(alone)),
        Figure("training with an open page", "images/s", tuple(beside)),
    ]


def _seconds(name: str, taken: list[float], goal: float | None = None) -> Figure:
    return Figure(name, "s", tuple(taken), None if goal is None else Goal("at most", goal))


PARTS: dict[str, Part] = {
    "follow": follow,
    "follow-in-tensorboard": follow_in_tensorboard,
    "long-run": long_run,
    "long-run-in-tensorboard": long_run_in_tensorboard,
    "cold-browser": cold_browser,
    "listing": listing,
    "switches": switches,
    "filters": filters,
    "what-if": what_if,
    "memory": memory,
    "training": training,
}


if __name__ == "__main__":
    main()
