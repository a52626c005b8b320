"""Executes lessons, each in a kernel of its own and in bounded time."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_markdown_cell

__all__ = ["FAILED", "SECONDS", "Failure", "execute"]

SECONDS = 600  # of one lesson: three times the three minutes that a lesson may say, and a start
SECONDS_TO_END = 30  # of papermill, which ends its kernel
FAILED = "course-failed"  # the tag of the banner, and the id in its page
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """Why a lesson wasn't executed to its end.

    Args:
        lesson: such as ``04_replicas``.
        cell: the id of the cell that failed; empty where none had begun.
        reason: one line.
    """

    lesson: str
    cell: str
    reason: str

    def __str__(self) -> str:
        return f"{self.lesson}{f', cell {self.cell}' if self.cell else ''}: {self.reason}"


def execute(
    source: Path, target: Path, home: Path, *, seconds: float = SECONDS, python: str = sys.executable
) -> Failure | None:
    """Execute a notebook into ``target``, which is replaced when the execution has ended.

    An execution that fails is written, too, with a banner at its top.

    Args:
        source: the notebook; it runs in its folder and isn't changed.
        target: where to put the executed notebook.
        home: ``LABKIT_HOME`` of the notebook.
        seconds: papermill and its kernel are ended after this time.
        python: the interpreter that runs papermill.

    Returns what went wrong, or None.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial.ipynb")
    words = [python, "-m", "papermill", str(source.resolve()), str(partial.resolve()), "--no-progress-bar"]
    words += ["--cwd", str(source.resolve().parent), "--start-timeout", "120", "--log-level", "ERROR"]
    try:
        code, said = _run_bounded(words, _environment(home), seconds)
        if code == 0:
            os.replace(partial, target)
            return None
        why = f"took over {seconds:.0f} s and was ended" if code is None else _last_line(said)
        notebook = nbformat.read(partial if partial.exists() else source, as_version=4)
        failure = _failure(source.stem, notebook, why, stopped=code is None)
        _add_banner(notebook, failure)
        nbformat.write(notebook, partial)
        os.replace(partial, target)
        return failure
    finally:
        partial.unlink(missing_ok=True)


def _environment(home: Path) -> Mapping[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    # A proxy that isn't there keeps `dataset=auto` from downloading CIFAR-10: all builds show the same data.
    return {**os.environ, "LABKIT_HOME": str(home.resolve()), "https_proxy": "http://127.0.0.1:9"}


def _run_bounded(words: list[str], environment: Mapping[str, str], seconds: float) -> tuple[int | None, str]:
    """Return exit code and messages; the code is None where the time was over.

    SIGINT makes papermill end its kernel, which is no member of its process group.
    """
    started = time.monotonic()
    with subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=seconds)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:  # time over, or Ctrl-C
                process.send_signal(signal.SIGINT)
                try:
                    process.communicate(timeout=SECONDS_TO_END)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                print(f"  ended after {time.monotonic() - started:.0f} s", flush=True)


def _last_line(said: str) -> str:
    lines = [line.strip() for line in COLOURS.sub("", said).splitlines() if line.strip()]
    return lines[-1] if lines else "papermill ended without a message"


def _failure(lesson: str, notebook: Any, why: str, *, stopped: bool) -> Failure:
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error" and not stopped:
                value = " ".join(str(output.evalue).split())
                return Failure(lesson, cell.id, f"{output.ename}: {value}")
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("status") != "completed":
            return Failure(lesson, cell.id, why)
    return Failure(lesson, "", why)


def _add_banner(notebook: Any, failure: Failure) -> None:
    """Put a banner after the title, instead of those of papermill."""
    notebook.cells = [
        cell
        for cell in notebook.cells
        if not {"papermill-error-cell-tag", FAILED} & {*cell.metadata.get("tags", ())}
    ]
    where = f" in the cell `{failure.cell}`" if failure.cell else ""
    text = f'<div id="{FAILED}"></div>\n\n> **This lesson failed{where}.** {failure.reason}'
    notebook.cells.insert(1, new_markdown_cell(text, metadata={"tags": [FAILED]}))
