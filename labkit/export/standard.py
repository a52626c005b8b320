"""Rebuild a trained network from Keras's own layers, so that it works without labkit."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.analysis.network import Classifier
from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES, model_name
from labkit.data.manifest import Manifest
from labkit.data.network_input import central_corner
from labkit.errors import InputError
from labkit.models.attention import attended, positions
from labkit.models.brought import applied, plain_model
from labkit.models.layer_factory import LayerFactory
from labkit.models.registry import build_model, network_of
from labkit.startup.tf_compat import all_layers

PROBE_IMAGES = 8
# Relative to the largest output. The same network computed in two ways differs by about 1e-6 in float32, by
# more than 1e-4 if its statistics come from only a few steps, and by less than 1e-12 in float64. One wrong
# weight makes a difference of 0.1.
PROBE_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


class KerasLayerFactory(LayerFactory):
    """Make layers that plain Keras has, without labkit's initializers."""

    conv_layer = keras.layers.Conv2D
    activation_layer = keras.layers.Activation
    whitening_layer = keras.layers.Conv2D  # the trained weights include the whitening kernel
    dropout_layer = keras.layers.Dropout
    dirac_initializer = staticmethod(lambda initializer: initializer)  # the weights are replaced anyway

    def norm_layer(
        self,
        *,
        name: str | None,
        scale: bool = True,
        epsilon: float | None = None,
        data_format: str | None = None,
    ) -> keras.Layer:
        """Return Keras's batch normalization; with ``scale=False`` it has no gamma."""
        return keras.layers.BatchNormalization(
            axis=-1 if (data_format or self.data_format) == "channels_last" else 1,
            momentum=self._batch_norm["decay"],
            epsilon=self._batch_norm["epsilon"] if epsilon is None else epsilon,
            scale=scale,
            dtype=self.dtype,
            name=name,
        )

    def local_response_norm(self, x, *, depth_radius: int, bias: float, alpha: float, beta: float):
        """Compute the formula of ``LocalResponseNormalization`` with Keras operations, channels last."""
        index = np.arange(self.channels(x))
        near = (np.abs(index[:, None] - index) <= depth_radius).astype(np.float32)
        sums = keras.ops.matmul(keras.ops.square(x), near)
        return x * keras.ops.power(bias + alpha * sums, -beta)

    def layer_scale(self, x, initial: float, **options: Any):
        """Return what ``ChannelScale`` does; ``initial`` is ignored."""
        options |= {"output_shape": tuple(x.shape[1:])}
        return self._apply(keras.layers.EinsumDense, "scale", x, "abcd,d->abcd", **options)

    def attention(self, x, heads: int):
        """Compute ``Attention`` with Keras operations."""
        return attended(x, heads)

    def add_positions(self, x):
        """Compute ``Positions`` with a Keras operation."""
        return x + positions(*x.shape[1:])


def standard_model(
    config: ModelConfig,
    network: Classifier,
    *,
    standardized_input: bool = False,
    probabilities: bool = False,
    holds_classes: bool = False,
) -> keras.Model:
    """Return a run's network rebuilt from Keras's own layers, channels last and float32.

    Args:
        config: the configuration of the network.
        network: what ``build_model`` made from ``config``, channels last.
        standardized_input: whether the network expects standardized images. Otherwise it expects pixels from
            0 to 255, of any dtype that Keras casts to float32.
        probabilities: whether the network returns probabilities instead of logits. Where labels are numbers,
            it returns these in their unit.
        holds_classes: whether the file will hold what the network computes, rather than the names of its
            classes: then a network may have classes of its own.

    Raises:
        InputError: a network of one's own has such classes, and the file will only name them.
        RuntimeError: the network contains an object that plain Keras doesn't have, or the outputs of the two
            networks differ. Neither happens with the networks in ``labkit.config.architectures``.
    """
    activation = network.loss.name if probabilities else "linear"
    model = _assemble(config, network, standardized_input, activation)
    foreign = [] if holds_classes else _foreign(model)
    if foreign and config.model not in ARCHITECTURES:
        raise InputError(
            f"{config.model} has classes of its own ({', '.join(foreign)}), which a .keras file only names; "
            "export it with --format saved_model, tflite or onnx"
        )
    if foreign:
        raise RuntimeError(
            f"{model_name(config)} can't be exported, because plain Keras has no {', '.join(foreign)}; "
            "replace them in KerasLayerFactory"
        )
    copy_weights(network.model, model)
    images = _probe_images(network.manifest)
    inputs = network.inputs(images)
    expected = keras.activations.get(activation)(network.model(inputs, training=False))
    if network.manifest.targets == "numbers":
        expected = tf.constant(network.loss.probabilities(expected.numpy()), tf.float32)
    found = model(inputs if standardized_input else images, training=False)
    # A difference may be only rounding; then it disappears in float64.
    if not _close(found, expected) and not _equal_in_float64(config, network):
        raise RuntimeError(f"{model.name} gives other outputs with Keras's layers than with labkit's")
    return model


def _foreign(model: keras.Model) -> list[str]:
    """Return the classes of a model that plain Keras doesn't have."""
    try:
        return sorted(set(foreign_objects(keras.saving.serialize_keras_object(model))))
    except Exception:  # of a class without a configuration
        own = (type(layer) for layer in all_layers(model))
        return sorted({kind.__name__ for kind in own if not kind.__module__.startswith("keras.")})


