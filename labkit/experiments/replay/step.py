"""``replay``: make one recorded step again, and look at every tensor of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config, fields_by_name
from labkit.data.batch import StepBatch
from labkit.experiments.replay.recorded import MAX_STEPS, RecordedStep, recorded_step
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.startup.quiet_import import import_tensorflow

if TYPE_CHECKING:
    from labkit.distributed.synchronous import SynchronousEngine
    from labkit.inspection.diagnosis import NonFinite
    from labkit.training.network import Network
    from labkit.training.plan import TrainingPlan

# What a recorded run had beside what it observed, and a replay doesn't: other workers, code of its user.
_LEFT_OUT = ("slow_worker", "max_staleness", "callbacks", "callback_arguments")

ROUNDING = "the run wasn't --deterministic, so the loss may differ from its row by rounding"


@dataclass(frozen=True, repr=False)
class Replay:
    """A training step, made again.

    ``batch``: images, labels and indices. ``losses``: float32 [n], of each example, with the run's label
    smoothing. ``probabilities``: float32 [n, classes]. ``gradient_norms``: Euclidean norm of the gradient of
    each trained layer's weights, before clipping, by the layer's name. ``metrics``: ``loss``, ``accuracy``
    and the others of the step, and its ``learning_rate``. ``first_non_finite``: the first tensor with a NaN
    or an Infinity, or None. ``row``: what the run recorded of this step. ``start``: the state that the replay
    started from, in words; ``steps_before``: steps that were made from there. ``num_replicas``: how many
    share the batch. ``notes``: lines on what makes the replay differ from the recorded step.
    """

    run: RunDirectory
    batch: StepBatch
    losses: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    gradient_norms: dict[str, float]
    metrics: dict[str, float]
    first_non_finite: "NonFinite | None"
    row: dict[str, Any]
    start: str
    steps_before: int
    num_replicas: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        equal = "that of its row" if self.loss_is_equal else f"{self.row['loss']} in its row"
        return (
            f"<step {self.step} of {self.run.name}, made again: {len(self.batch)} examples, "
            f"loss {self.metrics['loss']} ({equal})>"
        )

    @property
    def step(self) -> int:
        """Number of the step, from 1."""
        return self.batch.step

    @property
    def images(self) -> NDArray[np.uint8]:
        """The images as the network saw them, uint8 [n, height, width, channels]."""
        return self.batch.images

    @property
    def standardized(self) -> NDArray[np.float32]:
        """The images as the network took them, float32 [n, height, width, channels]."""
        return self.batch.standardized

    @property
    def labels(self) -> NDArray[np.int32]:
        """Labels, int32 [n]; with several for each image, zeros and ones [n, classes]."""
        return self.batch.labels

    @property
    def index(self) -> NDArray[np.int64]:
        """Each example's position in the training split, int64 [n]."""
        return self.batch.index

    @property
    def loss_is_equal(self) -> bool:
        """Whether the loss is that of the recorded row, bit by bit; two NaN are equal."""
        ours, recorded = self.metrics["loss"], self.row["loss"]
        return ours == recorded or (math.isnan(ours) and math.isnan(recorded))


def replay(
    run: RunDirectory,
    step: int,
    *,
    data_dir: str | None = None,
    max_steps: int = MAX_STEPS,
    announce: Callable[[str], None] = print,
) -> Replay:
    """Make step ``step`` of a run again, from the nearest checkpoint before it. Writes nothing.

    Args:
        run: the run directory.
        step: from 1.
        data_dir: folder of prepared data sets; None: the run's.
        max_steps: most steps to make between the checkpoint and this step.
        announce: takes lines about slow work.

    Raises InputError as ``recorded_step`` does, and where this process can't run the network.
    """
    recorded = recorded_step(run, step, data_dir=data_dir, max_steps=max_steps, announce=announce)
    import_tensorflow()
    plan, notes = plan_replay(recorded)
    from labkit.inspection.diagnosis import diagnose_step
    from labkit.optim.network import TrainedNetwork

    result, before, after, network = _steps(recorded, plan, announce)
    copy = TrainedNetwork(plan.config, plan.manifest, plan.data_format)
    copy.load(before, step - 1)
    diagnosis, first = diagnose_step(
        copy,
        recorded.batch(resized=False),
        plan.config,
        num_replicas=recorded.num_replicas,
        loss=network.loss,
        before=before,
        after=after,
    )
    loss = result.metrics["loss"]
    return Replay(
        run=run,
        batch=recorded.batch(),
        losses=diagnosis.losses,
        probabilities=network.loss.probabilities(diagnosis.logits).astype(np.float32),
        gradient_norms=diagnosis.gradient_norms,
        metrics=result.metrics | {"learning_rate": result.learning_rate},
        first_non_finite=first,
        row=recorded.row,
        start=recorded.start.describe(),
        steps_before=step - 1 - recorded.start.step,
        num_replicas=recorded.num_replicas,
        notes=tuple(note for note in notes if note != ROUNDING or loss != recorded.row["loss"]),
    )


