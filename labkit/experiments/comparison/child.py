"""What a comparison does in child processes: prepare data, check networks, measure trained models.

``python -m labkit.experiments.comparison.child data CONFIG | networks CONFIGS | measure RUN``, with
configurations as JSON. All may import TensorFlow. The process of ``labkit compare`` must not: its memory
would hide the peak memory of the trainings (``labkit.startup.process.Child``).
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.data.manifest import Manifest, load_manifest
from labkit.data.of_run import data_of_run
from labkit.errors import InputError
from labkit.experiments.comparison.files import update_measurements
from labkit.parts.code import allow
from labkit.parts.trust import files_of
from labkit.run_directory import RunDirectory
from labkit.startup.child import record_reason
from labkit.startup.quiet_import import import_tensorflow, leave_out_extras
from labkit.training.place import data_directory
from labkit.training.plan import decide_devices, on_one_device, plan_data

WARM_UP_BATCHES = 3  # the first one compiles
REPEATS = 7
SECONDS_OF_A_REPEAT = 0.5


def check_networks(configs: Mapping[str, Config], manifest: Manifest) -> None:
    """Build each network and check it as its training would.

    Args:
        configs: by the model's name. All must use the same devices.
        manifest: of the data set that all are trained with.

    Raises InputError, which names the model, for the first network that can't be trained.
    """
    import_tensorflow()
    from labkit.optim.network import build_model_to_train
    from labkit.training.checkpoints import prepare_transfer

    _, data_format = decide_devices(next(iter(configs.values())))
    for name, config in configs.items():
        try:
            model, _ = build_model_to_train(config, manifest, data_format)
            prepare_transfer(config, manifest, model)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None


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


def main(kind: str, text: str) -> int:
    """Do what the arguments say. Returns the exit code: 0, or 2 after printing an InputError."""
    try:
        if kind == "data":
            *_, note = plan_data(Config.from_json(json.loads(text)))
            print(note, flush=True)
        elif kind == "networks":  # a wrong one is refused before the first training, not after hours
            configs = {name: Config.from_json(value) for name, value in json.loads(text).items()}
            config = next(iter(configs.values()))
            for one in configs.values():  # code that the user named on the command line
                allow(files_of(one))
            check_networks(configs, load_manifest(data_directory(config), config.data.dataset))
        else:
            run = RunDirectory(text)
            config = recorded_config(run)
            manifest, _ = data_of_run(run, config)
            update_measurements(run, measure(config, manifest))
    except InputError as error:
        record_reason(str(error))
        print(f"labkit: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    leave_out_extras()
    sys.exit(main(*sys.argv[1:]))
