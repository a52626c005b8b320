"""Run a notebook from the command line or from Python: papermill, with whole files and plain endings.

Papermill writes the notebook after each cell to its output. Here that file stands beside the output under a
hidden name, and is moved to its place when it is complete.
"""

import contextlib
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import home
from labkit.errors import InputError, require_extra
from labkit.notebook.file_parameters import check_given
from labkit.notebook.files import conclusion_of, failed_path, read_notebook, write_notebook
from labkit.startup.interruption import ANNOUNCEMENTS, restore_handlers, take_requests


def output_path(notebook: Path, output: str | os.PathLike[str] | None) -> Path:
    """Return where the executed notebook goes. Raises InputError where it can't."""
    way_out = _way_out(shared=output is None)
    if output is None:
        folder, name = home.runs_home() / "notebooks", notebook.name
    else:
        path = home.expanded(output).absolute()
        folder, name = path.parent, path.name
        if path.is_dir():
            raise InputError(f"--output {path} is a folder; name a file in it: {path / notebook.name}")
        if path.suffix != ".ipynb":
            raise InputError(f"--output {path} is no notebook's name; allowed: a name that ends in .ipynb")
        if path.exists() and path.samefile(notebook):
            raise InputError(f"--output {path} is the notebook itself; name another file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} can't be made: {error.strerror}; {way_out}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} can't be written; {way_out}")
    return folder / name


def _way_out(*, shared: bool) -> str:
    """What to do about a folder that can't be written. ``shared``: it is labkit's own."""
    return "set LABKIT_HOME to another folder" if shared else "name a file of yours with --output"


@contextlib.contextmanager
def partial_file(target: Path, *, shared: bool) -> Iterator[Path]:
    """Hold a hidden file beside ``target`` that papermill writes to; it is removed at the end.

    Its lock tells a file that is being written from one that a killed process left behind.

    Args:
        target: the executed notebook's place.
        shared: several processes may hold a file for this place, because each chooses another in the end.

    Raises InputError if another process holds it, and where no file can be made.
    """
    beginning = f".{target.stem}"
    if shared:
        for left in target.parent.glob(f"{beginning}-*.partial.ipynb"):
            with contextlib.suppress(OSError, _Held), _locked(left):
                left.unlink()
        beginning += f"-{os.getpid()}"
    path = target.with_name(f"{beginning}.partial.ipynb")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(path))
        except _Held:
            raise InputError(f"{target} is being written by another process; name another --output") from None
        except OSError as error:
            way_out = _way_out(shared=shared)
            raise InputError(f"{target.parent} can't be written: {error.strerror}; {way_out}") from None
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


class _Held(Exception):
    """Another process has locked the file."""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _Held from None
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield
                return
        # Its owner removed it between opening and locking.


NEEDS = ("papermill", "ipykernel")
SECONDS_TO_START = 120  # of a kernel; the first start after an installation compiles its modules
SECONDS_TO_SAVE = 60  # of a kernel that was interrupted, for a training to save
SECONDS_TO_END = 2.5  # of any other kernel, until it gets SIGTERM; jupyter_client's default
LONGEST_REASON = 300  # characters of what an exception says


@dataclass(frozen=True)
class Execution:
    """How the execution of a notebook ended.

    ``code``: 0 done, 1 failed, 128 + signal when it was stopped. ``path``: the executed notebook, or what is
    kept of one that failed; None if nothing is kept. ``reason``: why it isn't done, in one line.
    ``conclusion``: what the notebook ended with (``labkit.notebook.prepared.Conclusion``), or None.
    """

    code: int
    path: Path | None
    reason: str
    seconds: float
    conclusion: Mapping[str, Any] | None = None


