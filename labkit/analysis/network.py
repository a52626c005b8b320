"""The trained network of a run, to ask it about any image and about the pixels that an answer depends on:
occlusion, gradients, integrated gradients and Grad-CAM.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.data.manifest import Manifest, check_same_data
from labkit.data.network_input import (
    WHOLE_IMAGE,
    NetworkInput,
    as_input,
    central_corner,
    input_shape,
    network_input_of,
)
from labkit.data.of_run import data_of_run
from labkit.errors import InputError
from labkit.parts.code import note_of_code
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import check_checkpoint
from labkit.startup.quiet_import import import_tensorflow

if TYPE_CHECKING:
    from labkit.training.checkpoints import CheckpointState, CheckpointStore
    from labkit.training.losses import Loss


BATCH = 500  # images of 32 x 32 pixels in a forward pass


def images_at_once(shape: tuple[int, ...], of_32: int = BATCH) -> int:
    """Return how many images of a shape (height, width, …) to ask about at once, at least one.

    Args:
        shape: of an image.
        of_32: the number for 32 x 32 pixels; the memory of a forward pass grows with the pixels.
    """
    return max(1, min(of_32, of_32 * 32 * 32 // (shape[0] * shape[1])))


@dataclass(frozen=True)
class Classifier:
    """A trained network with fixed weights, in float32, to be asked about images.

    Args:
        model: of Keras; takes standardized images and returns logits.
        manifest: the data set that it was trained on.
        loss: says how logits become probabilities.
        step: of the checkpoint.
        network_input: what the model takes of an image.
    """

    model: Any
    manifest: Manifest
    loss: "Loss"
    step: int
    network_input: NetworkInput = WHOLE_IMAGE

    def inputs(self, images: NDArray[np.uint8]) -> Any:
        """Return the tensor that the model takes, float32 [n, height, width, channels] of its own size.

        Args:
            images: uint8, of the stored images' shape or of the model's.
        """
        import tensorflow as tf

        return as_input(tf.constant(images), self.manifest, self.network_input)

    def on_image(self, values: NDArray[np.float64], image: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return values of the model's pixels, [height, width], in their place in ``image``; zero around."""
        height, width = image.shape[:2]
        if values.shape == (height, width):
            return values
        top, left = central_corner(height, width, values.shape[0])
        placed = np.zeros((height, width))
        placed[top : top + values.shape[0], left : left + values.shape[1]] = values
        return placed

    def logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return logits, float32 [n, classes], for images uint8 [n, height, width, channels]."""
        size = images_at_once(images.shape[1:])
        starts = range(0, len(images), size)
        parts = [self.model(self.inputs(images[at : at + size]), training=False) for at in starts]
        return np.concatenate([part.numpy() for part in parts])

    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return probabilities, float64 [n, classes], for images uint8 [n, height, width, channels]."""
        return np.asarray(self.loss.probabilities(self.logits(images)))


def load_network(run: Any, checkpoint: str = "best") -> Classifier:
    """Return the network of a run.

    Args:
        run: a ``labkit.Run`` or a run directory.
        checkpoint: ``best`` (by validation accuracy), ``last``, or a step.

    Raises InputError if the checkpoint or the data set is missing, damaged, or doesn't belong to the run.
    """
    directory = RunDirectory(run.path)
    config = recorded_config(directory)
    manifest, note = data_of_run(directory, config)
    if note:
        print(note)
    check_checkpoint(directory.checkpoints_path, checkpoint)
    classifier, _ = restored_network(directory, config, manifest, checkpoint)
    if note := note_of_code(directory, classifier.step):
        print(note)
    return classifier


def restored_network(
    run: RunDirectory, config: Config, manifest: Manifest, checkpoint: str
) -> tuple[Classifier, "CheckpointState"]:
    """Return the network of a checkpoint, and what the checkpoint says of itself.

    Args:
        run: the run.
        config: its configuration, with any number of replicas, layout and precision.
        manifest: the data set that it was trained on.
        checkpoint: ``best``, ``last``, or a step.

    Raises InputError if the checkpoint doesn't exist, is damaged, or belongs to another network or data set.
    """
    import_tensorflow()
    from labkit.training.checkpoints import CheckpointStore
    from labkit.training.objective import loss_of

    store = CheckpointStore(run.checkpoints_path)
    state = store.state(store.step_of(checkpoint))
    check_same_data(manifest, state.data_checksum, run.path)
    model = trained_model(config, manifest, store, state.step)
    loss = loss_of(config, manifest, trains=False)
    return Classifier(model, manifest, loss, state.step, network_input_of(config.data)), state


