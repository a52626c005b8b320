"""The parameters of ``notebooks/train.ipynb``, from its cell, papermill or the environment.

They are read from the source of the cells that set them, not from whatever the namespace holds, so
an unknown name is found whoever wrote it (papermill only warns), a line that was deleted no longer counts,
and cells can be run again in any order.
"""

import ast
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.cluster.flags import train_arguments
from labkit.cluster.local import LocalCluster
from labkit.config import Config, fields_by_name
from labkit.config.fields import unknown_name_error
from labkit.config.presets import preset_values
from labkit.errors import InputError
from labkit.notebook.cluster import CLUSTER_DEFAULTS, ClusterFailed, check_training, chosen_cluster

__all__ = ["DEFAULTS", "Parameters", "assigned_names", "parameters_from_values", "read_parameters"]

VARIABLE = "LABKIT_PARAMETERS"

# What the notebook's own parameters cell says, so that a value of another kind is known as somebody's choice.
# ResNet-8 for 600 steps: 64 % of CIFAR-10's test images in 1.7 epochs, 98 % of those of shapes in 8.5, and
# about 80 s of two cores of an AVX-512 server CPU.
DEFAULTS: Mapping[str, Any] = {
    "preset": None,
    "overwrite": False,
    **CLUSTER_DEFAULTS,
    "dataset": "auto",
    "data_dir": None,
    "job_dir": None,
    "num_gpus": None,
    "simulate_missing_gpus": True,
    "variable_strategy": "CPU",
    "num_layers": 8,
    "train_steps": 600,
    "train_batch_size": 128,
    "eval_batch_size": 500,
    "learning_rate": 0.2,
    "learning_rate_schedule": "one_cycle",
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "decay_norm_and_bias": False,
    "batch_norm_decay": 0.9,
    "use_distortion_for_training": True,
    "validate_every_steps": 150,
    "log_every_steps": 100,
    "seed": 0,
}
BESIDE_CONFIG = ("preset", "overwrite", *CLUSTER_DEFAULTS)


@dataclass(frozen=True)
class Parameters:
    """What the notebook was asked for.

    ``chosen``: values that differ from the notebook's own, or were given from outside. ``from_variable``:
    the names that came from the environment. ``cluster``: the processes that train; None: the notebook's own.
    """

    config: Config
    overwrite: bool = False
    preset: str | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    from_variable: tuple[str, ...] = ()
    cluster: LocalCluster | None = None

    @property
    def command(self) -> str:
        """The same run from a shell."""
        start: list[str] = []
        if self.cluster is not None:
            servers = ["--ps", str(self.cluster.ps)] if self.cluster.ps else []
            start = ["cluster", "local", "--workers", str(self.cluster.workers), *servers, "--"]
        return shlex.join(["labkit", *start, *train_arguments(self.config)])

    def __str__(self) -> str:
        lines = []
        if self.preset:
            lines.append(f"preset {self.preset}")
        values = ", ".join(f"{name} = {value!r}" for name, value in self.chosen.items())
        lines.append(f"chosen: {values}" if values else "the notebook's own values")
        if self.from_variable:
            lines.append(f"of these from {VARIABLE}: {', '.join(self.from_variable)}")
        return "\n".join([*lines, "the same from a shell:", f"  {self.command}"])

    def __repr__(self) -> str:
        return str(self)


def read_parameters() -> Parameters:
    """Return what the notebook's parameters cell, papermill and ``LABKIT_PARAMETERS`` ask for.

    The last cell whose first line starts with ``# Parameters:`` counts, and the last one that papermill
    wrote (``# Parameters``). From here on an InputError shows as one line in this notebook, and so does the
    failure of a cluster.

    Raises InputError for an unknown name, with the nearest known one, and for a value that isn't allowed.
    """
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    if shell is None:
        raise InputError("there is no notebook to read; in a program use labkit.config.Config.from_flat")
    shell.set_custom_exc((InputError, ClusterFailed), _show_in_one_line)
    history = [source for _, _, source in shell.history_manager.get_range(raw=True)]
    own = assigned_names(history, injected=False)
    given = assigned_names(history, injected=True)
    values = shell.user_ns
    return parameters_from_values(
        {name: values[name] for name in own if name in values},
        {name: values[name] for name in given if name in values},
    )


def _show_in_one_line(
    shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: Any = None
) -> None:
    shell._showtraceback(kind, error, [f"{kind.__name__}: {error}"])


def assigned_names(history: Sequence[str], *, injected: bool) -> list[str]:
    """Return the names that the last parameters cell in ``history`` assigns.

    Args:
        history: sources of the cells that were run, the oldest first.
        injected: the cell that papermill wrote instead of the notebook's own.
    """
    for source in reversed(history):
        first = source.strip().split("\n", 1)[0].rstrip()
        if first == "# Parameters" if injected else first.startswith("# Parameters:"):
            return [name for statement in ast.parse(source).body for name in _targets(statement)]
    return []


def _targets(statement: ast.stmt) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def parameters_from_values(own: Mapping[str, Any], given: Mapping[str, Any]) -> Parameters:
    """Return the parameters for the values of the notebook's cell and those given from outside.

    Values given from outside come first, then ``LABKIT_PARAMETERS``, then the cell's. With a preset, the
    cell's values count where they differ from ``DEFAULTS``, so that the preset isn't undone by them.

    Raises InputError for an unknown name, with the nearest known one, and for a value that isn't allowed.
    """
    variable = _from_variable()
    known = [*BESIDE_CONFIG, *fields_by_name()]
    for name in (*own, *variable, *given):
        if name not in known:
            raise unknown_name_error("parameter", name, known)
    changed = {name: value for name, value in own.items() if not _is_default(name, value)}
    chosen = {**changed, **variable, **given}
    values = {**own, **chosen}
    preset, overwrite = values.pop("preset", None), values.pop("overwrite", False)
    cluster = chosen_cluster(values, chosen)
    values = {name: value for name, value in values.items() if name not in CLUSTER_DEFAULTS}
    if preset is not None:
        if not isinstance(preset, str):
            raise InputError(f"preset is {preset!r}; allowed: the name of a preset, or None")
        fields = fields_by_name()
        kept = {name: value for name, value in own.items() if name in fields and not fields[name].identity}
        asked = {name: value for name, value in chosen.items() if name in fields}
        values = {**kept, **preset_values(preset), **asked}
    if not isinstance(overwrite, bool):
        raise InputError(f"overwrite is {overwrite!r}; allowed: True or False")
    config = Config.from_flat(values)
    check_training(config, cluster)
    shown = {name: value for name, value in chosen.items() if name != "preset"}
    return Parameters(config, overwrite, preset, shown, tuple(variable), cluster)


def _is_default(name: str, value: Any) -> bool:
    # False == 0, yet one of them is allowed where the other isn't.
    return (
        name in DEFAULTS
        and value == DEFAULTS[name]
        and isinstance(value, bool) == isinstance(DEFAULTS[name], bool)
    )


def _from_variable() -> dict[str, Any]:
    """Return the values of ``LABKIT_PARAMETERS``, for runners that can't inject any (nbval, nbconvert)."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return {}
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InputError(f'{VARIABLE} is {text!r}; allowed: a JSON object such as {{"train_steps": 20}}')
    return values
