"""Whether a run is what it says: its files against their checksums, and its steps made again."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.data.manifest import Manifest, verify_shards
from labkit.data.shards import damaged_rows
from labkit.errors import InputError
from labkit.experiments.replay.recorded import RecordedStep, recorded_rows, recorded_step
from labkit.experiments.replay.step import ROUNDING, engine_from_start, plan_replay
from labkit.plurals import counted, listed
from labkit.run_directory import RunDirectory
from labkit.run_directory.certificate import Certificate, read_certificate
from labkit.run_directory.checkpoints import checkpoint_path
from labkit.run_directory.files import read_object
from labkit.startup.quiet_import import import_tensorflow

DEFAULT_STEPS = 100  # most steps that are made unless told otherwise: half a minute of a ResNet-20
# Of the norm of all weights. Of ResNet-8 with SGD, Muon and Lion, rounding (oneDNN off) made up to 0.001 of
# it as long as the losses agreed, and a step of training 0.02 to 0.04.
ROUNDED = 0.01
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # under which TensorFlow stores how the tensors belong together


def check_files(
    run: RunDirectory, config: Config, manifest: Manifest
) -> tuple[Certificate | None, list[str]]:
    """Compare a run with its certificate, and its data with their manifest.

    Returns the run's certificate, or None, and a sentence for each thing that was changed. Raises InputError
    if the certificate is damaged.
    """
    certificate = read_certificate(run)
    changes = []
    if certificate is not None:
        # A setting that the labkit of then hadn't is no change if it has its default.
        then, default = certificate.settings, Config().identity()
        now = {name: v for name, v in config.identity().items() if name in then or v != default[name]}
        changes = certificate.changes(run, now, manifest.checksum)
    changes += [_described(manifest, file) for file in verify_shards(manifest)]
    for step in run.checkpoint_steps():
        folder = checkpoint_path(run.checkpoints_path, step)
        if read_object(folder / "state.json").get("step") != step:
            changes.append(f"{folder.parent.name}/{folder.name}/state.json is no state of step {step}")
        if names := unreadable_tensors(folder / "variables"):
            changes.append(f"{folder.parent.name}/{folder.name}: {listed(names, 5)} was changed")
    return certificate, changes


def _described(manifest: Manifest, file: str) -> str:
    """Return what was changed in a shard: the images, if the checksums of its records show them."""
    path = manifest.directory / file
    if not path.exists():
        return f"data: {path} is missing"
    split, rows = damaged_rows(manifest, file)
    if not rows:
        return f"data: {path} was changed"
    images = "image" if len(rows) == 1 else "images"
    return f"data: {images} {listed([str(row) for row in rows])} of {split!r} in {path} was changed"


def unreadable_tensors(prefix: Path) -> list[str]:
    """Return the tensors of a checkpoint whose checksum is wrong; its files if none of it can be read."""
    import_tensorflow()
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        keys = sorted(reader.get_variable_to_shape_map())
        names = _names(reader)
    except (tf.errors.OpError, ValueError) as error:
        return [f"{prefix.name}.* ({str(error).splitlines()[0][:120]})"]
    damaged = []
    for key in keys:
        try:
            reader.get_tensor(key)
        except (tf.errors.OpError, RuntimeError, ValueError):
            damaged.append(names.get(key, key))
    return damaged


def _names(reader: Any) -> dict[str, str]:
    """Return the variables' own names, such as ``conv2d/kernel``, by their keys in the checkpoint."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph.FromString(reader.get_tensor(GRAPH))
    names = {}
    for node in graph.nodes:
        for attribute in node.attributes:
            key = attribute.checkpoint_key
            average = "average of " if key.startswith("averaged/") else ""
            names[key] = average + (attribute.full_name or key)
    return names


