"""Where replicas are: the names of layouts, and the command that trains on one of them."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cluster.flags import train_arguments
from labkit.cluster.launch import visible_gpus
from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.errors import InputError, short
from labkit.startup.child import python_command
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
