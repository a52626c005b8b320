"""A lesson is executed in bounded time; one that fails leaves a banner, and no file is half-written."""

import os
import subprocess
import sys
import time

import nbformat
import pytest

from course.site import __main__ as command
from course.site.execute import FAILED, Failure, execute
from course.site.pages import page_of
from labkit.errors import InputError
from labkit.notebook.files import write_notebook
from labkit.run_directory import process_alive
from tests.course.small import first, make_paths

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    def execute_code(code: str, **options):
        source, target = tmp_path / "00_first.ipynb", tmp_path / "build" / "00_first.ipynb"
        nbformat.write(first(code), source)
        before = source.read_bytes()
        failure = execute(source, target, tmp_path / "home", **options)
        assert source.read_bytes() == before
        assert [path.name for path in target.parent.iterdir()] == [target.name]
        return failure, nbformat.read(target, as_version=4)

    return execute_code


def banner(notebook) -> str:
    (found,) = [cell.source for cell in notebook.cells if FAILED in cell.metadata.get("tags", ())]
    assert notebook.cells[0].source.startswith("# ")
    assert found == notebook.cells[1].source
    return found


@pytest.mark.long
def test_a_failing_cell_is_named_in_the_result_and_in_a_banner(run, tmp_path):
    show = "import os\nprint(os.environ['LABKIT_HOME'], os.environ['https_proxy'], os.getcwd())\n"
    failure, notebook = run(show + "assert 1 == 2, 'one is not two'")
    assert str(failure) == "00_first, cell draw: AssertionError: one is not two"
    assert "**This lesson failed in the cell `draw`.** AssertionError: one is not two" in banner(notebook)
    # Its home is its own, nothing is downloaded, and it runs where it stands.
    assert notebook.cells[4].outputs[0].text.split() == [
        str(tmp_path / "home"),
        "http://127.0.0.1:9",
        str(tmp_path),
    ]
    assert f'id="{FAILED}"' in page_of(notebook)


@pytest.mark.long
def test_an_endless_cell_is_ended_with_its_kernel(run, tmp_path):
    started = time.monotonic()
    code = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    failure, notebook = run(code + "while True:\n    time.sleep(1)", seconds=12)
    assert failure.reason == "took over 12 s and was ended"
    assert failure.cell in ("watch", "parameters", "draw")  # a busy machine takes long to start a kernel
    assert "took over 12 s" in banner(notebook)
    assert time.monotonic() - started < 60
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.long
def test_a_lost_kernel_is_named(run):
    failure, notebook = run("import os\nos._exit(3)")
    assert str(failure) == "00_first, cell draw: the kernel was lost: Kernel died"
    assert "kernel was lost" in banner(notebook)


@pytest.mark.long
def test_the_kernel_ends_with_a_build_that_is_killed(tmp_path):
    source, pid = tmp_path / "00_first.ipynb", tmp_path / "pid"
    code = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(120)"
    nbformat.write(first(code), source)
    call = "import sys; from pathlib import Path; from course.site.execute import execute; "
    call += "execute(*map(Path, sys.argv[1:]))"
    words = [sys.executable, "-c", call, str(source), str(tmp_path / "out.ipynb"), str(tmp_path / "home")]
    with subprocess.Popen(words) as build:
        wait_until(lambda: pid.exists() and pid.read_text(), 60)
        build.kill()
    wait_until(lambda: not process_alive(int(pid.read_text())), 20)


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_failed_lessons_are_named_where_the_site_fails_too(tmp_path, monkeypatch, capsys):
    def fail(paths):
        raise InputError("Sphinx found something to fix")

    monkeypatch.setattr(command, "execute", lambda *words, **options: Failure("00_first", "draw", "no"))
    monkeypatch.setattr(command, "write_table", lambda paths: [])
    monkeypatch.setattr(command, "build_site", fail)
    assert command.main(["build", "00"], make_paths(tmp_path)) == 1
    said = capsys.readouterr()
    assert "FAILED 00_first, cell draw: no" in said.out
    assert said.err == "course: error: Sphinx found something to fix\n"


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
