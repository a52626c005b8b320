"""Restore checkpoints of several runs on a given number of replicas; a program, for one strategy a process.

``python -m tests.properties.restoring REPLICAS VARIABLE_STRATEGY STEP RUN...`` prints a JSON list, for each
run: ``arrays``, how many; ``changed``, names of those that differ in any bit from the saved ones, once
restored and saved again; ``unequal``, variables that differ between the replicas; ``loss`` of the next step.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from labkit.config import Config
from labkit.data.inputs import InputShare
from labkit.data.pipeline import train_dataset
from labkit.run_directory import RunDirectory
from labkit.training.checkpoints import CheckpointStore
from labkit.training.network import Network
from labkit.training.plan import plan_measurement
from tests.properties.harness import checkpoint_values


def restored(network: Network, run: RunDirectory, step: int) -> dict[str, Any]:
    store = CheckpointStore(run.checkpoints_path)
    store.restore(network.checkpoint(), step)
    saved = checkpoint_values(run.path, step)
    with tempfile.TemporaryDirectory() as folder:
        CheckpointStore(Path(folder, "checkpoints")).save(network.checkpoint(), store.state(step))
        again = checkpoint_values(Path(folder), step)
    assert saved.keys() == again.keys()
    variables = [weight.value for weight in network.model.weights] + network.optimizer.velocities
    unequal = [variable.name for variable in variables if len(set(copies(network, variable))) > 1]
    return {
        "arrays": len(saved),
        "changed": [name for name, value in saved.items() if value.tobytes() != again[name].tobytes()],
        "unequal": unequal,
        "loss": next_loss(network, step),
    }


def copies(network: Network, variable: Any) -> list[bytes]:
    """Return the content of a variable on every replica that has a copy of its own."""
    return [copy.numpy().tobytes() for copy in network.strategy.experimental_local_results(variable)]


def next_loss(network: Network, step: int) -> float:
    config, replicas = network.config, network.devices.num_replicas
    batches = network.strategy.distribute_datasets_from_function(
        lambda _: train_dataset(
            network.manifest,
            global_batch_size=config.data.train_batch_size,
            seed=config.run.seed,
            start_step=step,
            stop_step=step + 1,
            share=InputShare(replicas, 0, replicas),
        )
    )
    images, labels = next(iter(batches))
    rate, stop = tf.constant(config.optimizer.learning_rate), tf.constant(0.0)
    return float(network.train_step(images, labels, rate, stop)[0][0])


def main(replicas: int, variable_strategy: str, step: int, runs: list[RunDirectory]) -> None:
    several = replicas > 1
    config = Config.from_json(runs[0].read_config()).replace(
        {
            "num_gpus": replicas if several else 0,
            "simulate_missing_gpus": several,
            "variable_strategy": variable_strategy,
        }
    )
    plan = plan_measurement(config)
    network = Network(plan.config, plan.manifest, plan.devices, plan.data_format)
    print(json.dumps([restored(network, run, step) for run in runs]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), [RunDirectory(Path(name)) for name in sys.argv[4:]])
