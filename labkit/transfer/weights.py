"""Trained weights by name, read from a Keras file or taken from keras.applications."""

import hashlib
import json
import os
import socket
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from labkit.config import ModelConfig
from labkit.errors import InputError
from labkit.models.keras_application import bare_application, stage_name
from labkit.models.stages import layers_with_weights, varying_weights
from labkit.transfer.imagenet import own_weights, published_network
from labkit.transfer.source import IMAGENET, WeightSource, imagenet_network

__all__ = ["InitialWeights", "read_weights", "weight_arrays", "weights_by_name"]

DOWNLOAD_TIMEOUT = 30.0  # seconds to connect, and between two pieces of the file; Keras itself has no limit


@dataclass(frozen=True)
class InitialWeights:
    """Arrays by layer and weight name, such as ``stage1_block1_conv1/kernel``.

    ``step``: of the run's checkpoint; None for a file. ``classes``: of the logits; None if unknown.
    """

    source: WeightSource
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


def read_weights(
    source: WeightSource, model: ModelConfig, image_shape: tuple[int, int, int]
) -> InitialWeights:
    """Read the weights of a Keras file or of keras.applications; ``labkit.training`` reads those of runs.

    Args:
        source: found by ``find_weight_source`` for ``model``.
        image_shape: height, width and channels of the images to be trained on.

    Raises InputError if the weights can't be read or downloaded.
    """
    if source.kind == IMAGENET:
        return _from_imagenet(source, model, image_shape)
    assert source.path is not None
    return _from_keras_file(source, source.path)


def weights_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the weights and moving averages of ``model`` by ``<layer>/<weight>``."""
    return {
        f"{layer.name}/{weight.name}": weight
        for layer in layers_with_weights(model)
        for weight in varying_weights(layer)
    }


def weight_arrays(model: keras.Model) -> dict[str, np.ndarray]:
    """Return the values of ``weights_by_name``."""
    return {name: np.asarray(weight) for name, weight in weights_by_name(model).items()}


def _from_keras_file(source: WeightSource, path: Path) -> InitialWeights:
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):
        # Keras would report such a file as missing.
        raise InputError(f"--start-from {path} is not a .keras file: no zip archive, or a damaged one")
    try:
        # Keras's safe mode, the default, does not run code from the file.
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:  # a damaged file makes Keras raise all kinds of errors
        raise InputError(f"--start-from {path} can't be read as a Keras model ({_reason(error)})") from None
    if not isinstance(model, keras.Model):
        raise InputError(f"--start-from {path} holds a {type(model).__name__}, not a Keras model")
    return InitialWeights(source, weight_arrays(model), classes=_described_classes(path))


def _from_imagenet(
    source: WeightSource, model: ModelConfig, image_shape: tuple[int, int, int]
) -> InitialWeights:
    own = imagenet_network(model)
    application = own or model.application
    try:
        with _socket_timeout(DOWNLOAD_TIMEOUT), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that these weights were trained on images of 224 x 224
            if own is None:
                network = bare_application(application, image_shape, weights="imagenet")
            else:
                network = published_network(own, image_shape, weights="imagenet")
    except Exception as error:  # Keras raises a bare Exception for a failed download, h5py others
        raise InputError(
            f"--start-from imagenet: the weights of {application} can't be downloaded or read "
            f"({_reason(error)}); put the published file into {_keras_cache()}, or start from a run or a "
            ".keras file"
        ) from None
    if own is not None:
        return InitialWeights(source, own_weights(network, model.batch_norm_epsilon))
    arrays = {
        f"{stage_name(layer, image_shape)}/{weight.name}": np.asarray(weight)
        for layer in network.layers
        for weight in layer.weights
    }
    return InitialWeights(source, arrays)


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _keras_cache() -> Path:
    return Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models"


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def _described_classes(path: Path) -> tuple[str, ...] | None:
    """Return the classes from the description beside an exported file; None without one."""
    try:
        classes = json.loads(path.with_name(f"{path.name}.json").read_text())["classes"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return tuple(classes) if isinstance(classes, list) else None
