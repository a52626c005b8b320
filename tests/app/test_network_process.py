"""The process that holds a network never outlives who asks; what it answered outlives its checkpoint."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import streamlit as st

from app import background
from app.ask import client
from app.ask.client import AskedNetwork, Networks, Prediction
from app.ask.process import NetworkProcess, NoAnswer, Worker
from app.images import answers
from app.predictions import kept, source
from labkit.analysis.predictions import load_predictions
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.conftest import configure

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
IMAGE = np.zeros((1, 32, 32, 3), np.uint8)


def gone(pids: list[int]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.1)
    return False


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_process_gives_a_sentence_and_the_next_question_starts_another(trained):
    process = NetworkProcess(trained.path, 6)
    network = AskedNetwork(process)
    try:
        first = network.predict(IMAGE).probabilities
        pid = process.pid
        assert all(psutil.Process(one).nice() >= 10 for one in family(pid)[1:])
        killer = threading.Timer(0.3, lambda: os.kill(family(pid)[-1], signal.SIGKILL))
        killer.start()
        with pytest.raises(NoAnswer, match=r"killed by SIGKILL.*Try again"):
            while True:
                network.saliency(IMAGE[0], 1, "integrated_gradients")
                assert process.pid in (pid, None), "it was started again without a word"
        np.testing.assert_allclose(network.predict(IMAGE).probabilities, first, atol=1e-6)
        assert process.pid != pid
        pids = family(process.pid)
    finally:
        process.close()
    assert gone(pids)
    with pytest.raises(NoAnswer, match="given up"):
        network.predict(IMAGE)


PARENT = """
import sys, time
import numpy as np
from pathlib import Path
from types import SimpleNamespace
from app.ask.client import Networks
networks, run = Networks(), Path(sys.argv[1])
networks.prepare(run)
network = networks.of(run, 6)
network.predict(np.zeros((1, 32, 32, 3), np.uint8))
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
networks.prepare(run / "another")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.slow
def test_nothing_is_left_when_the_asking_process_is_killed(trained):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(trained.path)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout.readline()
        pids = family(parent.pid)[1:]
        assert len(psutil.Process(parent.pid).children()) == 2 < len(pids), "one with a network, one waits"
    finally:
        parent.kill()
        parent.wait(PATIENCE)
        parent.stdout.close()
    assert gone(pids)


@pytest.mark.long
@pytest.mark.slow
def test_it_ends_after_a_silence_and_starts_again_when_asked(trained):
    process = NetworkProcess(trained.path, 6, worker=lambda: Worker(idle_seconds=0.5))
    try:
        first = AskedNetwork(process).predict(IMAGE).probabilities
        assert gone(family(process.pid))
        np.testing.assert_allclose(AskedNetwork(process).predict(IMAGE).probabilities, first, atol=1e-6)
    finally:
        process.close()


@pytest.mark.slow
def test_loading_that_takes_too_long_is_ended(trained):
    process = NetworkProcess(trained.path, 6, load_seconds=0.3)
    pids: list[int] = []
    watcher = threading.Timer(0.15, lambda: pids.extend(family(process.pid)))
    watcher.start()
    with pytest.raises(NoAnswer, match="took longer than 0 seconds"):
        AskedNetwork(process).predict(IMAGE)
    watcher.join()
    assert process.pid is None
    assert gone(pids)


@pytest.mark.long
@pytest.mark.slow
def test_a_network_that_cannot_be_loaded_says_why(trained, tmp_path, monkeypatch):
    damaged = RunDirectory(shutil.copytree(trained.path, tmp_path / "damaged"))
    for path in damaged.checkpoints_path.glob("step-00000006/variables.data*"):
        path.write_bytes(path.read_bytes()[:100])
    networks = Networks()
    try:
        image = load_predictions(damaged).images[0]
        with pytest.raises(InputError, match=r"step-00000006 can't be restored"):
            networks.of(damaged.path, 6).predict(IMAGE)
        moments = networks.of(damaged.path, 4).history(image)
        assert [bool(found.problem) for found in moments] == [False, False, True]
    finally:
        networks.close()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))  # without data
    moved = RunDirectory(shutil.copytree(trained.path, tmp_path / "moved"))
    configure(moved, model="tutorial_cnn", train_batch_size=16, data_dir=str(tmp_path / "none"))
    with pytest.raises(InputError, match="no prepared 'shapes' data set"):
        AskedNetwork(NetworkProcess(moved.path, 6)).predict(IMAGE)


