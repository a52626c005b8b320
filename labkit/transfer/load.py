"""Load trained weights into a network where name and shape fit, and report what did not."""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from labkit.errors import InputError
from labkit.models.stages import HEAD
from labkit.transfer.weights import InitialWeights, weights_by_name

__all__ = ["Transfer", "match"]

SHOWN = 3  # weights listed in one line of the report


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
        if self.replaced:
            lines.append(f"new, because the classes differ: {_some(self.replaced)}")
        if self.mismatched:
            shapes = [
                f"{name} {list(there)}, {list(here)} here" for name, (there, here) in self.mismatched.items()
            ]
            lines.append(f"new, because the shape differs: {_some(shapes)}")
        if self.missing:
            lines.append(f"new, because the source does not have it: {_some(self.missing)}")
        if self.detached:
            lines.append(f"new, because the layer's kernel is new: {_some(self.detached)}")
        if self.unused:
            lines.append(f"in the source, but not used: {_some(self.unused)}")
        return lines

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
        }


def match(weights: InitialWeights, model: keras.Model, classes: tuple[str, ...]) -> Transfer:
    """Find the weights that fit ``model`` by name and shape.

    Args:
        weights: the source's.
        model: the network to start.
        classes: of the model's logits. If the source's classes are known and differ, the head is not loaded
            even if its shape fits; if they are unknown, the shape decides.

    Raises InputError if no kernel fits; biases and statistics alone are of no use.
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
            f"--start-from {weights.source}: none of its kernels fits {model.name} by name and shape; it has "
            f"{_some(list(weights.arrays)) or 'no weights'}, the network has {_some(list(variables))}"
        )
    unused = tuple(name for name in weights.arrays if name not in variables)
    return Transfer(
        weights, tuple(loaded), tuple(missing), mismatched, tuple(replaced), tuple(detached), unused
    )


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
