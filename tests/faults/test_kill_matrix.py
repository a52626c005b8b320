"""Who × when × how: whatever is killed, frozen or asked to stop, no step is lost and no process is left."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from labkit.cluster.tf_config import make_tf_config
from labkit.config import Config
from labkit.peers import EXIT_LOST_PEER
from labkit.training.schedules import learning_rate_at
from labkit.training.topology import ClusterTask
from tests.faults.launched import LIMIT, SMALL, Cluster, flags, until, worker_rows
from tests.faults.table import Case

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(240)]
core = pytest.mark.faults_core

STEPS = SMALL["train_steps"]
LONG = 700  # steps of an asynchronous run: enough to be still under way when a lost worker is there again
SECONDS_TO_NOTICE = 30.0
IN_STEP = {"sync": True, "deterministic": True}
KILL, FREEZE, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
HOW = {KILL: "SIGKILL", FREEZE: "SIGSTOP", TERM: "SIGTERM", signal.SIGINT: "SIGINT"}


# ---- what has to hold at every end ---------------------------------------------------------------------


def assert_whole(cluster: Cluster, steps: int) -> None:
    """Every step once among the rows that count, the last checkpoint of the last step, nothing half done."""
    assert [row["step"] for row in cluster.metrics().split("train")] == list(range(1, steps + 1))
    status = cluster.run.read_status()
    assert (status.state, status.step) == ("finished", steps)
    assert cluster.checkpoints()[-1] == steps
    assert not list(cluster.run.checkpoints_path.glob(".*"))
    assert json.loads((cluster.run.checkpoints_path / f"step-{steps:08d}/state.json").read_text())["step"] == steps
    updates = [value for name, value in weights(cluster).items() if name.startswith("step/")]
    assert updates == [steps]  # the count that the updates themselves made


def weights(cluster: Cluster) -> dict[str, np.ndarray]:
    """Return every array of the last checkpoint."""
    path = cluster.run.checkpoints_path / f"step-{cluster.checkpoints()[-1]:08d}" / "variables"
    reader = tf.train.load_checkpoint(str(path))
    names = [name for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {name: reader.get_tensor(name) for name in names}
