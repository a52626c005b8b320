"""What the runs of this folder train, and what has to hold at their end, whatever went wrong meanwhile."""

import json

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.optim.schedules import learning_rate_at
from tests.faults.launched import SMALL, Cluster, until

__all__ = ["IN_STEP", "STEPS", "TRAIN", "assert_same_run", "assert_whole", "stepping"]

STEPS = 100
TRAIN = {"num_intra_threads": 1, "train_steps": STEPS}  # one thread: sums are made in one order
IN_STEP = TRAIN | {"sync": True}


def stepping(cluster: Cluster) -> None:
    """Wait until some steps behind a checkpoint are done."""
    until(lambda: cluster.step() >= 15, cluster.text)


def assert_whole(cluster: Cluster, steps: int = STEPS) -> None:
    """Every step once among the rows that count, the last checkpoint of the last step, nothing half done."""
    rows = cluster.metrics().split("train")
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    # Each batch has its own learning rate, in whatever order asynchronous workers report.
    config = Config.from_flat(SMALL | {"train_steps": steps}).optimizer
    expected = [
        learning_rate_at(step, config, total_steps=steps, steps_per_epoch=625) for step in range(steps)
    ]
    assert sorted((row["learning_rate"] for row in rows), reverse=True) == pytest.approx(expected, rel=1e-6)
    status = cluster.run.read_status()
    assert status is not None and (status.state, status.step) == ("finished", steps)
    assert cluster.checkpoints()[-1] == steps
    assert not list(cluster.run.checkpoints_path.glob(".*"))
    state = cluster.run.checkpoints_path / f"step-{steps:08d}" / "state.json"
    assert json.loads(state.read_text())["step"] == steps
    counted = [value for name, value in weights(cluster).items() if name.startswith("step/")]
    assert counted == [steps]  # the updates count themselves, where the weights are


def assert_same_run(first: Cluster, second: Cluster) -> None:
    """Same losses, same weights, bit by bit."""
    losses = [[row["loss"] for row in each.metrics().split("train")] for each in (first, second)]
    assert losses[0] == losses[1]
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys() and len(one) > 20
    assert not [name for name in one if one[name].tobytes() != other[name].tobytes()]


def weights(cluster: Cluster) -> dict[str, np.ndarray]:
    """Return every array of the last checkpoint."""
    path = cluster.run.checkpoints_path / f"step-{cluster.checkpoints()[-1]:08d}" / "variables"
    reader = tf.train.load_checkpoint(str(path))
    names = [name for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {name: reader.get_tensor(name) for name in names}