# ---- steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A value that was recorded, and the one that was made again. ``step``: after which, from 1.

    ``share``: of weights, the norm of all differences, divided by that of all values.
    """

    step: int
    name: str
    recorded: float
    made: float
    share: float = 0.0

    @property
    def size(self) -> float:
        """The absolute difference; infinite if only one of the two is finite."""
        size = abs(self.recorded - self.made)
        return size if math.isfinite(size) else math.inf

    def __str__(self) -> str:
        return f"{self.name} was {self.recorded!r} and is {self.made!r} (difference {self.size:.3g})"


@dataclass
class VerifiedSteps:
    """What came of making steps again.

    ``start``: the state that they were made from, in words. ``first`` and ``last``: the steps.
    ``differences``: of the metrics, in the order of the steps; empty if all are bit-equal.
    ``weights``: by the step of each checkpoint on the way, the largest difference of a weight or of the
    optimizer's state, or None if all are bit-equal. ``reasons``: what differs between the recorded training
    and this one, as name, value there, value here. ``notes``: lines on it.
    """

    start: str
    first: int
    last: int
    differences: list[Difference] = field(default_factory=list)
    weights: dict[int, Difference | None] = field(default_factory=dict)
    reasons: list[tuple[str, str, str]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def are_bit_equal(self) -> bool:
        """Whether each metric of each step and each weight is the recorded one, bit by bit."""
        return not self.differences and not any(self.weights.values())

    def changed_row(self, tolerance: float) -> Difference | None:
        """Return the first loss that differs from its row though later weights are bit-equal, or None.

        Rounding would have changed those weights, so somebody changed the row. ``tolerance``: of a loss, in
        nats; the sum of a loss may round without effect on the weights.
        """
        equal = max((step for step, weights in self.weights.items() if weights is None), default=0)
        far = (found for found in self.differences if found.name == "loss" and found.size > tolerance)
        return next((found for found in far if found.step <= equal), None)

    def changed_checkpoint(self, tolerance: float) -> Difference | None:
        """Return the first difference of a checkpoint that is no rounding, though all losses until it are."""
        for step, found in self.weights.items():
            loss = self.largest("loss", up_to=step)
            if found and found.share > ROUNDED and (loss is None or loss.size <= tolerance):
                return found
        return None

    def largest(self, name: str, up_to: int | None = None) -> Difference | None:
        """Return the largest difference of a metric, until a step if one is given; None if there is none."""
        last = self.last if up_to is None else up_to
        found = [found for found in self.differences if found.name == name and found.step <= last]
        return max(found, key=lambda difference: difference.size, default=None)


def verify_steps(
    run: RunDirectory,
    *,
    start: int | None = None,
    steps: int | None = None,
    data_dir: str | None = None,
) -> VerifiedSteps:
    """Make steps of a run again in this process. Writes nothing.

    Args:
        run: the run directory.
        start: the step of the checkpoint to start from, or 0 for the initial weights; None chooses the newest
            one that steps were recorded after.
        steps: how many; None: up to the next checkpoint, at most ``DEFAULT_STEPS``.
        data_dir: folder of prepared data sets; None: the run's.

    Raises InputError for a start that isn't there, for steps that weren't made, for a run of asynchronous
    workers, whose steps depend on their timing, and as ``recorded_step`` does.
    """
    rows = recorded_rows(run)
    if not rows:
        raise InputError(f"{run.path} has made no step yet, so there is nothing to verify")
    first, last = _range(run, rows, start, steps)
    if lost := [step for step in range(first + 1, last + 1) if step not in rows]:
        raise InputError(
            f"{run.metrics_path} has no readable row of step {lost[0]}, which {run.name} made; restore the "
            "file from a copy, or make other steps with --from and --steps"
        )
    recorded = recorded_step(run, first + 1, data_dir=data_dir, max_steps=0)
    if recorded.is_asynchronous:
        raise InputError(
            f"asynchronous workers made {run.path}: its steps depend on their timing, so they can't be "
            "made again; --files-only checks its files"
        )
    import_tensorflow()
    plan, notes = plan_replay(recorded)
    notes = tuple(note for note in notes if note != ROUNDING)
    result = VerifiedSteps(recorded.start.describe(), first + 1, last, notes=notes)
    print(f"starting from {result.start}, making {counted(last - first, 'step')}")
    network, engine = engine_from_start(recorded, plan, last)
    result.reasons = _reasons(recorded, plan)
    kept = set(run.checkpoint_steps())
    for step in range(first + 1, last + 1):
        made = engine.next_step()
        values = made.metrics | {"learning_rate": made.learning_rate}
        result.differences += _differences(step, rows.get(step, {}), values)
        if step in kept:
            result.weights[step] = _weights(network, run.checkpoints_path, step)
        if (step - first) % 50 == 0 and step < last:
            print(f"made step {step}")
    return result


def _range(run: RunDirectory, rows: dict[int, Any], start: int | None, steps: int | None) -> tuple[int, int]:
    """Return the step to start after, and the last one. Raises InputError."""
    kept, end = run.checkpoint_steps(), max(rows)
    # The seed decides the initial weights, unless they were those of another run.
    seeded = recorded_config(run).transfer.start_from is None
    states = sorted({*([0] if seeded else []), *kept})
    known = ", ".join(str(step) for step in states) or "none"
    if start is None:
        if not any(step < end for step in states):
            raise InputError(
                f"{run.path} started from other weights and has no checkpoint before its last step {end} "
                f"(its checkpoints: {known}), so no step can be made again; --files-only checks its files"
            )
        start = max(step for step in states if step < end)
    elif start not in states:
        raise InputError(
            f"--from is {start}; allowed: {known}, the steps of the checkpoints of {run.path}"
            + (", and 0 for its initial weights" if seeded else "")
        )
    if start >= end:
        raise InputError(f"--from is {start}, but {run.path} made no step after it: its last is {end}")
    if steps is None:
        next_kept = min((step for step in kept if step > start), default=end)
        return start, min(next_kept, end, start + DEFAULT_STEPS)
    if start + steps > end:
        raise InputError(
            f"--steps is {steps}; allowed: 1 to {end - start}, the steps of {run.path} after step {start}"
        )
    return start, start + steps


def _differences(step: int, row: dict[str, Any], made: dict[str, float]) -> list[Difference]:
    """Return the metrics that aren't in the row as they were made; what is no number there counts as NaN."""
    found = []
    for name, value in made.items():
        recorded = row.get(name)
        recorded = recorded if isinstance(recorded, int | float) else math.nan
        if recorded != value and not (math.isnan(recorded) and math.isnan(value)):
            found.append(Difference(step, name, recorded, value))
    return found


