"""Deterministic runs of eight steps, of which a file takes what it needs."""

from pathlib import Path

import pytest

from labkit.run_directory import RunDirectory
from tests.properties.harness import labkit
from tests.tiny import prepare_tiny

STEPS, KEPT = 8, 6  # checkpoints of the steps 6 and 8 are kept


def arguments(run: Path, data_dir: Path, *more: str) -> list[str]:
    settings = "--dataset shapes --num-layers 8 --train-batch-size 12 --learning-rate 0.05 --num-gpus 0 "
    settings += f"--label-smoothing 0.1 --train-steps {STEPS} --checkpoint-every-steps 3 --deterministic "
    settings += "--validate-every-steps 0 --no-evaluate-test"
    return ["train", *settings.split(), "--job-dir", str(run), "--data-dir", str(data_dir), *more]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory, data_dir) -> Path:
    """Not to be changed."""
    path = tmp_path_factory.mktemp("trained") / "run"
    assert labkit(*arguments(path, data_dir)) == 0
    assert RunDirectory(path).checkpoint_steps() == [KEPT, STEPS]
    return path
