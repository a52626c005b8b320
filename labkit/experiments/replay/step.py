"""``replay``: make one recorded step again, look at every tensor, and write the folder that shows it."""

import csv
import json
import math
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labkit.config import Config, fields_by_name
from labkit.data.batch import StepBatch
from labkit.errors import InputError
from labkit.experiments.replay.recorded import MAX_STEPS, RecordedStep, recorded_step
from labkit.export.output import folder_beside
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.disk import check_writable
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
) -> Replay:
    """Make step ``step`` of a run again, from the nearest checkpoint before it. Writes nothing.

    Args:
        run: the run directory.
        step: from 1.
        data_dir: folder of prepared data sets; None: the run's.
        max_steps: most steps to make between the checkpoint and this step.

    Raises InputError as ``recorded_step`` does, and where this process can't run the network.
    """
    recorded = recorded_step(run, step, data_dir=data_dir, max_steps=max_steps)
    import_tensorflow()
    plan, notes = plan_replay(recorded)
    from labkit.inspection.diagnosis import diagnose_step
    from labkit.optim.network import TrainedNetwork

    result, before, after, network = _steps(recorded, plan)
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
    import tensorflow as tf

    from labkit.distributed.devices import num_gpus_found
    from labkit.startup.tf_compat import is_running
    from labkit.training.plan import TrainingPlan, decide_devices

    config, notes = _on_devices(recorded, num_gpus_found())
    if recorded.threads and not notes:
        if not is_running():
            config = config.replace({"num_intra_threads": recorded.threads})
        elif (here := tf.config.threading.get_intra_op_parallelism_threads()) != recorded.threads:
            notes += (
                f"the run had {counted(recorded.threads, 'thread')} in an operation, and TensorFlow already "
                f"runs here with {here or 'a number of its own choice'}; the step is equal to rounding",
            )
    devices, data_format = decide_devices(config, trains=recorded.threads is None)
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
    elif recorded.run.cluster_path.is_dir():  # several processes made it
        notes.append("a cluster made this step; one process makes it again, equal to rounding")
    elif had_gpus and num_gpus_found < wanted:
        notes.append(
            "the run had GPUs that aren't here; the CPU makes the step again, equal to rounding, which is "
            "coarser on GPUs (TF32)"
        )
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


def _steps(recorded: RecordedStep, plan: "TrainingPlan"):
    """Make the steps up to the recorded one. Returns its result, the states before and after, the network."""
    import tensorflow as tf

    first, step = recorded.start.step, recorded.step
    between = step - 1 - first
    distance = f"{counted(between, 'step')} before" if between else "directly before"
    print(f"starting from {recorded.start.describe()}, {distance} step {step}")
    network, engine = engine_from_start(recorded, plan, step)
    for number in range(first + 1, step):
        engine.next_step()
        if (number - first) % 50 == 0:
            print(f"made step {number}")

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
    return network, SynchronousEngine(network.steps, batches, step=start.step)


SUMMARY = "replay.json"  # by which a folder is known as one that may be replaced
# Of the contact sheet: side up to which an image is enlarged, pixels between two, images in a row.
SMALL, GAP, COLUMNS = 64, 4, 16


def check_folder(path: Path) -> None:
    """Raise InputError if a replay can't be written to ``path``: only an earlier one is replaced."""
    check_writable(path.parent, "--output")
    if not os.path.lexists(path):
        return
    is_ours = path.is_dir() and not path.is_symlink()
    if not is_ours or (any(path.iterdir()) and not (path / SUMMARY).is_file()):
        raise InputError(f"--output {path} is neither empty nor an earlier replay; give another path")
    check_writable(path, "--output")


def write_batch(batch: StepBatch, path: Path, run: str, replay: Replay | None = None) -> None:
    """Write the pictures of a batch, and what its replay found, whole or not at all.

    Raises InputError as ``check_folder``.
    """
    check_folder(path)
    summary: dict[str, Any] = {"run": run, "step": batch.step}
    stored: dict[str, Any] = {
        "images": batch.images,
        "labels": batch.labels,
        "index": batch.index,
        "epoch": batch.epoch,
    }
    if batch.partners is not None:
        stored |= {"partners": batch.partners, "share": np.float32(batch.share)}
    header, losses = ["file", "index", "label", "epoch"], list[float]()
    if replay is not None:
        first = replay.first_non_finite
        summary |= {
            "metrics": replay.metrics,
            "loss_is_equal": replay.loss_is_equal,
            "row": replay.row,
            "first_non_finite": asdict(first) if first else None,
            "gradient_norms": replay.gradient_norms,
            "start": replay.start,
            "steps_before": replay.steps_before,
            "notes": replay.notes,
        }
        stored |= {"losses": replay.losses, "probabilities": replay.probabilities}
        header, losses = [*header, "loss"], replay.losses.tolist()
    with folder_beside(path) as folder:
        written = folder / path.name
        (written / "images").mkdir(parents=True)
        names = [f"images/{_file_name(batch, position)}.png" for position in range(len(batch))]
        for name, image in zip(names, batch.images, strict=True):
            _write_png(image, written / name)
        _write_png(_contact_sheet(batch.images), written / "contact-sheet.png")
        with open(written / "examples.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(header)
            for position, name in enumerate(names):
                row = [name, batch.index[position], batch.names(position), batch.epoch[position]]
                table.writerow([*row, *losses[position : position + 1]])
        np.savez_compressed(written / "arrays.npz", **stored)
        (written / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
        if path.is_dir():
            os.rename(path, folder / "previous")
        os.rename(written, path)


def _file_name(batch: StepBatch, position: int) -> str:
    label = re.sub(r"[^\w-]+", "-", batch.names(position))[:40]  # a file's name has 255 bytes at most
    return f"{position:04d}-index-{batch.index[position]}-{label}"


def _contact_sheet(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return all images in rows, small ones enlarged, on white."""
    count, height, width, channels = images.shape
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    factor = max(1, SMALL // max(height, width))
    tall, wide = height * factor + GAP, width * factor + GAP
    sheet = np.full((rows * tall + GAP, columns * wide + GAP, channels), 255, np.uint8)
    for position, image in enumerate(images.repeat(factor, axis=1).repeat(factor, axis=2)):
        top, left = GAP + position // columns * tall, GAP + position % columns * wide
        sheet[top : top + height * factor, left : left + width * factor] = image
    return sheet


def _write_png(image: NDArray[np.uint8], path: Path) -> None:
    """Write an image, uint8 [height, width, 1 or 3 channels]."""
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(path)
