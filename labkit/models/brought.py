"""A network that somebody brings: a function that returns any Keras model.

The model stays as it is but for two kinds of layers, which become labkit's in place. Batch normalization
does, so that the training step can synchronize it, freeze it and average its statistics over the replicas;
and dropout, whose masks then follow from the seed and the step: a resumed run drops what an uninterrupted one
does, and N replicas what one does.
"""

import contextlib
import inspect
import io
import random
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.architectures import model_name
from labkit.config.fields import arguments_of
from labkit.errors import InputError, short
from labkit.models.keras_application import keras_settings
from labkit.models.layers import BatchNormalization, Dropout, norms_of, recorded_batch_statistics
from labkit.parts.code import allowed_content, first_line, named_object
from labkit.startup.tf_compat import (
    all_layers,
    is_called_once,
    names_from_the_beginning,
    weights_up_to,
)

MOST_WEIGHTS = 2**31  # 8 GiB in float32
# The axes over which values share a mask.
_DROPOUTS: dict[type, tuple[int, ...]] = {
    keras.layers.Dropout: (),
    keras.layers.SpatialDropout1D: (1,),
    keras.layers.SpatialDropout2D: (1, 2),
}
_ELEMENTWISE = ("Mul", "RealDiv", "Sub", "AddV2", "Cast", "Identity", "Transpose")  # TensorFlow's operations
_MEANS = 103.939, 116.779, 123.68  # of ImageNet's blue, green, red, which keras.applications subtracts


def brought_model(
    config: ModelConfig, num_classes: int, image_shape: tuple[int, int, int], data_format: str, seed: int
) -> keras.Model:
    """Return the model that the function of ``--model FILE.py:NAME`` builds, with labkit's layers in it.

    Args and errors: as of ``plain_model``. Any other ``data_format`` than ``channels_last`` is refused.
    """
    flag = f"--model {config.model}"
    if data_format != "channels_last":
        raise InputError(f"{flag} decides its own layout; leave --data-format out, or give channels_last")
    if config.dropout_rate:
        raise InputError(f"--dropout-rate is {config.dropout_rate}; {flag} decides where it has dropout")
    if config.batch_norm_epsilon != 1e-5:
        raise InputError(f"--batch-norm-epsilon is {config.batch_norm_epsilon}; {flag} decides its own")
    model = plain_model(config, num_classes, image_shape, seed)
    _adopt(flag, model, config, seed)
    return model


def plain_model(
    config: ModelConfig, num_classes: int, image_shape: tuple[int, int, int], seed: int = 0
) -> keras.Model:
    """Return the model as its function makes it, over images of one shape.

    The function is called with the shape of an image, (height, width, channels), the number of classes, and
    ``--model-arguments``. It returns a Keras model of standardized images, float32 [batch, height, width,
    channels], that gives logits [batch, num_classes].

    Args:
        config: names file and function, and has the precision, in which Keras makes the layers.
        num_classes: number of logits.
        image_shape: (height, width, channels).
        seed: decides the initial weights that have no seed of their own.

    Raises InputError, with what to do, for a function or a model that can't be trained.
    """
    flag, arguments = f"--model {config.model}", arguments_of(config.model_arguments)
    build = _saved_model(config) if config.model.endswith(".keras") else named_object("--model", config.model)
    _check_call(flag, build, arguments)
    too_many = InputError(
        f"{flag} has more than {MOST_WEIGHTS:,} weights, the most that are allowed; make it smaller"
    )
    with weights_up_to(MOST_WEIGHTS, too_many), _as_configured(config.precision, seed):
        try:
            model = build(image_shape, num_classes, **arguments)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"{flag} failed for images of {image_shape}: {first_line(error)}") from None
        name = model_name(config).replace(".", "_").replace("-", "_")
        made = _over_images(flag, model, name, num_classes, image_shape)
        for layer in (one for one in all_layers(made) if one.weights):
            if vars(layer).get("given_to_labkit"):  # with the weights of an earlier training
                raise InputError(
                    f"{flag} returned the layer {layer.name!r} again; make new ones in each call"
                )
            layer.given_to_labkit = True
        return made


