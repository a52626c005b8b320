"""A network's stages and head, found by layer name; which layers are trained at which step."""

import fnmatch
import math

import keras

from labkit.config import TransferConfig
from labkit.errors import InputError
from labkit.models.layers import BatchNormalization, norms_of
from labkit.plurals import listed

HEAD = "logits"


def layers_with_weights(model: keras.Model) -> list[keras.Layer]:
    """Return all layers with weights, including those of nested models, ordered from images to logits."""
    found = []
    for layer in model.layers:
        found += layers_with_weights(layer) if isinstance(layer, keras.Model) else [layer]
    return [layer for layer in found if layer.weights]


def stages(model: keras.Model) -> dict[str, list[keras.Layer]]:
    """Return the layers with weights by stage, ordered from images to logits.

    The stage is the beginning of a layer's name (``LayerFactory.name_scope``): ``stage2_block1_conv1`` is in
    ``stage2``. The head is ``logits``.
    """
    found: dict[str, list[keras.Layer]] = {}
    for layer in layers_with_weights(model):
        found.setdefault(layer.name.split("_")[0], []).append(layer)
    return found


def varying_weights(layer: keras.Layer) -> list[keras.Variable]:
    """Return a layer's weights without the constant gamma of a batch normalization with ``scale=False``."""
    if isinstance(layer, BatchNormalization) and not layer.scale:
        return [weight for weight in layer.weights if weight is not layer.gamma]
    return list(layer.weights)


Frozen = frozenset[str]


class Freezing:
    """The frozen layers of a network as a function of the step alone, so a resumed run freezes the same.

    ``--freeze`` names stages or layers, as patterns; a layer's own name means this layer alone. With
    ``--unfreeze-every-steps N`` the frozen stage next to the head is unfrozen after N steps, the one below it
    after 2 N, and so on (Howard & Ruder, "Universal Language Model Fine-tuning for Text Classification",
    2018, arXiv:1801.06146, section 3.3).

    Args:
        model: its layers are named by stage (``stages``).
        config: ``freeze`` and ``unfreeze_every_steps``.

    Raises InputError for a pattern that matches nothing, and if nothing would be left to train.
    """

    def __init__(self, model: keras.Model, config: TransferConfig) -> None:
        self._every = config.unfreeze_every_steps
        patterns = config.freeze_patterns
        parts = stages(model)
        names = {layer for _, layer in _named(parts)}

        def fits(stage: str, layer: str, pattern: str) -> bool:
            if pattern in names:
                return layer == pattern
            return fnmatch.fnmatchcase(stage, pattern) or fnmatch.fnmatchcase(layer, pattern)

        for pattern in patterns:
            if not any(fits(stage, layer, pattern) for stage, layer in _named(parts)):
                layers = [layer for _, layer in _named(parts)]
                raise InputError(
                    f"--freeze {pattern!r} fits no stage or layer of {model.name}; its stages are "
                    f"{', '.join(parts)}; one of its layers is {layers[len(layers) // 2]}"
                )
        chosen = {
            stage: frozenset(
                layer.name
                for layer in layers
                if any(fits(stage, layer.name, pattern) for pattern in patterns)
            )
            for stage, layers in parts.items()
        }
        # In order from the images to the head: each stage, or what is frozen of it, with its frozen layers.
        self.stages: list[tuple[str, Frozen]] = [
            (_in_words(stage, parts[stage], names), names) for stage, names in chosen.items() if names
        ]
        trained = {layer.name for layer in layers_with_weights(model) if layer.trainable_variables}
        if trained <= self.at(0):
            raise InputError(f"--freeze {config.freeze!r} leaves nothing of {model.name} to train")

    def __bool__(self) -> bool:
        return bool(self.stages)

    def thawed(self, step_index: int) -> int:
        """Return how many of ``stages`` are unfrozen when step ``step_index`` begins."""
        return min(step_index // self._every, len(self.stages)) if self._every else 0

    def at(self, step_index: int) -> Frozen:
        """Return the names of the layers that step ``step_index`` does not train."""
        kept = self.stages[: len(self.stages) - self.thawed(step_index)]
        return frozenset().union(*(names for _, names in kept))

    def thaws_at(self, step_index: int) -> str | None:
        """Return the stage that is unfrozen at step ``step_index``; None if none is."""
        if step_index == 0 or self.thawed(step_index) == self.thawed(step_index - 1):
            return None
        return self.stages[-self.thawed(step_index)][0]

    def describe(self, total_steps: int) -> str:
        """Return a line that says what is frozen and until when."""
        if not self.stages:
            return "nothing is frozen"
        names = ", ".join(stage for stage, _ in self.stages)
        if not self._every:
            return f"frozen: {names}"
        thawing = ", ".join(
            f"{stage} after step {number * self._every}"
            for number, (stage, _) in enumerate(reversed(self.stages), start=1)
            if number * self._every < total_steps
        )
        return f"frozen: {names}; {f'thawing: {thawing}' if thawing else 'nothing thaws in this run'}"


def trained_indices(model: keras.Model, frozen: Frozen) -> list[int]:
    """Return the indices into ``model.trainable_variables`` of those outside of ``frozen`` layers."""
    held = {id(weight) for layer in frozen_layers(model, frozen) for weight in layer.trainable_variables}
    return [index for index, weight in enumerate(model.trainable_variables) if id(weight) not in held]


def frozen_layers(model: keras.Model, frozen: Frozen) -> list[keras.Layer]:
    """Return the layers with these names."""
    return [layer for layer in layers_with_weights(model) if layer.name in frozen]


def frozen_norms(model: keras.Model, frozen: Frozen) -> list[BatchNormalization]:
    """Return the batch normalization layers among the ``frozen`` ones."""
    return [norm for layer in frozen_layers(model, frozen) for norm in norms_of(layer).values()]


def trained_parameters(model: keras.Model, frozen: Frozen) -> int:
    """Return the number of scalar weights that are trained."""
    weights = model.trainable_variables
    return sum(math.prod(weights[index].shape) for index in trained_indices(model, frozen))


def _named(parts: dict[str, list[keras.Layer]]) -> list[tuple[str, str]]:
    return [(stage, layer.name) for stage, layers in parts.items() for layer in layers]


def _in_words(stage: str, layers: list[keras.Layer], frozen: Frozen) -> str:
    names = [layer.name for layer in layers if layer.name in frozen]
    return stage if len(names) == len(layers) else listed(names, 3)
