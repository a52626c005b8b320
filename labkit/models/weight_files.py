"""Weights in files of others: safetensors, also PyTorch's state_dict, and Keras's ``.weights.h5``; and where
``--start-from`` takes them from, checked before any work and without TensorFlow.

Neither format can hold code. What a file says of itself is checked before memory is taken for it.
"""

import json
import math
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES
from labkit.config.fields import CODE
from labkit.errors import InputError, short
from labkit.home import expanded
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import open_regular
from labkit.run_directory.find import find_run

LARGEST_HEADER = 100_000_000  # bytes, as in the format's own library
MOST_EXPANSION = 20  # of a compressed HDF5 file; trained weights gain less than a factor of 2
_FLOATS: dict[str, Any] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_OTHERS = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}

# PyTorch's names of a module's weights, in Keras's words. Of a normalization, ``weight`` is gamma.
_OF_NORMS = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean"}
_OF_NORMS["running_var"] = "moving_variance"
_WRAPPERS = ("module.", "_orig_mod.", "model.")  # of DataParallel, torch.compile and Lightning


def read_weight_file(path: Path) -> dict[str, np.ndarray]:
    """Return the floating-point arrays of a ``.safetensors`` or ``.weights.h5`` file, by their names in it.

    Weights of a ``.weights.h5`` file, in which they have no names, are ``<layer>/<number>``.

    Raises InputError for a file that can't be read, is damaged, or asks for more memory than it has bytes.
    """
    kind = "safetensors" if path.suffix == ".safetensors" else ".weights.h5"
    try:
        return _safetensors(path) if kind == "safetensors" else _weights_h5(path)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, RecursionError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = reason.splitlines()[0][:200]
        raise InputError(f"--start-from {path} can't be read as a {kind} file: {reason}") from None


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read the format: 8 bytes with the header's length, the header in JSON, the arrays' bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(LARGEST_HEADER, size - 8):
            raise ValueError(f"its header would have {length:,} bytes, the file has {size:,}")
        header = json.loads(file.read(length), object_pairs_hook=_once)
        if not isinstance(header, dict):
            raise ValueError("its header is no JSON object")
        header.pop("__metadata__", None)
        entries = sorted((_entry(name, entry) for name, entry in header.items()), key=lambda one: one[3:])
        ends = [0, *(end for *_, end in entries)]
        begins = [*(begin for *_, begin, _ in entries), size - 8 - length]
        if ends != begins:
            raise ValueError("its arrays overlap, leave gaps, or don't end with the file")
        arrays = {}
        for name, dtype, shape, begin, _ in entries:
            if dtype in _FLOATS:
                file.seek(8 + length + begin)
                array = np.fromfile(file, _FLOATS[dtype], math.prod(shape)).reshape(shape)
                if dtype == "BF16":  # the upper half of a float32
                    array = (array.astype("<u4") << 16).view("<f4")
                arrays[name] = array
    return arrays


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("its header has a name twice")
    return dict(pairs)


