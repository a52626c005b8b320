"""Other forms of a network, over the same layers: smaller images, all outputs, folded normalization."""

import contextlib
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.errors import InputError
from labkit.models.convolution import Conv2D
from labkit.models.layers import BatchNormalization, shifting_only

Stages = Sequence[tuple[int, float]]


def check_image_sizes(stages: Stages, model: keras.Model) -> None:
    """Check that the network accepts images of every size.

    Args:
        stages: (side in pixels, fraction of the run at which it ends), as in ``DataConfig.image_sizes``.
        model: the network.

    Raises:
        InputError: the network does not accept one of the sizes.
    """
    for size, _ in stages:
        try:
            with_image_size(model, size)
        except ValueError as error:
            reason = textwrap.shorten(str(error).splitlines()[0], 120, placeholder=" …")
            raise InputError(
                f"--progressive-resizing has images of {size} × {size} pixels, which {model.name} can't take "
                f"({reason}); give larger sizes, or --progressive-resizing none"
            ) from None


def with_image_size(model: keras.Model, size: int) -> keras.Model:
    """Return a model for images of ``size`` x ``size`` that shares its layers with ``model``.

    Args:
        model: maps images [batch, height, width, channels] to logits.
        size: side of the images in pixels.

    Raises:
        ValueError: a layer has weights that fit only one size.
    """
    return _over_same_layers(model, (size, size), lambda layer, *inputs, **options: layer(*inputs, **options))


def with_layer_outputs(model: keras.Model, image_size: int | None = None) -> keras.Model:
    """Return a model that shares its layers with ``model`` and returns each layer's output by its name.

    The outputs are a dict in the order of the forward pass; the last one is the logits.

    Args:
        model: maps images [batch, height, width, channels] to logits.
        image_size: side of the images in pixels; None: the model's own height and width.

    Raises:
        ValueError: a layer has weights that fit only another size.
    """
    outputs: dict[str, Any] = {}

    def call(layer: keras.Operation, *inputs: Any, **options: Any) -> Any:
        outputs[layer.name] = layer(*inputs, **options)
        return outputs[layer.name]

    height, width = model.input_shape[1:3]
    cloned = _over_same_layers(model, (image_size or height, image_size or width), call)
    return keras.Model(cloned.inputs[0], outputs, name=model.name)


def calls_of(
    model: keras.Model, image_size: int | None = None
) -> list[tuple[keras.Operation, list[keras.KerasTensor], keras.KerasTensor]]:
    """Return each operation of a network with what it takes and what it gives, in the order of the calls.

    A layer itself only records its first call, and a model within the network that of its own input.

    Args:
        model: functional; each operation is called once and has one output.
        image_size: side of the images in pixels; None: the model's own height and width.
    """
    found = []

    def call(operation: keras.Operation, *inputs: Any, **options: Any) -> Any:
        output = operation(*inputs, **options)
        tensors = [one for one in keras.tree.flatten((inputs, options)) if isinstance(one, keras.KerasTensor)]
        found.append((operation, tensors, output))
        return output

    height, width = model.input_shape[1:3]
    _over_same_layers(model, (image_size or height, image_size or width), call)
    return found


def _over_same_layers(model: keras.Model, size: tuple[int, int], call: Callable[..., Any]) -> keras.Model:
    images = keras.Input((*size, model.input_shape[-1]), name="images", dtype=model.inputs[0].dtype)
    inputs = keras.tree.map_structure(lambda _: images, model.input)  # which may be a list of one
    return keras.models.clone_model(
        model, input_tensors=inputs, clone_function=lambda layer: layer, call_function=call
    )


def shrunk(images: tf.Tensor, size: int) -> tf.Tensor:
    """Return the images reduced to ``size`` x ``size`` by antialiased bilinear interpolation.

    Equals ``tf.image.resize(..., antialias=True)``, but uses two matrix products, which run on every device.

    Args:
        images: float [batch, height, width, channels] with static height and width.
        size: the new side in pixels.

    Returns:
        [batch, size, size, channels] of the images' dtype.
    """
    down, across = (tf.cast(_weights(images.shape[axis], size), images.dtype) for axis in (1, 2))
    return tf.einsum("ph,bhwc,qw->bpqc", down, images, across)


def _weights(before: int, after: int) -> tf.Tensor:
    """Return the weight of each old pixel of a row in each new pixel, float32 [after, before]."""
    with tf.init_scope():  # computed once, as a constant of the graph
        pixels = tf.eye(before)[:, :, None]
        return tf.image.resize(pixels, [after, before], antialias=True)[:, :, 0].numpy()


# ---- batch normalization folded into convolutions


def foldable(model: keras.Model) -> list[tuple[keras.layers.Conv2D, BatchNormalization]]:
    """Return each pair of a plain convolution and the batch normalization that alone uses its output.

    A convolution is plain if it has no bias and no activation. The result is empty if the network is not one
    Functional model, or contains other models.
    """
    try:
        config = model.get_config()
    except NotImplementedError:  # of a class of one's own
        return []
    if "output_layers" not in config or any(isinstance(layer, keras.Model) for layer in model.layers):
        return []
    sources = {entry["name"]: list(_sources(entry["inbound_nodes"])) for entry in config["layers"]}
    used = Counter(name for names in sources.values() for name in names)
    used.update(entry for entry in keras.tree.flatten(config["output_layers"]) if isinstance(entry, str))
    layers = {layer.name: layer for layer in model.layers}
    found = []
    for name, layer in layers.items():
        if not isinstance(layer, BatchNormalization) or len(sources[name]) != 1:
            continue
        convolution = layers.get(sources[name][0])
        # Only these classes: subclasses have kernels of other shapes, or compute them in the call.
        if convolution is None or type(convolution) not in (keras.layers.Conv2D, Conv2D):
            continue
        plain = not convolution.use_bias and convolution.activation is keras.activations.linear
        if plain and used[convolution.name] == 1:
            found.append((convolution, layer))
    return found


def _sources(node: Any) -> Iterator[str]:
    """Yield the names of the layers that provide the inputs of a layer's serialized calls."""
    if isinstance(node, dict):
        if "keras_history" in node:
            yield node["keras_history"][0]
        else:
            yield from _sources(list(node.values()))
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _sources(child)


@contextlib.contextmanager
def folded_normalization(model: keras.Model) -> Iterator[None]:
    """Predict faster: within the block, ``model`` scales its kernels instead of normalizing activations.

    A convolution with kernel k, followed by normalization with mean m, variance v, gamma g and beta b, equals
    a convolution with kernel k * s and bias b - m * s, where s = g / sqrt(v + epsilon) (Jacob et al., 2018,
    section 3.2). TensorFlow fuses a convolution, its bias and a ReLU into one operation, also in bfloat16,
    where it can't fuse batch normalization. The logits differ from the unfolded ones only by rounding. No
    variable is changed.
    """
    kernels, offsets = [], {}
    for convolution, norm in foldable(model):
        variance = tf.convert_to_tensor(norm.moving_variance)
        scale = tf.convert_to_tensor(norm.gamma) * tf.math.rsqrt(variance + norm.epsilon)
        kernels.append((convolution.kernel, tf.convert_to_tensor(convolution.kernel) * scale))
        offsets[norm] = tf.convert_to_tensor(norm.beta) - tf.convert_to_tensor(norm.moving_mean) * scale
    with keras.StatelessScope(state_mapping=kernels), shifting_only(offsets):
        yield
