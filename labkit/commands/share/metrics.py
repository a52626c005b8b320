"""``labkit metrics``: all metrics of a run as CSV or Parquet."""

import argparse
from pathlib import Path

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path
from labkit.errors import InputError
from labkit.home import expanded
from labkit.run_directory.disk import check_writable
from labkit.run_directory.find import run_to_read

__all__ = ["declare_metrics"]


def declare_metrics(parser: Parser) -> Run:
    """Declare the flags of ``labkit metrics``."""
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument(
        "--output",
        type=local_path,
        default="metrics.csv",
        metavar="FILE",
        help="File to write, CSV or Parquet by its ending: .csv or .parquet. One that is there is replaced. "
        "Default: metrics.csv.",
    )
    return _run


def _run(options: argparse.Namespace) -> int:
    """Write the metrics. Raises InputError for a run that isn't there and for an unknown ending."""
    run = run_to_read(options.run)
    output = expanded(options.output)
    from labkit.export.metrics import FORMATS, write_metrics

    if output.suffix not in FORMATS:
        allowed = " or ".join(FORMATS)
        raise InputError(f"--output is {str(output)!r}; allowed: a name that ends with {allowed}")
    if output.is_dir():
        raise InputError(f"--output {output} is a folder; give the name of a file")
    check_writable(output.parent, "--output")
    try:
        written = write_metrics(run, output)
    except OSError as error:
        if error.filename is None or Path(error.filename).parent != output.parent:
            raise
        raise InputError(f"--output {output} can't be written: {error.strerror}; name another file") from None
    print(f"{output}: {written.rows:,} rows, {written.columns} columns")
    for note in written.notes:
        print(f"note: {note}")
    return 0
