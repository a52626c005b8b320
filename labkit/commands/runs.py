"""``labkit runs``: the runs of a folder."""

import argparse
from pathlib import Path

from labkit.commands.arguments import local_path
from labkit.commands.command import Command
from labkit.errors import InputError

__all__ = ["COMMAND"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit runs``."""
    parser.add_argument(
        "--runs-dir", type=local_path, metavar="DIR", help="folder of runs (default: <home>/runs)"
    )


def _run(options: argparse.Namespace) -> int:
    """Print a line for each run. Returns 0. Raises InputError where the named folder is none."""
    from labkit import home
    from labkit.run_directory import list_runs

    folder = Path(options.runs_dir) if options.runs_dir else home.runs_home()
    if options.runs_dir and not folder.is_dir():
        raise InputError(f"--runs-dir {folder} is not a directory; name one that holds runs")
    runs = list_runs(folder)
    if not runs:
        print(f"no runs in {folder}")
    for run in runs:
        status = run.read_status()
        state = status.liveness() if status else "unknown"
        step = f"{status.step}/{status.total_steps}" if status else "-"
        print(f"{run.name:<40} {state:<12} {step:>15}  {run.path}")
    return 0


COMMAND = Command("runs", "List runs and where they stand.", _add_arguments, _run)
