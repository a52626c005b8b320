"""Run all benchmarks, each in its own process, and print one summary."""

import argparse
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.common import ROOT, make_parser
from benchmarks.report import print_table, read_figures, read_origin

QUICK = (
    "train_step",
    "inference",
    "roofline",
    "input_pipeline",
    "prepare_images",
    "telemetry",
    "inspection",
    "startup",
    "follow",
    "scaling",
)
# They need root or a browser, or take minutes or hours.
ONLY_WHEN_NAMED = (
    "levers",
    "filters",
    "links",
    "accuracy",
    "ablation",
    "transfer",
    "corrected",
    "search",
    "dashboard",
)
SCRIPTS = QUICK + ONLY_WHEN_NAMED


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every script ran, whether its goals were met or not; 1 if one failed."""
    parser = make_parser(__doc__, of_resnet=False)
    parser.prog = "python -m benchmarks"
    parser.set_defaults(repeats=None)  # each script's own
    words = f"of {', '.join(SCRIPTS)} (default: all but {', '.join(ONLY_WHEN_NAMED)})"
    parser.add_argument("names", nargs="*", metavar="NAME", help=words)
    words = "show the existing results and measure nothing"
    parser.add_argument("--summary", action="store_true", help=words)
    options = parser.parse_args(arguments)
    names = options.names or (SCRIPTS if options.summary else QUICK)
    unknown = [name for name in names if name not in SCRIPTS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(SCRIPTS)}")
    failed = [] if options.summary else [name for name in names if not _run(name, options)]
    shown = names if options.names else SCRIPTS
    earlier = set(SCRIPTS) if options.summary else set(SCRIPTS) - set(names)
    summarize([name for name in shown if name not in failed], options.output, earlier)
    for name in failed:
        print(f"{name} failed: see above", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, options: argparse.Namespace) -> bool:
    print(f"== {name}", flush=True)
    flags = ["--output", str(options.output.absolute()), "--data-dir", str(options.data_dir.absolute())]
    if options.repeats is not None:
        flags += ["--repeats", str(options.repeats)]
    return subprocess.call([sys.executable, "-m", f"benchmarks.{name}", *flags], cwd=ROOT) == 0


def summarize(names: Sequence[str], output: Path, earlier: Collection[str]) -> None:
    """Print the figures with a goal from the results in ``output``, and the machines that measured them.

    Rows of scripts in ``earlier``, which were not measured just now, show the date of their measurement.
    """
    rows = []
    machines = set()
    for name in names:
        path = output / f"{name}.json"
        if not path.exists():
            print(f"{name}: no result in {output}")
            continue
        date, machine = read_origin(path)
        label = f"{name} ({date:%Y-%m-%d})" if name in earlier else name
        machines.add(machine)
        rows += [(label, figure) for figure in read_figures(path) if figure.goal is not None]
    if rows:
        print_table(f"Goals, measured on: {'; '.join(sorted(machines))}", rows)


if __name__ == "__main__":
    sys.exit(main())