def trained_model(config: Config, manifest: Manifest, store: "CheckpointStore", step: int) -> Any:
    """Return labkit's network with the weights saved at ``step``, channels last and float32.

    The weights are the moving average if the run keeps one. Raises InputError as ``restored_network``.
    """
    model = _untrained(config.replace({"precision": "float32"}), manifest)
    load_weights(model, config, manifest, store, step)
    return model


def load_weights(model: Any, config: Config, manifest: Manifest, store: "CheckpointStore", step: int) -> None:
    """Load the weights saved at ``step`` into a model of ``trained_model``.

    Raises InputError as ``restored_network``. Then the model may hold weights of both steps.
    """
    from labkit.training.checkpoints import checkpoint_of_network

    # In mixed precision the saved weights are float32 as well.
    saved = _untrained(config, manifest) if config.model.precision == "float64" else model
    store.restore(checkpoint_of_network(config, saved), step, partial=True)
    if saved is not model:
        model.set_weights(saved.get_weights())


def _untrained(config: Config, manifest: Manifest) -> Any:
    from labkit.models.registry import build_model

    shape = input_shape(manifest, config.data)
    return build_model(config.model, num_classes=manifest.num_classes, image_shape=shape)


Images = NDArray[np.uint8]
Predict = Callable[[Images], NDArray[Any]]


def patch_positions(length: int, patch: int, stride: int) -> NDArray[np.intp]:
    """Return where patches begin along a side of ``length`` pixels; the last one ends at the edge."""
    last = length - patch
    return np.unique(np.append(np.arange(0, last + 1, stride), last))


def covered(image: Images, patch: int, stride: int = 2) -> tuple[Images, NDArray[np.bool_]]:
    """Return copies of an image, each with one square covered by the image's mean colour.

    Args:
        image: uint8 [height, width, channels].
        patch: side of the square, in pixels; at most the image's.
        stride: pixels between two positions.

    Returns images uint8 [positions, height, width, channels], row by row, and the covered pixels, bool
    [positions, height, width].
    """
    height, width = image.shape[:2]
    mean = image.mean(axis=(0, 1)).round().astype(np.uint8)
    corners = [
        (top, left)
        for top in patch_positions(height, patch, stride)
        for left in patch_positions(width, patch, stride)
    ]
    masks = np.zeros((len(corners), height, width), bool)
    for mask, (top, left) in zip(masks, corners, strict=True):
        mask[top : top + patch, left : left + patch] = True
    return np.where(masks[..., None], mean, image), masks


