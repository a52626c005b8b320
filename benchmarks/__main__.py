"""Run all benchmarks, each in its own process, and print one summary."""

import argparse
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.common import MISSING_TORCH, RESULTS, ROOT, at_least, torch_is_installed
from benchmarks.report import print_table, read_date, read_figures, read_machine
from labkit import home

SCRIPTS = (
    "train_step",
    "levers",
    "filters",
    "inference",
    "roofline",
    "input_pipeline",
    "prepare_images",
    "telemetry",
    "inspection",
    "startup",
    "follow",
    "scaling",
    "links",
    "accuracy",
    "ablation",
    "transfer",
    "dashboard",
)
ONLY_WHEN_NAMED = (
    "levers",
    "filters",
    "links",
    "accuracy",
    "ablation",
    "transfer",
    "dashboard",
)  # need root, or take minutes or hours
NEED_TORCH = ("inference",)  # the other scripts that compare with PyTorch can leave it out


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every script ran, whether its goals were met or not; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    words = f"of {', '.join(SCRIPTS)} (default: all but {', '.join(ONLY_WHEN_NAMED)})"
    parser.add_argument("names", nargs="*", metavar="NAME", help=words)
    parser.add_argument("--repeats", type=at_least(1), help="repeats of each (default: the script's own)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON results")
    parser.add_argument(
        "--data-dir", type=Path, default=home.data_home(), help="folder of prepared data sets"
    )
    parser.add_argument(
        "--summary", action="store_true", help="show the existing results and measure nothing"
    )
    options = parser.parse_args(arguments)
    names = options.names or (SCRIPTS if options.summary else default_names())
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


def default_names() -> list[str]:
    """Return the scripts that can be run here and are quick."""
    left_out = () if torch_is_installed() else NEED_TORCH
    for name in left_out:
        print(f"without {name}: {MISSING_TORCH}", flush=True)
    return [name for name in SCRIPTS if name not in left_out + ONLY_WHEN_NAMED]


def _run(name: str, options: argparse.Namespace) -> bool:
    print(f"== {name}", flush=True)
    values = {
        "output": options.output.absolute(),
        "data-dir": options.data_dir.absolute(),
    }
    if options.repeats is not None:
        values["repeats"] = options.repeats
    flags = [part for flag, value in values.items() for part in (f"--{flag}", str(value))]
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
        label = f"{name} ({read_date(path):%Y-%m-%d})" if name in earlier else name
        machines.add(read_machine(path))
        rows += [(label, figure) for figure in read_figures(path) if figure.goal is not None]
    if rows:
        print_table(f"Goals, measured on: {'; '.join(sorted(machines))}", rows)


if __name__ == "__main__":
    sys.exit(main())
