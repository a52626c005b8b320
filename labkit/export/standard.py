"""A trained network made of Keras's own layers, for where there is no labkit."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.architectures import model_name
from labkit.data.augment import standardize
from labkit.data.manifest import Manifest
from labkit.models.layer_factory import LayerFactory
from labkit.models.registry import BUILDERS, build_model

__all__ = ["StandardToolbox", "copy_weights", "foreign_objects", "standard_model"]

PROBE_IMAGES = 8
# Of the largest output. One network computed in two ways in float32: some 1e-6, and over 1e-4 where
# statistics of a few steps blow up rounding; in float64: below 1e-12. With a wrong weight: 0.1.
PROBE_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


class StandardToolbox(LayerFactory):
    """Layers that plain Keras has. What only the start of a training needs is left out."""

    whitening_layer = keras.layers.Conv2D  # its kernel comes with the trained weights

    def conv(self, x, filters: int, kernel_size: int, stride: int = 1, *, dirac: bool = False):
        """As in ``LayerFactory``; the initial weights are Keras's whatever ``dirac`` is."""
        return super().conv(x, filters, kernel_size, stride)

    def norm_layer(
        self,
        *,
        name: str | None,
        scale: bool = True,
        epsilon: float | None = None,
        data_format: str | None = None,
    ) -> keras.Layer:
        """Keras's batch normalization; without ``scale`` it has no factor at all."""
        return keras.layers.BatchNormalization(
            axis=-1 if (data_format or self.data_format) == "channels_last" else 1,
            momentum=self._batch_norm["decay"],
            epsilon=self._batch_norm["epsilon"] if epsilon is None else epsilon,
            scale=scale,
            dtype=self.dtype,
            name=name,
        )

    def local_response_norm(self, x, *, depth_radius: int, bias: float, alpha: float, beta: float):
        """The formula of ``LocalResponseNormalization`` in Keras's operations, channels last."""
        index = np.arange(self.channels(x))
        near = (np.abs(index[:, None] - index) <= depth_radius).astype(np.float32)
        sums = keras.ops.matmul(keras.ops.square(x), near)
        return x * keras.ops.power(bias + alpha * sums, -beta)


def standard_model(
    config: ModelConfig,
    trained: keras.Model,
    manifest: Manifest,
    *,
    standardized_input: bool = False,
    probabilities: bool = False,
    loss: str = "softmax",
) -> keras.Model:
    """Return ``trained`` in Keras's own layers: channels last, float32.

    Args:
        config: of the network.
        trained: made by ``build_model`` from ``config`` for ``manifest``, channels last.
        manifest: of the data that it was trained on.
        standardized_input: whether images come as ``standardize`` makes them; else they are pixels from 0 to
            255, of any dtype that Keras casts to float32.
        probabilities: whether the outputs are the softmax of the logits, or the sigmoid of each.
        loss: that the network was trained with, ``softmax`` or ``sigmoid``: which of the two it is.

    Raises RuntimeError where the architecture has something that plain Keras doesn't know, or where the two
    networks differ: neither happens with those in ``labkit.config.architectures``.
    """
    ends: dict[str, Any] = {
        "standardized_input": standardized_input,
        "activation": loss if probabilities else "linear",
    }
    model = _assemble(config, manifest, **ends)
    foreign = sorted(set(foreign_objects(keras.saving.serialize_keras_object(model))))
    if foreign:
        raise RuntimeError(
            f"{model_name(config)} can't be exported: plain Keras knows no {', '.join(foreign)}; "
            "StandardToolbox must replace them"
        )
    copy_weights(trained, model)
    images = _probe_images(manifest)
    function = keras.activations.get(ends["activation"])
    expected = function(trained(standardize(images, manifest), training=False))
    found = model(standardize(images, manifest) if standardized_input else images, training=False)
    # Rounding, or another network? In float64 the one is gone.
    if not _close(found, expected) and not _equal_in_float64(config, trained, manifest):
        raise RuntimeError(f"{model.name} in Keras's own layers answers otherwise than labkit's")
    return model


