"""Trained weights by name, of a file or keras.applications, and which of them fit a network."""

import hashlib
import json
import os
import socket
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from labkit.config import ModelConfig
from labkit.errors import InputError
from labkit.models.freezing import HEAD, layers_with_weights, varying_weights
from labkit.models.keras_application import (
    application_weights,
    bare_application,
    own_weights,
    published_network,
)
from labkit.models.weight_files import read_weight_file
from labkit.models.weight_source import IMAGENET, WeightSource, imagenet_network
from labkit.plurals import listed, printable

DOWNLOAD_TIMEOUT = 30.0  # seconds to connect, and between two pieces of the file; Keras itself has no limit
SHOWN = 3  # weights listed in one line of the report


@dataclass(frozen=True)
class InitialWeights:
    """Arrays by layer and weight name, such as ``stage1_block1_conv1/kernel``.

    ``step``: of the run's checkpoint; None for a file. ``classes``: of the logits; None if unknown. Where the
    names in the source are others (``labkit.models.weight_names``), ``names`` has these by the network's,
    ``how`` is what decided, and ``rest`` what isn't in ``arrays``.
    """

    source: WeightSource
    arrays: dict[str, np.ndarray]
    step: int | None = None
    classes: tuple[str, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    how: str = ""
    rest: tuple[str, ...] = ()

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
    """Read the weights of a file or of keras.applications; ``labkit.training`` reads those of runs.

    Args:
        source: found by ``find_weight_source`` for ``model``.
        image_shape: height, width and channels of the images to be trained on.

    Raises InputError if the weights can't be read or downloaded.
    """
    if source.kind == IMAGENET:
        return _from_imagenet(source, model, image_shape)
    assert source.path is not None
    if source.kind == "weights":
        return InitialWeights(source, read_weight_file(source.path), classes=_described_classes(source.path))
    return _from_keras_file(source, source.path)


def weights_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the weights and moving averages of ``model`` by ``<layer>/<weight>``.

    Raises InputError for two layers of one name, which models within it may have.
    """
    layers = list(dict.fromkeys(layers_with_weights(model)))
    names = Counter(layer.name for layer in layers)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise InputError(
            f"{model.name} has {names[twice]} layers called {twice!r}, and --start-from finds weights by the "
            "names of layers; give each layer a name of its own"
        )
    return {name: weight for layer in layers for name, weight in layer_weights(layer).items()}


def layer_weights(layer: keras.Layer) -> dict[str, keras.Variable]:
    """Return the weights and moving averages of a layer by ``<layer>/<weight>``.

    Of several layers within one, such as attention's, whose kernels have one name, it says the path.
    """
    weights = varying_weights(layer)
    names = [weight.name for weight in weights]
    if len(set(names)) < len(names):
        names = [weight.path.rpartition(f"{layer.name}/")[2] for weight in weights]
    return {f"{layer.name}/{name}": weight for name, weight in zip(names, weights, strict=True)}


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
        cache = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models"
        raise InputError(
            f"--start-from imagenet: the weights of {application} can't be downloaded or read "
            f"({_reason(error)}); put the published file into {cache}, or start from a run or a "
            ".keras file"
        ) from None
    if own is not None:
        return InitialWeights(source, own_weights(network, model.batch_norm_epsilon))
    return InitialWeights(source, application_weights(application, network))


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def _described_classes(path: Path) -> tuple[str, ...] | None:
    """Return the classes from the description beside an exported file; None without one."""
    try:
        classes = json.loads(path.with_name(f"{path.name}.json").read_text())["classes"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return tuple(classes) if isinstance(classes, list) else None


# ---- which weights fit a network


@dataclass(frozen=True)
class Transfer:
    """Which of ``weights`` fit a network, by name.

    ``loaded``: taken from the source. ``missing``: weights of the network that the source does not have.
    ``mismatched``: shape in the source and in the network. ``replaced``: weights of the head, because the
    classes differ. ``detached``: weights that fit, but whose layer's kernel does not. ``unused``: weights
    that only the source has.
    """

    weights: InitialWeights
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def load(self, model: keras.Model) -> None:
        """Assign the values of ``loaded`` to ``model``; its variables may belong to any strategy."""
        variables = weights_by_name(model)
        for name in self.loaded:
            variable = variables[name]
            variable.assign(self.weights.arrays[name].astype(str(variable.dtype)))

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        weights = self.weights
        step = "" if weights.step is None else f", step {weights.step}"
        new = (self.missing, self.mismatched, self.replaced, self.detached)
        every = len(self.loaded) + sum(map(len, new))
        lines = [
            f"starts from {weights.source}{step} (sha256 {weights.digest[:8]}): "
            f"{len(self.loaded)} of {every} weights loaded"
        ]
        if weights.how:
            pairs = [f"{weights.names[name]} is {name}" for name in self.loaded]
            lines.append(f"by {weights.how}: {some(pairs)}")
        if self.replaced:
            lines.append(f"new, because the classes differ: {some(self.replaced)}")
        if self.mismatched:
            shapes = [
                f"{name} {list(there)}, {list(here)} here" for name, (there, here) in self.mismatched.items()
            ]
            lines.append(f"new, because the shape differs: {some(shapes)}")
        if self.missing:
            lines.append(f"new, because the source does not have it: {some(self.missing)}")
        if self.detached:
            lines.append(f"new, because the layer's kernel is new: {some(self.detached)}")
        if self.unused:
            lines.append(f"in the source, but not used: {some(self.unused)}")
        return lines

    def rows(self) -> list[tuple[str, str, str]]:
        """Return for each weight its name in the source and in the network, and what becomes of it."""
        said = dict.fromkeys(self.loaded, "loaded") | dict.fromkeys(self.replaced, "new: other classes")
        said |= {
            name: f"new: {list(there)} there, {list(here)} here"
            for name, (there, here) in self.mismatched.items()
        }
        said |= dict.fromkeys(self.detached, "new: its layer's kernel is new")
        rows = [(self.weights.names.get(name, name), name, what) for name, what in said.items()]
        rows += [("-", name, "new: not in the source") for name in self.missing]
        return rows + [(name, "-", "not used") for name in self.unused]

    def to_json(self) -> dict[str, Any]:
        """Return the report for ``transfer.json``."""
        return {
            "kind": self.weights.source.kind,
            "source": str(self.weights.source),
            "step": self.weights.step,
            "sha256": self.weights.digest,
            "classes": self.weights.classes,
            "loaded": self.loaded,
            "missing": self.missing,
            "mismatched": {
                name: {"there": there, "here": here} for name, (there, here) in self.mismatched.items()
            },
            "replaced": self.replaced,
            "detached": self.detached,
            "unused": self.unused,
            "by": self.weights.how,
            "names": {name: there for name, there in self.weights.names.items() if name != there},
        }


def match(weights: InitialWeights, model: keras.Model, classes: tuple[str, ...]) -> Transfer:
    """Find the weights that fit ``model`` by name and shape.

    Args:
        weights: the source's.
        model: the network to start.
        classes: of the model's logits. If the source's classes are known and differ, the head (without a
            layer ``logits``, the last one with as many outputs) is not loaded even if its shape fits; if they
            are unknown, the shape decides.

    Raises InputError if no kernel fits; biases and statistics alone are of no use.
    """
    new_head = weights.classes is not None and weights.classes != classes
    layers = layers_with_weights(model)
    ends = [layer.name for layer in layers if tuple(layer.weights[0].shape[-1:]) == (len(classes),)]
    head = HEAD if HEAD in ends else ends[-1] if ends else ""
    loaded, missing, mismatched, replaced = [], [], {}, []
    variables = weights_by_name(model)
    for name, variable in variables.items():
        array, here = weights.arrays.get(name), tuple(variable.shape)
        if array is None:
            missing.append(name)
        elif new_head and name.startswith(f"{head}/"):
            replaced.append(name)
        elif array.shape != here:
            mismatched[name] = (tuple(map(int, np.shape(array))), here)
        else:
            loaded.append(name)
    for name in loaded:
        if not np.isfinite(weights.arrays[name]).all():
            raise InputError(
                f"--start-from {weights.source}: {name} holds NaN or Infinity; name another source"
            )
    new = variables.keys() - set(loaded)
    detached = [name for name in loaded if f"{name.rpartition('/')[0]}/kernel" in new]
    loaded = [name for name in loaded if name not in detached]
    if not any(len(variables[name].shape) > 1 for name in loaded):
        there = some([*weights.arrays, *weights.rest]) or "no weights"
        raise InputError(
            f"--start-from {weights.source}: none of its kernels fits {model.name} by name and shape; it has "
            f"{there}, the network has {some(list(variables))}"
        )
    unused = (*weights.rest, *(name for name in weights.arrays if name not in variables))
    return Transfer(
        weights, tuple(loaded), tuple(missing), mismatched, tuple(replaced), tuple(detached), unused
    )


def some(names: tuple[str, ...] | list[str]) -> str:
    """Return the first names, fit for a terminal, and how many more there are."""
    return printable(listed(names, SHOWN))
