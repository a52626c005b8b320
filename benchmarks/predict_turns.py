"""labkit's side of inference.py: runs the predict step of `labkit evaluate` for each line on stdin.

The weights are the initial ones, which take as long as trained ones. As for the peer, images are standardised
before the turns, and the logits of each batch are copied to the host.
"""

import itertools
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.turns import make_turns_parser, network_on_cpu, serve_turns
from labkit.data.network_input import standardize
from labkit.data.shards import load_split


def main() -> None:
    options = make_turns_parser(__doc__).parse_args()
    values = {"num_layers": options.num_layers, "eval_batch_size": options.batch_size}
    network = network_on_cpu(options, values)
    images = standardize(load_split(network.manifest, "test")[0], network.manifest)
    whole = len(images) // options.batch_size
    batches = itertools.cycle(tf.split(images[: whole * options.batch_size], whole))

    def turn() -> dict[str, Any]:
        started = time.perf_counter()
        for batch in itertools.islice(batches, options.steps):
            network.predict_step(batch).numpy()
        return {"images_per_second": options.steps * options.batch_size / (time.perf_counter() - started)}

    serve_turns(turn)


if __name__ == "__main__":
    main()
