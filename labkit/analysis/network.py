"""The trained network of a run, to ask it about any image."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config
from labkit.config.recorded import recorded_config
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


class HasPath(Protocol):
    """A ``labkit.Run`` or a ``RunDirectory``."""

    @property
    def path(self) -> Path: ...


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


def load_network(
    run: HasPath, checkpoint: str = "best", *, announce: Callable[[str], None] = print
) -> Classifier:
    """Return the network of a run.

    Args:
        run: a ``labkit.Run`` or a run directory.
        checkpoint: ``best`` (by validation accuracy), ``last``, or a step.
        announce: takes a line if the data set has moved.

    Raises InputError if the checkpoint or the data set is missing, damaged, or doesn't belong to the run.
    """
    directory = RunDirectory(run.path)
    config = recorded_config(directory)
    manifest, note = data_of_run(directory, config)
    if note:
        announce(note)
    check_checkpoint(directory.checkpoints_path, directory.checkpoint_steps(), checkpoint)
    classifier, _ = restored_network(directory, config, manifest, checkpoint)
    if note := note_of_code(directory, classifier.step):
        announce(note)
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
    from labkit.training.checkpoints import checkpoint_of_network

    saved = restorable_model(config, manifest)
    store.restore(checkpoint_of_network(config, saved), step, partial=True)
    model = _untrained(config.replace({"precision": "float32"}), manifest)
    model.set_weights(saved.get_weights())
    return model


def restorable_model(config: Config, manifest: Manifest) -> Any:
    """Return labkit's network with untrained weights of the types that the run's checkpoints hold."""
    # In mixed precision the weights are float32 as well.
    is_double = config.model.precision == "float64"
    return _untrained(config if is_double else config.replace({"precision": "float32"}), manifest)


def _untrained(config: Config, manifest: Manifest) -> Any:
    from labkit.models.registry import build_model

    shape = input_shape(manifest, config.data)
    return build_model(config.model, num_classes=manifest.num_classes, image_shape=shape)
