"""Load a run's network from a checkpoint in float32, channels last, whatever the run used."""

import keras

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.data.network_input.settings import input_shape
from labkit.models.registry import build_model
from labkit.training.checkpoints import CheckpointStore, checkpoint_of_network

__all__ = ["restorable_model", "trained_model"]


def trained_model(config: Config, manifest: Manifest, store: CheckpointStore, step: int) -> keras.Model:
    """Return labkit's network with the weights saved at ``step``, channels last and float32.

    The weights are the moving average if the run keeps one.

    Args:
        config: the run's configuration, with any number of replicas, layout and precision.
        manifest: the data set that it was trained on.
        store: the run's checkpoints.
        step: the step of the checkpoint.

    Raises:
        InputError: the checkpoint does not exist, is damaged, or belongs to another network.
    """
    saved = restorable_model(config, manifest)
    store.restore(checkpoint_of_network(config, saved), step, partial=True)
    model = _build(config.replace({"precision": "float32"}), manifest)
    model.set_weights(saved.get_weights())
    return model


def restorable_model(config: Config, manifest: Manifest) -> keras.Model:
    """Return labkit's network with untrained weights of the types that the run's checkpoints hold."""
    # In mixed precision the weights are float32 as well.
    return _build(
        config if config.model.precision == "float64" else config.replace({"precision": "float32"}), manifest
    )


def _build(config: Config, manifest: Manifest) -> keras.Model:
    return build_model(
        config.model,
        num_classes=manifest.num_classes,
        image_shape=input_shape(manifest, config.data),
    )
