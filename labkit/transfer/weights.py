"""Weights that somebody else has trained, by name: of a run, a Keras file, an ImageNet backbone."""

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.recorded import recorded_config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.models.keras_application import bare_application, stage_name
from labkit.models.registry import build_model
from labkit.models.stages import layers_with_weights, varying_weights
from labkit.run_directory import RunDirectory
from labkit.training.checkpoints import CheckpointStore
from labkit.transfer.imagenet import WEIGHTS, weights_file
from labkit.transfer.source import IMAGENET, Place

__all__ = ["InitialWeights", "read_initial_weights", "weights_by_name"]


@dataclass(frozen=True)
class InitialWeights:
    """Arrays by the name of layer and weight, such as ``stage1_block1_conv1/kernel``.

    ``step``: of the run's checkpoint that they are of; None for a file. ``classes``: of the logits; None
    where that isn't known.
    """

    place: Place
    arrays: dict[str, np.ndarray]
    step: int | None = None
    classes: tuple[str, ...] | None = None

    @property
    def digest(self) -> str:
        """SHA-256 over names, shapes and values, in hexadecimal."""
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.shape} {array.dtype}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def read_initial_weights(place: Place, model: ModelConfig, manifest: Manifest) -> InitialWeights:
    """Read what ``labkit.transfer.source.find_weight_source`` has found for ``model``.

    Args:
        manifest: of the data to be trained on; an older run doesn't say which size its images had.

    Raises InputError where the run, its checkpoint or the file can't be read, or can't be had.
    """
    if place.kind == "run":
        assert place.path is not None
        return _of_run(RunDirectory(place.path), place, manifest)
    if place.kind == IMAGENET:
        return _of_imagenet(model.application, place, manifest)
    assert place.path is not None
    return _of_keras_file(place.path, place)


def weights_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the weights and moving averages of ``model`` by ``<layer>/<weight>``."""
    return {
        f"{layer.name}/{weight.name}": weight
        for layer in layers_with_weights(model)
        for weight in varying_weights(layer)
    }


def _arrays(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: np.asarray(weight) for name, weight in weights_by_name(model).items()}


def _of_run(run: RunDirectory, place: Place, manifest: Manifest) -> InitialWeights:
    config = recorded_config(run)
    store = CheckpointStore(run.checkpoints_path)
    step = store.chosen_step()
    data: Any = run.read_environment().get("data", {})
    classes = data.get("classes")
    if not isinstance(classes, list) or not classes:
        raise InputError(f"--start-from {run.path}: its environment.json names no classes; train it again")
    # Weights are float32 in mixed precision, too.
    if config.model.precision != "float64":
        config = config.replace({"precision": "float32"})
    model = build_model(
        config.model,
        num_classes=len(classes),
        image_shape=tuple(data.get("image_shape", manifest.image_shape)),
    )
    store.restore(tf.train.Checkpoint(model=model), step, partial=True)
    return InitialWeights(place, _arrays(model), step, tuple(classes))


def _of_keras_file(path: Path, place: Place) -> InitialWeights:
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):
        # Keras says of such a file that it isn't there.
        raise InputError(f"--start-from {path} is no .keras file: not a zip archive, or a damaged one")
    try:
        # In Keras's safe mode, its default, a file can't bring code of its own along.
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:  # of a damaged file Keras raises whatever its parts raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:160]
        raise InputError(f"--start-from {path} can't be read as a Keras model ({reason})") from None
    if not isinstance(model, keras.Model):
        raise InputError(f"--start-from {path} holds a {type(model).__name__}, not a Keras model")
    return InitialWeights(place, _arrays(model), classes=_described_classes(path))


def _of_imagenet(application: str, place: Place, manifest: Manifest) -> InitialWeights:
    path = weights_file(WEIGHTS[application])
    network = bare_application(application, manifest.image_shape)
    try:
        network.load_weights(path)
    except Exception as error:  # of a damaged file h5py and Keras raise whatever they like
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:160]
        raise InputError(
            f"--start-from imagenet: {path} can't be read ({reason}); remove it, and it is fetched again"
        ) from None
    arrays = {
        f"{stage_name(layer, manifest.image_shape)}/{weight.name}": np.asarray(weight)
        for layer in network.layers
        for weight in layer.weights
    }
    return InitialWeights(place, arrays)


def _described_classes(path: Path) -> tuple[str, ...] | None:
    """Return the classes that the description beside an exported file names; None without one."""
    try:
        classes = json.loads(path.with_name(f"{path.name}.json").read_text())["classes"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return tuple(classes) if isinstance(classes, list) else None
