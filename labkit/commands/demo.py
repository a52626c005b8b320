"""``labkit demo``, which ``make demo`` calls: run the training notebook, and say where to look."""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit import home
from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser
from labkit.errors import InputError, require_extra
from labkit.plurals import counted

__all__ = ["declare_demo", "find_notebook", "read_conclusion", "run_demo"]

NAME = "train.ipynb"
NEEDS = ("papermill", "ipykernel", "ipywidgets", "matplotlib", "pandas")  # by the notebook, too
SECONDS_TO_START = 120  # of a kernel; the first start after an installation compiles its modules


def run_demo(
    *,
    output: str | os.PathLike[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    announce: Callable[[str], None] = print,
) -> int:
    """Run ``notebooks/train.ipynb``, show its progress, and say what came out and how to look at it.

    The executed notebook is moved to its place when it is complete; one that failed is kept beside it as
    ``…-failed.ipynb``.

    Args:
        output: where to put the executed notebook; None: into the run's directory.
        parameters: values for the notebook's parameters.
        announce: takes lines for people.

    Returns the exit code: 0 done, 1 the notebook failed, 128 + signal when it was stopped.
    Raises InputError where there is no notebook, a package is missing or there is no place to write, and for
    what the notebook refuses.
    """
    require_extra("notebook", NEEDS, "labkit demo")
    notebook = find_notebook()
    target = Path(output).expanduser().absolute() if output is not None else None
    folder = target.parent if target else home.runs_home()
    partial = folder / f".{NAME.removesuffix('.ipynb')}-{os.getpid()}.partial.ipynb"
    _check_writable(folder)
    announce(f"running {notebook}: about two minutes on two cores, seconds where the run is finished already")
    started = time.monotonic()
    try:
        with _signals_interrupt() as received:
            error = _execute(notebook, partial, parameters, _Lines(announce))
    except KeyboardInterrupt:
        number = received[0] if received else signal.SIGINT
        announce("stopped; the training was told to save: the same command continues from there")
        return 128 + number
    else:
        if error is not None:
            kept = _keep_failed(partial, target or folder / NAME)
            return _report_failure(error, kept, announce)
        conclusion = read_conclusion(partial)
        place = target or Path(conclusion["run"]) / NAME
        _move(partial, place)
        _report(conclusion, place, time.monotonic() - started, announce)
        return 0
    finally:
        partial.unlink(missing_ok=True)


def find_notebook() -> Path:
    """Return the training notebook of the checkout that labkit is imported from.

    Raises InputError where labkit is installed without it.
    """
    path = Path(__file__).resolve().parents[2] / "notebooks" / NAME
    if not path.is_file():
        raise InputError(
            f"there is no {path}: this labkit was installed without its notebooks; "
            "clone the repository and run make demo there"
        )
    return path


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} can't be made: {error.strerror}; set LABKIT_HOME to another folder"
        ) from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} can't be written; set LABKIT_HOME to another folder")


# ---- execution -----------------------------------------------------------------------------------------


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


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[list[int]]:
    """Let SIGTERM end the demo as Ctrl-C does; yields the list that holds the signal when it has come."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def interrupt(number: int, frame: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def _execute(notebook: Path, output: Path, parameters: Mapping[str, Any] | None, lines: _Lines) -> Any:
    """Run the notebook into ``output``. Returns papermill's error, or None.

    An interrupt ends the kernel too: nbclient interrupts it, which makes a training save and stop, asks it
    to shut down, and kills it after five seconds.
    """
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import execute_notebook

    try:
        execute_notebook(
            str(notebook),
            str(output),
            parameters=dict(parameters or {}),
            cwd=str(notebook.parent),
            progress_bar=False,
            stdout_file=lines,
            stderr_file=sys.stderr,
            start_timeout=SECONDS_TO_START,
            # Its warnings are about the transport to this very process.
            extra_arguments=["--IPKernelApp.log_level=40"],
        )
    except (PapermillExecutionError, DeadKernelError) as error:
        return error
    return None


def _keep_failed(partial: Path, target: Path) -> Path | None:
    if not partial.exists():
        return None
    kept = target.with_name(f"{target.stem}-failed.ipynb")
    _move(partial, kept)
    return kept


def _move(source: Path, target: Path) -> None:
    """Put ``source`` at ``target``, whole; from another file system it is copied beside it first."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.move(source, beside)
    os.replace(beside, target)


def read_conclusion(notebook: Path) -> dict[str, Any]:
    """Return what an executed notebook ended with (``labkit.notebook.results.Conclusion``) as a dict.

    Raises InputError where it holds no result.
    """
    import nbformat

    from labkit.notebook.results import RESULT_MIME

    for cell in reversed(nbformat.read(notebook, as_version=4).cells):
        for output in cell.get("outputs", ()):
            found = output.get("data", {}).get(RESULT_MIME)
            if found is not None:
                return dict(found)
    raise InputError(f"{notebook} holds no result; run all of its cells, the last one too")


# ---- what to say ---------------------------------------------------------------------------------------


def _report(
    conclusion: Mapping[str, Any], place: Path, seconds: float, announce: Callable[[str], None]
) -> None:
    checkout = find_notebook().parents[1]
    if not conclusion["did_work"]:
        announce("the run was finished already: nothing was trained, its results were drawn anew")
    if conclusion["banner"]:
        announce(conclusion["banner"])
    images = counted(conclusion["examples"], "image")
    accuracy = f"{conclusion['accuracy']:.4f} ({images}, step {conclusion['step']})"
    lines = (
        ("notebook", str(place)),
        ("run", conclusion["run"]),
        ("data set", conclusion["data_note"]),
        ("devices", conclusion["devices"]),
        (f"{conclusion['split']} accuracy", accuracy),
        ("time", f"{seconds:.0f} s"),
        ("dashboard", f"make app       (or, in {checkout}: streamlit run app/main.py)"),
        ("JupyterLab", f"make lab       (or: jupyter lab {place})"),
    )
    announce("")
    for name, text in lines:
        announce(f"{name + ':':<16} {text}")


def _report_failure(error: Any, kept: Path | None, announce: Callable[[str], None]) -> int:
    """Say what went wrong; returns the exit code. Raises InputError for what the notebook refused."""
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    where = f" (see {kept})" if kept else ""
    if name == "InputError":
        raise InputError(f"{value}{where}")
    announce(f"the notebook failed with {name}: {value}{where}")
    return 1


def declare_demo(parser: Parser) -> Run:
    """Declare nothing: ``labkit demo`` has no flags."""
    return _run


def _run(options: argparse.Namespace) -> int:
    """Run the notebook. Returns the exit code."""
    return run_demo()
