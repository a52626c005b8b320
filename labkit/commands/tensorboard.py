"""``labkit tensorboard``: serve runs with TensorBoard, on loopback alone."""

import argparse
import signal
import time
from collections.abc import Callable
from typing import Any

from labkit import home
from labkit.commands import Run
from labkit.commands.dashboard import add_port, free_port
from labkit.commands.terminal.arguments import Parser
from labkit.errors import InputError
from labkit.quiet_import import import_tensorflow
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.find import find_run

__all__ = ["declare_tensorboard"]


def declare_tensorboard(parser: Parser) -> Run:
    """Declare the flags of ``labkit tensorboard``."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="*",
        help="Directories of runs, or their names. Default: all in <home>/runs, also those that begin later.",
    )
    add_port(parser)
    return _tensorboard


def _tensorboard(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises InputError for runs that aren't there, and for a port that is taken."""
    runs = _runs(options.run)
    port = free_port(options.port)
    from labkit.tensorboard.log_folder import SECONDS_BETWEEN_LOOKS, log_folder
    from labkit.tensorboard.server import start_server

    signal.signal(signal.SIGTERM, _exit)  # so that the folder of links is removed
    with log_folder(runs) as folder:
        for note in folder.notes():
            print(f"note: {note}")
        if folder.debugged and len(folder.runs) > 1:
            print(f"note: the Debugger V2 page shows the run {folder.debugged}, whose dump is the newest")
        if folder.debugged:
            import_tensorflow()  # the page is inactive until its reader is imported
        address = start_server(folder.path, port)
        print(f"TensorBoard: {address} (Ctrl-C ends it)", flush=True)
        try:
            import_tensorflow()  # which TensorBoard would import on first use, with its messages
            while True:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                folder.refresh()
        except KeyboardInterrupt:
            return 0


def _runs(names: list[str]) -> Callable[[], list[RunDirectory]]:
    """Return a function that returns the runs to show."""
    if names:
        named = [RunDirectory(find_run(name)) for name in names]
        return lambda: named
    folder = home.runs_home()
    if not list_runs(folder):
        raise InputError(
            f"there are no runs in {folder}; train one with labkit train, or name a run directory"
        )
    return lambda: list_runs(folder)


def _exit(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)
