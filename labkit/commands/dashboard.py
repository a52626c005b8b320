"""``labkit dashboard`` and ``labkit tensorboard``: servers of pages, on loopback unless told otherwise."""

import errno
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from threading import Timer
from typing import Annotated, Any

from labkit import home
from labkit.commands.flags import Flag, LocalPath
from labkit.distributed.task import is_loopback
from labkit.errors import InputError, require_extra
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.find import find_run
from labkit.startup.child import python_command
from labkit.startup.interruption import in_import, take_requests
from labkit.startup.others import other_users
from labkit.startup.quiet_import import import_tensorflow
from labkit.tensorboard.server import LOOPBACK

Port = Annotated[int, Flag(help="Port to use. Default: a free one.")]


def dashboard(
    *,
    runs_dir: Annotated[LocalPath | None, Flag(metavar="DIR", alias="--runs")] = None,
    port: Port | None = None,
    no_browser: bool = False,
    read_only: bool = False,
    token: bool = False,
    allow_code: bool = False,
) -> int:
    """Become the dashboard's server. Raises InputError where it can't be started.

    Args:
        runs_dir: Shows the runs of this folder beside those in <home>/runs.
        no_browser: Opens no browser.
        read_only: Leaves out all that acts on a run.
        token: Asks for a token before anything acts on a run. Where other people are logged in, it does so
            without this flag.
        allow_code: Takes callbacks and an address to listen on in the form of a new run.
    """
    require_extra("app", ("streamlit",), "labkit dashboard")
    environment = dict(os.environ)
    if runs_dir is not None:
        folder = home.expanded(runs_dir).absolute()
        if not folder.is_dir():
            raise InputError(f"--runs-dir {folder} is not a directory; name one that holds runs")
        environment["LABKIT_RUNS"] = str(folder)
    if read_only:
        environment["LABKIT_READ_ONLY"] = "1"
    if allow_code:
        environment["LABKIT_ALLOW_CODE"] = "1"
    opens = not no_browser
    named = environment.get("LABKIT_TOKEN")  # an empty one switches it off
    if named or token or (named is None and other_users()):
        environment["LABKIT_TOKEN"] = named or secrets.token_urlsafe(24)
        environment |= {"LABKIT_OPEN_BROWSER": "1"} if opens else {}
        opens = False  # Streamlit would open the address without the token
    port, base = _free_port(port), ""
    if environment.get("LABKIT_TOKEN"):  # the cookie goes to all ports of this host, but to this path only
        base = f"/{secrets.token_urlsafe(8)}"
        environment["STREAMLIT_SERVER_BASE_URL_PATH"] = base  # others can read the arguments of processes
    print(f"dashboard: http://{LOOPBACK}:{port}{base} (Ctrl-C ends it)")
    flags = [f"--server.address={LOOPBACK}", f"--server.port={port}", "--server.showEmailPrompt=false"]
    flags.append(f"--server.headless={str(not opens).lower()}")
    sys.stdout.flush()
    command = python_command("-c", SERVE, "run", home.shipped("app") / "main.py", *flags)
    os.execve(sys.executable, command, environment)  # Ctrl-C then ends the server itself


# Streamlit's own command ends with "Aborted!" and code 1 after Ctrl-C, or in the middle of an import.
SERVE = """
try:
    from click import Abort
    try:
        from streamlit.web.cli import main
        main(standalone_mode=False)
    except Abort:
        pass
except KeyboardInterrupt:
    pass
"""


def _free_port(wanted: int | None, host: str = LOOPBACK) -> int:
    """Return ``wanted``, or a port that nobody listens on. Raises InputError where it can't be had."""
    if wanted is not None and not 1 <= wanted <= 65535:
        raise InputError(f"--port is {wanted}; allowed: a whole number from 1 to 65535")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just given up is free
        try:
            probe.bind((host or "no host", wanted or 0))  # an empty name would be every address
        except (OSError, UnicodeError) as error:
            if not isinstance(error, OSError) or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InputError(
                    f"--host is {host!r}, which is no address of this machine; allowed: its addresses and "
                    f"names, such as {LOOPBACK}, and 0.0.0.0 for all of them"
                ) from None
            raise InputError(
                f"--port is {wanted}, which can't be used: {error.strerror}; name another"
            ) from None
        return int(probe.getsockname()[1])


def tensorboard(
    *run: Annotated[str, Flag(metavar="RUN")], host: str = LOOPBACK, port: Port | None = None
) -> int:
    """Serve until Ctrl-C. Raises InputError for runs that aren't there, and for a port that is taken.

    Args:
        run: Directories of runs, or their names. Default: all in <home>/runs, also those that begin later.
        host: Address to listen on. 0.0.0.0 listens on every address of this machine. Default: 127.0.0.1,
            which other machines can't reach.
    """
    runs = _runs(run)
    port = _free_port(port, host)
    if not is_loopback(host):
        print(f"warning: --host is {host}: whoever reaches this machine can read the runs")
    from labkit.tensorboard.log_folder import SECONDS_BETWEEN_LOOKS, log_folder
    from labkit.tensorboard.server import start_server

    # So that the folder of links is removed, also while TensorFlow is imported.
    take_requests(_exit)
    with log_folder(runs) as folder:
        for note in folder.notes():
            print(f"note: {note}")
        if folder.debugged and len(folder.runs) > 1:
            print(f"note: the Debugger V2 page shows the run {folder.debugged}, whose dump is the newest")
        if folder.debugged:
            import_tensorflow()  # the page is inactive until its reader is imported
        address = start_server(folder.path, port, host=host)
        print(f"TensorBoard: {address} (Ctrl-C ends it)")
        try:
            import_tensorflow()  # which TensorBoard would import on first use, with its messages
            while True:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                folder.refresh()
        except KeyboardInterrupt:
            return 0


def _runs(names: Sequence[str]) -> Callable[[], list[RunDirectory]]:
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
    if in_import(frame):  # asked again until it is over
        again = Timer(0.1, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
