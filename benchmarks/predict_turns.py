"""labkit's side of inference.py: the predict step of `labkit evaluate`, some batches for each line on stdin.

The weights are the initial ones, which cost as much as trained ones. Images are standardised before the
turns, as the peer's are; the logits of each batch are fetched, as `labkit evaluate` fetches them.
"""

import argparse
import itertools
import os
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
from labkit.training.session import make_session, prepare_devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--num-layers", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="batches of a turn")
    options = parser.parse_args()
    config = Config.from_flat(
        {
            "num_gpus": 0,
            "num_layers": options.num_layers,
            "precision": options.precision,
            "eval_batch_size": options.batch_size,
        }
    )
    manifest = load_manifest(options.data_dir, options.dataset)
    session = make_session(config, manifest, prepare_devices(config))
    images = standardize(load_split(manifest, "test")[0], manifest)
    whole = len(images) // options.batch_size
    batches = itertools.cycle(tf.split(images[: whole * options.batch_size], whole))

    def turn() -> dict[str, Any]:
        started = time.perf_counter()
        for batch in itertools.islice(batches, options.steps):
            session.predict_step(batch).numpy()
        return {"images_per_second": options.steps * options.batch_size / (time.perf_counter() - started)}

    serve_turns(turn)


if __name__ == "__main__":
    main()
