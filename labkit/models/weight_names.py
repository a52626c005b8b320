"""Which weight of a source is which of a network: by a map, by name, or by order and shape.

A guess is made where it can't be wrong: one layer of a shape on either side, or a chain of layers on this
side and names there that differ in their numbers alone.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from labkit.config import Config
from labkit.errors import InputError, nearest
from labkit.models.freezing import HEAD, layers_with_weights
from labkit.models.initial_weights import (
    InitialWeights,
    Transfer,
    layer_weights,
    match,
    some,
    weights_by_name,
)
from labkit.models.keras_application import gamma_for_epsilon
from labkit.models.weight_files import from_pytorch, is_pytorch
from labkit.models.weight_source import FILES, read_name_map
from labkit.startup.tf_compat import all_layers

PYTORCH_EPSILON = 1e-5  # of torchvision's batch normalization; not in the file
TORCHVISION = "torchvision's names"
_TORCHVISION_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.([01]))")
_TORCHVISION_REST = {"conv1": "stem_conv1", "bn1": "stem_norm1", "fc": HEAD}

Stored = Mapping[str, tuple[str, np.ndarray]]  # by <layer>/<weight>: the name in the source, and the values


def transfer_to(
    model: keras.Model, weights: InitialWeights, config: Config, classes: tuple[str, ...]
) -> Transfer:
    """Find which weights of a source fit a network, and put those of PyTorch into Keras's layout.

    Without ``--name-map``, names decide. ResNets of torchvision are known by theirs. If no name of a file
    fits, order and shape decide, for all layers but the head.

    Args:
        model: the network to start.
        weights: as they were read.
        config: with the name map, and the network's options.
        classes: of the model's logits; see ``match``.

    Raises InputError, with what to do, if nothing fits, if a name map names something that isn't there or
    has another shape, and where it isn't sure what belongs where.
    """
    source, pytorch = weights.source, is_pytorch(weights.arrays)
    stored: Stored = {name: (name, array) for name, array in weights.arrays.items()}
    if pytorch:
        stored = from_pytorch(weights.arrays)
    pairs, how, certain = _by_name(stored, model), "", {}
    if config.transfer.name_map is not None:
        how = f"--name-map {config.transfer.name_map}"
        certain = _by_map(config.transfer.name_map, stored, model)
        pairs |= certain
    elif pytorch and config.model.model == "imagenet_resnet" and "layer4.0.conv1/kernel" in stored:
        pairs, how = _by_torchvision(source, stored, model, config), TORCHVISION
        certain = {name: key for name, key in pairs.items() if not name.startswith(f"{HEAD}/")}
    elif source.kind in FILES and not any(stored[key][1].ndim > 1 for key in pairs.values()):
        pairs, how = _by_order(source, stored, model, pytorch), "order and shape"

    if not how and not pytorch and all(name == key for name, key in pairs.items()):
        return match(weights, model, classes)
    owners = {name: layer for layer in layers_with_weights(model) for name in layer_weights(layer)}
    arrays = {name: stored[key][1] for name, key in pairs.items()}
    if pytorch:
        arrays = {name: _taken(source, array, owners[name], model) for name, array in arrays.items()}
    for name, variable in weights_by_name(model).items():
        if name in certain and arrays[name].shape != tuple(variable.shape):
            raise InputError(
                f"--start-from {source}: by {how}, {stored[certain[name]][0]!r} is {name}, but its shape is "
                f"{list(arrays[name].shape)} there and {list(variable.shape)} in {model.name}"
            )
    if how == TORCHVISION and config.model.batch_norm_epsilon != PYTORCH_EPSILON:
        epsilons = PYTORCH_EPSILON, config.model.batch_norm_epsilon
        for name in (name for name in arrays if name.endswith("/gamma")):
            variance = arrays[name.replace("gamma", "moving_variance")]
            arrays[name] = gamma_for_epsilon(arrays[name], variance, *epsilons)
    names = {name: stored[key][0] for name, key in pairs.items()}
    rest = tuple(own for key, (own, _) in stored.items() if key not in pairs.values())
    return match(replace(weights, arrays=arrays, names=names, how=how, rest=rest), model, classes)


def _by_name(stored: Stored, model: keras.Model) -> dict[str, str]:
    """Return the key in ``stored`` of each weight that has it by name or, in ``.weights.h5``, by number."""
    pairs = {}
    counts = _modules(stored)
    for layer in layers_with_weights(model):
        for name, number in _numbers(layer).items():
            if name in stored:
                pairs[name] = name
            elif f"{layer.name}/{number}" in stored and len(counts[layer.name]) == len(layer.weights):
                pairs[name] = f"{layer.name}/{number}"
    return pairs


def _numbers(layer: keras.Layer) -> dict[str, str]:
    """Return the number of each weight in a ``.weights.h5`` file."""
    numbers = {id(weight): str(number) for number, weight in enumerate(layer.weights)}
    return {name: numbers[id(weight)] for name, weight in layer_weights(layer).items()}


def _modules(stored: Stored) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of a source's weights by layer and weight."""
    found: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for key, (_, array) in stored.items():
        module, _, kind = key.rpartition("/")
        found[module][kind] = array.shape
    return found


