"""Outputs of the notebooks that are kept in git: only those that nbval compares."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from labkit.notebook.files import write_notebook

# What editors write for themselves, and the state of widgets.
METADATA = ["metadata.signature", "metadata.widgets"]
METADATA += [
    f"cell.metadata.{name}"
    for name in ("collapsed", "ExecuteTime", "execution", "heading_collapsed", "hidden", "scrolled")
]


def stripped(notebook: Any) -> Any:
    """Return a copy of a notebook with outputs only in cells that have the tag ``keep_output``.

    Such a cell counts as executed once: nbval refuses to compare an output where nothing was executed.
    """
    from nbstripout import strip_output

    result = strip_output(
        copy.deepcopy(notebook), keep_output=False, keep_count=True, keep_id=True, extra_keys=METADATA
    )
    for cell in result.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1 if cell.outputs else None
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = 1
    return result


def keep(source: Path, executed: Path) -> list[str]:
    """Take the outputs of cells with the tag ``keep_output`` from the executed notebook.

    Returns the ids of the cells whose outputs are new.
    """
    notebook = nbformat.read(source, as_version=4)
    ran = {cell.id: cell for cell in nbformat.read(executed, as_version=4).cells}
    before = {cell.id: cell.get("outputs") for cell in notebook.cells}
    for cell in notebook.cells:
        found = ran.get(cell.id)
        # It has no outputs where the lesson failed before.
        if found and found.source == cell.source and found.get("outputs"):
            cell.outputs = found.outputs
    notebook = stripped(notebook)
    new = [cell.id for cell in notebook.cells if cell.get("outputs") != before[cell.id]]
    if new:
        write_notebook(notebook, source)
    return new


def strip(paths: Sequence[Path], *, check: bool) -> list[str]:
    """Strip notebooks in place, or with ``check`` only look. Returns a line for each that isn't stripped."""
    found = []
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        after = stripped(notebook)
        if after != notebook:
            found.append(f"{path} is not stripped: make format does it" if check else f"{path} stripped")
            if not check:
                write_notebook(after, path)
    return found
