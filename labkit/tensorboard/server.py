"""Run TensorBoard in this process.

``python -m labkit.tensorboard.server RUN_DIRECTORY…`` serves runs until standard input is closed: whoever
started it ends it by closing the pipe, or by ending itself, in whatever way.
"""

import contextlib
import io
import os
import secrets
import select
import signal
import sys
import urllib.request
from pathlib import Path

from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.tensorboard.log_folder import SECONDS_BETWEEN_LOOKS, log_folder

LOOPBACK = "127.0.0.1"
SECONDS_TO_ANSWER = 60


def start_server(folder: Path, port: int, prefix: str | None = None, host: str = LOOPBACK) -> str:
    """Serve ``folder`` until this process ends. Returns the address, once it answers.

    Args:
        folder: a log folder.
        port: 0 takes a free one.
        prefix: path below which it answers, such as ``/user/ada/tensorboard``. None: a random one, which
            neither other users of this machine nor pages in a browser can guess.
        host: address to listen on.

    Raises InputError if the port is taken.
    """
    # TensorBoard's fast loader is a process of its own, which ends with this one. It would print each damaged
    # record in the form of its log.
    os.environ.setdefault("RUST_LOG", "off")
    from tensorboard import default, program

    board = program.TensorBoard(default.get_plugins())
    flags = ["--host", host, "--port", str(port), "--path_prefix", prefix or f"/{secrets.token_urlsafe(16)}"]
    board.configure(argv=["tensorboard", "--logdir", str(folder), *flags])
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a note on the loader, at each start
            address = board.launch()
    except program.TensorBoardPortInUseError:
        raise InputError(f"--port is {port}, which can't be used: it is taken; name another") from None
    no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever http_proxy says
    try:
        no_proxy.open(f"{address}data/runs", timeout=SECONDS_TO_ANSWER).read()
    except OSError as error:
        raise InputError(f"TensorBoard doesn't answer at {address}: {error}; try again") from None
    return address


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
