"""A checkpoint is complete or not there."""

import errno
import os

import pytest
import tensorflow as tf

from labkit.errors import InputError
from labkit.run_directory.checkpoints import checkpoint_steps
from labkit.training.checkpoints import CheckpointState, CheckpointStore


def state(step: int, best: int | None = None) -> CheckpointState:
    return CheckpointState(step, seed=0, data_checksum="x", num_replicas=1, best_step=best, best_accuracy=0.5)


@pytest.fixture
def variable():
    return tf.Variable([0.0, 0.0])


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def save(store, variable, step, best=None):
    variable.assign([step, -step])
    store.save(tf.train.Checkpoint(v=variable), state(step, best))


@pytest.mark.parametrize("step", [7, 99_999_999])
def test_round_trip(store, variable, step):
    save(store, variable, step, best=step)
    save(store, variable, step + 1)
    variable.assign([0, 0])
    assert store.restore(tf.train.Checkpoint(v=variable), step) == state(step, step)
    assert variable.numpy().tolist() == pytest.approx([step, -step], rel=1e-6)
    assert store.latest_state().step == step + 1 and store.steps() == [step, step + 1]


def test_the_newest_and_the_best_are_kept(store, variable):
    for step, best in [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2)]:
        save(store, variable, step, best)
    assert store.steps() == [2, 4, 5]
    save(store, variable, 6, best=6)
    assert store.steps() == [5, 6]


@pytest.mark.parametrize("moment", ["write", "rename"])
def test_what_dies_while_saving_leaves_no_checkpoint(store, variable, monkeypatch, moment):
    save(store, variable, 1)

    def die(*arguments, **more):
        raise KeyboardInterrupt

    if moment == "write":
        monkeypatch.setattr(os, "fsync", die)
    else:
        monkeypatch.setattr(os, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        save(store, variable, 2)
    monkeypatch.undo()
    assert store.steps() == [1]
    store.restore(tf.train.Checkpoint(v=variable), 1)
    save(store, variable, 2)
    assert store.steps() == [1, 2]
    assert not list(store.path(2).parent.glob(".*"))


def garbled(content: bytes) -> bytes:
    return bytes([content[0] ^ 255]) + content[1:]


@pytest.mark.parametrize(
    "damage", [garbled, lambda content: content[: len(content) // 2], lambda content: b""]
)
def test_damage_is_named_with_the_way_out(store, variable, damage):
    save(store, variable, 1)
    data = next(store.path(1).glob("variables.data*"))
    data.write_bytes(damage(data.read_bytes()))
    with pytest.raises(InputError, match="step-00000001.*remove this folder"):
        store.restore(tf.train.Checkpoint(v=variable), 1)


def test_a_checkpoint_of_another_network_is_whole_and_kept(store, variable):
    save(store, variable, 3)
    others = {"shape": {"v": tf.Variable([0.0])}, "name": {"v": variable, "w": tf.Variable(1.0)}}
    for other in others.values():
        with pytest.raises(InputError) as raised:
            store.restore(tf.train.Checkpoint(**other), 3)
        said = str(raised.value)
        assert "is whole, but doesn't fit the network of" in said and "config.json" in said
        assert "keep both" in said and "remove" not in said
    for path in store.path(3).glob("variables.data*"):
        path.write_bytes(path.read_bytes()[:2])
    with pytest.raises(InputError, match="can't be restored"):
        store.restore(tf.train.Checkpoint(v=variable), 3)


def test_a_disk_that_does_not_answer_is_not_an_empty_folder(store, variable, monkeypatch):
    save(store, variable, 3)

    def stale(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(os, "listdir", stale)
    with pytest.raises(OSError, match="Stale"):
        store.latest_state()
    assert checkpoint_steps(store.path(3).parent) == []
