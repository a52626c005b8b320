"""What a comparison of layouts found: the losses, their differences, and in words whether they agree."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config
from labkit.config.architectures import model_name
from labkit.experiments.replicas.layouts import Layout
from labkit.tables import html_table, markdown_table, text_table

_DIGITS = {"float32": "float32 keeps 7 digits", "float64": "float64 keeps 16 digits"}
_FEW_DIGITS = "bfloat16 keeps 3 digits"


@dataclass(frozen=True)
class LayoutLosses:
    """The losses of one training on several layouts; the first layout is the reference.

    ``sync_batch_norm``: whether batch normalization was synchronized. ``losses``: by layout, float64 [steps],
    in nats. ``tolerance``: the difference up to which two losses agree, in nats. ``precision``: in which the
    network computed.
    """

    sync_batch_norm: bool
    losses: Mapping[str, NDArray[np.float64]]
    tolerance: float
    precision: str

    @property
    def title(self) -> str:
        if self.sync_batch_norm:
            return "Synchronized batch normalization"
        return "Each replica's own batch statistics"

    @property
    def reference(self) -> str:
        """Name of the layout that the others are compared with."""
        return next(iter(self.losses))

    @property
    def differences(self) -> dict[str, NDArray[np.float64]]:
        """|loss − loss of the reference| of each other layout, float64 [steps], in nats."""
        first, *others = self.losses
        return {name: np.abs(self.losses[name] - self.losses[first]) for name in others}

    @property
    def largest(self) -> float:
        """The largest difference over all layouts and steps, in nats; 0 for a single layout."""
        return max((float(difference.max()) for difference in self.differences.values()), default=0.0)

    @property
    def differing(self) -> dict[str, int]:
        """The first step at which a layout differs by more than the tolerance, by layout."""
        beyond = {name: values > self.tolerance for name, values in self.differences.items()}
        return {name: int(values.argmax()) + 1 for name, values in beyond.items() if values.any()}

    @property
    def agrees(self) -> bool:
        """Whether no layout differs from the reference by more than the tolerance at any step."""
        return not self.differing

    @property
    def verdict(self) -> str:
        """Whether the layouts agree, and where a difference comes from, in sentences."""
        differing = self.differing
        if not self.differences:
            return f"Only {self.reference} was trained; name a second layout to compare it with."
        digits = _DIGITS.get(self.precision, _FEW_DIGITS)
        within = f"{self.tolerance:g} nats"
        if not differing:
            return (
                f"All layouts agree with {self.reference} within {within}. The rest is rounding: replicas "
                f"sum gradients in another order, and {digits}."
            )
        names = ", ".join(differing)
        found = (
            f"Not within {within} of {self.reference}: {names} (by up to {self.largest:.1e}, first at step "
            f"{min(differing.values())}). "
        )
        if self.sync_batch_norm:
            more = "" if self.precision == "float64" else "; --precision float64 shows if that is all"
            return found + f"Rounding ({digits}) grows with the learning rate and the steps{more}."
        return found + (
            "Each replica normalizes with the mean and variance of its part of the batch, which is another "
            "computation, not rounding." + self._equal_layouts()
        )

    def _equal_layouts(self) -> str:
        """Return a sentence about layouts with as many replicas that agree with each other, or nothing."""
        by_count: dict[int, list[str]] = {}
        for name in self.losses:
            by_count.setdefault(Layout.parse(name).num_replicas, []).append(name)
        groups = [
            " and ".join(names)
            for names in by_count.values()
            if len(names) > 1
            and all(
                np.abs(self.losses[name] - self.losses[names[0]]).max() <= self.tolerance for name in names
            )
        ]
        return f" With as many replicas, the losses agree: {'; '.join(groups)}." if groups else ""

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table: the header, then a row for each layout."""
        steps = len(self.losses[self.reference])
        table: list[tuple[str, ...]] = [
            ("layout", "loss at step 1", f"at step {steps}", "largest difference", "at step", "agrees")
        ]
        differences, differing = self.differences, self.differing
        for name, losses in self.losses.items():
            compared = ("reference", "", "")
            if name in differences:
                largest = int(differences[name].argmax())
                answer = "no" if name in differing else "yes"
                compared = (f"{differences[name][largest]:.1e}", str(largest + 1), answer)
            table.append((name, f"{losses[0]:.6f}", f"{losses[-1]:.6f}", *compared))
        return table


@dataclass(frozen=True)
class ReplicaComparison:
    """One training on several layouts, with and without synchronized batch normalization.

    A notebook displays it as tables; ``labkit.figures.replica_curves`` draws it.

    ``config``: what was trained, with the data set that was found. ``folder``: that holds the runs.
    ``synchronized``, ``own``: the losses with synchronized batch normalization, and with each replica's own
    statistics; None if not asked for.
    """

    config: Config
    folder: Path
    synchronized: LayoutLosses | None
    own: LayoutLosses | None

    @property
    def parts(self) -> tuple[LayoutLosses, ...]:
        """Return those of ``synchronized`` and ``own`` that were asked for."""
        return tuple(part for part in (self.synchronized, self.own) if part is not None)

    @property
    def title(self) -> str:
        config = self.config
        return (
            f"{model_name(config.model)} on {config.data.dataset}, batch {config.data.images_per_step}, "
            f"learning rate {config.optimizer.learning_rate:g}, {config.model.precision}"
        )

    def __str__(self) -> str:
        def wrapped(text: str) -> str:
            return textwrap.fill(text, 100, break_on_hyphens=False)

        blocks = [f"{part.title}\n{text_table(part.rows())}\n{wrapped(part.verdict)}" for part in self.parts]
        return "\n\n".join([self.title, *blocks])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        tables = []
        for part in self.parts:
            header, *rows = part.rows()
            tables.append(html_table(header, rows, caption=part.title) + f"<p>{escape(part.verdict)}</p>")
        return f"<p>{escape(self.title)}</p>" + "".join(tables)

    def as_markdown(self) -> str:
        """Return title, tables and verdicts as Markdown."""
        blocks = [self.title]
        for part in self.parts:
            blocks += [f"## {part.title}", markdown_table(part.rows()), part.verdict]
        return "\n\n".join(blocks) + "\n"

    def as_json(self) -> str:
        """Return everything as JSON."""
        comparisons = [_as_json(part) for part in self.parts]
        return json.dumps({"config": self.config.to_json(), "comparisons": comparisons}, indent=1) + "\n"


def _as_json(part: LayoutLosses) -> dict[str, Any]:
    differences, differing = part.differences, part.differing
    layouts = [
        {
            "layout": name,
            "replicas": Layout.parse(name).num_replicas,
            "largest_difference": float(differences[name].max()) if name in differences else 0.0,
            "agrees": name not in differing,
            "losses": losses.tolist(),
        }
        for name, losses in part.losses.items()
    ]
    return {
        "sync_batch_norm": part.sync_batch_norm,
        "reference": part.reference,
        "tolerance": part.tolerance,
        "agrees": part.agrees,
        "layouts": layouts,
    }
