"""What a notebook trains with: devices, data set and run directory, chosen and shown before training."""

import functools
import logging
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.errors import InputError
from labkit.notebook.background import launch
from labkit.notebook.files import RESULT_MIME
from labkit.plurals import counted, facts_html, facts_text, listed
from labkit.run import Run
from labkit.run_directory.metrics import result_in_words
from labkit.startup.quiet_import import import_tensorflow
from labkit.training.checks import check_together
from labkit.training.plan import (
    RunPlan,
    TrainingPlan,
    TrainResult,
    decide_devices,
    plan_data,
    plan_training,
    refreshed,
)
from labkit.training.train import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.analysis.architecture import ModelSummary
    from labkit.data.manifest import Manifest
    from labkit.distributed.devices import Devices

CHOICE = "data set: "  # prefix of the note of labkit.data.resolve


@dataclass(repr=False)
class Prepared:
    """What a notebook trains with. The notebook shows it as a table.

    Attributes:
        config: the resolved configuration.
        manifest: the prepared data set.
        data_note: which data set was chosen, and why.
        devices: of the processes that train.
        plan: of a training in this process; None with a cluster.
        cluster: the processes that train; None: this one.
        overwrite: whether the next training discards an existing run.
        result: of the last training; None before.
    """

    config: Config
    manifest: "Manifest"
    data_note: str
    devices: "Devices"
    plan: RunPlan | None = None
    cluster: LocalCluster | None = None
    overwrite: bool = False
    result: TrainResult | None = None

    def _lines(self) -> list[tuple[str, str]]:
        _, images, classes_or_numbers, *_ = self.manifest.facts()
        devices, data = ("devices", self.devices.describe()), ("data", self.data_note)
        return [devices, data, images, classes_or_numbers]

    def __repr__(self) -> str:
        lines = facts_text(self._lines())
        return f"{self.devices.banner}\n{lines}" if self.devices.banner else lines

    def _repr_html_(self) -> str:
        return _banner_html(self.devices.banner) + facts_html(self._lines())

    def training_images(self, epochs: int = 3) -> "Figure":
        """Draw a stored image of each class and, if training changes images, as some epochs train on it.

        Of many classes these are the first ten. Where labels are numbers, these are the first ten images.
        """
        import numpy as np

        from labkit.data.augment import augment
        from labkit.data.hashes import augmentation_key
        from labkit.data.inputs import augmentation_of
        from labkit.data.network_input import as_pixels
        from labkit.data.shards import load_split
        from labkit.figures import image_grid
        from labkit.figures.style import shown_name
        from labkit.training.scores import first_of_each_class

        images, labels = load_split(self.manifest, "train")
        if self.manifest.targets == "numbers":
            index = np.arange(min(10, len(labels)))
            names = [", ".join(f"{value:.4g}" for value in label) for label in labels[index]]
        else:
            first = first_of_each_class(labels, self.manifest.num_classes)
            index = np.array(list(first.values())[:10])
            names = [
                shown_name(self.manifest.classes[label], 140 // len(index)) for label in list(first)[:10]
            ]
        drawn, rows = [*images[index]], ["stored"]
        if augmentation := augmentation_of(self.config.data):
            key = augmentation_key(self.config.run.seed)
            for number in range(epochs):
                epoch = np.full_like(index, number)
                shown = augment(images[index], self.manifest, augmentation, key=key, epoch=epoch, index=index)
                drawn += [*as_pixels(shown)]  # crops may be smaller
                rows.append(f"epoch {number + 1}")
        return image_grid(drawn, names, rows, columns=len(index))

    def network(self) -> "ModelSummary":
        """Say at which resolutions the network works, and return its stages as a table."""
        from IPython.display import Markdown, display

        from labkit.analysis.architecture import summarize
        from labkit.data.network_input import input_shape
        from labkit.models.registry import build_model

        shape, classes = input_shape(self.manifest, self.config.data), self.manifest.num_classes
        summary = summarize(build_model(self.config.model, num_classes=classes, image_shape=shape))
        sizes = listed([stage.name for stage in summary.stages if stage.resolution])
        text = f"This network works at {sizes} pixels. Its last layer has one output for each of the "
        what = "numbers of a label" if self.manifest.targets == "numbers" else "classes"
        display(Markdown(f"{text}{classes:,} {what}."))
        return summary

    def train(self) -> Run:
        """Train the run to its end, or resume it. Interrupting the cell saves a checkpoint and stops.

        An earlier run is overwritten once: a second call goes on with what the first one has trained.

        Raises InputError if the run can't be trained, ClusterFailed if a cluster doesn't finish the training.
        """
        overwrite, self.overwrite = self.overwrite, False
        try:
            if self.cluster is not None:
                self.result = train_by_cluster(self.config, self.cluster, overwrite=overwrite)
            else:
                assert self.plan is not None
                self.result = train(refreshed(replace(self.plan, overwrite=overwrite)))
        except InputError:  # nothing was trained
            self.overwrite = overwrite
            raise
        if not self.result.did_work:
            print(self.result.message)
        return Run(self.result.run.path)

    def conclusion(self) -> "Conclusion":
        """Return the accuracy that was reached, the data and devices, and the run directory.

        Devices and banner are taken from the run's record, because an earlier session may have trained the
        run on other devices.

        Raises InputError before ``train``, and where there are no predictions.
        """
        result = self.result
        if result is None:
            raise InputError("nothing was trained yet; call train()")
        run = Run(result.run.path)
        predictions, recorded = run.tested(), run.environment
        return Conclusion(
            run=str(run.path),
            state=result.state,
            did_work=result.did_work,
            dataset=self.manifest.dataset,
            data_note=self.data_note,
            devices=str(recorded.get("description") or self.devices.describe()),
            banner=str(recorded.get("banner") or (self.devices.banner if result.did_work else "")),
            split=str(predictions.summary.get("split", "test")),
            accuracy=None if predictions.are_numbers else 1 - float(predictions.wrong.mean()),
            mean_absolute_error=float(predictions.errors.mean()) if predictions.are_numbers else None,
            examples=len(predictions),
            step=int(predictions.summary.get("checkpoint_step", result.step)),
        )


@dataclass(frozen=True)
class Conclusion:
    """The result of the notebook, as text for people and as JSON (``RESULT_MIME``) for programs."""

    run: str
    state: str
    did_work: bool
    dataset: str
    data_note: str
    devices: str
    banner: str
    split: str
    accuracy: float | None
    examples: int
    step: int
    mean_absolute_error: float | None = None

    @property
    def result(self) -> str:
        """The metric that counts, in words."""
        values = vars(self)
        return f"{self.split} " + result_in_words(
            {name: values[name] for name in values if values[name] is not None}
        )

    def __str__(self) -> str:
        return (
            f"{self.result} on {self.dataset}, "
            f"{counted(self.examples, 'example')}, step {self.step}, {self.devices}\nrun {self.run}"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        heading = self.result if self.accuracy is None else f"{self.split} accuracy {self.accuracy:.2%}"
        shown = (
            f"{_banner_html(self.banner)}<p style='font-size:1.3em'><b>{heading}</b> "
            f"on {escape(self.dataset)} ({counted(self.examples, 'example')}, "
            f"weights of step {self.step:,}, {escape(self.devices)})</p>"
            f"<p>Run: <code>{escape(self.run)}</code></p>"
        )
        return {"text/plain": str(self), "text/html": shown, RESULT_MIME: dict(vars(self))}


def _banner_html(banner: str) -> str:
    """Return ``banner`` as a highlighted HTML box; empty for an empty banner."""
    if not banner:
        return ""
    style = (
        "padding:.6em 1em;margin:.3em 0;border-left:5px solid #d55e00;background:#fff3e6;color:#3b2200;"
        "font-weight:600"
    )
    return f"<div style='{style}' role='alert'>{escape(banner)}</div>"


def prepare(config: Config, cluster: LocalCluster | None = None, *, overwrite: bool = False) -> Prepared:
    """Choose the devices, the data set and the run directory of a training.

    If ``job_dir`` holds a run to resume, ``dataset=auto`` means that run's data set.

    Args:
        config: of the training.
        cluster: the processes that train; None: this one.
        overwrite: whether to discard an existing run instead of resuming it.

    Raises InputError if the training can't be run on this machine.
    """
    import_tensorflow()
    # In a notebook TensorFlow logs every reduction between replicas.
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    announce = functools.partial(print, flush=True)
    if cluster is not None:
        devices = _devices_of_cluster(config, cluster)
        # A cluster's own options have been checked with its devices.
        none = {"max_staleness": None, "slow_worker": None, "gradient_compression": "none"}
        options = {name: config.flat()[name] for name in none}
        config, manifest, note = plan_data(config.replace(none), overwrite=overwrite, announce=announce)
        config, note = config.replace(options), note.removeprefix(CHOICE)
        return Prepared(config, manifest, note, devices, cluster=cluster, overwrite=overwrite)
    plan = plan_training(config, overwrite=overwrite, announce=announce)
    devices = plan.devices if isinstance(plan, TrainingPlan) else decide_devices(plan.config)[0]
    note = plan.data_note.removeprefix(CHOICE)
    return Prepared(plan.config, plan.manifest, note, devices, plan, overwrite=overwrite)


def _devices_of_cluster(config: Config, cluster: LocalCluster) -> "Devices":
    """Return the devices of the cluster's processes, and hide the GPUs from this process.

    Raises InputError if they can't run ``config``.
    """
    from labkit.distributed.devices import check_precision, find_devices, num_gpus_found

    devices = find_devices(config.distribution, num_gpus_found())
    if cluster.asynchronous:
        devices = replace(devices, asynchronous_workers=cluster.workers, num_ps=cluster.ps)
    else:
        devices = replace(devices, num_workers=cluster.workers)
    check_together(
        config,
        num_workers=cluster.workers,
        asynchronous=cluster.asynchronous,
        num_local_replicas=devices.num_local_replicas,
    )
    check_precision(config.model, devices)
    here = {"num_gpus": 0, "variable_strategy": "CPU", "deterministic": False, "xla": False}
    if devices.kind == "GPU":  # this process's CPU says nothing about their GPUs
        here |= {"data_format": "auto", "precision": "float32"}
    decide_devices(config.replace(here))
    return devices


def train_by_cluster(config: Config, cluster: LocalCluster, *, overwrite: bool = False) -> TrainResult:
    """Train in several processes on this machine, and show their output and progress.

    The processes end when this one does, even if it is killed. SIGINT, SIGTERM and SIGHUP ask them to save
    and end; a second signal kills them. Call this function from the main thread, which gets the signals.

    Args:
        config: of the training.
        cluster: the processes to start.
        overwrite: discards an existing run instead of resuming it.

    Raises InputError if the run can't be trained, ClusterFailed if the cluster doesn't finish the training.
    """
    training = launch(config, cluster, overwrite=overwrite)
    training.follow()
    return training.result()
