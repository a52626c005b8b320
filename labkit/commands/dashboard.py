"""``labkit dashboard``: this process becomes the server, on loopback alone."""

import argparse
import os
import socket
import sys
from pathlib import Path

import labkit
from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path, whole_number
from labkit.errors import InputError, require_extra

__all__ = ["add_port", "declare_dashboard", "free_port"]

LOOPBACK = "127.0.0.1"


def declare_dashboard(parser: Parser) -> Run:
    """Declare the flags of ``labkit dashboard``."""
    parser.aliases["--runs"] = "--runs-dir"
    parser.add_argument(
        "--runs-dir",
        type=local_path,
        metavar="DIR",
        help="Shows the runs of this folder beside those in <home>/runs.",
    )
    add_port(parser)
    parser.add_argument("--no-browser", action="store_true", help="Opens no browser.")
    return _dashboard


def add_port(parser: Parser) -> None:
    """Declare ``--port``, which ``free_port`` checks."""
    parser.add_argument("--port", type=whole_number(), metavar="N", help="Port to use. Default: a free one.")


def _dashboard(options: argparse.Namespace) -> int:
    """Become the dashboard's server. Raises InputError where it can't be started."""
    script = Path(labkit.__file__).resolve().parents[1] / "app" / "main.py"
    if not script.is_file():
        raise InputError(
            f"there is no {script}: labkit was installed without its dashboard; clone the repository and run "
            "labkit dashboard there"
        )
    require_extra("app", ("streamlit",), "labkit dashboard")
    environment = dict(os.environ)
    if options.runs_dir is not None:
        folder = Path(options.runs_dir).expanduser().absolute()
        if not folder.is_dir():
            raise InputError(f"--runs-dir {folder} is not a directory; name one that holds runs")
        environment["LABKIT_RUNS"] = str(folder)
    port = free_port(options.port)
    print(f"dashboard: http://{LOOPBACK}:{port} (Ctrl-C ends it)")
    flags = [f"--server.address={LOOPBACK}", f"--server.port={port}", "--server.showEmailPrompt=false"]
    flags.append(f"--server.headless={str(options.no_browser).lower()}")
    return _become(["streamlit", "run", str(script), *flags], environment)


def free_port(wanted: int | None) -> int:
    """Return ``wanted``, or a port that nobody listens on. Raises InputError where it can't be had."""
    if wanted is not None and not 1 <= wanted <= 65535:
        raise InputError(f"--port is {wanted}; allowed: a whole number from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just given up is free
        try:
            probe.bind((LOOPBACK, wanted or 0))
        except OSError as error:
            raise InputError(
                f"--port is {wanted}, which can't be used: {error.strerror}; name another"
            ) from None
        return int(probe.getsockname()[1])


def _become(module: list[str], environment: dict[str, str]) -> int:
    """Replace this process by ``python -m module``: Ctrl-C then ends the server itself."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", *module], environment)