def _by_map(path: str, stored: Stored, model: keras.Model) -> dict[str, str]:
    """Return the pairs that a name map states, for single weights or for whole layers."""
    there: dict[str, list[str]] = defaultdict(list)
    for key, (own, _) in stored.items():
        for name in dict.fromkeys((own, own.rpartition(".")[0], key, key.rpartition("/")[0])):
            there[name].append(key)
    here: dict[str, list[str]] = defaultdict(list)
    for layer in layers_with_weights(model):
        for name in layer_weights(layer):
            here[layer.name].append(name)
            here[name].append(name)
    numbers = {layer.name: _numbers(layer) for layer in layers_with_weights(model)}
    pairs: dict[str, str] = {}
    for theirs, ours in read_name_map(path).items():
        for name, known, what in ((theirs, there, "the source"), (ours, here, model.name)):
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near!r}?" if near else f"it has {some(list(known))}"
                raise InputError(f"--name-map {path} names {name!r}, which {what} doesn't have; {hint}")
        if len(there[theirs]) == len(here[ours]) == 1:
            found = {here[ours][0]: there[theirs][0]}
        else:
            by_kind = {key.rpartition("/")[2]: key for key in there[theirs]}
            kinds = {name: name.rpartition("/")[2] for name in here[ours]}
            found = {name: by_kind[kind] for name, kind in kinds.items() if kind in by_kind}
            if by_kind.keys() == set(numbers.get(ours, {}).values()):
                found = {name: by_kind[number] for name, number in numbers[ours].items()}
        if not found or found.keys() & pairs.keys():
            why = "twice" if found else f"for {theirs!r}, but no weight of one is a weight of the other"
            raise InputError(f"--name-map {path} names {ours!r} {why}; name single weights, each once")
        pairs |= found
    return pairs


def _by_torchvision(source: Any, stored: Stored, model: keras.Model, config: Config) -> dict[str, str]:
    """Return the pairs of a ResNet of torchvision. Raises InputError if it isn't this network."""
    bottlenecks = config.model.has_bottlenecks and "layer1.0.conv3/kernel" in stored
    if bottlenecks and config.model.bottleneck_stride != "second":
        raise InputError(
            f"--start-from {source} is a ResNet of torchvision, whose bottlenecks halve the image in their "
            f"second convolution; add --bottleneck-stride second, or {model.name} gives other outputs"
        )
    own = weights_by_name(model)
    pairs = {}
    for key in stored:
        module, _, kind = key.rpartition("/")
        name = _TORCHVISION_REST.get(module, module)
        if found := _TORCHVISION_BLOCK.fullmatch(module):
            stage, block, kind_of, number, bridge = found.groups()
            bridged = f"layer{stage}.{block}.downsample.0/kernel" in stored  # which labkit makes first
            word = {"conv": "conv", "bn": "norm", "0": "conv", "1": "norm"}[kind_of or bridge]
            name = f"stage{stage}_block{int(block) + 1}_{word}{int(number) + bridged if number else 1}"
        pairs[f"{name}/{kind}"] = key
    misfits = [stored[key][0] for name, key in pairs.items() if name not in own]
    misfits += [name for name in own if name not in pairs and not name.startswith(f"{HEAD}/")]
    if misfits:
        raise InputError(
            f"--start-from {source} is another network of torchvision than {model.name}, without a partner "
            f"for {some(misfits)}; choose its --num-layers, or give --name-map"
        )
    return pairs


# ---- order and shape


def _by_order(source: Any, stored: Stored, model: keras.Model, pytorch: bool) -> dict[str, str]:
    """Return pairs of layers with the same shapes. Raises InputError where they could be others."""
    layers = layers_with_weights(model)
    here: dict[Any, list[keras.Layer]] = defaultdict(list)
    there: dict[Any, list[str]] = defaultdict(list)
    modules = _modules(stored)
    numbered = all(kind.isdecimal() for kinds in modules.values() for kind in kinds)
    for layer in layers:
        here[_signature(_shapes(layer, numbered, pytorch))].append(layer)
    for module, shapes in sorted(modules.items(), key=lambda one: _natural(one[0])):
        there[_signature(shapes)].append(module)
    unused = [name for shape, names in there.items() if shape not in here for name in names]
    pairs: dict[str, str] = {}
    why = f"{some(unused)} have no partner" if len(unused) > 1 else ""
    for signature, ours in here.items():
        theirs = there[signature]
        if not theirs and ours == layers[-1:]:
            continue  # the head, of other classes
        if len(theirs) != len(ours):
            why = f"for {some([layer.name for layer in ours])}, there are {some(theirs) or 'none'}"
        elif len(ours) > 1 and not (_is_chain(model) and len({_words(name) for name in theirs}) == 1):
            why = f"{some(theirs)} have the same shapes"
        for layer, module in zip(ours, theirs, strict=False):
            for name, number in _numbers(layer).items():
                pairs[name] = f"{module}/{number if numbered else name.rpartition('/')[2]}"
    if why:
        raise InputError(
            f"--start-from {source}: none of its names is one of {model.name}, and order and shape don't "
            f"decide ({why}); say with --name-map FILE which is which: it has {some(list(modules))}, the "
            f"network has {some([layer.name for layer in layers])}"
        )
    return pairs


