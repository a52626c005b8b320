"""Networks, losses and optimizers of one's own in clusters: each task loads the same source."""

import subprocess
import sys

import pytest

from labkit.run_directory import RunDirectory
from tests import own_nets

pytestmark = [pytest.mark.long, pytest.mark.slow]
PARTS = ["--model", "functional", "--loss", "plain_loss", "--metrics", "METRICS"]


@pytest.mark.parametrize(
    ("tasks", "further"),
    [
        (["--workers", "2"], ["--optimizer", f"{own_nets.__file__}:Signum", "--learning-rate", "0.001"]),
        # With dropout and batch normalization; the update is the servers'.
        (["--workers", "2", "--ps", "1"], ["--learning-rate", "0.01"]),
    ],
    ids=["synchronous", "asynchronous"],
)
def test_a_cluster_trains_parts_of_ones_own(tasks, further, shapes_dir, tmp_path):
    parts = [word if word.startswith("--") else f"{own_nets.__file__}:{word}" for word in PARTS]
    flags = ["--dataset", "shapes", "--data-dir", shapes_dir, "--job-dir", tmp_path / "run"]
    flags += ["--train-steps", "6", "--train-batch-size", "32", "--checkpoint-every-steps", "3"]
    command = [sys.executable, "-m", "labkit", "cluster", "local", *tasks, "--", "train", *parts, *further]
    ended = subprocess.run([*command, *map(str, flags)], capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    run = RunDirectory(tmp_path / "run")
    assert run.read_status().state == "finished"
    assert (run.code_path / "own_nets.py").exists()
    assert '"among_two"' in run.metrics_path.read_text()
