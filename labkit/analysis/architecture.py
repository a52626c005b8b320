"""What a model is made of, by stages: resolution, layers, parameters, arithmetic."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import keras

__all__ = ["ModelSummary", "Stage", "summarize"]


@dataclass(frozen=True)
class Stage:
    """Consecutive layers with weights at one resolution.

    ``resolution``: (height, width) of their outputs, empty behind the global average. ``channels``: of the
    last one's output. ``layers``: convolutions and dense layers. ``parameters``: trainable weights.
    ``multiply_adds``: of one image's forward pass, in convolutions and dense layers.
    """

    resolution: tuple[int, ...]
    channels: int
    layers: int
    parameters: int
    multiply_adds: int

    @property
    def name(self) -> str:
        return "×".join(map(str, self.resolution)) if self.resolution else "logits"


@dataclass(frozen=True)
class ModelSummary:
    """A model by stages; shows itself as a table in a notebook."""

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
        table = [HEADER, *self._rows()]
        widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table
        ]
        return "\n".join([self.name, *lines])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        *stages, total = self._rows()
        body = "".join(line(row, "td") for row in stages)
        return (
            f"<table><caption><b>{escape(self.name)}</b></caption><thead>{line(HEADER, 'th')}</thead>"
            f"<tbody>{body}</tbody><tfoot>{line(total, 'th')}</tfoot></table>"
        )


HEADER = ("stage", "channels", "layers", "parameters", "multiply-adds")


def _millions(part: Stage | ModelSummary) -> str:
    return f"{part.multiply_adds / 1e6:.2f} M"


def summarize(model: keras.Model) -> ModelSummary:
    """Return ``model`` by stages: a new one begins where a layer with weights has another resolution.

    Args:
        model: functional, channels last, of layers with one output each.
    """
    stages: list[Stage] = []
    for layer in model.layers:
        if not layer.weights:
            continue
        *resolution, channels = layer.output.shape[1:]
        multiply_adds = _multiply_adds(layer)
        stage = Stage(
            resolution=tuple(resolution),
            channels=channels,
            layers=int(multiply_adds > 0),
            parameters=sum(math.prod(weight.shape) for weight in layer.trainable_weights),
            multiply_adds=multiply_adds,
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


def _multiply_adds(layer: Any) -> int:
    """Each weight of a kernel is used once at each place of the output."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None:
        return 0
    return math.prod(kernel.shape) * math.prod(layer.output.shape[1:-1])
