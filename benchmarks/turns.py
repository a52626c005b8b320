"""A side of a comparison in a process of its own, which measures one turn for each line on stdin.

``processes.Turns`` starts such processes. As a program this is labkit's side: for levers.py it makes training
steps on one batch, without input, rows or events; for inference.py it runs the predict step of
`labkit evaluate` on standardised images with the initial weights, which take as long as trained ones, and
copies the logits of each batch to the host.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from labkit.config import Config
from labkit.data.manifest import Manifest

if TYPE_CHECKING:
    from labkit.training.network import Network

COLD_STEPS = 2  # of a training turn, with the caches full of other sides' data; not measured on any side


def turn_options(options: argparse.Namespace, manifest: Manifest, **more: Any) -> dict[str, Any]:
    """Return what the process of a side is told: how long its turns are, on which data, and ``more``."""
    sizes = {name: getattr(options, name) for name in ("num_layers", "batch_size", "steps")}
    return {**sizes, "data_dir": str(manifest.directory.parent), "dataset": manifest.dataset, **more}


def read_options(**defaults: Any) -> argparse.Namespace:
    """Return what this process was told, with ``defaults`` for the rest."""
    return argparse.Namespace(**defaults | json.loads(sys.argv[1]))


def network_on_cpu(options: argparse.Namespace, values: Mapping[str, Any]) -> "Network":
    """Return labkit's network for the data set and precision in ``options``; ``values``: of the rest.

    Without ``num_gpus`` among the values, it trains on one CPU.
    """
    from labkit.training.network import Network
    from labkit.training.plan import plan_measurement

    location = {"data_dir": str(options.data_dir), "dataset": options.dataset}
    config = Config.from_flat({"num_gpus": 0, **values, **location, "precision": options.precision})
    plan = plan_measurement(config, announce=lambda line: None)
    return Network(plan.config, plan.manifest, plan.devices, plan.data_format)


def training_steps(network: "Network") -> Callable[[], object]:
    """Return what makes a training step, always on the same batch."""
    import tensorflow as tf

    arguments = (*network.batch(0), tf.constant(0.1), tf.constant(0.0))
    return lambda: network.train_step(*arguments)[0].numpy()


def predictions(network: "Network") -> Callable[[], object]:
    """Return what predicts a batch of the test images, in turn."""
    import tensorflow as tf

    from labkit.data.network_input import standardize
    from labkit.data.shards import load_split

    size = network.config.data.eval_batch_size
    images = standardize(load_split(network.manifest, "test")[0], network.manifest)
    count = len(images) // size
    batches = itertools.cycle(tf.split(images[: count * size], count))
    return lambda: network.predict_step(next(batches)).numpy()


def serve_turns(turn: Callable[[], Mapping[str, Any]]) -> None:
    """Measure one turn for each line on stdin and print it as a line of JSON, until the end of stdin."""
    for _ in iter(sys.stdin.readline, ""):
        print(json.dumps(turn()), flush=True)


def main() -> None:
    options = read_options(values={})
    sizes = {"train_batch_size": options.batch_size, "eval_batch_size": options.batch_size}
    values = {"num_layers": options.num_layers, **sizes, **options.values}
    network = network_on_cpu(options, values)
    trains = options.task == "train"
    call = training_steps(network) if trains else predictions(network)
    images = options.steps * values["train_batch_size" if trains else "eval_batch_size"]

    def turn() -> dict[str, float]:
        for _ in range(COLD_STEPS if trains else 0):
            call()
        started = time.perf_counter()
        for _ in range(options.steps):
            call()
        return {"images_per_second": images / (time.perf_counter() - started)}

    serve_turns(turn)


if __name__ == "__main__":
    main()
