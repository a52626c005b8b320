"""``labkit notebook run``: what it refuses before a kernel starts, and what it leaves behind."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.commands import main as cli
from labkit.errors import InputError
from labkit.notebook import files
from labkit.notebook.execution import run_notebook
from labkit.notebook.file_parameters import declared_parameters, values_from_text
from labkit.notebook.files import find_notebook
from tests.commands.in_process import refused as command_refused

PARAMETERS = """\
steps: int = 3
rate: float = 0.1  # of learning
name: "str | None" = None
fast = True
factor = 1
sizes: list[int] = [1, 2]
anything = None
width = 4 * factor
"""


def notebook(path: Path, *code: str, parameters: str | None = PARAMETERS, kernel: str = "python3") -> Path:
    cells = [new_code_cell(source) for source in code]
    if parameters is not None:
        cells.insert(0, new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    return path


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """labkit's home; the current folder is beside it."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.fixture
def refused(home, monkeypatch):
    """Runs a notebook that is refused before a kernel starts. Returns the line."""

    def start(*arguments, **settings):
        raise AssertionError("a kernel was started")

    monkeypatch.setattr("papermill.execute.execute_notebook", start)

    def run(*words: object) -> str:
        line = command_refused("notebook", "run", *words)
        assert not home.exists()
        return line

    return run


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- parameters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("steps", "5"), 5),
        (("rate", "1"), 1),
        (("rate", "1e-3"), 1e-3),
        (("name", "None"), None),
        (("name", "7"), "7"),  # a text, whatever it looks like
        (("name", "true"), "true"),
        (("fast", "false"), False),
        (("factor", "0.5"), 0.5),
        (("sizes", "[3, 4]"), [3, 4]),
        (("sizes", "[]"), []),
        (("anything", "x y"), "x y"),
        (("anything", "-2"), -2),
        (("width", "2"), 2),
    ],
    ids=str,
)
def test_a_text_becomes_a_value_of_its_parameters_type(given, expected, tmp_path):
    found = nbformat.read(notebook(tmp_path / "n.ipynb"), 4)
    assert values_from_text(found, [given]) == {given[0]: expected}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("stepz 5", "unknown parameter 'stepz'; did you mean 'steps'?"),
        ("steps many", "steps is 'many'; allowed: a whole number"),
        ("steps 0.5", "steps is 0.5; allowed: a whole number"),
        ("steps True", "steps is True; allowed: a whole number"),
        ("steps None", "steps is None; allowed: a whole number"),
        ("rate fast", "rate is 'fast'; allowed: a number"),
        ("fast 1", "fast is 1; allowed: True or False"),
        ("factor big", "factor is 'big'; allowed: a number"),
        ("sizes 3", "sizes is 3; allowed: a list, such as '[1, 2]'"),
        ("sizes [1,2", "sizes is '[1,2'; allowed: a list, such as '[1, 2]'"),
        ("steps 5 -p steps 6", "steps is given twice; leave one out"),
    ],
)
def test_wrong_names_and_types_are_refused_before_a_kernel_starts(given, said, tmp_path, refused):
    path = notebook(tmp_path / "n.ipynb")
    assert refused(path, "-p", *given.split()) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("train_stepz 5", "unknown parameter 'train_stepz'; did you mean 'train_steps'?"),
        ("train_steps many", "--train-steps is 'many'; allowed: a whole number of at least 1"),
        ("label_smoothing 2", "--label-smoothing is 2.0; allowed: a number of at least 0 below 1"),
        ("num_workers 3", "num_workers is 3 with strategy 'local', which is one process"),
        ("strategy multiworker", "unknown strategy 'multiworker'; did you mean 'multi_worker'?"),
        ("overwrite perhaps", "overwrite is 'perhaps'; allowed: True or False"),
        ("preset smoked", "'smoke'"),
    ],
)
def test_the_training_notebook_takes_what_labkit_train_takes(given, said, refused):
    assert said in refused("train", "-p", *given.split())
    training = nbformat.read(find_notebook("train"), 4)
    fitting = {"label_smoothing": "0.1", "job_dir": "7", "num_gpus": "None"}
    expected = {"label_smoothing": 0.1, "job_dir": "7", "num_gpus": None}
    assert values_from_text(training, fitting.items()) == expected
    with pytest.raises(InputError, match="did you mean 'learning_rate'"):
        values_from_text(training, [("learning-rate", "1")])


