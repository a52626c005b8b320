"""The parameters of ``notebooks/train.ipynb``, from its parameters cell and from papermill's.

The names are read from the source of the cells that set them, and the values when such a cell has run, not
from whatever the namespace holds later. So an unknown name is found whoever wrote it (papermill only warns),
neither a line that was deleted counts nor what other cells make of a name, and cells can be run again in any
order. The sources come from IPython's events, which every runner triggers; its history is empty under nbval.
"""

import ast
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.cluster.flags import train_arguments
from labkit.cluster.local import LocalCluster
from labkit.config import Config, by_field, fields_by_name
from labkit.config.model import fields_of_network
from labkit.config.presets import merged_with_preset
from labkit.data.recipe import requested_values
from labkit.errors import InputError
from labkit.notebook.cluster import CLUSTER_DEFAULTS, ClusterFailed, check_training, chosen_cluster
from labkit.notebook.prepared import Prepared, prepare
from labkit.plurals import listed

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
    "model": "resnet",
    "num_layers": 8,
    "train_steps": 600,
    "train_batch_size": 128,
    "eval_batch_size": 500,
    "learning_rate": 0.2,
    "learning_rate_schedule": "one_cycle",
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "weight_decay_of": "kernels",
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

    ``chosen``: values that differ from the notebook's own, or were given from outside. ``own``: the names
    that the notebook's parameters cell sets. ``cluster``: the processes that train; None: the notebook's own.
    """

    config: Config
    overwrite: bool = False
    preset: str | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    cluster: LocalCluster | None = None
    own: frozenset[str] = frozenset()

    @property
    def command(self) -> str:
        """The same run from a shell."""
        start = [] if self.cluster is None else self.cluster.launcher()
        return shlex.join(["labkit", *start, *train_arguments(self.config)])

    def prepare(self) -> Prepared:
        """Choose the devices, the data set and the run directory.

        If ``job_dir`` holds a run to resume, ``dataset=auto`` means that run's data set.

        Raises InputError if the parameters can't be run on this machine.
        """
        return prepare(self.config, self.cluster, overwrite=self.overwrite)

    def __repr__(self) -> str:
        lines = []
        if self.preset:
            lines.append(f"preset {self.preset}")
        values = ", ".join(f"{name} = {value!r}" for name, value in self.chosen.items())
        lines.append(f"chosen: {values}" if values else "the notebook's own values")
        return "\n".join([*lines, "the same from a shell:", f"  {self.command}"])


class _ParameterCells:
    """The values of the parameters cell that was run last, and of papermill's cell that came after it."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.own: dict[str, Any] | None = None
        self.given: dict[str, Any] = {}
        shell.events.register("post_run_cell", self.look)

    def look(self, result: Any) -> None:
        """Remember the cell that was just run if it sets parameters; one that failed sets none."""
        source = result.info.raw_cell if result is not None else ""
        first = source.strip().split("\n", 1)[0].rstrip()
        if first.startswith("# Parameters:"):
            self.own, self.given = self._values(source) if result.success else None, {}
        elif first == "# Parameters":
            self.given = self._values(source) if result.success else {}

    def _values(self, source: str) -> dict[str, Any]:
        values = self.shell.user_ns
        return {name: values[name] for name in assignments(source) if name in values}


_cells: _ParameterCells | None = None


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise InputError("there is no notebook to read; in a program use labkit.Config.from_flat")
    return shell


def watch_parameters() -> None:
    """Note the parameters cells that are run from now on; a second call changes nothing.

    From here on an InputError shows as one line in this notebook, and so does the failure of a cluster.
    """
    global _cells
    shell = _shell()

    def show_in_one_line(shell: Any, kind: type, error: BaseException, *trace: Any, **given: Any) -> None:
        shell._showtraceback(kind, error, [f"{kind.__name__}: {error}"])

    shell.set_custom_exc((InputError, ClusterFailed), show_in_one_line)
    if _cells is None or _cells.shell is not shell:
        _cells = _ParameterCells(shell)


