"""Run directories in every state, as training and ``labkit evaluate`` write them."""

import functools
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit import config
from streamlit.components.v2 import manifest_scanner

import labkit
from app import gate
from app.images import answers
from labkit.run_directory import ACTIVE_STATES, RunDirectory, Status, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import own_test_step_of
from tests.app.browser import Visit, chromium, dashboard, visiting
from tests.tiny import prepare_tiny

CLASSES = ["circle", "square", "<b>star</b>"]

MakeRun = Callable[..., RunDirectory]


@pytest.fixture(autouse=True)
def loopback() -> Iterator[None]:
    """Set the address as app/.streamlit/config.toml does, which only `streamlit run` reads."""
    before = config.get_option("server.address")
    config.set_option("server.address", "127.0.0.1")
    yield
    config.set_option("server.address", before)


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be alone on the machine: where other people are, pages act after a token only."""
    monkeypatch.setattr(gate, "other_users", list)
    gate._token.cache_clear()
    yield
    gate._token.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def one_scan() -> Iterator[None]:
    """Look for components among the installed packages once: each AppTest does, and takes half its time."""
    with pytest.MonkeyPatch.context() as patch:
        scan = functools.cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        yield


@pytest.fixture
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs in labkit's home."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    """A run that was trained, with checkpoints of the steps 2, 4 and 6, beside a copy of it.

    Tests leave it as it is.
    """
    folder = tmp_path_factory.mktemp("trained")
    prepare_tiny(folder / "data")
    fields = {"dataset": "shapes", "model": "tutorial_cnn", "train_batch_size": 16, "train_steps": 6}
    saved = {"checkpoint_every_steps": 2, "keep_checkpoints": 5, "num_gpus": 0, "learning_rate": 0.01}
    labkit.train(**fields, **saved, data_dir=folder / "data", job_dir=folder / "runs" / "first")
    shutil.copytree(folder / "runs" / "first", folder / "runs" / "second")
    yield RunDirectory(folder / "runs" / "first")
    answers.networks().close()


@pytest.fixture
def trained_home(trained: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The trained run in labkit's home."""
    monkeypatch.setenv("LABKIT_HOME", str(trained.path.parents[1]))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return trained


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a file."""
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """A page in the browser, of a person who was never here."""
    with visiting(browser) as seen:
        yield seen


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one dashboard for the tests of a file, whose home has no runs.

    A test opens its own with ``folder=`` in the address.
    """
    with dashboard(tmp_path_factory.mktemp("home")) as (address, _):
        yield address


def train_row(step: int, **values: float) -> dict[str, object]:
    """Return a row as training writes it after ``step``."""
    row = {
        "split": "train",
        "step": step,
        "epoch": step / 50,
        "loss": 2.0 / step,
        "accuracy": 1 - 1 / step,
        "learning_rate": 0.1,
        "examples_per_second": 400.0 + step % 3,
        "seconds_per_step": 0.3,
        "input_wait_fraction": 0.01,
        "wall_time": 1_700_000_000.0 + step,
    }
    return {**row, **values}


def evaluation_row(step: int, split: str = "validation", **values: float) -> dict[str, object]:
    """Return a row as an evaluation after ``step`` writes it."""
    row = {
        "split": split,
        "step": step,
        "epoch": step / 50,
        "loss": 3.0 / step,
        "accuracy": 0.9,
        "top5_accuracy": 1.0,
        "examples": 5000,
        "seconds": 4.0,
        "wall_time": 1_700_000_000.0 + step,
    }
    return {**row, **values}


@pytest.fixture
def make_run(runs_folder: Path) -> MakeRun:
    """Return a function that writes a run with a state, a number of steps and changes of its last row."""

    def make(
        name: str = "first", state: str = "finished", steps: int = 120, *, status: dict | None = None, **last
    ) -> RunDirectory:
        run = RunDirectory(runs_folder / name)
        run.create()
        write_json_atomic(
            run.config_path,
            {
                "data": {"dataset": "shapes", "train_batch_size": 128},
                "model": {"model": "resnet", "num_layers": 20},
                "run": {"train_steps": 200},
            },
        )
        write_json_atomic(
            run.environment_path,
            {
                "versions": {"python": "3.11.2"},
                "devices": ["/device:CPU:0"],
                "description": "CPU",
                "command": ["labkit", "train", "--preset", "smoke", "--job-dir", "a b"],
                "data": {"dataset": "shapes", "chosen_because": "it was asked for"},
                "replicas": 1,
            },
        )
        writer = MetricsWriter(run.metrics_path)
        writer.append([train_row(step) for step in range(1, steps)] + [train_row(steps, **last)])
        writer.append([evaluation_row(steps)])
        writer.close()
        run.log_path.write_text("first line\nlast line\n")
        now = run.metrics_path.stat().st_mtime
        alive = os.getpid() if state in ACTIVE_STATES else 0
        run.write_status(
            Status(
                **{
                    "state": state,
                    "step": steps,
                    "total_steps": 200,
                    "heartbeat": now,
                    "started": now - 65,
                    "pid": alive,
                    "host": socket.gethostname(),
                    "eta_seconds": 30.0,
                    **(status or {}),
                }
            )
        )
        return run

    return make


def write_predictions(run: RunDirectory, examples: int = 60, seed: int = 0) -> dict[str, np.ndarray]:
    """Write predictions of the run's own test result, or else of step 120; return the arrays."""
    step = own_test_step_of(run) or 120
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(CLASSES), examples).astype(np.int32)
    logits = rng.normal(size=(examples, len(CLASSES)))
    logits[np.arange(examples), labels] += 1.0
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    arrays = {
        "images": rng.integers(0, 256, (examples, 32, 32, 3)).astype(np.uint8),
        "labels": labels,
        "probabilities": probabilities.astype(np.float32),
        "index": np.arange(examples, dtype=np.int64),
    }
    run.predictions_path.mkdir(exist_ok=True)
    np.savez_compressed(run.predictions_path / "test.npz", **arrays)
    write_json_atomic(
        run.predictions_path / "test.json",
        {
            "split": "test",
            "checkpoint_step": step,
            "classes": CLASSES,
            "examples": examples,
            "loss": 0.8,
            "accuracy": float((probabilities.argmax(1) == labels).sum() / max(examples, 1)),
            "top5_accuracy": 1.0,
        },
    )
    return arrays