# ---- notebooks -----------------------------------------------------------------------------------------


def test_notebooks_have_names_and_numbers(tmp_path, monkeypatch):
    lesson = notebook(tmp_path / "04_replicas.ipynb")
    sweep = notebook(tmp_path / "experiments" / "sweep.ipynb")
    monkeypatch.setattr(files, "NOTEBOOKS", tmp_path)
    for name in ("04_replicas", "04_replicas.ipynb", "04", "4", "replicas", str(lesson)):
        assert find_notebook(name) == lesson
    assert find_notebook("sweep") == sweep
    for name, said in (
        ("swep", "did you mean 'sweep'"),
        ("no/such.ipynb", "no file"),
        (f"{tmp_path}", "is a folder"),
        ("", "the notebook's name is empty; name a"),
        (" ", "the notebook's name is empty"),
    ):
        with pytest.raises(InputError, match=said):
            find_notebook(name)


# ---- the output ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["not JSON", "[]", "{}", '{"cells": 3, "nbformat": 4}'])
def test_what_is_no_notebook(text, tmp_path, refused):
    (tmp_path / "n.ipynb").write_text(text)
    assert "is not a notebook" in refused(tmp_path / "n.ipynb")


def test_notebooks_without_parameters_and_with_a_kernel_that_is_not_installed(tmp_path, refused):
    bare = notebook(tmp_path / "bare.ipynb", "1", parameters=None)
    assert "has no parameters; give the cell" in refused(bare, "-p", "steps", "5")
    path = notebook(tmp_path / "n.ipynb", kernel="nix")
    assert "asks for the kernel 'nix', which isn't installed" in refused(path)
    magic = nbformat.read(notebook(tmp_path / "m.ipynb", parameters="%time 1\nsteps: int = 3"), 4)
    assert declared_parameters(magic)["steps"].kind is int  # no Python: as papermill reads it