def run_notebook(
    notebook: Path,
    *,
    output: str | os.PathLike[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    report_mode: bool = False,
    announce: Callable[[str], None] = print,
) -> Execution:
    """Run a notebook and show what it prints while it runs. Its kernel works in the current folder.

    A notebook that fails is kept beside its place as ``…-failed.ipynb``, with a banner at the failed cell. A
    signal that asks to stop interrupts the running cell, so that a training saves; nothing is kept.

    Args:
        notebook: its file.
        output: where to put the executed notebook; None: into the directory of the run that the notebook
            ended with, or where it ended with none, into ``runs/notebooks`` in labkit's home.
        parameters: values for its parameters.
        report_mode: hides the code, so that outputs and text remain.
        announce: takes lines for people.

    Raises InputError for parameters that the notebook doesn't have or allow, for an output that can't be
    written or that another process is writing, for a missing package or kernel, and for an InputError that
    the notebook raised.
    """
    require_extra("notebook", NEEDS, "running a notebook")
    source = read_notebook(notebook)
    check_given(source, parameters or {})
    kernel = _kernel(source, notebook)
    target = output_path(notebook, output)
    with partial_file(target, shared=output is None) as partial:
        announce(f"running {notebook}")
        started = time.monotonic()
        try:
            with _signals_interrupt() as received:
                manager = _kernel_manager(was_stopped=lambda: bool(received))
                error = _execute(
                    notebook, partial, parameters, report_mode, kernel, manager, _Lines(announce)
                )
        except KeyboardInterrupt:
            number = received[0] if received else signal.SIGINT
            return Execution(128 + number, None, "stopped", time.monotonic() - started)
        seconds = time.monotonic() - started
        if error is not None:
            return _failed(error, partial, target, seconds)
        executed = read_notebook(partial)
        conclusion = conclusion_of(executed)
        if output is None and conclusion is not None:
            target = Path(conclusion["run"]) / notebook.name
        _write(executed, target)
        return Execution(0, target, "", seconds, conclusion)


# ---- before the kernel starts --------------------------------------------------------------------------


def _kernel(notebook: Any, path: Path) -> tuple[str, str]:
    """Return the kernel and the language of a notebook. Raises InputError if the kernel isn't installed."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    spec = notebook.metadata.get("kernelspec", {})
    name = spec.get("name") or "python3"
    try:
        language = KernelSpecManager().get_kernel_spec(name).language
    except NoSuchKernel:
        raise InputError(
            f"{path} asks for the kernel {name!r}, which isn't installed; open it in JupyterLab, choose a "
            "kernel and save it (jupyter kernelspec list shows those that are installed)"
        ) from None
    return name, language


# ---- execution -----------------------------------------------------------------------------------------


class _StoppedByCell(RuntimeError):
    pass


def _check_reply(cell: Any, cell_index: int, execute_reply: Mapping[str, Any]) -> None:
    """Raise _StoppedByCell if a cell has asked to end the notebook.

    Papermill takes ``sys.exit(0)`` for success, and goes on after ``exit()``, which asks the kernel to end.
    """
    reply = execute_reply["content"]
    if any(item.get("source") == "ask_exit" for item in reply.get("payload") or ()):
        raise _StoppedByCell("exit()")
    if reply.get("ename") == "SystemExit" and "raises-exception" not in cell.metadata.get("tags", ()):
        said = _one_line(reply.get("evalue", ""))
        raise _StoppedByCell(f"SystemExit: {said}" if said else "SystemExit")


class _Lines:
    """A file that hands whole lines on. Papermill writes what the notebook prints into it."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._announce(line)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back but the beginning of a line."""

    def close(self) -> None:
        """Hand on a last line that has no end."""
        if self._rest:
            self._announce(self._rest)


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[list[int]]:
    """Let each signal in ``REQUESTS`` end the execution as Ctrl-C does; yields the list that gets it."""
    received: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        if received and number in ANNOUNCEMENTS:  # repeated, while a training saves
            return
        received.append(number)
        raise KeyboardInterrupt

    before = take_requests(interrupt)
    try:
        yield received
    finally:
        restore_handlers(before)


def _kernel_manager(was_stopped: Callable[[], bool]) -> type:
    """Return a class of kernel managers that waits for a training to save, and for nothing else.

    After half of ``shutdown_wait_time`` a kernel gets SIGTERM, which a training takes as a second request and
    doesn't save; after all of it, SIGKILL. About one kernel of 200 never ends by itself: at its exit,
    ipykernel 7.4 joins a thread that may write to one which has ended.
    """
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    class Manager(AsyncKernelManager):
        @default("shutdown_wait_time")  # asked for at the shutdown
        def _seconds(self) -> float:
            return 2.0 * (SECONDS_TO_SAVE if was_stopped() else SECONDS_TO_END)

    return Manager


def _execute(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any] | None,
    report_mode: bool,
    kernel: tuple[str, str],
    manager: type,
    lines: _Lines,
) -> Exception | None:
    """Run the notebook into ``output``. Returns papermill's error, or None.

    An interrupt ends the kernel too: nbclient interrupts it, which makes a training save and stop, and asks
    it to shut down; see _kernel_manager.
    """
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import execute_notebook

    name, language = kernel
    log = logging.getLogger("papermill")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what it would say is in the error, or was checked before
    try:
        execute_notebook(
            _no_fields(notebook),
            _no_fields(output),
            parameters=dict(parameters or {}),
            kernel_name=name,
            language=language,
            report_mode=report_mode,
            progress_bar=False,
            stdout_file=lines,
            stderr_file=sys.stderr,
            start_timeout=SECONDS_TO_START,
            kernel_manager_class=manager,
            on_cell_executed=_check_reply,
            # Its messages are about the transport to this very process, and about its end.
            extra_arguments=["--IPKernelApp.log_level=50"] if language == "python" else [],
        )
    except (PapermillExecutionError, RuntimeError, TimeoutError) as error:  # RuntimeError: of the kernel
        return error
    finally:
        lines.close()
        log.setLevel(level)
    return None


