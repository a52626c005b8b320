"""Summarize a model by stages (resolution, layers, parameters, multiply-adds), and its receptive field."""

import math
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from labkit.analysis.flops import multiply_adds
from labkit.tables import html_table, text_table


@dataclass(frozen=True)
class Stage:
    """Consecutive layers with weights whose outputs have the same resolution.

    ``resolution``: (height, width) of the outputs; empty for layers after the global pooling.
    ``channels``: of the last layer's output. ``layers``: number of convolutions and dense layers.
    ``parameters``: number of trainable weights. ``multiply_adds``: of one image's forward pass, in
    convolutions and dense layers.
    """

    resolution: tuple[int, ...]
    channels: int
    layers: int
    parameters: int
    multiply_adds: int

    @property
    def name(self) -> str:
        if self.resolution:
            return "×".join(map(str, self.resolution))
        return "logits" if self.layers == 1 else "dense"


@dataclass(frozen=True)
class ModelSummary:
    """A model by stages. A notebook displays it as a table."""

    name: str
    stages: tuple[Stage, ...]

    @property
    def parameters(self) -> int:
        return sum(stage.parameters for stage in self.stages)

    @property
    def multiply_adds(self) -> int:
        return sum(stage.multiply_adds for stage in self.stages)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [
            (stage.name, str(stage.channels), str(stage.layers), f"{stage.parameters:,}", _millions(stage))
            for stage in self.stages
        ]
        layers = sum(stage.layers for stage in self.stages)
        return [*rows, ("total", "", str(layers), f"{self.parameters:,}", _millions(self))]

    def __str__(self) -> str:
        return f"{self.name}\n{text_table([HEADER, *self._rows()], left_columns=0)}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        *stages, total = self._rows()
        return html_table(HEADER, stages, caption=self.name, footer=total)


HEADER = ("stage", "channels", "layers", "parameters", "multiply-adds")


def _millions(part: Stage | ModelSummary) -> str:
    return f"{part.multiply_adds / 1e6:.2f} M"


def summarize(model: keras.Model) -> ModelSummary:
    """Summarize ``model`` by stages. A new stage begins at each layer with weights of another resolution.

    Dense layers between convolutions, as in squeeze and excitation, belong to the surrounding stage.

    Args:
        model: functional, channels last; each layer has one output.
    """
    stages: list[Stage] = []
    operations = model.operations
    last_spatial = max(i for i, found in enumerate(operations) if len(found.output.shape) > 2)
    for index, layer in enumerate(operations):
        if not getattr(layer, "weights", None):
            continue
        *resolution, channels = layer.output.shape[1:]
        if not resolution and index < last_spatial:
            resolution, channels = list(stages[-1].resolution), stages[-1].channels
        cost = multiply_adds(layer)
        stage = Stage(
            resolution=tuple(resolution),
            channels=channels,
            layers=int(cost > 0),
            parameters=sum(math.prod(weight.shape) for weight in layer.trainable_weights),
            multiply_adds=cost,
        )
        if stages and stages[-1].resolution == stage.resolution:
            stage = _joined(stages.pop(), stage)
        stages.append(stage)
    return ModelSummary(model.name, tuple(stages))


def _joined(first: Stage, second: Stage) -> Stage:
    return Stage(
        second.resolution,
        second.channels,
        first.layers + second.layers,
        first.parameters + second.parameters,
        first.multiply_adds + second.multiply_adds,
    )


def receptive_field(model: keras.Model) -> tuple[int, int]:
    """Return the (height, width) in pixels that one output position of the last convolution or pool sees.

    A window of k positions that are s pixels apart adds (k - 1) * s (Araujo et al., "Computing Receptive
    Fields of Convolutional Neural Networks", 2019). Where several paths meet, the widest counts. Outputs of a
    global average or a dense layer, such as the factors of squeeze and excitation, depend on the whole image
    and aren't counted. The image's border isn't considered, so the field may be larger than the image.

    Args:
        model: functional, in either data format; each layer is called once and has one output.
    """
    fields: dict[int, np.ndarray | None] = {}  # of each tensor: int [(size, spacing), (height, width)]
    widest = np.ones(2, int)
    for operation in model.operations:
        if isinstance(operation, keras.layers.InputLayer):
            fields[id(operation.output)] = np.ones((2, 2), int)
            continue
        inputs = operation.input if isinstance(operation.input, list) else [operation.input]
        known = [field for field in (fields[id(tensor)] for tensor in inputs) if field is not None]
        field = None
        if known and not isinstance(operation, _NOT_SPATIAL):
            window, stride = _window(operation)
            size, spacing = np.max(known, axis=0)
            field = np.stack([size + (window - 1) * spacing, spacing * stride])
            widest = np.maximum(widest, field[0])
        fields[id(operation.output)] = field
    height, width = widest.tolist()
    return height, width


# The outputs of these layers have no spatial positions.
_NOT_SPATIAL = (
    keras.layers.Flatten,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.GlobalMaxPooling2D,
)


def _window(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the size and stride, int [2] each, of a convolution's or pool's window; 1 for other layers."""
    size = getattr(layer, "kernel_size", getattr(layer, "pool_size", None))
    if size is None:
        return np.ones(2, int), np.ones(2, int)
    dilation = np.asarray(getattr(layer, "dilation_rate", 1))
    return (np.asarray(size) - 1) * dilation + 1, np.asarray(layer.strides)
