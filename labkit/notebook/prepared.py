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
from labkit.training.plan import RunPlan, decide_devices, plan_run

if TYPE_CHECKING:
    from labkit.data.manifest import Manifest
    from labkit.distributed.devices import Devices

__all__ = ["Prepared", "banner_html", "prepare"]

CHOICE = "data set: "  # prefix of the note of labkit.data.resolve


@dataclass(frozen=True)
class Prepared:
    """The plan of the notebook's training, and the devices of the processes that train."""

    plan: RunPlan
    devices: "Devices"

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.plan.config

    @property
    def manifest(self) -> "Manifest":
        """The prepared data set."""
        return self.plan.manifest

    @property
    def data_note(self) -> str:
        """Which data set was chosen, and why."""
        return self.plan.data_note.removeprefix(CHOICE)

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


def banner_html(banner: str) -> str:
    """Return ``banner`` as a highlighted HTML box; empty for an empty banner."""
    if not banner:
        return ""
    style = (
        "padding:.6em 1em;margin:.3em 0;border-left:5px solid #d55e00;background:#fff3e6;color:#3b2200;"
        "font-weight:600"
    )
    return f"<div style='{style}' role='alert'>{escape(banner)}</div>"


def prepare(parameters: Parameters) -> Prepared:
    """Choose the devices, the data set and the run directory.

    If ``job_dir`` holds a
    run to resume, ``dataset=auto`` means that run's data set.

    Raises InputError if the parameters can't be run on this machine.
    """
    config, cluster = parameters.config, parameters.cluster
    import_tensorflow()
    # In a notebook TensorFlow logs every reduction between replicas.
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    devices = None if cluster is None else _devices_of_cluster(config, cluster)
    # A cluster's own options have been checked with its devices.
    own = {"max_staleness": None, "slow_worker": None, "gradient_compression": "none"}
    alone = config if cluster is None else config.replace(own)
    plan = plan_run(
        alone,
        overwrite=parameters.overwrite,
        has_run=cluster is None,
        uses_devices=cluster is None,
        announce=functools.partial(print, flush=True),
    )
    return Prepared(plan, devices or plan.devices or decide_devices(plan.config)[0])


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
