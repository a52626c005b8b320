"""What goes wrong in a build: it is named in one line each, and no file is left half-written."""

import nbformat
import pytest

from course.site import __main__ as command
from course.site.execute import Failure, _read_kept
from labkit.errors import InputError
from labkit.notebook.files import write_notebook
from tests.course.small import first, make_paths


@pytest.mark.parametrize("kept", ['{"cells": [{"cell_ty', "", None])
def test_a_truncated_execution_is_replaced_by_the_source(kept, tmp_path):
    nbformat.write(first(), tmp_path / "source.ipynb")
    if kept is not None:
        (tmp_path / "kept.ipynb").write_text(kept)
    assert _read_kept(tmp_path / "kept.ipynb", tmp_path / "source.ipynb") == first()


def test_failed_lessons_are_named_where_the_site_fails_too(tmp_path, monkeypatch, capsys):
    def fail(paths):
        raise InputError("Sphinx found something to mend")

    monkeypatch.setattr(command, "execute", lambda *words, **options: Failure("00_first", "draw", "no"))
    monkeypatch.setattr(command, "write_table", lambda paths: [])
    monkeypatch.setattr(command, "build_site", fail)
    assert command.main(["build", "00"], make_paths(tmp_path)) == 1
    said = capsys.readouterr()
    assert "FAILED 00_first, cell draw: no" in said.out
    assert said.err == "course: error: Sphinx found something to mend\n"


def test_a_notebook_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.ipynb"
    write_notebook(first(), path)
    assert nbformat.read(path, as_version=4) == first()
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError("disk is full")))
    with pytest.raises(OSError, match="disk is full"):
        write_notebook(first("other"), path)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
