"""``make format`` removes outputs but for those that nbval compares; ``make check`` sees what is left."""

import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course.site.__main__ import main
from labkit.notebook.files import course_files
from tests.course.small import make_paths, second


def code_cell(name: str, *tags: str) -> nbformat.NotebookNode:
    cell = new_code_cell("6 * 7", id=name, execution_count=3)
    cell.metadata.update(tags=list(tags), scrolled=True)
    cell.outputs = [new_output("execute_result", data={"text/plain": "42"}, execution_count=3)]
    return cell


@pytest.fixture
def path(tmp_path):
    cells = [code_cell("compared", "nbval-check-output", "keep_output"), code_cell("plain")]
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(new_notebook(cells=cells, metadata=metadata), tmp_path / "lesson.ipynb")
    return tmp_path / "lesson.ipynb"


def test_only_tagged_outputs_stay_and_so_do_ids(path, capsys):
    written = path.read_bytes()
    assert main(["strip", "--check", str(path)]) == 1
    assert f"{path} is not stripped: make format does it" in capsys.readouterr().out
    assert path.read_bytes() == written
    assert main(["strip", str(path)]) == 0
    compared, plain = nbformat.read(path, as_version=4).cells
    assert compared.outputs[0].data["text/plain"] == "42"
    assert (plain.outputs, plain.execution_count) == ([], None)
    assert (compared.id, plain.id) == ("compared", "plain")
    assert (compared.execution_count, compared.outputs[0].execution_count) == (1, 1)
    assert (compared.metadata, plain.metadata) == ({"tags": compared.metadata.tags}, {"tags": []})
    written = path.read_bytes()
    assert main(["strip", "--check", str(path)]) == 0
    assert main(["strip", str(path)]) == 0
    assert path.read_bytes() == written


def test_outputs_are_kept_from_the_executed_notebook(tmp_path, capsys):
    paths = make_paths(tmp_path)
    source, executed = second(executed=False), second(executed=True)
    for cell in (*source.cells[2:4], *executed.cells[2:4]):
        cell.metadata["tags"] = ["nbval-check-output", "keep_output"]
    source.cells[3].source += "  # changed since"
    executed.cells[2].outputs.append(new_output("stream", text="a\n"))
    for notebook in (source, executed):
        notebook.cells.insert(1, new_code_cell("", id="x", metadata={"tags": ["keep_output"]}))
    nbformat.write(source, paths.notebooks / "01_second.ipynb")
    nbformat.write(executed, paths.executed / "01_second.ipynb")
    assert main(["keep"], paths) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "00_first was never executed: make course ARGS=00_first",
        "01_second, cell exercise: new output",
    ]
    _, empty, _, exercise, figure, _ = nbformat.read(paths.notebooks / "01_second.ipynb", as_version=4).cells
    assert exercise.outputs[0].data["text/plain"] == "✓ exercise 01.1: four"
    assert exercise.outputs[1].text == "a\n"
    assert empty.outputs == []
    assert (exercise.execution_count, figure.outputs) == (1, [])
    assert main(["keep", "01"], paths) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shown", "passed"), [("42", True), pytest.param("43", False, marks=pytest.mark.long)]
)
def test_nbval_compares_what_is_kept(shown, passed, path):
    main(["strip", str(path)])
    path.write_text(path.read_text().replace('"42"', f'"{shown}"'))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval-lax", path.name]
    ended = subprocess.run(words, cwd=path.parent, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode == 0) is passed, ended.stdout


@pytest.mark.parametrize("path", course_files(), ids=lambda path: path.stem)
def test_outputs_that_are_compared_are_kept(path):
    for cell in nbformat.read(path, as_version=4).cells:
        tags = cell.metadata.get("tags", ())
        assert ("nbval-check-output" in tags) == ("keep_output" in tags), cell.id
        if "keep_output" in tags:
            assert cell.outputs, f"{cell.id}: make course, then python -m course.site keep"
            assert not any("image/png" in output.get("data", {}) for output in cell.outputs), cell.id
