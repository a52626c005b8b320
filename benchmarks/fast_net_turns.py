"""The measuring process of fast_net.py: matrix products and training steps for each line on stdin.

Each process has one combination of precision, batch size and activation. The step is the compiled one of
`labkit train --preset fast`, always with the same batch, so that no input is timed.
"""

import os
import statistics
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.turns import make_turns_parser, serve_turns, session_on_cpu
from labkit.analysis.flops import matrix_product, training_flops
from labkit.config.presets import preset_values
from labkit.data.augment import standardize
from labkit.data.loading import load_split


def main() -> None:
    parser = make_turns_parser(__doc__, of_resnet=False)
    parser.add_argument("--activation", required=True)
    parser.add_argument("--width-factor", type=float, help="(default: the preset's)")
    parser.add_argument("--matrix-sizes", type=int, nargs="+", required=True)
    parser.add_argument("--products", type=int, required=True, help="of each size; the median counts")
    options = parser.parse_args()
    asked: dict[str, Any] = {"train_batch_size": options.batch_size, "activation": options.activation}
    asked["progressive_resizing"] = None  # full-size images, as at the end of a training
    if options.width_factor is not None:
        asked["width_factor"] = options.width_factor
    session = session_on_cpu(options, {**preset_values("fast"), **asked})
    session.adapt_to_data()
    images, labels = (part[: options.batch_size] for part in load_split(session.manifest, "train"))
    batch = standardize(images, session.manifest), tf.constant(labels)
    scalars = tf.constant(session.config.optimizer.learning_rate / 100), tf.constant(0.0)
    # For the image size of this step: counting small images as full ones would double the result.
    flops_per_image = training_flops(session.model, image_size=session.image_size_at(0))
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
            "step_gflops": flops_per_image * options.batch_size / seconds / 1e9,
            "images_per_second": options.batch_size / seconds,
            "flops_per_image": flops_per_image,
        }

    serve_turns(turn)


if __name__ == "__main__":
    main()