def _saved_model(config: ModelConfig) -> Callable[..., keras.Model]:
    """Return what loads the model of a ``.keras`` file, with its weights. Raises InputError."""
    path, flag = Path(config.model), f"--model {config.model}"
    if not zipfile.is_zipfile(io.BytesIO(allowed_content("--model", path))):
        raise InputError(f"{flag} is no .keras file: it is damaged, or something else")

    def load(input_shape: Any, num_classes: int) -> keras.Model:
        registered = keras.saving.get_custom_objects()
        kept = dict(registered)
        for name in kept:
            if not name.startswith("labkit>"):  # other processes have labkit's alone
                del registered[name]
        try:
            model = keras.saving.load_model(path, compile=False)
        except Exception as error:
            raise InputError(
                f"{flag} can't be loaded: {first_line(error).partition('. ')[0]}; a .keras file only names "
                "classes and functions of your own: give the function that builds the model, or FILE.py:NAME"
            ) from None
        finally:
            registered.update(kept)
        policies = {layer.dtype_policy.name for layer in model.layers if layer.weights}
        if config.precision != "float32" or policies - {"float32"}:
            raise InputError(
                f"{flag} is saved in {', '.join(sorted(policies))}, with --precision {config.precision}; a "
                "saved model is trained in float32; for another precision, give the function that builds it"
            )
        return model

    return load


def _check_call(flag: str, build: Any, arguments: dict[str, Any]) -> None:
    if not callable(build):
        raise InputError(f"{flag} is {short(build)}; allowed: a function (input_shape, num_classes)")
    try:
        signature = inspect.signature(build, follow_wrapped=False)
    except ValueError:  # of something that isn't written in Python
        return
    try:
        signature.bind((32, 32, 3), 10, **arguments)
    except TypeError as error:
        given = "".join(f", {name}={value!r}" for name, value in arguments.items())
        raise InputError(
            f"{flag} takes {signature}, but is called with (input_shape, num_classes{given}): {error}"
        ) from None


@contextlib.contextmanager
def _as_configured(precision: str, seed: int) -> Iterator[None]:
    """Let Keras make layers of this precision whose initial weights follow from the seed.

    What the process had before is there again after the block.
    """
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)  # of which Keras draws the seeds of initializers that have none
        np.random.seed(seed)
        with keras_settings(precision), names_from_the_beginning():
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)


def _over_images(
    flag: str, model: Any, name: str, num_classes: int, image_shape: tuple[int, int, int]
) -> keras.Model:
    """Return the model for images of this shape, as a functional one. Raises InputError for a misfit."""
    if not isinstance(model, keras.Model):
        kind = "nothing" if model is None else f"an object of {type(model).__name__}"
        raise InputError(f"{flag} returned {kind}; allowed: a Keras model")
    for own in ("train_step", "compute_loss"):
        if getattr(type(model), own) is not getattr(keras.Model, own):
            of = type(model).__name__
            raise InputError(f"{flag} has a {own}, that of {of}, which labkit doesn't call; leave it out")
    images = keras.Input(image_shape, name="images", dtype="float32")
    inputs = getattr(model, "inputs", None)
    if inputs and len(inputs) > 1:
        raise InputError(f"{flag} has {len(inputs)} inputs, and labkit gives it one, the images; leave one")
    taken = inputs[0].shape[1:] if inputs else image_shape
    if any(own not in (None, one) for own, one in zip(taken, image_shape, strict=False)):
        raise InputError(
            f"{flag} can't take images of {image_shape}, but those of {taken}; build it for the input_shape "
            "that it is called with, or prepare images of its size (labkit data prepare --image-size)"
        )
    try:
        if inputs and _is_chain_of_layers(model) and inputs[0].shape == images.shape:
            images, outputs = inputs[0], model.outputs  # nothing to change
        else:
            outputs = keras.tree.flatten(applied(model, images))
    except Exception as error:
        raise InputError(f"{flag} can't take images of {image_shape}: {first_line(error)}") from None
    if len(outputs) != 1:
        raise InputError(
            f"{flag} has {len(outputs)} outputs, and labkit trains one; return keras.Model(model.input, "
            "model.outputs[0])"
        )
    logits = outputs[0]
    if tuple(logits.shape) != (None, num_classes):
        raise InputError(
            f"{flag} gives outputs of shape {tuple(logits.shape)}; allowed: a logit for each class, "
            f"(None, {num_classes})"
        )
    dtype = "float64" if logits.dtype == "float64" else "float32"
    if logits.dtype != dtype:  # so that the loss is computed in full precision
        logits = keras.layers.Activation("linear", dtype=dtype, name="logits_in_full_precision")(logits)
    return keras.Model(images, logits, name=name)


def applied(model: keras.Model, images: keras.KerasTensor) -> Any:
    """Return a model's outputs for images, over its own layers.

    A model of one's own class, and one that calls a layer twice, is one layer: what looks into a network
    expects that each layer is called once.
    """
    if isinstance(model, keras.Sequential):
        outputs = images
        for layer in model.layers:
            outputs = layer(outputs)
        return outputs
    if not _is_chain_of_layers(model):
        return model(images)
    made = []

    def call(layer: Any, *inputs: Any, **options: Any) -> Any:
        made.append(layer(*inputs, **options))
        return made[-1]

    # The clone isn't used: the tensors made on the way belong to the network around it.
    keras.models.clone_model(
        model, input_tensors=images, clone_function=lambda layer: layer, call_function=call
    )
    return made[-1]  # the output comes last


