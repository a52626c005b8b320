"""``make format`` removes outputs but for those that nbval compares; ``make check`` sees what is left."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course.places import ROOT, Places

# The words after nbstripout in the Makefile.
FLAGS = re.search(r"(?m)^STRIP = \S+/nbstripout (.*)$", (ROOT / "Makefile").read_text())[1].split()


def strip(path: Path, *more: str) -> int:
    words = [sys.executable, "-m", "nbstripout", *FLAGS, *more, str(path)]
    return subprocess.run(words, capture_output=True, timeout=60, check=False).returncode


def code_cell(name: str, *tags: str) -> nbformat.NotebookNode:
    cell = new_code_cell("6 * 7", id=name, execution_count=3)
    cell.metadata["tags"] = list(tags)
    cell.outputs = [new_output("execute_result", data={"text/plain": "42"}, execution_count=3)]
    return cell


def test_only_tagged_outputs_stay_and_so_do_ids(tmp_path):
    path = tmp_path / "lesson.ipynb"
    cells = [code_cell("compared", "nbval-check-output", "keep_output"), code_cell("plain")]
    nbformat.write(new_notebook(cells=cells), path)
    assert strip(path, "--verify") == 1
    assert strip(path) == 0
    compared, plain = nbformat.read(path, as_version=4).cells
    assert compared.outputs[0].data["text/plain"] == "42"
    assert (plain.outputs, plain.execution_count, compared.execution_count) == ([], None, None)
    assert (compared.id, plain.id) == ("compared", "plain")
    assert strip(path, "--verify") == 0


@pytest.mark.parametrize("path", Places().all_notebooks(), ids=lambda path: path.stem)
def test_outputs_that_are_compared_are_kept(path):
    for cell in nbformat.read(path, as_version=4).cells:
        tags = cell.metadata.get("tags", ())
        assert ("nbval-check-output" in tags) == ("keep_output" in tags), cell.id
        if "keep_output" in tags:
            assert cell.outputs, f"{cell.id}: run it and keep what it shows"
            assert not any("image/png" in output.get("data", {}) for output in cell.outputs), cell.id
