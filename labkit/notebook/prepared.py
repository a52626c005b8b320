"""Choose and show the devices and the data set of a notebook before training."""

import functools
import logging
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.notebook.parameters import Parameters
from labkit.plurals import facts_html, facts_text
from labkit.startup.quiet_import import import_tensorflow
from labkit.training.checks import check_together
from labkit.training.plan import RunPlan, TrainingPlan, decide_devices, plan_data, plan_training

if TYPE_CHECKING:
    from labkit.data.manifest import Manifest
    from labkit.distributed.devices import Devices

__all__ = ["Prepared", "PreparedCluster", "PreparedHere", "banner_html", "prepare"]

CHOICE = "data set: "  # prefix of the note of labkit.data.resolve


@dataclass(frozen=True)
class Prepared:
    """What a notebook trains with.

    ``config``: the resolved configuration. ``manifest``: the prepared data set. ``data_note``: which data set
    was chosen, and why. ``devices``: of the processes that train.
    """

    config: Config
    manifest: "Manifest"
    data_note: str
    devices: "Devices"

    def _lines(self) -> list[tuple[str, str]]:
        facts = dict(self.manifest.facts())
        return [
            ("devices", self.devices.describe()),
            ("data", self.data_note),
            *((name, facts[name]) for name in ("images", "classes")),
        ]

    def __str__(self) -> str:
        lines = facts_text(self._lines())
        return f"{self.devices.banner}\n{lines}" if self.devices.banner else lines

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return banner_html(self.devices.banner) + facts_html(self._lines())


@dataclass(frozen=True, repr=False)
class PreparedHere(Prepared):
    """What a notebook trains with in its own process, by ``plan``."""

    plan: RunPlan


@dataclass(frozen=True, repr=False)
class PreparedCluster(Prepared):
    """What a notebook trains with in the processes of a ``cluster``."""

    cluster: LocalCluster


def banner_html(banner: str) -> str:
    """Return ``banner`` as a highlighted HTML box; empty for an empty banner."""
    if not banner:
        return ""
    style = (
        "padding:.6em 1em;margin:.3em 0;border-left:5px solid #d55e00;background:#fff3e6;color:#3b2200;"
        "font-weight:600"
    )
    return f"<div style='{style}' role='alert'>{escape(banner)}</div>"


def prepare(parameters: Parameters) -> PreparedHere | PreparedCluster:
    """Choose the devices, the data set and the run directory.

    If ``job_dir`` holds a run to resume, ``dataset=auto`` means that run's data set.

    Raises InputError if the parameters can't be run on this machine.
    """
    config, cluster = parameters.config, parameters.cluster
    import_tensorflow()
    # In a notebook TensorFlow logs every reduction between replicas.
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    announce = functools.partial(print, flush=True)
    if cluster is not None:
        devices = _devices_of_cluster(config, cluster)
        # A cluster's own options have been checked with its devices.
        none = {"max_staleness": None, "slow_worker": None, "gradient_compression": "none"}
        own = {name: config.flat()[name] for name in none}
        config, manifest, note = plan_data(
            config.replace(none), overwrite=parameters.overwrite, announce=announce
        )
        return PreparedCluster(config.replace(own), manifest, note.removeprefix(CHOICE), devices, cluster)
    plan = plan_training(config, overwrite=parameters.overwrite, announce=announce)
    devices = plan.devices if isinstance(plan, TrainingPlan) else decide_devices(plan.config)[0]
    return PreparedHere(plan.config, plan.manifest, plan.data_note.removeprefix(CHOICE), devices, plan)


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