def read_parameters() -> Parameters:
    """Return what the notebook's parameters cell and papermill ask for.

    The last cell whose first line starts with ``# Parameters:`` counts, and after it the one that papermill
    injected (``# Parameters``).

    Raises InputError for an unknown name, with the nearest known one, for a value that isn't allowed, and
    where ``watch_parameters`` has seen no parameters cell.
    """
    shell = _shell()
    if _cells is None or _cells.shell is not shell or _cells.own is None:
        raise InputError("the parameters cell was not run, or failed; run the notebook from its first cell")
    values, now = _cells.own | _cells.given, shell.user_ns
    changed = [name for name in values if name in now and repr(now[name]) != repr(values[name])]
    if changed:
        print(f"note: another cell changed {listed(changed)}; only values in the parameters cell count")
    return parameters_from_values(_cells.own, _cells.given)


def assignments(source: str) -> dict[str, tuple[str, ast.expr | None]]:
    """Return the annotation, or "", and the value of each name that a cell assigns at its top level.

    The value is None where a name gets a part of one (``a, b = 1, 2``). Raises SyntaxError for what isn't
    Python.
    """
    found: dict[str, tuple[str, ast.expr | None]] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = ast.unparse(statement.annotation).strip("'\""), statement.value
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                named = (node for node in ast.walk(target) if isinstance(node, ast.Name))
                names = [node.id for node in named if isinstance(node.ctx, ast.Store)]
                value = statement.value if isinstance(target, ast.Name) else None
                found |= dict.fromkeys(names, ("", value))
    return found


def parameters_from_values(own: Mapping[str, Any], given: Mapping[str, Any]) -> Parameters:
    """Return the parameters for the values of the notebook's cell and those given from outside.

    Values given from outside come first, then the cell's. With a preset, the cell's values count where they
    differ from ``DEFAULTS``, so that the preset isn't undone by them.

    Raises InputError for an unknown name, with the nearest known one, and for a value that isn't allowed.
    """
    names = frozenset(by_field(dict.fromkeys(own), beside=BESIDE_CONFIG))
    own = {name: value for name, value in own.items() if name not in given}
    # A network's name in the cell holds what nobody has changed in the lines below it.
    held = fields_of_network(own.get("model")).keys() - {"model"}
    own = {name: value for name, value in own.items() if name not in held or not _is_default(name, value)}
    own = by_field(own, beside=BESIDE_CONFIG)
    given = by_field(given, beside=BESIDE_CONFIG, num_gpus=own.get("num_gpus"))
    changed = {name: value for name, value in own.items() if not _is_default(name, value)}
    chosen = {**changed, **given}
    values = merged_with_preset(None, chosen, base=own)  # --epochs instead of the notebook's steps
    preset, overwrite = values.pop("preset", None), values.pop("overwrite", False)
    cluster = chosen_cluster(values, chosen)
    values = {name: value for name, value in values.items() if name not in CLUSTER_DEFAULTS}
    if preset is not None:
        if not isinstance(preset, str):
            raise InputError(f"preset is {preset!r}; allowed: the name of a preset, or None")
        fields = fields_by_name()
        kept = {name: value for name, value in own.items() if name in fields and not fields[name].identity}
        asked = {name: value for name, value in chosen.items() if name in fields}
        values = {**kept, **requested_values(preset, asked)[0]}
    if not isinstance(overwrite, bool):
        raise InputError(f"overwrite is {overwrite!r}; allowed: True or False")
    config = Config.from_flat(values)
    check_training(config, cluster)
    shown = {name: value for name, value in chosen.items() if name != "preset"}
    return Parameters(config, overwrite, preset, shown, cluster, names)


def _is_default(name: str, value: Any) -> bool:
    # False == 0, yet one of them is allowed where the other isn't.
    return (
        name in DEFAULTS
        and value == DEFAULTS[name]
        and isinstance(value, bool) == isinstance(DEFAULTS[name], bool)
    )