def _assemble(
    config: ModelConfig, manifest: Manifest, standardized_input: bool, activation: str, dtype: str = "float32"
) -> keras.Model:
    """Return the network in Keras's own layers, with initial weights."""
    toolbox = StandardToolbox(
        batch_norm_decay=config.batch_norm_decay, batch_norm_epsilon=config.batch_norm_epsilon, dtype=dtype
    )
    images = keras.Input(manifest.image_shape, name="images", dtype=dtype)
    x = images
    if not standardized_input:
        mean_and_std = list(zip(manifest.channel_mean, manifest.channel_std, strict=True))
        # Not Normalization: tf2onnx takes the tensors that it keeps for inputs.
        x = keras.layers.Rescaling(
            [1.0 / (255.0 * std) for _, std in mean_and_std],
            [-mean / std for mean, std in mean_and_std],
            name="standardize",
            dtype=dtype,
        )(x)
    network, values = BUILDERS[config.model]
    x = network(toolbox, x, **values(config), num_classes=manifest.num_classes)
    if activation != "linear":
        x = keras.layers.Activation(activation, name="probabilities", dtype=dtype)(x)
    return keras.Model(images, x, name=model_name(config).replace("-", "_"))


def foreign_objects(serialized: Any) -> Iterator[str]:
    """Yield the class of each object in a serialized model that isn't part of Keras."""
    if isinstance(serialized, dict):
        if "class_name" in serialized:
            module = serialized.get("module") or "keras"
            if module != "builtins" and module.partition(".")[0] != "keras":
                yield f"{module}.{serialized['class_name']}"
            elif ">" in (serialized.get("registered_name") or ""):
                yield serialized["registered_name"]
        serialized = list(serialized.values())
    if isinstance(serialized, list | tuple):
        for item in serialized:
            yield from foreign_objects(item)


def copy_weights(source: keras.Model, target: keras.Model) -> None:
    """Give ``target`` the weights of ``source``, layer by layer, each one once.

    Factors of a batch normalization that are 1 may be missing in ``target``. Raises RuntimeError where
    anything else is left over on either side, or has another shape.
    """
    ours, theirs = ([layer for layer in model.layers if layer.weights] for model in (source, target))
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} layers with weights, {len(theirs)} in the exported network")
    for layer, other in zip(ours, theirs, strict=True):
        values = {weight.name: np.asarray(weight) for weight in layer.weights}
        for weight in other.weights:
            value = values.pop(weight.name, None)
            if value is None or value.shape != tuple(weight.shape):
                raise RuntimeError(f"{layer.name} has no weights for {weight.path}, {tuple(weight.shape)}")
            weight.assign(value)
        if any(name != "gamma" or np.any(value != 1) for name, value in values.items()):
            raise RuntimeError(f"{other.name} has no place for {', '.join(values)} of {layer.name}")


def _equal_in_float64(config: ModelConfig, trained: keras.Model, manifest: Manifest) -> bool:
    """Return whether both ways to make the network, in float64, answer standardized images alike."""
    shapes: dict[str, Any] = {"num_classes": manifest.num_classes, "image_shape": manifest.image_shape}
    double = build_model(dataclasses.replace(config, precision="float64"), **shapes)
    for weight, value in zip(double.weights, trained.weights, strict=True):
        weight.assign(np.asarray(value, np.float64))
    exact = _assemble(config, manifest, standardized_input=True, activation="linear", dtype="float64")
    copy_weights(double, exact)
    images = standardize(_probe_images(manifest), manifest)
    return _close(exact(images, training=False), double(images, training=False))


def _probe_images(manifest: Manifest) -> np.ndarray:
    """Return random pixels, uint8 [8, height, width, channels]."""
    shape = (PROBE_IMAGES, *manifest.image_shape)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def _close(found: tf.Tensor, expected: tf.Tensor) -> bool:
    """Return whether outputs are equal but for the rounding of their dtype."""
    difference = np.abs(np.asarray(found) - np.asarray(expected)).max()
    return bool(difference <= PROBE_TOLERANCE[found.dtype.name] * np.abs(np.asarray(expected)).max())
