"""Weights in files of others: safetensors, also PyTorch's state_dict, and Keras's ``.weights.h5``.

Neither format can hold code. What a file says of itself is checked before memory is taken for it.
"""

import json
import math
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from labkit.errors import InputError, reason_of, short
from labkit.run_directory.files import open_regular

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
        reason = reason_of(error).splitlines()[0][:200]
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