def _is_chain_of_layers(model: keras.Model) -> bool:
    """Return whether a model is functional, has one input and one output, and calls each layer once."""
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not inputs or not outputs or len(inputs) != 1 or len(outputs) != 1:
        return False
    # A sequential model has no list of operations, and nothing but layers.
    return all(map(is_called_once, getattr(model, "operations", model.layers)))


def _adopt(flag: str, model: keras.Model, config: ModelConfig, seed: int) -> None:
    """Make batch normalization and dropout in a model labkit's. Raises InputError for other hidden state."""
    together: dict[BatchNormalization, bool] = {}
    for number, layer in enumerate(all_layers(model)):
        if type(layer) is keras.layers.BatchNormalization:
            together[layer] = layer.synchronized or config.sync_batch_norm
            _adopt_normalization(flag, layer, config)
        elif type(layer) in _DROPOUTS:
            if shared := _DROPOUTS[type(layer)]:
                layer.noise_shape = tuple(
                    1 if axis in shared else None for axis in range(layer.input_spec.ndim)
                )
            layer.__class__ = Dropout
            layer.seed = (seed * 1_000_003 + number) % 2**31
    _check_nothing_is_left_out(flag, model)
    changed, losses = _effects_of_a_call(model)
    if number := len(model.losses) + losses:
        raise InputError(
            f"{flag} adds losses of its own ({number}), such as a regularizer's, which labkit doesn't add; "
            "leave them out, and give --weight-decay"
        )
    if changed:
        raise InputError(
            f"{flag} has {changed}, which each call in training changes, so resuming wouldn't be exact; "
            "use keras.layers.BatchNormalization and Dropout, and labkit train's own augmentation"
        )
    for layer, synchronized in together.items():
        layer.synchronized = synchronized


def _check_nothing_is_left_out(flag: str, model: keras.Model) -> None:
    """Raise InputError for what ``model.fit`` would do with a model and labkit's training doesn't."""
    random = np.random.default_rng(0)
    images = random.normal(size=(8, *model.input_shape[1:])).astype(np.float32)
    outputs = np.asarray(model(images), np.float64)
    if not np.isfinite(outputs).all():
        raise InputError(
            f"{flag} gives NaN or infinite numbers for standardized images (mean 0, deviation 1), with the "
            "weights that it begins with; allowed: finite logits"
        )
    slack = 1e-2 * np.abs(outputs).max()  # for bfloat16
    if not np.allclose(outputs[:2], np.asarray(model(images[:2]), np.float64), 0, slack):
        raise InputError(
            f"{flag} makes what it says of an image depend on the others of its batch, so an evaluation "
            "would depend on --eval-batch-size; allowed: that each image counts alone"
        )
    if ((outputs >= 0) & (outputs <= 1)).all() and _stays_between_0_and_1(model, images, random):
        end = "softmax" if np.allclose(outputs.sum(axis=1), 1, atol=1e-2) else "sigmoid"
        raise InputError(
            f"{flag} gives numbers between 0 and 1, as a {end} does, and labkit's losses take logits; leave "
            f"the {end} at its end out"
        )
    if prepares := [layer.name for layer in all_layers(model) if _prepares_pixels(layer)]:
        raise InputError(
            f"{flag} prepares pixels in {prepares[0]!r}, and labkit gives it standardized images; leave it "
            "out (in keras.applications: include_preprocessing=False)"
        )
    if _scales_pixels(model):
        raise InputError(
            f"{flag} divides its images by 255 or 127.5, or subtracts the means of ImageNet, as of pixels, "
            "and labkit gives it standardized images; leave it out"
        )
    if held := [weight.path for weight in model.trainable_weights if weight.constraint is not None]:
        raise InputError(f"{flag} has a constraint on {held[0]!r}, which labkit doesn't apply; leave it out")


def _stays_between_0_and_1(model: keras.Model, images: np.ndarray, random: np.random.Generator) -> bool:
    """Return whether the outputs do so with other weights too: logits may do so with some, by chance."""
    kept = [weight.numpy().copy() for weight in model.trainable_weights]
    try:
        for _ in range(20):  # logits of one number stay there in some tenth of the draws
            for weight, values in zip(model.trainable_weights, kept, strict=True):
                if values.ndim < 2:  # biases begin as zeros
                    weight.assign(random.normal(scale=3, size=values.shape).astype(values.dtype))
                else:
                    weight.assign(values * random.choice([-1, 1], values.shape).astype(values.dtype))
            outputs = np.asarray(model(images), np.float64)
            if ((outputs < 0) | (outputs > 1)).any():
                return False
    finally:
        for weight, values in zip(model.trainable_weights, kept, strict=True):
            weight.assign(values)
    return True