def test_outputs_that_cannot_be_written(tmp_path, refused, monkeypatch):
    path = notebook(tmp_path / "n.ipynb")
    (tmp_path / "file").write_text("")
    for output, said in (
        (tmp_path, "is a folder; name a file in it"),
        (path, "is the notebook itself"),
        (tmp_path / "x.html", "a name that ends in .ipynb"),
        (tmp_path / "file" / "x.ipynb", "can't be made: "),
    ):
        assert said in refused(path, "--output", output)
    said = refused(path, "--output", "/proc/x.ipynb")  # root may write to /proc, says access()
    assert said.startswith("/proc can't be written")
    assert said.endswith("; name a file of yours with --output")
    with open(".out.partial.ipynb", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "out.ipynb is being written by another process" in refused(path, "--output", "out.ipynb")
    access = os.access
    monkeypatch.setattr(os, "access", lambda place, mode: place != Path.cwd() and access(place, mode))
    assert "can't be written; name a file of yours" in refused(path, "--output", "x.ipynb")


def test_a_notebook_runs_with_its_parameters(tmp_path, home, capsys):
    path = notebook(tmp_path / "{n}.ipynb", "print('steps', steps)\nprint('no end', end='')", "steps * 2")
    left = home / "runs" / "notebooks" / ".{n}-1.partial.ipynb"  # of a process that was killed
    left.parent.mkdir(parents=True)
    left.write_text("{")
    assert cli.main(["notebook", "run", str(path), "-p", "steps", "21", "--report-mode"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [f"running {path}", "steps 21", "no end"]
    done = home / "runs" / "notebooks" / "{n}.ipynb"
    assert left_behind(done.parent) == [done.name]
    assert str(done) in "\n".join(said)
    written = nbformat.read(done, 4)
    assert written.metadata.papermill.output_path == str(done)
    assert written.cells[-1].outputs[0].data["text/plain"] == "42"
    assert all(cell.metadata.jupyter.source_hidden for cell in written.cells)


def banner_of(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]


def test_a_cell_that_fails(tmp_path, home, capsys):
    Path("out.ipynb").write_text("the previous one")
    path = notebook(tmp_path / "n.ipynb", "1", "raise ValueError('first\\nsecond')", "2")
    assert cli.main(["notebook", "run", str(path), "--output", "out.ipynb"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    cell = nbformat.read(path, 4).cells[2].id
    kept = Path("out-failed.ipynb").absolute()
    assert last == f"the notebook failed in cell {cell} with ValueError: first (see {kept})"
    assert left_behind(Path()) == ["out-failed.ipynb", "out.ipynb"]
    assert Path("out.ipynb").read_text() == "the previous one"
    assert "An Exception was encountered" in banner_of(kept)[0]


@pytest.mark.parametrize(
    ("code", "said"),
    [("import sys; sys.exit(0)", "SystemExit: 0"), pytest.param("exit()", "exit()", marks=pytest.mark.slow)],
)
def test_a_cell_that_asks_to_exit_stops_the_notebook_and_is_named(code, said, tmp_path, home, capsys):
    path = notebook(tmp_path / "n.ipynb", code, "open('went on', 'w').close()", parameters=None)
    assert cli.main(["notebook", "run", str(path), "--output", "out.ipynb"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    cell, kept = nbformat.read(path, 4).cells[0].id, Path("out-failed.ipynb").absolute()
    assert last == f"cell {cell} stopped the notebook with {said}; the cells after it didn't run (see {kept})"
    assert left_behind(Path()) == ["out-failed.ipynb"]
    assert "Stopped by" in banner_of(kept)[0]


@pytest.mark.long
@pytest.mark.slow
def test_a_kernel_that_is_killed(tmp_path, home, capsys):
    path = notebook(tmp_path / "n.ipynb", "1", "import os\nos.kill(os.getpid(), 9)", "2")
    assert cli.main(["notebook", "run", str(path), "--output", "out.ipynb"]) == 1
    out, err = capsys.readouterr()
    cells = nbformat.read(path, 4).cells
    assert f"the notebook's kernel was lost in cell {cells[2].id}: " in out.splitlines()[-1]
    assert err == ""
    assert left_behind(Path()) == ["out-failed.ipynb"]
    kept = nbformat.read("out-failed.ipynb", 4).cells
    assert "The kernel was lost" in kept[0].source
    place = [cell.id for cell in kept].index(cells[2].id)
    assert "stopped" in kept[place - 1].source
    again = run_notebook(Path("out-failed.ipynb"), output="again.ipynb", announce=lambda line: None)
    assert len(banner_of(again.path)) == 2, "the old banners are replaced"


# Takes longer to save than a kernel is given to end where nothing is to be saved.
SLOW_TO_SAVE = """\
import os, pathlib, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print(os.getpid(), flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    time.sleep(8)
    pathlib.Path("saved").touch()
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_has_time_to_save_and_leaves_nothing_at_its_place(number, tmp_path, home):
    path = notebook(tmp_path / "n.ipynb", SLOW_TO_SAVE)
    command = [sys.executable, "-m", "labkit", "notebook", "run", str(path), "--output", "out.ipynb"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            kernel = psutil.Process(next(int(line) for line in process.stdout if line.strip().isdecimal()))
            process.send_signal(number)
            assert process.wait(50) == (128 + number if number == signal.SIGTERM else -number)
        finally:
            process.kill()
    assert not Path("out.ipynb").exists()
    assert not Path("out-failed.ipynb").exists()
    kernel.wait(30)
    saved = Path("saved").exists()
    Path("saved").unlink(missing_ok=True)
    if number == signal.SIGKILL:  # the next run uses what was left
        small = notebook(tmp_path / "small.ipynb", "1")
        assert run_notebook(small, output="out.ipynb", announce=lambda line: None).code == 0
        assert left_behind(Path()) == ["out.ipynb"]
    else:
        assert saved and left_behind(Path()) == []


@pytest.mark.long
@pytest.mark.slow
def test_a_kernel_that_does_not_end_is_not_waited_for(tmp_path, home):
    path = notebook(tmp_path / "n.ipynb", "import atexit, time\n_ = atexit.register(time.sleep, 60)")
    done = run_notebook(path, output="out.ipynb", announce=lambda line: None)
    assert done.code == 0
    assert done.seconds < 40