def _entry(name: str, entry: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    """Return name, dtype, shape, begin and end of an array. Raises ValueError unless they fit each other."""
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if dtype not in _FLOATS and dtype not in _OTHERS:
        raise ValueError(
            f"{short(name)} has dtype {short(dtype)}; allowed: {', '.join([*_FLOATS, *_OTHERS])}"
        )
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError(f"{short(name)} has a shape or place that is no number")
    width = np.dtype(_FLOATS[dtype]).itemsize if dtype in _FLOATS else _OTHERS[dtype]
    if end - begin != math.prod(shape) * width:
        raise ValueError(f"{short(name)} of shape {short(list(shape))} in {dtype} has {end - begin:,} bytes")
    return name, dtype, shape, begin, end


def _weights_h5(path: Path) -> dict[str, np.ndarray]:
    """Read the datasets ``…/vars/<number>``; the group ``vars`` has the layer's name as an attribute."""
    found: list[tuple[str, Any]] = []
    with open_regular(path) as file, h5py.File(file, "r") as opened:
        # Follows no links to other files.
        opened.visititems(lambda name, item: found.append((name, item)))
        datasets = [(name, item) for name, item in found if isinstance(item, h5py.Dataset)]
        size = os.fstat(file.fileno()).st_size
        if sum(math.prod(item.shape) * item.dtype.itemsize for _, item in datasets) > MOST_EXPANSION * size:
            raise ValueError(f"its arrays would take more than {MOST_EXPANSION} times its {size:,} bytes")
        arrays: dict[str, np.ndarray] = {}
        for path_inside, item in datasets:
            group, _, number = path_inside.rpartition("/")
            layer = item.parent.attrs.get("name") or group.removesuffix("/vars")
            name = f"{layer}/{number}"
            if name in arrays:  # two layers of one name
                name = f"{group.removesuffix('/vars')}/{number}"
            if item.external or item.is_virtual:
                raise ValueError(f"{path_inside} has its values in another file")
            if item.dtype.kind == "f":
                arrays[name] = item[()]
    return arrays


def is_pytorch(arrays: dict[str, np.ndarray]) -> bool:
    """Return whether weights have the names that PyTorch's modules give them."""
    return any(name.rpartition(".")[2] == "weight" for name in arrays)


def from_pytorch(arrays: dict[str, np.ndarray]) -> dict[str, tuple[str, np.ndarray]]:
    """Return PyTorch's weights by ``<module>/<weight>`` in Keras's words and layout, with their own names.

    The name of a wrapper around the whole network is left out. Kernels [out, in, …] become […, in, out]. What
    depends on the layer that takes them is left to ``labkit.models.weight_names``.
    """
    found = {}
    wrapper = next((one for one in _WRAPPERS if all(name.startswith(one) for name in arrays)), "")
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    for name in arrays:
        module, _, word = name.removeprefix(wrapper).rpartition(".")
        modules[module][word] = name
    for module, own in modules.items():
        is_norm = "weight" in own and arrays[own["weight"]].ndim == 1
        for word, name in own.items():
            array, kind = arrays[name], word
            if is_norm or "running_mean" in own:
                kind = _OF_NORMS.get(word, word)
            elif word == "weight":
                kind, array = "kernel", np.moveaxis(array, (0, 1), (-1, -2)) if array.ndim > 1 else array
            found[f"{module}/{kind}"] = name, array
    return found


IMAGENET = "imagenet"
FILES = ("keras", "weights")  # kinds of sources whose names may be others than a network's
_WEIGHTS = (".safetensors", ".weights.h5")
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
LARGEST_MAP = 2**20  # bytes


@dataclass(frozen=True)
class WeightSource:
    """Where initial weights come from.

    ``kind``: ``run``, ``keras`` (a model's file), ``weights`` (a file without a model), or ``imagenet``,
    which has no ``path``.
    """

    kind: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.kind if self.path is None else str(self.path)


def find_weight_source(start_from: str, model: ModelConfig) -> WeightSource:
    """Return the source that ``--start-from`` names: ``imagenet``, a file of weights or a run.

    Raises InputError if the file or run does not exist, for a file that could hold code, if the run has no
    checkpoint, and for ``imagenet`` with a network for which keras.applications has no weights.
    """
    if start_from == IMAGENET:
        if CODE.fullmatch(model.model):
            raise InputError(f"--start-from is 'imagenet' with --model {model.model}; name a run or a file")
        if model.model != "keras_application" and imagenet_network(model) is None:
            raise InputError(
                f"--start-from is 'imagenet' with --model {model.model} --num-layers {model.depth}, for "
                f"which keras.applications has no weights; allowed: {_with_imagenet_weights()}; or name a "
                "run or a file"
            )
        return WeightSource(IMAGENET)
    path = expanded(start_from)
    if path.name.endswith((".keras", *_WEIGHTS)):
        if not path.is_file():
            raise InputError(
                f"--start-from is {start_from!r}: no such file; labkit export RUN --output FILE writes one"
            )
        return WeightSource("keras" if path.suffix == ".keras" else "weights", path.absolute())
    if path.suffix in _PICKLES and not path.is_dir():
        raise InputError(
            f"--start-from is {start_from!r}, which may hold a pickle, and reading one runs what is in it; "
            "where you trust it, save it with safetensors.torch.save_file(torch.load(FILE, "
            "weights_only=True), 'weights.safetensors')"
        )
    try:
        run = RunDirectory(find_run(start_from))
    except InputError as error:
        raise InputError(f"--start-from: {error}; or a file: .keras, {', '.join(_WEIGHTS)}") from None
    if not run.checkpoint_steps():
        raise InputError(f"--start-from {run.path} has no checkpoint yet; train it further")
    return WeightSource("run", run.path)


def read_name_map(name_map: str) -> dict[str, str]:
    """Return names in a source with the names in a network, of a JSON object or a text of two columns.

    Raises InputError, with the line, for a file that can't be read or says something else.
    """
    flag, path = f"--name-map {name_map}", expanded(name_map)
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_MAP + 1).decode()
        if len(text) > LARGEST_MAP:
            raise ValueError(f"more than {LARGEST_MAP:,} bytes")
        if text.lstrip().startswith("{"):
            pairs = json.loads(text, object_pairs_hook=list)
        else:
            lines = (line.split("#")[0].split() for line in text.splitlines())
            pairs = [line for line in lines if line]
        if wrong := [pair for pair in pairs if len(pair) != 2 or not isinstance(pair[1], str)]:
            raise ValueError(f"{short(wrong[0])} is no pair of names")
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{flag} can't be read ({reason}); allowed: a JSON object, or lines of two names, the source's "
            "and the network's"
        ) from None
    if twice := {pair[0] for pair in pairs if sum(other[0] == pair[0] for other in pairs) > 1}:
        raise InputError(f"{flag} names {min(twice)!r} twice; name each once")
    return dict(pairs)


def imagenet_network(model: ModelConfig) -> str | None:
    """Return the network in keras.applications whose weights fit one of labkit's own; None if none does."""
    return ARCHITECTURES[model.model].imagenet_weights.get(model.depth)


def _with_imagenet_weights() -> str:
    """Return the flags of all networks that can start from ImageNet's weights."""
    own = [
        f"--model {architecture.name} --num-layers {' or '.join(map(str, architecture.imagenet_weights))}"
        for architecture in ARCHITECTURES.values()
        if architecture.imagenet_weights
    ]
    return ", ".join(["--model keras_application", *own])
