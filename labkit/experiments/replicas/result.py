"""Where replicas are, the command that trains on such a layout, and what a comparison of layouts found: the
losses, their differences, and in words whether they agree.
"""

import json
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.flags import train_arguments
from labkit.cluster.launch import visible_gpus
from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.config.architectures import model_name
from labkit.errors import InputError, short
from labkit.startup.child import python_command
from labkit.tables import html_table, markdown_table, text_table
from labkit.training.checks import check_layout

LAYOUTS = ("1 replica", "2 logical devices", "4 logical devices", "2 processes")
MOST_PROCESSES = 8  # on fewer cores than that: each imports TensorFlow and holds half a gigabyte
_LAYOUT = re.compile(r"(?:(?P<processes>\d+) process(?:es)?)?(?: [×x] )?(?:(?P<devices>\d+) (?P<kind>.+))?")
_KINDS = {"replica": "CPU", "logical device": "CPU", "GPU": "GPU"}


@dataclass(frozen=True)
class Layout:
    """Where the replicas are: ``processes`` that train synchronously, each with ``devices`` of ``kind``."""

    processes: int = 1
    devices: int = 1
    kind: str = "CPU"

    @property
    def num_replicas(self) -> int:
        return self.processes * self.devices

    @classmethod
    def parse(cls, name: str) -> "Layout":
        """Parse a name such as ``2 processes × 2 logical devices``. Raises InputError for an unknown one."""
        match = _LAYOUT.fullmatch(name.strip())
        kind = _KINDS.get((match["kind"] or "replica").removesuffix("s")) if match else None
        if match and name.strip() and kind:
            layout = cls(int(match["processes"] or 1), int(match["devices"] or 1), kind)
            if layout.num_replicas:
                return layout
        raise InputError(
            f"layout {name!r} is unknown; allowed: '1 replica', 'N logical devices', 'N GPUs', "
            "'N processes', 'N processes × M logical devices', 'N processes × M GPUs'"
        )

    def check(self, config: Config) -> None:
        """Raise InputError if this machine has too few cores or GPUs, or ``config`` can't be split so."""
        most = max(MOST_PROCESSES, os.cpu_count() or 1)
        if self.processes > most:
            raise InputError(
                f"--layouts names {self.processes} processes; allowed here: at most {most}; more replicas "
                f"fit into one process: {self.num_replicas} logical devices"
            )
        gpus = len(visible_gpus())
        if self.kind == "GPU" and self.num_replicas > gpus:
            raise InputError(
                f"--layouts names {self.num_replicas} GPUs, but {gpus} can be used here (see labkit doctor); "
                f"on the CPU: {self.num_replicas} logical devices"
            )
        check_layout(config, num_local_replicas=self.devices, num_workers=self.processes)

    def config(self, config: Config, job_dir: os.PathLike[str] | str) -> Config:
        """Return the configuration that trains ``config`` on this layout, in the directory ``job_dir``."""
        simulates = self.kind == "CPU" and self.devices > 1
        decided = {
            "job_dir": os.fspath(job_dir),
            "num_gpus": self.devices if simulates or self.kind == "GPU" else 0,
            "simulate_missing_gpus": simulates,
            "sync": self.processes > 1,
        }
        if self.kind == "CPU" and self.devices == 1:
            decided["variable_strategy"] = "CPU"  # the other one needs several devices in a process
        if self.num_replicas == 1:
            decided["sync_batch_norm"] = False  # its part of the batch is the whole batch
        return config.replace(decided)

    def command(self, config: Config) -> list[str]:
        """Return the command that trains ``config``, as ``self.config`` returned it."""
        launcher = LocalCluster(self.processes).launcher() if self.processes > 1 else []
        return python_command("-m", "labkit", *launcher, *train_arguments(config))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of that command. They hide the GPUs from a layout of CPU devices."""
        return {"CUDA_VISIBLE_DEVICES": "-1"} if self.kind == "CPU" else {}


def parse_layouts(names: Sequence[str]) -> dict[str, Layout]:
    """Return the layouts by name, in order. Raises InputError for an unknown or repeated one, or for none."""
    names = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"layouts is {short(names)}; allowed: a list of names, such as {list(LAYOUTS[:2])}")
    chosen = {name.strip(): Layout.parse(name) for name in names}
    if not chosen or len(set(chosen.values())) < len(names):
        raise InputError(f"--layouts is {','.join(names)!r}; allowed: one or more layouts, each named once")
    return chosen


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

    __repr__ = __str__

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
