"""The peer of train_step.py: Keras 3's `model.fit` on the same network, images, loss and update.

Trains one epoch for each line on stdin and prints its speed as a line of JSON. There is no callback within an
epoch and no progress bar, and all epochs share one iterator, so only `fit` itself is timed.
"""

import json
import os
import sys
import time

import keras

from benchmarks.turns import COLD_STEPS, read_options
from labkit.config import Config
from labkit.data.manifest import load_manifest
from labkit.data.pipeline import train_dataset
from labkit.data.shards import load_split
from labkit.export.standard import KerasLayerFactory
from labkit.models.registry import network_of


def make_peer(config: Config, *, num_classes: int, image_shape: tuple[int, int, int]) -> keras.Model:
    """Return the network of ``labkit.models.registry.build_model``, made of Keras layers only."""
    model = config.model
    layers = KerasLayerFactory(
        dtype=model.precision,
        seed=config.run.seed,
        batch_norm_decay=model.norm_decay,
        batch_norm_epsilon=model.batch_norm_epsilon,
    )
    images = keras.Input(image_shape, name="images", dtype="float32")
    logits = network_of(model)(layers, images, num_classes=num_classes)
    return keras.Model(images, logits)


def compile_peer(model: keras.Model, config: Config, *, steps_per_execution: int, jit_compile: bool) -> None:
    """Give the peer labkit's update (constant learning rate, decoupled decay), loss and accuracy."""
    optimizer = config.optimizer
    model.compile(
        optimizer=keras.optimizers.SGD(
            optimizer.learning_rate,
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov,
            weight_decay=optimizer.weight_decay,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
        jit_compile=jit_compile,
    )


class _Turns(keras.callbacks.Callback):
    """Waits for a line before each epoch and prints its speed afterwards, without the first steps.

    It uses ``on_train_batch_begin`` only: with ``on_train_batch_end`` Keras would wait for the metrics of
    every batch.
    """

    def __init__(self, steps: int, batch_size: int) -> None:
        super().__init__()
        self._steps, self._batch_size = steps, batch_size
        self._first, self._started = 0, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        if not sys.stdin.readline():  # the reader has ended
            os._exit(0)
        self._first, self._started = 0, time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        if batch >= COLD_STEPS > self._first:  # with steps_per_execution several steps begin at once
            self._first, self._started = batch, time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        images = (self._steps - self._first) * self._batch_size
        speed = images / (time.perf_counter() - self._started)
        print(json.dumps({"images_per_second": speed}), flush=True)


def main() -> None:
    options = read_options(steps_per_execution=1, jit_compile=False)
    config = Config.from_flat(
        {
            "num_layers": options.num_layers,
            "precision": options.precision,
            "train_batch_size": options.batch_size,
            "weight_decay_mode": "decoupled",
        }
    )
    manifest = load_manifest(options.data_dir, options.dataset)
    model = make_peer(config, num_classes=manifest.num_classes, image_shape=manifest.image_shape)
    compile_peer(
        model, config, steps_per_execution=options.steps_per_execution, jit_compile=options.jit_compile
    )
    epochs = 10_000  # never reached: the process is ended
    images = train_dataset(
        manifest,
        global_batch_size=options.batch_size,
        seed=config.run.seed,
        start_step=0,
        stop_step=epochs * options.steps,
        input_path="memory",
        arrays=load_split(manifest, "train"),
    )
    turns = _Turns(options.steps, options.batch_size)
    model.fit(images, epochs=epochs, steps_per_epoch=options.steps, verbose=0, callbacks=[turns])


if __name__ == "__main__":
    main()
