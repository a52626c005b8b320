"""Start a network from trained weights: whatever fits by name and shape, and a report of what didn't."""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.models.stages import HEAD
from labkit.transfer.source import find_weight_source
from labkit.transfer.weights import InitialWeights, read_initial_weights, weights_by_name

__all__ = ["Transfer", "match", "prepare_transfer"]

SHOWN = 3  # weights that a line names


@dataclass(frozen=True)
class Transfer:
    """What of ``weights`` fits a network, by name.

    ``loaded``: what is taken over. ``missing``: weights of the network that the source doesn't have.
    ``mismatched``: with another shape there, (there, here). ``replaced``: of the head, whose classes are
    others. ``detached``: they would fit, but their layer's kernel doesn't. ``unused``: what the source has
    besides.
    """

    weights: InitialWeights
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def load(self, model: keras.Model) -> None:
        """Give ``model``, under whichever strategy its variables were made, the values of ``loaded``."""
        variables = weights_by_name(model)
        for name in self.loaded:
            variable = variables[name]
            variable.assign(self.weights.arrays[name].astype(str(variable.dtype)))

    def lines(self) -> list[str]:
        """Return the report for people."""
        source = self.weights
        at = "" if source.step is None else f", step {source.step}"
        new = (self.missing, self.mismatched, self.replaced, self.detached)
        every = len(self.loaded) + sum(map(len, new))
        lines = [
            f"starts from {source.place}{at} (sha256 {source.digest[:8]}): "
            f"{len(self.loaded)} of {every} weights loaded"
        ]
        if self.replaced:
            lines.append(f"new, since the classes are others: {_some(self.replaced)}")
        if self.mismatched:
            shapes = [
                f"{name} {list(was)}, {list(here)} here" for name, (was, here) in self.mismatched.items()
            ]
            lines.append(f"new, since the shape is another: {_some(shapes)}")
        if self.missing:
            lines.append(f"new, since it isn't there: {_some(self.missing)}")
        if self.detached:
            lines.append(f"new, since the layer's kernel is: {_some(self.detached)}")
        if self.unused:
            lines.append(f"not needed of what is there: {_some(self.unused)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the report for ``transfer.json``."""
        return {
            "kind": self.weights.place.kind,
            "place": str(self.weights.place),
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
        }


def prepare_transfer(config: Config, manifest: Manifest, model: keras.Model) -> Transfer | None:
    """Read what ``--start-from`` names and match it with ``model``; None where it names nothing.

    Raises InputError where it can't be read, or no kernel of it fits.
    """
    if config.transfer.start_from is None:
        return None
    place = find_weight_source(config.transfer.start_from, config.model)
    return match(read_initial_weights(place, config.model, manifest), model, manifest.classes)


def match(weights: InitialWeights, model: keras.Model, classes: tuple[str, ...]) -> Transfer:
    """Find out what of ``weights`` fits ``model``, by name and shape.

    Args:
        classes: of the model's logits. Where the source's are known and others, the head is a new one, even
            of the same shape; where they aren't known, its shape decides.

    Raises InputError where no kernel fits: offsets and statistics are nothing without.
    """
    new_head = weights.classes is not None and weights.classes != classes
    loaded, missing, mismatched, replaced = [], [], {}, []
    variables = weights_by_name(model)
    for name, variable in variables.items():
        array, here = weights.arrays.get(name), tuple(variable.shape)
        if array is None:
            missing.append(name)
        elif new_head and name.startswith(f"{HEAD}/"):
            replaced.append(name)
        elif array.shape != here:
            mismatched[name] = (tuple(map(int, np.shape(array))), here)
        else:
            loaded.append(name)
    new = variables.keys() - set(loaded)
    detached = [name for name in loaded if f"{name.rpartition('/')[0]}/kernel" in new]
    loaded = [name for name in loaded if name not in detached]
    if not any(len(variables[name].shape) > 1 for name in loaded):
        raise InputError(
            f"--start-from {weights.place}: no kernel of it fits {model.name} by name and shape; it has "
            f"{_some(list(weights.arrays)) or 'no weights'}, wanted are {_some(list(variables))}"
        )
    unused = tuple(name for name in weights.arrays if name not in variables)
    return Transfer(
        weights, tuple(loaded), tuple(missing), mismatched, tuple(replaced), tuple(detached), unused
    )


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
