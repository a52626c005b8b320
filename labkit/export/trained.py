"""The network of a run with the weights of a checkpoint, in one arithmetic whatever the run's was."""

import keras
import tensorflow as tf

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.models.registry import build_model
from labkit.training.checkpoints import CheckpointStore

__all__ = ["trained_model"]


def trained_model(config: Config, manifest: Manifest, store: CheckpointStore, step: int) -> keras.Model:
    """Return labkit's network with the weights saved at ``step``: channels last, float32.

    Args:
        config: of the run, on however many replicas, in whichever layout and precision it was trained.
        manifest: of the data that it was trained on.
        store: the run's checkpoints.

    Raises InputError where the checkpoint is gone, damaged or of another network.
    """
    # Weights are float32 in mixed precision, too.
    kept = config if config.model.precision == "float64" else config.replace({"precision": "float32"})
    saved = _built(kept, manifest)
    store.restore(tf.train.Checkpoint(model=saved), step, partial=True)
    model = _built(config.replace({"precision": "float32"}), manifest)
    model.set_weights(saved.get_weights())
    return model


def _built(config: Config, manifest: Manifest) -> keras.Model:
    return build_model(
        config.model,
        num_classes=manifest.num_classes,
        image_shape=manifest.image_shape,
    )
