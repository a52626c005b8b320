"""Executes lessons, each in a kernel of its own and in bounded time."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat.v4 import new_markdown_cell

from labkit.notebook.files import write_notebook

SECONDS = 600  # of one lesson: three times the three minutes that a lesson may say, and a start
SECONDS_TO_START = 120  # of a kernel; the first start after an installation compiles its modules
FAILED = "course-failed"  # the tag of the banner, and the id in its page


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
    """Run a notebook and write it to ``target``; one that fails is written, too, with a banner at its top.

    Args:
        source: the notebook; it runs in its folder and isn't changed.
        target: where to put the executed notebook.
        home: ``LABKIT_HOME`` of the notebook.
        seconds: the notebook and its kernel are ended after this time.

    Returns what went wrong, or None.
    """
    for folder in (target.parent, home):
        folder.mkdir(parents=True, exist_ok=True)
    # A proxy that isn't there keeps `dataset=auto` from downloading CIFAR-10: all builds show the same data.
    environment = {**os.environ, "LABKIT_HOME": str(home.resolve()), "https_proxy": "http://127.0.0.1:9"}
    notebook, begun = nbformat.read(source, as_version=4), [""]
    give_up = time.monotonic() + seconds
    client = NotebookClient(
        notebook,
        resources={"metadata": {"path": str(source.resolve().parent)}},
        timeout_func=lambda cell: max(1.0, give_up - time.monotonic()),
        startup_timeout=SECONDS_TO_START,
        record_timing=False,
        # Its messages are about the transport to this very process, and about its end.
        extra_arguments=["--IPKernelApp.log_level=50"],
        # Ctrl-C is for the whole build, and nbclient would end this notebook alone.
        on_notebook_start=lambda notebook: asyncio.get_running_loop().remove_signal_handler(signal.SIGINT),
        on_cell_execute=lambda cell, cell_index: begun.append(cell.id),
    )
    reason = ""
    try:
        asyncio.run(client.async_execute(env=environment))
    except CellExecutionError as error:
        reason = f"{error.ename}: {error.evalue}"
    except CellTimeoutError:
        reason = f"took over {seconds:.0f} s and was ended"
    except RuntimeError as error:
        reason = f"the kernel was lost: {error}"
    CoalesceStreamsPreprocessor().preprocess(notebook, {})
    failure = Failure(source.stem, begun[-1], " ".join(reason.split())) if reason else None
    if failure:
        where = f" in the cell `{failure.cell}`" if failure.cell else ""
        text = f'<div id="{FAILED}"></div>\n\n> **This lesson failed{where}.** {failure.reason}'
        notebook.cells.insert(1, new_markdown_cell(text, metadata={"tags": [FAILED]}))
    write_notebook(notebook, target)
    return failure