def _no_fields(path: Path) -> str:
    """Return a path for papermill, which formats paths with the parameters."""
    return str(path).replace("{", "{{").replace("}", "}}")


# ---- afterwards ----------------------------------------------------------------------------------------


def _failed(error: Exception, partial: Path, target: Path, seconds: float) -> Execution:
    """Keep what a failed notebook wrote. Raises InputError for what the notebook refused."""
    from papermill.exceptions import PapermillExecutionError

    kept, cell, stopped = None, "", isinstance(error, _StoppedByCell)
    if partial.stat().st_size:  # it is empty if no kernel was found
        notebook, kept = read_notebook(partial), failed_path(target)
        cell = _mark_failed_cell(notebook, "Stopped by" if stopped else "The kernel was lost in")
        _write(notebook, kept)
    place, where = (f" in cell {cell}" if cell else ""), (f" (see {kept})" if kept else "")
    rest = "; the cells after it didn't run" if cell else ""
    if stopped:
        reason = f"cell {cell} stopped the notebook with {error}{rest}{where}"
        return Execution(1, kept, reason, seconds)
    if not isinstance(error, PapermillExecutionError):
        said = _one_line(str(error)) or type(error).__name__
        reason = f"the notebook's kernel was lost{place}: {said}{rest}{where}"
        return Execution(1, kept, reason, seconds)
    said = _one_line(error.evalue)
    if error.ename == "InputError":
        raise InputError(f"{said}{where}")
    reason = f"the notebook failed{place} with {error.ename}{': ' if said else ''}{said}{where}"
    return Execution(1, kept, reason, seconds)


def _one_line(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return lines[0] if len(lines[0]) <= LONGEST_REASON else lines[0][: LONGEST_REASON - 1] + "…"


def _mark_failed_cell(notebook: Any, what: str) -> str:
    """Return the id of the cell that failed. Marks it with ``what`` if papermill hasn't marked it."""
    from nbformat.v4 import new_markdown_cell
    from papermill.execute import ERROR_ANCHOR_MSG, ERROR_MARKER_TAG, ERROR_STYLE

    cells = notebook.cells
    for index, cell in enumerate(cells[:-1]):
        if index and ERROR_MARKER_TAG in cell.metadata.get("tags", ()):  # papermill's, before the cell
            return str(cells[index + 1].id)
    begun = [
        index
        for index, cell in enumerate(cells)
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time")
    ]
    if not begun:
        return ""
    found = str(cells[begun[-1]].id)
    top = f"<span {ERROR_STYLE}>{what} <a href='#papermill-error-cell'>this cell</a>.</span>"
    metadata = {"tags": [ERROR_MARKER_TAG]}  # papermill removes such cells when it runs the notebook again
    cells.insert(begun[-1], new_markdown_cell(ERROR_ANCHOR_MSG, metadata=metadata))
    cells.insert(0, new_markdown_cell(top, metadata=metadata))
    return found


def _write(notebook: Any, target: Path) -> None:
    notebook.metadata.setdefault("papermill", {})["output_path"] = str(target)
    write_notebook(notebook, target)
