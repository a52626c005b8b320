"""The cell that installs labkit where a notebook was opened without it, such as on Colab.

``python -m labkit.notebook.install_cell`` writes it into the notebooks of the checkout, as the first code
cell. It installs the tag of this version from the address ``Repository`` in the section ``project.urls`` of
``pyproject.toml``, the one place that names it, with the versions of the lock. ``LABKIT_SOURCE`` in the
environment names another address and tag.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.notebook.files import NOTEBOOKS, read_notebook, write_notebook
from labkit.version import VERSION

CELL_ID = "install"
SOURCE = """\
# Installs labkit where it is missing, such as on Colab; elsewhere this does nothing. The environment variable
# LABKIT_SOURCE has the address of a Git repository and a tag or commit, ADDRESS@TAG. The cell asks where it
# isn't set; the notebook doesn't keep the answer, so that it may have a password.
import importlib.util
import os

if importlib.util.find_spec("labkit") is None:
    from getpass import getpass

    source = os.environ.get("LABKIT_SOURCE") or {default}
    source = source.removeprefix("git+")
    if "@" not in source.rpartition("/")[2]:
        raise SystemExit("the address has no tag or commit; write ADDRESS@TAG")
    %pip install --quiet --no-deps "labkit-training @ git+{{source}}"
    importlib.invalidate_caches()
    from labkit.startup.pins import pins

    versions = pins()
    %pip install --quiet --constraint {{versions}} "labkit-training[notebook] @ git+{{source}}"
"""
QUESTION = 'getpass("ADDRESS@TAG of labkit\'s repository: ")'


def install_cell() -> str:
    """Return the code of the cell. Without an address in ``pyproject.toml`` it needs ``LABKIT_SOURCE``."""
    with (NOTEBOOKS.parent / "pyproject.toml").open("rb") as file:
        address = tomllib.load(file)["project"].get("urls", {}).get("Repository")
    default = QUESTION if address is None else f'"{address}@v{VERSION}"'
    return SOURCE.format(default=default).rstrip()


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