def _shapes(layer: keras.Layer, numbered: bool, pytorch: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a source has for the weights of a layer, by its words for them."""
    found = {}
    numbers = _numbers(layer)
    for name, weight in layer_weights(layer).items():
        shape = tuple(weight.shape)
        if pytorch and isinstance(layer, keras.layers.DepthwiseConv2D) and len(shape) == 4:
            shape = (*shape[:2], 1, shape[2] * shape[3])
        found[numbers[name] if numbered else name.rpartition("/")[2]] = shape
    return found


def _signature(shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted(shapes.items()))


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


def _words(name: str) -> str:
    """Return a name without its numbers, such as ``layer#.conv#``; Keras's first has none, ``conv#d``."""
    return re.sub("[0-9]+", "#", re.sub("_[0-9]+$", "", name))


def _is_chain(model: keras.Model) -> bool:
    """Return whether each layer has one input, so that the order of the layers is that of the data."""
    return all(
        not isinstance(found, keras.Model) and len(keras.tree.flatten(found.input)) <= 1
        for found in model.operations
    )


# ---- PyTorch's layout


def _taken(source: Any, array: np.ndarray, layer: keras.Layer, model: keras.Model) -> np.ndarray:
    """Return a weight of PyTorch, with its kernels turned, as this layer takes it.

    A depthwise kernel has its channels elsewhere. Behind a Flatten, PyTorch's features are ordered by
    channel, row and column; Keras's by row, column and channel.
    """
    if isinstance(layer, keras.layers.DepthwiseConv2D) and array.ndim == 4:
        return array.reshape(*array.shape[:2], -1, layer.depth_multiplier)
    if array.ndim > 2 or (array.ndim == 1 and isinstance(layer, keras.layers.Dense)):
        return array
    flattened = _flattened(source, layer, model)
    if flattened is None or array.shape[0] != int(np.prod(flattened)):
        return array
    height, width, channels = flattened
    ordered = array.reshape(channels, height, width, -1).transpose(1, 2, 0, 3)
    return np.ascontiguousarray(ordered.reshape(array.shape))


def _flattened(source: Any, layer: keras.Layer, model: keras.Model) -> tuple[int, int, int] | None:
    """Return height, width and channels of the image that a layer takes flattened; None if it takes none.

    Raises InputError where that can't be seen.
    """
    makers = {id(tensor): found for found in model.operations for tensor in keras.tree.flatten(found.output)}
    if layer not in model.operations:
        if isinstance(layer, keras.layers.Dense) or any(
            isinstance(found, keras.layers.Flatten | keras.layers.Reshape) for found in all_layers(model)
        ):
            raise InputError(
                f"--start-from {source} is PyTorch's, which flattens an image channel by channel, and labkit "
                f"can't see what {layer.name!r} takes inside of a model of its own; give a functional model"
            )
        return None
    tensor = layer.input
    while (maker := makers.get(id(tensor))) is not None:
        inputs = keras.tree.flatten(maker.input)
        if len(inputs) != 1 or any(len(weight.shape) > 1 for weight in getattr(maker, "weights", ())):
            return None
        if len(tensor.shape) == 2 and len(inputs[0].shape) == 4:
            return _image_of(source, maker, makers.get(id(inputs[0])))
        if inputs[0].shape != tensor.shape or inputs[0] is tensor:
            return None
        tensor = inputs[0]
    return None


def _image_of(source: Any, flatten: Any, before: Any) -> tuple[int, int, int] | None:
    if isinstance(before, keras.layers.Permute) and before.dims == (3, 1, 2):
        return None  # in PyTorch's order already
    shape = flatten.input.shape[1:]
    if type(before).__name__ in ("Permute", "Transpose") and before.output.shape[1:] == shape:
        raise InputError(
            f"--start-from {source} is PyTorch's, and {flatten.name!r} flattens what {before.name!r} has "
            "turned; leave that out, or turn by (3, 1, 2), as PyTorch has it"
        )
    if getattr(flatten, "data_format", "") == "channels_first":
        return shape[1], shape[2], shape[0]
    return shape
