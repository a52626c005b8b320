"""levers.py's side: makes training steps of a ResNet on one batch for each line on stdin.

No input, rows or events: what is left is what a lever of the step can change.
"""

import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.turns import COLD_STEPS, make_turns_parser, network_on_cpu, serve_turns


def main() -> None:
    parser = make_turns_parser(__doc__)
    parser.add_argument("--values", type=json.loads, default={}, help="of the configuration, as JSON")
    options = parser.parse_args()
    values = {"num_layers": options.num_layers, "train_batch_size": options.batch_size, **options.values}
    network = network_on_cpu(options, values)
    batch, scalars = network.batch(0), (tf.constant(0.1), tf.constant(0.0))

    def turn() -> dict[str, Any]:
        for _ in range(COLD_STEPS):
            network.train_step(*batch, *scalars)[0].numpy()
        started = time.perf_counter()
        for _ in range(options.steps):
            network.train_step(*batch, *scalars)[0].numpy()
        return {
            "images_per_second": options.steps * values["train_batch_size"] / (time.perf_counter() - started)
        }

    serve_turns(turn)


if __name__ == "__main__":
    main()