def _prepares_pixels(layer: Any) -> bool:
    """Return whether a layer expects pixels from 0 to 255."""
    if isinstance(layer, keras.layers.Rescaling):
        return bool(np.max(layer.scale) < 0.02)  # 1/127.5 or 1/255
    return isinstance(layer, keras.layers.Normalization)


def _operations(model: keras.Model, *, training: bool) -> list[tf.Operation]:
    """Return the operations of a call, each after those of its inputs; none if all are those of Keras."""
    known = ("keras.src.layers.", BatchNormalization.__module__, Dropout.__module__)
    if all(type(part).__module__.startswith(known) for part in model.operations):
        return []  # so that most models needn't be traced
    images = tf.TensorSpec((1, *model.input_shape[1:]), tf.float32)
    return tf.function(model).get_concrete_function(images, training=training).graph.get_operations()


def _scales_pixels(model: keras.Model) -> bool:
    """Return whether code of one's own scales the images by numbers for pixels, before anything else."""
    scaled: set[Any] = set()
    for operation in _operations(model, training=False):
        scaled |= {tensor.ref() for tensor in operation.outputs if not scaled}  # the images come first
        if operation.type == "Const" and operation.outputs[0].dtype == tf.float32:
            value = np.ravel(np.asarray(tf.get_static_value(operation.outputs[0])))
            if len(value) == 3 and np.allclose(np.sort(np.abs(value)), _MEANS, 0.01):
                return True
        if operation.type in _ELEMENTWISE and any(tensor.ref() in scaled for tensor in operation.inputs):
            scaled |= {tensor.ref() for tensor in operation.outputs}
            numbers = [tf.get_static_value(tensor) for tensor in operation.inputs]
            single = [number.item() for number in numbers if number is not None and number.size == 1]
            if np.isclose(np.reshape(single, (-1, 1)), (255, 127.5, 1 / 255, 1 / 127.5), 1e-2, 0).any():
                return True
    return False


def _effects_of_a_call(model: keras.Model) -> tuple[str, int]:
    """Return what a call in training changes, in words ("": nothing), and how many losses it alone adds."""
    images = tf.constant(np.random.default_rng(1).normal(size=(4, *model.input_shape[1:])), tf.float32)
    try:
        with keras.StatelessScope(
            collect_losses=True
        ) as scope:  # one, in which Keras's own generator goes on
            with recorded_batch_statistics() as recorded:
                first = np.asarray(model(images, training=True), np.float64)
            losses = len(scope.losses)
            with recorded_batch_statistics():
                second = np.asarray(model(images, training=True), np.float64)
                operations = _operations(model, training=True)
    except Exception as error:  # TensorFlow refuses what is random where a run is to be deterministic
        return f"a step that fails ({first_line(error)})", 0
    changed = {
        f"the variable {variable.path!r}"
        for variable in model.variables
        if scope.get_current_value(variable) is not None
    }
    draws = any("seed" in one.node_def.attr for one in operations if one.op_def.is_stateful)
    if draws or not np.allclose(first, second, rtol=1e-3, atol=1e-5):
        changed.add("numbers that it draws by itself")
    calls = Counter(id(layer) for layer, _, _ in recorded)
    changed |= {
        f"the normalization {name!r}, called {calls[id(layer)]} times"
        for name, layer in norms_of(model).items()
        if calls[id(layer)] > 1
    }
    return ", ".join(sorted(changed)), losses


def _adopt_normalization(flag: str, layer: Any, config: ModelConfig) -> None:
    """Make a batch normalization of Keras labkit's, with the weights, momentum and epsilon that it has."""
    rank = layer.input_spec.ndim
    axis = layer.axis % rank
    if layer.renorm or not (axis == rank - 1 or (axis, rank) == (1, 4)):
        raise InputError(
            f"{flag} has {layer.name!r}, which normalizes axis {layer.axis} of {rank}"
            f"{' with renorm' if layer.renorm else ''}; allowed: the channels, without renorm"
        )
    shape, dtype = (layer.input_spec.axes[layer.axis],), layer.moving_mean.dtype
    decay = layer.momentum if config.batch_norm_decay is None else config.batch_norm_decay
    layer.__class__ = BatchNormalization
    layer.data_format = "channels_last" if axis == rank - 1 else "channels_first"
    layer.decay, layer.synchronized = decay, False
    if layer.gamma is None:
        layer.gamma = tf.ones(shape, dtype)
    if layer.beta is None:
        layer.beta = tf.zeros(shape, dtype)
