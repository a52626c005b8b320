"""``python -m labkit.tensorboard RUN_DIRECTORY…``: serve runs until standard input is closed.

A process that started this one ends it by closing the pipe, or by ending itself, in whatever way.
"""

import select
import signal
import sys

from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.tensorboard.log_folder import SECONDS_BETWEEN_LOOKS, log_folder
from labkit.tensorboard.server import start_server


def main() -> int:
    """Print the address, and wait. Returns the exit code."""
    runs = [RunDirectory(path) for path in sys.argv[1:]]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupts a notebook's cell, not this
    with log_folder(lambda: runs) as folder:
        try:
            print(start_server(folder.path, 0), flush=True)
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
        while not select.select([sys.stdin], [], [], SECONDS_BETWEEN_LOOKS)[0]:
            folder.refresh()
    return 0


if __name__ == "__main__":
    sys.exit(main())
