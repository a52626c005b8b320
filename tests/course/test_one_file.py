"""The program in one file computes what labkit does, bit by bit, and goes on after a kill as labkit does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from course import one_file
from labkit.config.config import recorded_config
from labkit.models.initial_weights import weight_arrays
from labkit.models.registry import build_model
from labkit.run import load_run
from labkit.run_directory import RunDirectory
from labkit.training.checkpoints import CheckpointStore, checkpoint_of_network
from tests.tiny import prepare_tiny

SECONDS = 240  # of a process; far above what any needs
SOURCE = Path(one_file.__file__)


def start(*command: object) -> subprocess.Popen:
    words = [sys.executable, "-P", *map(str, command)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen) -> str:
    try:
        said, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, said[-3000:]
    return said


def kill_behind(process: subprocess.Popen, line: str) -> None:
    """SIGKILL a process as soon as it has printed ``line``."""
    try:
        assert any(said.startswith(line) for said in process.stdout)
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)
    assert process.returncode == -9


def weights_of(job_dir: Path, image_shape: tuple[int, int, int], step: int) -> dict[str, np.ndarray]:
    """Return the weights of a run of labkit by name."""
    config = recorded_config(RunDirectory(job_dir))
    model = build_model(config.model, num_classes=10, image_shape=image_shape)
    store = CheckpointStore(job_dir / "checkpoints")
    store.restore(checkpoint_of_network(config, model), step, partial=True)
    return weight_arrays(model)


@pytest.mark.slow
@pytest.mark.long
def test_killed_and_resumed_it_has_labkits_losses_and_weights(tmp_path) -> None:
    steps = 60
    manifest = prepare_tiny(tmp_path / "data")
    shared = ["--dataset", "shapes", "--data-dir", tmp_path / "data", "--no-evaluate-test"]
    shared += ["--train-steps", steps, "--train-batch-size", "16", "--seed", "3", "--learning-rate", "0.1"]
    by_labkit, by_one = tmp_path / "labkit", tmp_path / "one"
    preset = ["--preset", "resnet20_one_cycle", "--deterministic", "--num-gpus", "0", "--job-dir", by_labkit]
    preset += ["--validate-every-steps", "0"]
    one = [SOURCE, *shared, "--job-dir", by_one, "--checkpoint-every-steps", steps // 10]

    other = start("-m", "labkit", "train", *preset, *shared)
    try:
        kill_behind(start(*one), f"step {steps // 2} ")
        killed = len(np.load(by_one / "checkpoint.npz")["losses"])
        assert steps // 2 <= killed < steps
        end(start(*one))
    finally:
        end(other)

    saved = np.load(by_one / "checkpoint.npz")
    losses = load_run(by_labkit).metrics("train")["loss"]
    assert losses.shape == (steps,)
    assert saved["losses"].astype(np.float64).tolist() == losses.tolist()
    wanted = weights_of(by_labkit, manifest.image_shape, steps)
    assert len(wanted) == 19 * 5 + 2
    different = [name for name, value in wanted.items() if saved[name].tobytes() != value.tobytes()]
    assert not different


def test_it_is_short_and_imports_neither_labkit_nor_the_course() -> None:
    source = SOURCE.read_text()
    assert len(source.splitlines()) <= 300
    names = {name.split(".")[0] for name in re.findall(r"^ *(?:import|from) ([.\w]+)", source, re.MULTILINE)}
    assert {"numpy", "tensorflow"} < names <= {*sys.stdlib_module_names, "numpy", "keras", "tensorflow"}


def test_the_checkpoint_of_another_run_is_refused_in_one_line(tmp_path) -> None:
    path = tmp_path / "checkpoint.npz"
    one_file.save(path, {}, [2.5], "seed 1")
    assert one_file.restore(path, {}, "seed 1") == [2.5]
    with pytest.raises(SystemExit) as refused:
        one_file.restore(path, {}, "seed 2")
    assert str(path) in refused.value.code
    assert "--job-dir" in refused.value.code
    assert "\n" not in refused.value.code


def test_a_damaged_file_of_records_is_refused(tmp_path) -> None:
    folder = prepare_tiny(tmp_path).directory
    manifest = one_file.read_manifest(folder)
    [path] = folder.glob("train-*.tfrecord")
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(b"x")
    with pytest.raises(SystemExit, match=path.name):
        one_file.read_split(folder, manifest, "train")
