"""``labkit demo``: what it leaves behind, and what it says, whatever the notebook does."""

import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.commands import notebook as commands
from labkit.errors import InputError
from labkit.notebook import files
from labkit.notebook.files import RESULT_MIME, conclusion_of, read_notebook
from labkit.notebook.prepared import Conclusion
from labkit.run_directory import RunDirectory

CONCLUSION = Conclusion(
    run="/runs/one",
    state="finished",
    did_work=False,
    dataset="shapes",
    data_note="shapes in /data (no network)",
    devices="CPU",
    banner="SIMULATED: two",
    split="test",
    accuracy=0.98765,
    examples=2000,
    step=600,
)
PARAMETERS = "folder = '.'"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Return a function that makes ``code`` the notebook of the demo."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setattr(files, "NOTEBOOKS", folder)

    def make(*code: str) -> Path:
        cells = [new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), *map(new_code_cell, code)]
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        path = folder / "train.ipynb"
        nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
        return path

    return make


def conclude(run: str = "folder") -> str:
    """Return the code of a cell that ends as the training notebook does."""
    return (
        "from IPython.display import display\n"
        f"result = dict({vars(CONCLUSION)!r}, run={run})\n"
        f"display({{{RESULT_MIME!r}: result, 'text/plain': 'done'}}, raw=True)"
    )


def left_behind(*folders: Path) -> list[str]:
    return sorted(path.name for folder in folders if folder.exists() for path in folder.iterdir())


def test_the_executed_notebook_goes_to_its_run_and_everything_is_said(home, notebook, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    notebook("print('step 1\\nstep 2')", conclude())
    said: list[str] = []
    assert commands.run_demo(parameters={"folder": str(run)}, announce=said.append) == 0
    assert left_behind(home / "runs" / "notebooks", run) == ["train.ipynb"]
    assert conclusion_of(read_notebook(run / "train.ipynb"))["run"] == str(run)
    text = "\n".join(said)
    assert said.index("step 1") < said.index("step 2")
    for expected in (run / "train.ipynb", run, "0.9877", "shapes in /data (no network)", "SIMULATED: two"):
        assert str(expected) in text
    assert "finished already" in text
    assert "streamlit run app/main.py" in text


@pytest.mark.parametrize(
    ("code", "said", "left"),
    [
        (
            "from labkit.errors import InputError\nraise InputError('unknown parameter')",
            r"^unknown parameter \(see .*train-failed\.ipynb\)$",
            "train-failed.ipynb",
        ),
        ("1", "holds no result", "train.ipynb"),
    ],
)
def test_what_the_notebook_refuses_and_no_result_are_refused_in_one_line(home, notebook, code, said, left):
    notebook(code)
    with pytest.raises(InputError, match=said):
        commands.run_demo(announce=lambda line: None)
    assert left_behind(home / "runs" / "notebooks") == [left]


def test_labkit_without_its_notebooks_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "NOTEBOOKS", tmp_path)
    with pytest.raises(InputError, match="without its notebooks; install it from a whole checkout"):
        commands.run_demo()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM)])
def test_a_stop_saves_the_training_and_leaves_no_kernel(session_home, shapes, tmp_path, number):
    run = RunDirectory(tmp_path / "run")
    parameters = {
        "dataset": "shapes",
        "job_dir": str(run.path),
        "train_steps": 100_000,
        "train_batch_size": 16,
        "log_every_steps": 1,
        "validate_every_steps": 0,
    }
    call = f"run_demo(parameters={parameters!r})"
    program = f"import sys; from labkit.commands.notebook import run_demo; sys.exit({call})"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        # As from a terminal: tests that were started in the background ignore Ctrl-C, and hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            next(line for line in process.stdout if line.startswith("step "))
            status = run.read_status()
            assert status is not None
            kernel = psutil.Process(status.pid)
            assert kernel.parent().pid == process.pid
            process.send_signal(number)
            rest = process.stdout.read()
            assert process.wait(60) == 128 + number
        finally:
            process.kill()
    assert "the same command continues" in rest
    kernel.wait(30)
    assert run.read_status().state == "interrupted"
    assert any(run.checkpoints_path.iterdir())
    assert not list((session_home / "runs").glob("notebooks/.train*"))