def occlusion_map(
    predict: Predict, image: Images, label: int, patch: int | None = None, stride: int | None = None
) -> NDArray[np.float64]:
    """Return how much the probability of ``label`` falls where a pixel is covered (Zeiler & Fergus, 2014).

    Args:
        predict: returns probabilities [n, classes] for images uint8 [n, height, width, channels].
        image: uint8 [height, width, channels].
        label: the number of a class.
        patch: side of the square that covers a part of the image, in pixels; None: 6 of 32, in proportion.
        stride: pixels between two positions of the square; None: 2 of 32, in proportion, so that larger
            images are not asked about more often.

    Returns float64 [height, width]: the mean fall over all squares that cover the pixel. Negative where the
    probability rises.
    """
    side = min(image.shape[:2])
    patch = max(1, round(side * 6 / 32)) if patch is None else patch
    images, masks = covered(image, patch, max(1, side // 16) if stride is None else stride)
    probabilities = predict(np.concatenate([image[None], images]))[:, label].astype(np.float64)
    falls = probabilities[0] - probabilities[1:]
    return np.tensordot(falls, masks, 1) / masks.sum(axis=0)


def gradient_map(network: "Classifier", image: Images, label: int) -> NDArray[np.float64]:
    """Return how strongly the logit of ``label`` reacts to each pixel (Simonyan et al., 2014).

    Args:
        network: the trained network.
        image: uint8 [height, width, channels].
        label: the number of a class.

    Returns float64 [height, width]: the largest absolute derivative over the channels, for standardized
    pixels.
    """
    found = np.abs(_gradients(network.model, network.inputs(image[None]), label)[0]).max(axis=-1)
    return network.on_image(found, image)


def integrated_gradients(
    network: "Classifier", image: Images, label: int, steps: int = 32
) -> NDArray[np.float64]:
    """Return each pixel's share of a logit, along a path from a grey image (Sundararajan et al., 2017).

    The path begins where standardized pixels are zero: at the mean colour of the training images, or with
    ``--standardization per_image`` at this image's mean grey level. The gradients are taken in the middle of
    ``steps`` equal parts of it.

    Args:
        network: the trained network.
        image: uint8 [height, width, channels].
        label: the number of a class.
        steps: number of gradients.

    Returns float64 [height, width], summed over the channels. All pixels together give about the logit's
    difference between the image and the grey one; positive values raise the logit.
    """
    pixels = network.inputs(image[None])
    fractions = ((np.arange(steps) + 0.5) / steps).astype(np.float32)
    total = np.zeros(pixels.shape[1:])
    for part in np.array_split(fractions, max(1, steps // 16)):
        total += _gradients(network.model, pixels * part[:, None, None, None], label).sum(axis=0)
    return network.on_image((total / steps * pixels.numpy()[0]).sum(axis=-1), image)


def _gradients(model: Any, pixels: Any, label: int) -> NDArray[np.float64]:
    """Return the derivatives of a class's logits by the pixels, float64 [n, height, width, channels]."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(pixels)
        logits = model(pixels, training=False)[:, label]
    return np.asarray(tape.gradient(logits, pixels), np.float64)


def grad_cam(network: "Classifier", image: Images, label: int) -> NDArray[np.float64]:
    """Return where the last layer with positions supports a class (Selvaraju et al., 2017, Grad-CAM).

    The layer's channels are weighted by the mean gradient of the class's logit; only the positive part of
    their sum is kept, and enlarged to the image.

    Args:
        network: the trained network.
        image: uint8 [height, width, channels].
        label: the number of a class.

    Returns float64 [height, width], 0 or more. Raises InputError if no layer has positions.
    """
    import keras
    import tensorflow as tf

    spatial = [found.output for found in network.model.operations[1:] if _has_positions(found)]
    if not spatial:
        raise InputError("Grad-CAM needs a layer whose outputs have positions, and this network has none")
    both = keras.Model(network.model.inputs, [spatial[-1], network.model.output])
    pixels = network.inputs(image[None])
    with tf.GradientTape() as tape:
        tape.watch(pixels)
        outputs, logits = both(pixels, training=False)
        logit = logits[0, label]
    weights = tf.reduce_mean(tape.gradient(logit, outputs), axis=(1, 2), keepdims=True)
    found = tf.nn.relu(tf.reduce_sum(weights * outputs, axis=-1, keepdims=True))
    enlarged = tf.image.resize(found, pixels.shape[1:3]).numpy()[0, :, :, 0].astype(np.float64)
    return network.on_image(enlarged, image)


def _has_positions(operation: Any) -> bool:
    shape: Any = getattr(getattr(operation, "output", None), "shape", ())
    return len(shape) == 4 and (shape[1] or 0) * (shape[2] or 0) > 1


def features_model(model: Any) -> Any:
    """Return a model from standardized images to the input of the last dense layer, [n, d].

    Args:
        model: maps images to logits; shares its layers with the result.
    """
    import keras

    last = [found for found in model.operations if isinstance(found, keras.layers.Dense)][-1]
    if len(last.input.shape) == 2:
        return keras.Model(model.inputs, last.input)
    flat = keras.layers.Flatten(data_format="channels_last", dtype=last.input.dtype)
    return keras.Model(model.inputs, flat(last.input))