def _assemble(
    config: ModelConfig,
    network: Classifier,
    standardized_input: bool,
    activation: str,
    dtype: str = "float32",
) -> keras.Model:
    """Return the network made of Keras's own layers, with initial weights."""
    layers = KerasLayerFactory(
        batch_norm_decay=config.norm_decay, batch_norm_epsilon=config.batch_norm_epsilon, dtype=dtype
    )
    manifest = network.manifest
    shape = network.network_input.shape(manifest) if standardized_input else manifest.image_shape
    images = keras.Input(shape, name="images", dtype=dtype)
    x = images if standardized_input else _standardized(images, network, dtype)
    if config.model in ARCHITECTURES:
        x = network_of(config)(layers, x, num_classes=manifest.num_classes)
    else:
        plain = plain_model(
            dataclasses.replace(config, precision=dtype), manifest.num_classes, tuple(x.shape[1:])
        )
        x = applied(plain, x)
    if manifest.target_mean is not None:  # to the unit of the labels
        x = keras.layers.Rescaling(
            [list(manifest.target_std or ())], [list(manifest.target_mean)], name="numbers", dtype=dtype
        )(x)
    if activation != "linear":
        x = keras.layers.Activation(activation, name="probabilities", dtype=dtype)(x)
    return keras.Model(images, x, name=model_name(config).replace("-", "_"))


def _standardized(x: Any, network: Classifier, dtype: str) -> Any:
    """Return what the network takes of pixels from 0 to 255, as ``Classifier.inputs`` does."""
    manifest, size = network.manifest, network.network_input.crop_size
    height, width, channels = manifest.image_shape
    if size is not None:
        top, left = central_corner(height, width, size)
        around = ((top, height - size - top), (left, width - size - left))
        x = keras.layers.Cropping2D(around, data_format="channels_last", name="middle", dtype=dtype)(x)
        height = width = size
    if network.network_input.standardization == "per_image":
        x = x - keras.ops.mean(x, axis=(1, 2, 3), keepdims=True)
        std = keras.ops.sqrt(keras.ops.mean(keras.ops.square(x), axis=(1, 2, 3), keepdims=True))
        return x / keras.ops.maximum(std, (height * width * channels) ** -0.5)
    mean_and_std = list(zip(manifest.channel_mean, manifest.channel_std, strict=True))
    # Not keras.layers.Normalization, whose constant tensors tf2onnx treats as inputs.
    return keras.layers.Rescaling(
        # Of rank 3: for a plain list, the settings of whoever loads the file decide the axis.
        [[[1.0 / (255.0 * std) for _, std in mean_and_std]]],
        [[[-mean / std for mean, std in mean_and_std]]],
        name="standardize",
        dtype=dtype,
    )(x)


def foreign_objects(serialized: Any) -> Iterator[str]:
    """Yield the class of each object in a serialized model that does not belong to Keras."""
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
    """Copy the weights of ``source`` to ``target``, layer by layer.

    ``target`` may lack a gamma of batch normalization if all its values are 1.

    Raises:
        RuntimeError: another weight has no counterpart, or a counterpart of another shape.
    """
    ours, theirs = ([layer for layer in model.layers if layer.weights] for model in (source, target))
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} layers with weights, but {len(theirs)} in the exported network")
    for layer, other in zip(ours, theirs, strict=True):
        values = {name: np.asarray(weight) for name, weight in _named(layer).items()}
        for name, weight in _named(other).items():
            value = values.pop(name, None)
            if value is None or value.shape != tuple(weight.shape):
                raise RuntimeError(
                    f"{layer.name} has no weights of shape {tuple(weight.shape)} for {weight.path}"
                )
            weight.assign(value)
        if any(not name.endswith("gamma") or np.any(value != 1) for name, value in values.items()):
            raise RuntimeError(f"{other.name} has no variable for {', '.join(values)} of {layer.name}")


def _named(layer: keras.Layer) -> dict[str, Any]:
    """Return the weights of a layer by name; of a model of one's own class, one layer, by path."""
    names = [weight.name for weight in layer.weights]
    if len(set(names)) == len(names):
        return dict(zip(names, layer.weights, strict=True))
    return {str(weight.path).partition("/")[2]: weight for weight in layer.weights}


def _equal_in_float64(config: ModelConfig, network: Classifier) -> bool:
    """Return whether labkit's and Keras's layers give the same outputs in float64 for standardized images."""
    manifest = network.manifest
    double = build_model(
        dataclasses.replace(config, precision="float64"),
        num_classes=manifest.num_classes,
        image_shape=network.network_input.shape(manifest),
    )
    for weight, value in zip(double.weights, network.model.weights, strict=True):
        weight.assign(np.asarray(value, np.float64))
    exact = _assemble(config, network, standardized_input=True, activation="linear", dtype="float64")
    copy_weights(double, exact)
    images = network.inputs(_probe_images(manifest))
    expected = double(images, training=False)
    if manifest.targets == "numbers":
        expected = network.loss.probabilities(expected.numpy())
    return _close(exact(images, training=False), expected)


def _probe_images(manifest: Manifest) -> np.ndarray:
    """Return random pixels, uint8 [8, height, width, channels]."""
    shape = (PROBE_IMAGES, *manifest.image_shape)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def _close(found: tf.Tensor, expected: tf.Tensor) -> bool:
    """Return whether outputs are equal up to the tolerance for their dtype."""
    difference = np.abs(np.asarray(found) - np.asarray(expected)).max()
    return bool(difference <= PROBE_TOLERANCE[found.dtype.name] * np.abs(np.asarray(expected)).max())
