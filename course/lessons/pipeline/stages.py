"""The stages of a pipeline: consecutive blocks of a ResNet."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from course.lessons.workers import Worker
from labkit.analysis.architecture import multiply_adds
from labkit.models.layer_factory import LayerFactory
from labkit.models.resnet import resnet


@dataclass(frozen=True)
class Network:
    """A ResNet of 6n+2 layers with or without batch normalization; each process builds the same from it."""

    num_layers: int
    normalized: bool = True
    seed: int = 0

    def build(self) -> keras.Model:
        class WithoutNormalization(LayerFactory):
            def norm(self, x: Any, *, scale: bool = True) -> Any:
                return x

        layers = (LayerFactory if self.normalized else WithoutNormalization)(seed=self.seed)
        images = keras.Input((32, 32, 3), name="images", dtype="float32")
        logits = resnet(
            layers, images, num_layers=self.num_layers, resnet_version=1, block="basic", num_classes=10
        )
        return keras.Model(images, logits)


@functools.cache
def blocks(network: Network) -> dict[str, list[keras.Layer]]:
    """Return the layers of each block by its name: ``stem``, ``stage1_block1``, …, ``head``."""
    found: dict[str, list[Any]] = {}
    for layer in network.build().layers[1:]:
        parts = layer.name.replace("logits", "head").split("_")
        found.setdefault("_".join(parts[: 2 if parts[0].startswith("stage") else 1]), []).append(layer)
    return found


def block_counts(network: Network) -> dict[str, dict[str, float]]:
    """Return the weights of each block, and the multiply-adds of its forward pass for one image."""
    counts = {"weights": keras.Layer.count_params, "multiply-adds": multiply_adds}
    parts = blocks(network).items()
    return {
        measure: {name: sum(map(count, part)) for name, part in parts} for measure, count in counts.items()
    }


class Blocks:
    """A stage of consecutive blocks of a network. ``kept``: what ``backward`` needs, by micro-batch.

    The loss is the sum of the cross-entropies divided by the images of the *whole* batch, ``batch_size``, so
    that gradients of micro-batches add up to ``gradient``, float32 [weights], that of the batch.
    ``cuts``: the numbers of the blocks at which stages 1, 2, … begin.
    """

    def __init__(self, network: Network, cuts: Sequence[int], stage: int, batch_size: int) -> None:
        self._part = network, tuple(cuts), stage
        self._batch_size, self._first, self._last = batch_size, stage == 0, stage == len(cuts)
        self.kept: dict[int, Any] = {}
        self.gradient: Any = 0.0

    def forward(self, m: int, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs of micro-batch ``m``. The first stage takes images, [n, 32, 32, 3]."""
        function, _ = _compiled(*self._part)
        given = tf.constant(inputs)
        with tf.GradientTape() as tape:
            if not self._first:
                tape.watch(given)
            outputs = function(given)
        self.kept[m] = tape, given, outputs
        return outputs.numpy()

    def backward(self, m: int, gradient: NDArray[Any]) -> NDArray[np.float32]:
        """Return the gradient of the inputs, from that of the outputs; the last stage takes labels, [n]."""
        tape, inputs, outputs = self.kept.pop(m)
        if self._last:  # that of the softmax cross-entropy
            gradient = (tf.nn.softmax(outputs) - tf.one_hot(gradient, 10)) / self._batch_size
        _, weights = _compiled(*self._part)
        sources = weights if self._first else [*weights, inputs]
        found = [part.numpy() for part in tape.gradient(outputs, sources, output_gradients=gradient)]
        self.gradient = self.gradient + np.concatenate([part.ravel() for part in found[: len(weights)]])
        return np.zeros(0, np.float32) if self._first else found[-1]


@functools.cache
def _compiled(network: Network, cuts: tuple[int, ...], stage: int) -> tuple[Any, list[Any]]:
    """Return the compiled forward pass of a stage, and its trained weights."""
    found = list(blocks(network).values())
    begin, end = (0, *cuts)[stage], (*cuts, len(found))[stage]
    part = keras.Model(found[begin][0].input, found[end - 1][-1].output)
    signature = [tf.TensorSpec([None, *part.input_shape[1:]], tf.float32)]
    function = tf.function(
        lambda inputs: part(inputs, training=True), input_signature=signature, autograph=False
    )
    return function, [weight.value for weight in part.trainable_variables]


def gradient_of(network: Network, images: Sequence[Any], labels: Sequence[Any]) -> NDArray[np.float32]:
    """Return the gradient of a batch, [weights], from its micro-batches, computed in this process."""
    stage = Blocks(network, [], 0, sum(map(len, labels)))
    with tf.device("/CPU:0"):  # as in the workers; a GPU rounds convolutions to TF32
        for m, (some, theirs) in enumerate(zip(images, labels, strict=True)):
            stage.forward(m, some)
            stage.backward(m, theirs)
    return stage.gradient


def block_seconds(worker: Worker, network: Network, images: int) -> dict[str, float]:
    """Return the median seconds of both passes of ``images`` images, by name of a block.

    A worker of rank r measures the blocks r, r + size, r + 2 size, …
    """
    names, found = list(blocks(network)), {}
    for number in range(worker.rank, len(names), worker.size):
        stage = Blocks(network, range(1, len(names)), number, images)
        inputs = np.ones((images, *blocks(network)[names[number]][0].input.shape[1:]), np.float32)
        seconds = []
        for _ in range(6):  # the first one compiles
            begin = time.perf_counter()
            outputs = stage.forward(0, inputs)
            stage.backward(0, outputs if number < len(names) - 1 else np.zeros(images, int))
            seconds.append(time.perf_counter() - begin)
        found[names[number]] = float(np.median(seconds[1:]))
    return found