def _weights(network: Any, folder: Path, step: int) -> Difference | None:
    """Return the largest difference to a checkpoint; the network keeps the weights that it made."""
    import tensorflow as tf

    from labkit.optim.network import variable_names
    from labkit.training.checkpoints import CheckpointStore

    variables, parts = network.state_variables, (network.model, network.optimizer, network.average)
    made = [tf.convert_to_tensor(variable).numpy() for variable in variables]
    CheckpointStore(folder).restore(network.checkpoint(), step)
    found = []
    whole = changed = 0.0
    for variable, value, (layer, name) in zip(variables, made, variable_names(*parts), strict=True):
        kept = tf.convert_to_tensor(variable).numpy()
        same = (kept == value) | (np.isnan(kept) & np.isnan(value))
        # Where only one of two is finite, they differ more than any others.
        gaps = np.where(same, 0.0, np.nan_to_num(np.abs(kept - value), nan=np.inf, posinf=np.inf))
        whole += float(np.linalg.norm(kept)) ** 2
        changed += float(np.linalg.norm(gaps)) ** 2
        if kept.tobytes() != value.tobytes():
            where = np.unravel_index(gaps.argmax(), kept.shape)
            name = f"{name} of {layer}" if layer else name
            found.append(Difference(step, name, float(kept[where]), float(value[where])))
            variable.assign(value)
    largest = max(found, key=lambda difference: difference.size, default=None)
    share = changed / whole if whole else math.inf
    return largest and replace(largest, share=math.inf if math.isnan(share) else math.sqrt(share))


# ---- why a step may differ -----------------------------------------------------------------------------


def _reasons(recorded: RecordedStep, plan: Any) -> list[tuple[str, str, str]]:
    """Return what of the recorded environment is otherwise here: hardware, versions, threads, replicas."""
    from labkit.training.session import describe_environment

    there, here = _flat(recorded.environment), _flat(describe_environment(plan))
    # What an older labkit didn't record isn't known to differ.
    names = [name for name in there.keys() & here.keys() - _SAYS_NOTHING if there[name] != here[name]]
    reasons = [(name, str(there[name]), str(here[name])) for name in sorted(names)]
    if not recorded.config.run.deterministic:
        reasons.insert(0, ("deterministic", "no: threads may add in any order", "no"))
    return reasons


_SAYS_NOTHING = {"command", "banner", "variable_strategy"}


def _flat(environment: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in environment.items():
        if name == "data":
            continue  # its checksum is checked before
        parts = value.items() if isinstance(value, dict) else [("", value)]
        flat |= {f"{name} {part}".strip(): of for part, of in parts}
    return flat
