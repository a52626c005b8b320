"""oneDNN's kernels round otherwise than TensorFlow's own: a run records them, and a change is said."""

import os
import subprocess
import sys

import pytest

from labkit.run_directory import RunDirectory
from tests.properties.harness import train_arguments
from tests.properties.test_large_images import INTERRUPTING

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"

pytestmark = pytest.mark.slow


def labkit(folder, *arguments, **environment) -> str:
    """Run a command in ``folder``, by itself without a choice of kernels; return what it prints."""
    command = [sys.executable, "-m", "labkit", *arguments]
    plain = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        command, cwd=folder, env=plain | environment, capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_change_of_kernels_is_said(shapes_dir, tmp_path):
    job_dir, file = tmp_path / "run", tmp_path / "interrupting.py"
    file.write_text(INTERRUPTING)
    fields = {"data_dir": shapes_dir, "preset": "smoke", "train_steps": 5, "deterministic": True}
    arguments = train_arguments(job_dir, **fields)
    labkit(tmp_path, *train_arguments(job_dir, callbacks=file, **fields), **{VARIABLE: "0"})
    run = RunDirectory(job_dir)
    assert run.read_environment()["onednn"] is False

    assert "oneDNN's kernels are on here and were off in the run" in labkit(tmp_path, *arguments)
    assert run.read_environment()["onednn"] is True  # labkit's own choice, on every processor
    told = "oneDNN's kernels are off here and were on in the run"
    assert told in labkit(tmp_path, "replay", str(job_dir), "--step", "5", **{VARIABLE: "0"})
    assert "oneDNN" not in labkit(tmp_path, "replay", str(job_dir), "--step", "5")
