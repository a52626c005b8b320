"""The cell that installs labkit where a notebook was opened without it, such as on Colab.

``python -m labkit.notebook.install_cell`` writes it into the notebooks of the checkout, as the first code
cell. It installs from the address ``Repository`` in the section ``project.urls`` of ``pyproject.toml``, the
one place that names it; ``LABKIT_SOURCE`` in the environment names another one.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.notebook.files import NOTEBOOKS, read_notebook, write_notebook

__all__ = ["CELL_ID", "install_cell", "put_install_cell"]

CELL_ID = "install"
SOURCE = """\
# Installs labkit where it is missing, such as on Colab; elsewhere this does nothing.
# LABKIT_SOURCE is an environment variable: the address that pip installs labkit from.
import importlib.util
import os

if importlib.util.find_spec("labkit") is None:
{check}    source = {source}
    %pip install --quiet "labkit-training[notebook] @ {{source}}"
"""
CHECK = """\
    if "LABKIT_SOURCE" not in os.environ:
        raise SystemExit("run %env LABKIT_SOURCE=git+https://ADDRESS first, then this cell again")
"""


def install_cell() -> str:
    """Return the code of the cell. Without an address in ``pyproject.toml`` it needs ``LABKIT_SOURCE``."""
    with (NOTEBOOKS.parent / "pyproject.toml").open("rb") as file:
        address = tomllib.load(file)["project"].get("urls", {}).get("Repository")
    if address is None:
        return SOURCE.format(check=CHECK, source='os.environ["LABKIT_SOURCE"]').rstrip()
    source = f'os.environ.get("LABKIT_SOURCE", "git+{address}")'
    return SOURCE.format(check="", source=source).rstrip()


def put_install_cell(notebook: Any) -> bool:
    """Put the cell before the first code cell of a notebook, or renew it. Returns whether that changed it."""
    from nbformat.v4 import new_code_cell

    source = install_cell()
    for cell in notebook.cells:
        if cell.get("id") == CELL_ID:
            changed = cell.source != source
            cell.source = source
            return changed
    first = next((place for place, cell in enumerate(notebook.cells) if cell.cell_type == "code"), None)
    if first is None:
        return False
    notebook.cells.insert(first, new_code_cell(source, id=CELL_ID))
    return True


def main(paths: Sequence[str]) -> None:
    """Write the cell into notebooks; without ``paths``, into labkit's own, but not papermill's."""
    for path in map(Path, paths) if paths else sorted(NOTEBOOKS.rglob("*.ipynb")):
        notebook = read_notebook(path)
        if (paths or "papermill" not in notebook.metadata) and put_install_cell(notebook):
            write_notebook(notebook, path)
            print(f"wrote the cell into {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