def plan_replay(recorded: RecordedStep) -> "tuple[TrainingPlan, tuple[str, ...]]":
    """Plan the recorded replicas in this process; return lines on what differs from the recorded run."""
    from labkit.distributed.devices import num_gpus_found
    from labkit.training.plan import TrainingPlan, decide_devices

    config, notes = _on_devices(recorded, num_gpus_found())
    devices, data_format = decide_devices(config)
    if not config.run.deterministic and not notes:
        notes = (ROUNDING,)
    manifest = recorded.manifest
    run, name = recorded.run, manifest.dataset
    plan = TrainingPlan(
        config, manifest, run, "resumable", name, "", devices=devices, data_format=data_format
    )
    return plan, notes


def _on_devices(recorded: RecordedStep, num_gpus_found: int) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with the replicas of the recorded step; simulated where GPUs are missing."""
    from labkit.startup.tf_compat import told_of_other_kernels

    config, environment = recorded.config, recorded.environment
    replicas, notes = recorded.num_replicas, []
    had_gpus = environment.get("device_kind") == "GPU"
    wanted = replicas if had_gpus or replicas > 1 else 0
    here = {
        name: info.default
        for name, info in fields_by_name().items()
        if info.role == "observation" or name in _LEFT_OUT
    }
    here |= {"num_gpus": wanted, "simulate_missing_gpus": replicas > 1}
    if recorded.is_asynchronous:
        notes.append(
            "asynchronous workers made this run: the weights and the batch of a step depend on their timing, "
            "so this is the step as one process makes it, not the recorded one"
        )
        here["gradient_compression"] = "none"
    elif recorded.is_of_cluster:
        notes.append("a cluster made this step; one process makes it again, equal to rounding")
    elif had_gpus and num_gpus_found < wanted:
        notes.append("the run had GPUs that aren't here; the CPU makes the step again, equal to rounding")
    if told := told_of_other_kernels(environment):
        notes.append(f"{told}; the step is equal to rounding")
    if had_gpus and replicas == 1:
        here["num_gpus"] = min(1, num_gpus_found)
    if notes:
        here |= {"variable_strategy": "CPU", "data_format": "auto", "xla": False}
    if len(set(recorded.replicas)) > 1 and not recorded.is_asynchronous:
        numbers = " and ".join(str(number) for number in sorted(set(recorded.replicas)))
        notes.append(
            f"sessions of this run had {numbers} replicas; {replicas} share the batch here, by the "
            "checkpoints around the step"
        )
    return config.replace(here), tuple(notes)


def _steps(recorded: RecordedStep, plan: "TrainingPlan", announce: Callable[[str], None]):
    """Make the steps up to the recorded one. Returns its result, the states before and after, the network."""
    import tensorflow as tf

    first, step = recorded.start.step, recorded.step
    between = step - 1 - first
    distance = f"{counted(between, 'step')} before" if between else "directly before"
    announce(f"starting from {recorded.start.describe()}, {distance} step {step}")
    network, engine = engine_from_start(recorded, plan, step)
    for number in range(first + 1, step):
        engine.next_step()
        if (number - first) % 50 == 0:
            announce(f"made step {number}")

    def state() -> list[Any]:
        return [tf.convert_to_tensor(variable).numpy() for variable in network.state_variables]

    before = state()
    return engine.next_step(), before, state(), network


def engine_from_start(
    recorded: RecordedStep, plan: "TrainingPlan", last: int
) -> "tuple[Network, SynchronousEngine]":
    """Return a network in the state of ``recorded.start``, and what makes its steps up to ``last``.

    Raises InputError if the checkpoint can't be restored.
    """
    from labkit.distributed.synchronous import SynchronousEngine
    from labkit.training.checkpoints import CheckpointStore
    from labkit.training.network import Network, training_batches

    start = recorded.start
    network = Network(plan.config, plan.manifest, plan.devices, plan.data_format)
    if start.folder is None:
        network.begin()
    else:
        CheckpointStore(start.folder.parent).restore(network.checkpoint(), start.step)
    batches = training_batches(network, start_step=start.step, stop_step=last)
    engine = SynchronousEngine(
        network.steps, batches, step=start.step, stopping=lambda: False, name="worker:0"
    )
    return network, engine