@pytest.mark.slow
def test_at_most_two_networks_are_kept(trained, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(NetworkProcess, "close", lambda process: closed.append(process.step))
    networks = Networks()
    for step in (2, 4, 2, 6, 2):
        assert networks.of(trained.path, step).process.step == step
    assert closed == [4]
    with pytest.raises(InputError, match="no checkpoint of step 3"):
        networks.of(trained.path, 3)


# ---- what a page shows while a run trains -------------------------------------------------------------

KEPT = 4


class Network:
    """Stands for the networks of a run; counts the evaluations."""

    def __init__(self) -> None:
        self.evaluated: list[int] = []
        self.prepared: list[Path] = []

    def prepare(self, path: Path) -> None:
        self.prepared.append(path)

    def of(self, path: object, step: int) -> "Network":
        return self

    def evaluate(self, split: str, step: int, progress: background.Progress) -> Prediction:
        self.evaluated.append(step)
        count = 40
        return Prediction(np.full((count, 10), 0.1), np.full(count, 2.3))


@pytest.fixture
def network(monkeypatch) -> Network:
    st.cache_resource.clear()
    monkeypatch.setattr(st, "session_state", {})
    fake = Network()
    monkeypatch.setattr(answers, "networks", lambda: fake)
    monkeypatch.setattr(
        kept, "data_set_of", lambda run: type("Data", (), {"count": lambda data, split: 40})()
    )
    monkeypatch.setattr(kept, "read_labels", lambda manifest, split, rows: np.zeros(len(rows), np.int32))

    def made(manifest, split, step, labels, probabilities, losses):
        return type("Computed", (), {"wrong": np.zeros(40, bool), "step": step})()

    monkeypatch.setattr(kept, "computed_predictions", made)
    return fake


def save(run: RunDirectory, step: int) -> None:
    """Write a checkpoint and remove the oldest, as a run that trains does."""
    folder = run.checkpoints_path / f"step-{step:08d}"
    folder.mkdir(parents=True)
    write_json_atomic(folder / "state.json", {"best_step": step})
    for old in run.checkpoint_steps()[:-KEPT]:
        shutil.rmtree(run.checkpoints_path / f"step-{old:08d}")


def click(run: RunDirectory) -> None:
    st.session_state["forgetting-asked"] = kept.forgetting_question(
        run, "test", tuple(run.checkpoint_steps())
    )


def test_forgetting_is_asked_once_while_checkpoints_rotate(make_run, network, monkeypatch):
    monkeypatch.setattr(background, "SHORT_SECONDS", 10)
    run = make_run()
    for step in range(1, 6):
        save(run, step)
    click(run)
    found = []
    for step in range(6, 14):
        question = source.forgotten(run, "test")
        found.append(question)
        save(run, step)
    assert len({id(one) for one in found if one is not None}) == 1
    assert found[-1].steps == (2, 3, 4, 5)
    assert network.evaluated == [2, 3, 4, 5]
    click(run)
    assert source.forgotten(run, "test").steps == (10, 11, 12, 13)


def test_a_run_that_is_started_over_forgets_what_was_computed(make_run, network):
    run = make_run()
    save(run, 1)
    save(run, 2)
    assert kept.ask_evaluation(run, "test", 1).wait(10)
    click(run)
    source.forgotten(run, "test")
    shutil.rmtree(run.checkpoints_path / "step-00000001")
    assert kept.known_evaluation(run, "test", 1) is not None, "the checkpoint is gone"
    write_json_atomic(run.config_path, {})
    assert kept.known_evaluation(run, "test", 1) is None
    assert source.forgotten(run, "test") is None
    assert "forgetting-asked" not in st.session_state


def test_the_checkpoint_to_ask_stays_while_it_exists(make_run, network):
    run = make_run()
    assert answers.pinned_step(run, "map") is None
    pinned = []
    for step in range(1, 6):
        save(run, step)
        pinned.append(answers.pinned_step(run, "map"))
    assert pinned == [1, 1, 1, 1, 5]


# ---- a process that is started before anybody asks ---------------------------------------------------


class Idle:
    """Stands for a process that waits."""

    started = 0

    def __init__(self) -> None:
        Idle.started += 1
        self.pid: int | None = Idle.started

    def close(self) -> None:
        self.pid = None


def test_a_prepared_process_takes_the_first_question_and_none_is_started_needlessly(make_run, monkeypatch):
    monkeypatch.setattr(client, "Worker", Idle)
    monkeypatch.setattr(Idle, "started", 0)
    networks, run, another = Networks(), make_run(), make_run("another")
    for step in (4, 6):
        save(run, step)
    networks.prepare(run.path)
    networks.prepare(run.path)
    assert Idle.started == 1
    assert [networks.of(run.path, 6).process._new_worker().pid for _ in range(2)] == [1, 2]
    monkeypatch.setattr(NetworkProcess, "pid", property(lambda process: process.run == run.path))
    networks.prepare(run.path)
    assert Idle.started == 2, "a process holds a network of the run"
    networks.prepare(another.path)
    networks._spare.close()  # it has ended after a silence
    assert networks._worker().pid == 4
    networks.of(run.path, 4)
    networks.prepare(another.path)
    assert Idle.started == 4, "two processes are alive"
    networks.close()


def test_a_page_prepares_once_in_a_session_where_a_network_can_be_asked(make_run, network):
    run = make_run()
    answers.expect(run)
    assert network.prepared == []
    save(run, 1)
    answers.expect(run)
    answers.expect(run)
    assert network.prepared == [run.path]
