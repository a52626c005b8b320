"""What a page shows doesn't change while a run trains, and does when the run is started over."""

import shutil

import numpy as np
import pytest
import streamlit as st

from app import background
from app.ask.client import Prediction
from app.images import answers, batch
from app.predictions import kept, source
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.test_batch import configure

KEPT = 4


class Network:
    """Stands for the networks of a run; counts the evaluations."""

    def __init__(self) -> None:
        self.evaluated: list[int] = []

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
    monkeypatch.setattr(kept, "data_set_of", lambda run: type("Data", (), {"checksum": "a"})())
    monkeypatch.setattr(kept, "split_labels", lambda manifest, split: np.zeros(40, np.int32))

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
    st.session_state["forgetting-asked"] = (str(run.path), "test", tuple(run.checkpoint_steps()))


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
    save(run, 1)
    assert answers.pinned_step(run, "map") == 1
    save(run, 2)
    assert answers.pinned_step(run, "map") == 1
    for step in range(3, 6):
        save(run, step)
    assert answers.pinned_step(run, "map") == 5


def test_a_batch_is_kept_without_what_is_not_shown_until_the_data_set_is_replaced(make_run):
    run = make_run()
    configure(run)
    first = batch._batch(run.path, 3, batch._signature(run))
    assert first.pixels is first.seen.images
    assert not first.seen.standardized.size
    before = batch._signature(run)
    [manifest] = (run.path.parents[1] / "data").glob("*/manifest.json")
    manifest.write_text(manifest.read_text())
    assert batch._signature(run) != before
