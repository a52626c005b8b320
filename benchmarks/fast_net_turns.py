"""The measuring process of fast_net.py: for each line on stdin matrix products, then training steps.

One combination of precision, batch size and activation a process. The step is the compiled one of `labkit
train --preset fast`; its batch stays the same, so that no input is timed.
"""

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.processes import serve_turns
from labkit.config import Config
from labkit.data.augment import standardize
from labkit.data.loading import load_split
from labkit.data.manifest import load_manifest
from labkit.presets import preset_values
from labkit.training.arithmetic import matrix_product, training_flops
from labkit.training.session import make_session, prepare_devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--activation", required=True)
    parser.add_argument("--width-factor", type=float, help="(default: the preset's)")
    parser.add_argument("--steps", type=int, required=True, help="of a turn")
    parser.add_argument("--matrix-sizes", type=int, nargs="+", required=True)
    parser.add_argument("--products", type=int, required=True, help="of each size; the median counts")
    options = parser.parse_args()
    asked = {
        "num_gpus": 0,
        "precision": options.precision,
        "train_batch_size": options.batch_size,
        "activation": options.activation,
    }
    if options.width_factor is not None:
        asked["width_factor"] = options.width_factor
    config = Config.from_flat({**preset_values("fast"), **asked})
    manifest = load_manifest(options.data_dir, options.dataset)
    session = make_session(config, manifest, prepare_devices(config))
    session.adapt_to_data()
    images, labels = (part[: options.batch_size] for part in load_split(manifest, "train"))
    batch = standardize(images, manifest), tf.constant(labels)
    scalars = tf.constant(config.optimizer.learning_rate / 100), tf.constant(0.0)
    flops = training_flops(session.model) * options.batch_size
    products = [matrix_product(size, options.precision) for size in options.matrix_sizes]

    def step_seconds() -> float:
        started = time.perf_counter()
        session.train_step(*batch, *scalars)[0].numpy()
        return time.perf_counter() - started

    def turn() -> dict[str, Any]:
        ceiling = max(statistics.median(product() for _ in range(options.products)) for product in products)
        seconds = statistics.median(step_seconds() for _ in range(options.steps))
        return {
            "ceiling_gflops": ceiling,
            "step_gflops": flops / seconds / 1e9,
            "images_per_second": options.batch_size / seconds,
            "flops_per_image": training_flops(session.model),
        }

    serve_turns(turn)


if __name__ == "__main__":
    main()
