"""The parameters of ``notebooks/train.ipynb`` under each of the programs that run notebooks."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell

FOLDER = Path(__file__).parents[2] / "notebooks"
SAYS_STEPS = "assert parameters.config.run.train_steps == 7, parameters"


@pytest.fixture
def notebooks(tmp_path) -> Path:
    """A folder with the notebook up to its check, with one value changed in its parameters cell."""
    notebook = nbformat.read(FOLDER / "train.ipynb", as_version=4)
    ids = [cell.id for cell in notebook.cells]
    notebook.cells = [*notebook.cells[: ids.index("check") + 1], new_code_cell(SAYS_STEPS)]
    cell = notebook.cells[ids.index("parameters")]
    cell.source = cell.source.replace("train_steps: int = 600", "train_steps: int = 7")
    nbformat.write(notebook, tmp_path / "train.ipynb")
    shutil.copy(FOLDER / "conftest.py", tmp_path)
    return tmp_path


def run(folder: Path, *words: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )
    said = process.stdout + process.stderr
    assert process.returncode == 0, said
    return said


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("pytest", "-p", "no:cacheprovider", "--nbval-lax", "."),
        ("papermill", "train.ipynb", "out.ipynb"),
        ("nbconvert", "--to", "notebook", "--execute", "train.ipynb", "--output", "out.ipynb"),
    ],
    ids=lambda words: words[0],
)
def test_the_cells_own_values_count(words, notebooks):
    run(notebooks, *words)


def collected(folder: Path, *paths: str) -> set[str]:
    said = run(folder, "pytest", "-p", "no:cacheprovider", "--nbval-lax", "--collect-only", "-q", *paths)
    return {line.partition("::")[0] for line in said.splitlines() if "::" in line}


@pytest.mark.long
@pytest.mark.slow
def test_what_papermill_wrote_is_not_collected_unless_it_is_named(notebooks):
    papermill.execute_notebook(notebooks / "train.ipynb", notebooks / "out.ipynb", prepare_only=True)
    shutil.copy(notebooks / "train.ipynb", notebooks / "mine.ipynb")
    assert collected(notebooks, ".") == {"train.ipynb", "mine.ipynb"}
    assert collected(notebooks, "out.ipynb") == {"out.ipynb"}


def test_git_ignores_what_the_documented_command_makes_papermill_write():
    text = (FOLDER.parent / "docs" / "quick-start.md").read_text()
    assert "papermill train.ipynb out.ipynb" in text
    assert "/notebooks/out*.ipynb" in (FOLDER.parent / ".gitignore").read_text().splitlines()
