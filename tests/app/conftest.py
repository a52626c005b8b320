"""Run directories in every state, as training and ``labkit evaluate`` write them, and a browser."""

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
from labkit.config import Config
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, write_heartbeat
from labkit.run_directory import ACTIVE_STATES, RunDirectory, Status, write_json_atomic
from labkit.run_directory.reader import own_test_step_of
from tests.app.browser import Visit, chromium, dashboard, visiting
from tests.app.rows import append, evaluation_row, train_row
from tests.tiny import prepare_tiny

CLASSES = ["circle", "square", "<b>star</b>"]
MARKUP = "<i>disc</i>"

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

    A class of its data set has a name of markup, and test image 5 is train image 3. Tests leave it as it is.
    """
    folder = tmp_path_factory.mktemp("trained")
    manifest = prepare_tiny(folder / "drawn")
    splits = {name: load_split(manifest, name) for name in manifest.splits}
    splits["test"][0][5] = splits["train"][0][3]
    write_derived(manifest, folder / "data", splits, classes=(MARKUP, *manifest.classes[1:]))
    train(folder, "first")
    shutil.copytree(folder / "runs" / "first", folder / "runs" / "second")
    yield RunDirectory(folder / "runs" / "first")
    answers.networks().close()


def train(home: Path, name: str, **fields: Any) -> RunDirectory:
    """Train a run of ``home`` with its prepared data, for 6 steps with a checkpoint at 2, 4 and 6."""
    usual = {"dataset": "shapes", "model": "tutorial_cnn", "train_batch_size": 16, "train_steps": 6}
    saved = {"checkpoint_every_steps": 2, "keep_checkpoints": 5, "num_gpus": 0, "learning_rate": 0.01}
    run = home / "runs" / name
    labkit.train(**{**usual, **saved, "data_dir": home / "data", "job_dir": run, **fields})
    return RunDirectory(run)


@pytest.fixture
def trained_home(trained: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The trained run in labkit's home."""
    monkeypatch.setenv("LABKIT_HOME", str(trained.path.parents[1]))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return trained


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a file, for which evil.test is this machine."""
    with chromium("--host-resolver-rules=MAP evil.test 127.0.0.1") as started:
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


def configure(run: RunDirectory, **values: Any) -> Config:
    """Give a made run a whole configuration, as a training writes it."""
    config = Config.from_flat({"dataset": "shapes", "job_dir": str(run.path), **values})
    write_json_atomic(run.config_path, config.to_json())
    return config


def change_environment(run: RunDirectory, **values: Any) -> None:
    write_json_atomic(run.environment_path, {**run.read_environment(), **values})


def in_cluster(run: RunDirectory, tasks: tuple[str, ...] = ("worker:0", "worker:1"), **beat: Any) -> None:
    """Write the last heartbeats of a cluster."""
    run.cluster_path.mkdir(exist_ok=True)
    values = {"address": "127.0.0.1:1", "host": "h", "pid": 1, "incarnation": "i", "counter": 1}
    values |= {"phase": "left", "step": 3, "seen": {}, "message": "", "examples_per_second": None}
    for name in tasks:
        write_heartbeat(heartbeat_path(run.cluster_path, name), Heartbeat(name=name, **{**values, **beat}))


def write_run(
    folder: Path,
    name: str = "first",
    state: str = "finished",
    steps: int = 120,
    *,
    status: Any = None,
    **last,
) -> RunDirectory:
    """Write a run with a state, a number of steps and changes of its last row."""
    run = RunDirectory(folder / name)
    run.create()
    config = {"model": {"model": "resnet", "num_layers": 20}, "run": {"train_steps": 200}}
    config["data"] = {"dataset": "shapes", "train_batch_size": 128}
    write_json_atomic(run.config_path, config)
    command = ["labkit", "train", "--preset", "smoke", "--job-dir", "a b"]
    environment = {"versions": {"python": "3.11.2"}, "devices": ["/device:CPU:0"], "description": "CPU"}
    environment |= {"command": command, "replicas": 1}
    environment["data"] = {"dataset": "shapes", "chosen_because": "it was asked for"}
    write_json_atomic(run.environment_path, environment)
    rows = [*(train_row(step) for step in range(1, steps)), train_row(steps, **last)]
    append(run.metrics_path, *rows, evaluation_row(steps))
    run.log_path.write_text("first line\nlast line\n")
    now = run.metrics_path.stat().st_mtime
    pid = os.getpid() if state in ACTIVE_STATES else 0
    fields = {"state": state, "step": steps, "total_steps": 200, "heartbeat": now, "started": now - 65}
    fields |= {"pid": pid, "host": socket.gethostname(), "eta_seconds": 30.0}
    run.write_status(Status(**{**fields, **(status or {})}))
    return run


@pytest.fixture
def make_run(runs_folder: Path) -> MakeRun:
    """Return ``write_run`` for the folder of runs in labkit's home."""
    return functools.partial(write_run, runs_folder)


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


def write_several(run: RunDirectory, **changes: np.ndarray) -> None:
    """Write predictions of 50 images as an evaluation with several labels does."""
    generator, shape = np.random.default_rng(0), (50, 3)
    labels = (generator.random(shape) < 0.4).astype(np.int32)
    # Half of the images have a wrong label.
    flipped = (generator.random(shape) < 0.2) ^ (labels == 1)
    shares = np.where(flipped, 0.5, 0) + 0.5 * generator.random(shape)
    images = generator.integers(0, 256, (50, 32, 32, 3)).astype(np.uint8)
    run.predictions_path.mkdir(exist_ok=True)
    arrays = {"images": images, "labels": labels, "probabilities": shares.astype(np.float32)}
    np.savez(run.predictions_path / "test.npz", **(arrays | {"index": np.arange(50)} | changes))
    summary = {"split": "test", "examples": 50, "classes": CLASSES, "checkpoint_step": 120}
    figures = {"loss": 0.4, "accuracy": 0.5, "binary_accuracy": 0.8, "f1_micro": 0.7125, "f1_macro": 0.7}
    write_json_atomic(run.predictions_path / "test.json", summary | figures | {"confusion": None})


def rewrite_predictions(run: RunDirectory, **changes: np.ndarray) -> None:
    """Replace arrays of the recorded predictions."""
    path = run.predictions_path / "test.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **(arrays | changes))
