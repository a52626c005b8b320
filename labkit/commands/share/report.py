"""``labkit report``: a run, or a comparison of runs, as one HTML file."""

import argparse
import subprocess
import sys

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path
from labkit.errors import InputError, require_extra
from labkit.home import expanded, shipped
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import check_folders
from labkit.run_directory.disk import check_writable
from labkit.run_directory.find import find_run
from labkit.startup.child import python_command

__all__ = ["declare_report"]

MAX_RUNS = 8  # as many as there are colours for


def declare_report(parser: Parser) -> Run:
    """Declare the flags of ``labkit report``."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="Directories of runs, or their names. Several are compared."
    )
    parser.add_argument(
        "--output",
        type=local_path,
        default="report.html",
        metavar="FILE",
        help="File to write; one that is there is replaced. Default: report.html.",
    )
    return _run


def _run(options: argparse.Namespace) -> int:
    """Write a report. Raises InputError for runs that aren't there and an output that can't be written."""
    runs = list(dict.fromkeys(find_run(name).absolute() for name in options.runs))
    if len(runs) > MAX_RUNS:
        raise InputError(f"{len(runs)} runs are given; allowed: at most {MAX_RUNS} in a report")
    output = expanded(options.output)
    if output.suffix not in (".html", ".htm"):
        raise InputError(f"--output is {str(output)!r}; allowed: a name that ends with .html")
    if output.is_dir():
        raise InputError(f"--output {output} is a folder; give the name of a file")
    check_writable(output.parent, "--output")
    for path in runs:
        check_folders(RunDirectory(path))
    require_extra("app", ("streamlit", "msgspec", "tsdownsample", "PIL"), "labkit report")
    sys.stdout.flush()
    # The dashboard draws the report. It knows labkit, but labkit doesn't import it.
    command = python_command(shipped("app") / "report", f"--output={output}", "--", *runs)
    return subprocess.run(command, check=False).returncode
