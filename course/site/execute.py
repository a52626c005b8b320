"""Executes lessons, each in a kernel of its own and in bounded time."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_markdown_cell

from labkit.startup.child import python_command
from labkit.startup.process import Child

SECONDS = 600  # of one lesson: three times the three minutes that a lesson may say, and a start
SECONDS_TO_END = 30  # of the notebook: a training saves, the kernel is ended
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


def execute(source: Path, target: Path, home: Path, *, seconds: float = SECONDS) -> Failure | None:
    """Run a notebook with ``labkit notebook run`` into ``target``, which is replaced at the end.

    An execution that fails is written, too, with a banner at its top.

    Args:
        source: the notebook; it runs in its folder and isn't changed.
        target: where to put the executed notebook.
        home: ``LABKIT_HOME`` of the notebook.
        seconds: the notebook and its kernel are ended after this time.

    Returns what went wrong, or None.
    """
    source, target = source.resolve(), target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = target.with_name(f"{target.stem}-failed.ipynb")
    words = python_command("-m", "labkit", "notebook", "run", source, "--output", target)
    try:
        code, said = _run_bounded(words, source.parent, _environment(home), seconds, _partial(target), kept)
        if code == 0:
            return None
        why = f"took over {seconds:.0f} s and was ended" if code is None else _last_line(said)
        notebook = _read_kept(kept, source)
        failure = _failure(source.stem, notebook, why, stopped=code is None)
        _add_banner(notebook, failure)
        nbformat.write(notebook, kept)
        os.replace(kept, target)
        return failure
    finally:
        kept.unlink(missing_ok=True)


def _partial(target: Path) -> Path:
    """Return the file in which ``labkit notebook run`` keeps what has been executed so far."""
    return target.with_name(f".{target.stem}.partial.ipynb")


def _environment(home: Path) -> Mapping[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    # A proxy that isn't there keeps `dataset=auto` from downloading CIFAR-10: all builds show the same data.
    return {**os.environ, "LABKIT_HOME": str(home.resolve()), "https_proxy": "http://127.0.0.1:9"}


def _run_bounded(
    words: list[str], folder: Path, environment: Mapping[str, str], seconds: float, partial: Path, kept: Path
) -> tuple[int | None, str]:
    """Return exit code and messages; the code is None where the time was over.

    What was executed until then is copied from ``partial`` to ``kept``.
    """
    with tempfile.TemporaryFile() as said, Child(words, environment, stdout=said, folder=folder) as child:
        try:
            code = child.wait(seconds)
            if code is None:
                with contextlib.suppress(OSError):
                    shutil.copyfile(partial, kept)
                return None, ""
            said.seek(0)
            return code, said.read().decode(errors="replace")
        finally:
            child.stop(SECONDS_TO_END)  # the time is over, or Ctrl-C; ends the kernel, too


def _read_kept(kept: Path, source: Path) -> Any:
    """Return what was executed; the source where that is missing or was copied while it was written."""
    try:
        return nbformat.read(kept, as_version=4)
    except (OSError, ValueError):
        return nbformat.read(source, as_version=4)


def _last_line(said: str) -> str:
    lines = [line.strip() for line in COLOURS.sub("", said).splitlines() if line.strip()]
    return lines[-1] if lines else "labkit notebook run ended without a message"


def _failure(lesson: str, notebook: Any, why: str, *, stopped: bool) -> Failure:
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error" and not stopped:
                value = " ".join(str(output.evalue).split())
                return Failure(lesson, cell.id, f"{output.ename}: {value}")
    why = why.partition(" (see ")[0]  # the file is moved
    if found := re.search(r" in cell ([\w-]+)", why):
        return Failure(lesson, found[1], why)
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
