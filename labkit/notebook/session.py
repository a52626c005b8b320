"""Choose and show the devices and the data set of a notebook before training."""

import functools
import logging
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from labkit import home
from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.notebook.parameters import Parameters
from labkit.quiet_import import import_tensorflow

if TYPE_CHECKING:
    from labkit.data.manifest import Manifest
    from labkit.distributed.devices import DevicePlan

__all__ = ["Prepared", "banner_html", "prepare"]

CHOICE = "data set: "  # prefix of the note of labkit.data.resolve


@dataclass(frozen=True)
class Prepared:
    """The devices, the data set, and the configuration with the data set's name filled in."""

    config: Config
    plan: "DevicePlan"
    manifest: "Manifest"
    data_note: str

    def _lines(self) -> list[tuple[str, str]]:
        manifest = self.manifest
        counts = ", ".join(f"{manifest.count(name):,} {name}" for name in manifest.splits)
        return [
            ("devices", self.plan.describe()),
            ("data", self.data_note),
            ("images", f"{counts}; {'×'.join(map(str, manifest.image_shape))}"),
            ("classes", ", ".join(manifest.classes)),
        ]

    def __str__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self._lines()]
        return "\n".join([self.plan.banner, *lines] if self.plan.banner else lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{name}</th>"
            f"<td style='text-align:left'>{escape(text)}</td></tr>"
            for name, text in self._lines()
        )
        return f"{banner_html(self.plan.banner)}<table>{rows}</table>"


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
    """Choose the devices and the data set.

    Devices come first, because TensorFlow must know them before its first operation. If ``job_dir`` holds a
    run to resume, ``dataset=auto`` means that run's data set.

    Raises InputError if the parameters can't be run on this machine.
    """
    config = parameters.config
    import_tensorflow()
    # In a notebook TensorFlow logs every reduction between replicas.
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    from labkit.data.resolve import resolve
    from labkit.training.resolution import check_targets, with_recorded_choices
    from labkit.training.session import prepare_devices

    plan = (
        prepare_devices(config) if parameters.cluster is None else _plan_cluster(config, parameters.cluster)
    )
    config = with_recorded_choices(config, parameters.overwrite)
    check_targets(config)
    manifest, note = resolve(
        config.data.dataset,
        config.data.data_dir or home.data_home(),
        may_prepare=config.data.data_dir is None,
        announce=functools.partial(print, flush=True),
    )
    config = config.replace({"dataset": manifest.dataset})
    return Prepared(config, plan, manifest, note.removeprefix(CHOICE))


def _plan_cluster(config: Config, cluster: LocalCluster) -> "DevicePlan":
    """Return the devices of the cluster's processes, and hide the GPUs from this process.

    Raises InputError if they can't run ``config``.
    """
    from labkit.distributed.devices import (
        check_precision,
        choose_data_format,
        configure_tensorflow,
        num_gpus_found,
        plan_devices,
    )

    plan = plan_devices(config.distribution, num_gpus_found())
    if cluster.asynchronous:
        plan = replace(plan, asynchronous_workers=cluster.workers, num_ps=cluster.ps)
    else:
        plan = replace(plan, num_workers=cluster.workers)
        config.check_replicas(plan.num_replicas)
    check_precision(config.model, plan)
    here = config.replace({"num_gpus": 0, "variable_strategy": "CPU"})
    on_cpu = configure_tensorflow(here.distribution, deterministic=False)
    if plan.kind == "CPU":
        choose_data_format(config.model, on_cpu)
    return plan
