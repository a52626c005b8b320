"""Count the operations of a run's model and time it, in a child process: ``python -m <this module> RUN``."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from labkit.config import Config
from labkit.config.recorded import recorded_config
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_of_run
from labkit.experiments.comparison.files import update_measurements
from labkit.experiments.comparison.processes import exit_code
from labkit.run_directory import RunDirectory
from labkit.training.plan import on_one_device

__all__ = ["images_per_second", "main", "measure"]

WARM_UP_BATCHES = 3  # the first one compiles
REPEATS = 7
SECONDS_OF_A_REPEAT = 0.5


def images_per_second(
    predict: Callable[[], object], batch_size: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the images per second of ``REPEATS`` repeats of at least half a second each.

    Args:
        predict: predicts one batch and waits for the result.
        batch_size: images of that batch.
        clock: returns seconds; tests replace it.
    """
    for _ in range(WARM_UP_BATCHES):
        started = clock()
        predict()
    batches = max(1, math.ceil(SECONDS_OF_A_REPEAT / (clock() - started)))
    speeds = []
    for _ in range(REPEATS):
        started = clock()
        for _ in range(batches):
            predict()
        speeds.append(batches * batch_size / (clock() - started))
    return speeds


def measure(config: Config, manifest: Manifest) -> dict[str, Any]:
    """Build the model of a configuration, count its parameters and multiply-adds, and time its inference.

    It predicts batches of ``eval_batch_size`` random images on one device of the kind that trains, and
    fetches the logits. The weights are the initial ones; their values don't affect the speed.

    Raises InputError if the device can't run the configuration.
    """
    asked = config.distribution.num_gpus
    config, devices, data_format = on_one_device(config, num_gpus=1 if asked is None else min(asked, 1))
    import tensorflow as tf

    from labkit.analysis.architecture import summarize
    from labkit.data.network_input import input_shape
    from labkit.distributed.devices import make_strategy
    from labkit.models.registry import build_model
    from labkit.optim.network import build_model_to_train
    from labkit.training.evaluate import make_predict_step

    strategy = make_strategy(devices, config.distribution.variable_strategy)
    with strategy.scope():
        model, _ = build_model_to_train(config, manifest, data_format)
    predict_step = make_predict_step(strategy, model)
    batch_size = config.data.eval_batch_size
    shape = input_shape(manifest, config.data)
    images = tf.random.stateless_normal([batch_size, *shape], seed=[config.run.seed, 0])
    speeds = images_per_second(lambda: predict_step(images).numpy(), batch_size)
    if data_format != "channels_last":  # the format that can be counted
        shapes: dict[str, Any] = {"num_classes": manifest.num_classes, "image_shape": shape}
        model = build_model(config.model, **shapes)
    summary = summarize(model)
    return {
        "parameters": summary.parameters,
        "multiply_adds": summary.multiply_adds,
        "inference_images_per_second": statistics.median(speeds),
        "inference_repeats": speeds,
        "inference_batch_size": batch_size,
        "inference_device": devices.describe(),
    }


def main(arguments: Sequence[str]) -> int:
    """Measure the model of a run and record the results beside it. Returns the exit code."""
    run = RunDirectory(arguments[0])

    def work() -> None:
        config = recorded_config(run)
        manifest, _ = data_of_run(run, config)
        update_measurements(run, measure(config, manifest))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
