"""Sweeps: the grid, what the executions leave behind, and the table and figures made from it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from labkit.errors import InputError
from labkit.experiments.trials import Trial
from labkit.notebook.files import RESULT_MIME, find_notebook
from labkit.notebook.sweep import LOCK, Sweep, gather, grid_points, run_sweep

PARAMETERS = "rate: float = 0.1\nsize: int = 1\nfolder: str = '.'"
RESULT = f"""\
from IPython.display import display
result = {{"run": folder, "split": "validation", "accuracy": rate * size, "examples": 400, "step": 9,
          "data_note": "", "devices": "CPU"}}
display({{{RESULT_MIME!r}: result, "text/plain": "done"}}, raw=True)
"""


def write(path: Path, *code: str) -> Path:
    cells = [new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), *map(new_code_cell, code)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    return path


def executed(path: Path, accuracy: float | None, **parameters: object) -> Path:
    """Write a notebook as papermill leaves it, without a result if ``accuracy`` is None."""
    result = {"accuracy": accuracy, "examples": 400, "split": "validation", "step": 9}
    data = {} if accuracy is None else {RESULT_MIME: result}
    cell = new_code_cell("1", outputs=[new_output("display_data", data)])
    nbformat.write(new_notebook(cells=[cell], metadata={"papermill": {"parameters": parameters}}), path)
    return path


@pytest.fixture
def sweep(tmp_path) -> Sweep:
    scores = {(0.1, 8): 0.5, (0.1, 16): 0.25, (0.2, 8): 0.75, (0.2, 16): None}
    return gather(
        [
            executed(tmp_path / f"{rate}_{size}.ipynb", score, rate=rate, size=size, seed=1)
            for (rate, size), score in scores.items()
        ],
        ["rate", "size"],
    )


def test_a_grid_has_every_combination_once():
    points = grid_points({"a": [1, 2, 3], "b": ["x", None]})
    assert len(points) == 6
    assert points[:2] == [{"a": 1, "b": "x"}, {"a": 1, "b": None}]
    assert len({tuple(point.items()) for point in points}) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"grid": {}}, "the grid is empty"),
        ({"grid": [1, 2]}, r"the grid is \[1, 2\]; allowed: a dict"),
        ({"grid": {"size": []}}, r"size is \[\];"),
        ({"grid": {"size": "text"}}, "size is 'text'; allowed: a list"),
        ({"grid": {"size": [1, 2, 1]}}, "a value twice"),
        ({"grid": {"siz": [1]}}, "did you mean 'size'"),
        ({"grid": {"size": [1]}, "parameters": {"size": 1}}, "size is in the grid and among the parameters"),
        ({"at_a_time": "2"}, "at_a_time is '2'; allowed: a whole number of at least 1"),
        ({"at_a_time": 0}, "at_a_time is 0"),
        ({"folder": 3}, "folder is 3; allowed: a path"),
        ({"folder": Path("/proc/x")}, "/proc/x can't be written: .*; name another folder"),
        ({"folder": Path(__file__)}, "can't be written: File exists"),
        ({}, "another sweep is writing into"),
    ],
    ids=str,
)
def test_a_refused_sweep_deletes_no_earlier_result(given, said, tmp_path):
    earlier = executed(tmp_path / "1_rate-0.2.ipynb", 0.5, rate=0.2)
    settings = {"grid": {"rate": [0.2]}, "folder": tmp_path, **given}
    with (tmp_path / LOCK).open("a") as other:
        if not given:
            fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=said):
            run_sweep(write(tmp_path / "n.ipynb", "1"), **settings)
    assert earlier.exists()


def test_a_value_that_no_training_takes_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(InputError, match="--num-layers is 9"):
        run_sweep(find_notebook("train"), {"num_layers": [8, 9]}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_earlier_result_stays_until_its_execution_starts(tmp_path, monkeypatch):
    earlier = [executed(tmp_path / f"{n}_size-{n}.ipynb", 0.5, size=n) for n in (1, 2)]
    monkeypatch.setattr(Trial, "start", lambda trial: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_sweep(write(tmp_path / "n.ipynb", "1"), {"size": [1, 2]}, tmp_path)
    assert [path.exists() for path in earlier] == [False, True]


def test_the_table_is_read_from_the_notebooks_and_ranks_them(sweep, tmp_path):
    assert [point.accuracy for point in sweep.ranked] == [0.75, 0.5, 0.25]
    assert sweep.best.values == {"rate": 0.2, "size": 8}
    assert sweep.best.standard_error == pytest.approx((0.75 * 0.25 / 400) ** 0.5)
    head, best, *_, last = str(sweep).splitlines()
    assert " ".join(head.split()) == "rate size validation accuracy standard error steps notebook"
    assert best.split() == ["0.2", "8", "0.750", "0.022", "9", "0.2_8.ipynb"]
    assert "failed" in last and "4 runs, best first" in sweep._repr_html_()
    with pytest.raises(InputError, match="no notebook of the sweep finished"):
        _ = gather([executed(tmp_path / "n.ipynb", None, rate=1)], ["rate"]).best
    with pytest.raises(InputError, match="was not executed by papermill"):
        gather([write(tmp_path / "n.ipynb", "1")], ["rate"])


def test_the_heat_map_shows_each_accuracy_at_its_place(sweep):
    rows, columns, found = sweep.accuracy_table("size", "rate")
    assert (rows, columns) == ([8, 16], [0.1, 0.2])
    np.testing.assert_array_equal(found, [[0.5, 0.75], [0.25, np.nan]])
    figure = sweep.heat_map("rate", "size")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["50.0%", "25.0%", "75.0%", "failed"]
    assert "75.0%, is at rate 0.2, size 8" in repr(figure)
    figure.draw_without_rendering()
    with pytest.raises(InputError, match="doesn't vary seed; it varies rate, size"):
        sweep.heat_map("rate", "seed")


def test_other_parameters_are_averaged_and_grouped(tmp_path):
    scores = {(8, 0): 0.5, (8, 1): 0.7, (16, 0): 0.65, (16, 1): None}
    found = gather(
        [executed(tmp_path / f"{a}_{b}.ipynb", score, size=a, seed=b) for (a, b), score in scores.items()],
        ["size", "seed"],
    )
    _, _, means = found.accuracy_table("size", "size")
    np.testing.assert_allclose(np.diag(means), [0.6, 0.65])
    assert {name: len(points) for name, points in found.grouped("seed").items()} == {
        "size 8": 2,
        "size 16": 2,
    }
    assert list(found.grouped("size")) == ["seed 0", "seed 1"]


@pytest.mark.long
@pytest.mark.slow
def test_each_combination_is_executed_and_a_failure_stays_one(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    notebook = write(tmp_path / "n.ipynb", "assert size < 3, 'too big'", RESULT)
    folder, said = tmp_path / "out", []
    grid = {"rate": [0.2], "size": [2, 3]}
    found = run_sweep(notebook, grid, folder, parameters={"folder": "x y"}, announce=said.append)
    assert [path.name for path in found] == ["1_rate-0.2_size-2.ipynb", "2_rate-0.2_size-3-failed.ipynb"]
    sweep = gather(found, grid)
    assert [dict(point.values) for point in sweep.points] == grid_points(grid)
    assert sweep.best.accuracy == pytest.approx(0.4)
    assert sweep.best.parameters["folder"] == "x y"
    assert any("1 of 2: rate 0.2, size 2: done in" in line for line in said)
    assert any("AssertionError: too big" in line for line in said)


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_ends_every_execution(tmp_path):
    pid, out = tmp_path / "pid", tmp_path / "out"
    code = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(99)"
    notebook = write(tmp_path / "n.ipynb", code)
    program = (
        "from pathlib import Path; from labkit.notebook.sweep import run_sweep; "
        f"run_sweep(Path({str(notebook)!r}), {{'size': [1, 2]}}, Path({str(out)!r}), at_a_time=1)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "LABKIT_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            while not pid.exists() or not pid.read_text():
                assert process.poll() is None
                time.sleep(0.1)
            kernel = psutil.Process(int(pid.read_text()))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) != 0
        finally:
            process.kill()
    kernel.wait(30)
    assert not list(out.glob("*.ipynb"))
