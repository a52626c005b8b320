"""Check that N replicas train like one: compare the losses of one training on several layouts of devices.

This module doesn't import TensorFlow: each layout trains in its own processes.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.show_table import html_table, text_table
from labkit.config import Config, fields_by_name
from labkit.config.architectures import model_name
from labkit.errors import InputError
from labkit.run_directory.metrics import MetricsReader

__all__ = ["LAYOUTS", "Layout", "ReplicaComparison", "compare_replicas"]

LAYOUTS = ("1 replica", "2 logical devices", "2 processes", "4 logical devices")
GRACE_SECONDS = 15.0  # for a training to save a checkpoint after it was told to stop
_LAYOUT = re.compile(r"(?:(?P<processes>\d+) process(?:es)?)?(?: [×x] )?(?:(?P<devices>\d+) (?P<kind>.+))?")
_KINDS = {"replica": "CPU", "logical device": "CPU", "GPU": "GPU"}
# Fields that the layout or the comparison sets.
_DECIDED = ("job_dir", "train_steps", "num_gpus", "simulate_missing_gpus", "sync", "evaluate_test")


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

    def command(self, values: Mapping[str, Any], job_dir: Path) -> list[str]:
        """Return the command that trains the configuration ``values`` on this layout."""
        simulates = self.kind == "CPU" and self.devices > 1
        decided = {
            "job_dir": job_dir,
            "num_gpus": self.devices if simulates or self.kind == "GPU" else 0,
            "simulate_missing_gpus": simulates,
        }
        if self.processes > 1:
            decided["sync"] = True
        fields = fields_by_name()
        command = [sys.executable, "-m", "labkit"]
        if self.processes > 1:
            command += ["cluster", "local", "--workers", str(self.processes), "--"]
        command.append("train")
        for name, value in {**values, **decided}.items():
            command += [fields[name].flag, "none" if value is None else str(value)]
        return command

    def environment(self) -> dict[str, str]:
        """Return the environment of that command. It hides the GPUs from a layout of CPU devices."""
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        return environment | ({"CUDA_VISIBLE_DEVICES": "-1"} if self.kind == "CPU" else {})


@dataclass(frozen=True)
class ReplicaComparison:
    """The losses of one training on several layouts. A notebook displays them as a table.

    ``config``: what was trained. ``losses``: by layout, float64 [steps], in nats. The first layout is the
    reference.
    """

    config: Config
    losses: Mapping[str, NDArray[np.float64]]

    @property
    def reference(self) -> str:
        """Name of the layout that the others are compared with."""
        return next(iter(self.losses))

    @property
    def differences(self) -> dict[str, NDArray[np.float64]]:
        """|loss − loss of the reference| of each other layout, float64 [steps], in nats."""
        first, *others = self.losses
        return {name: np.abs(self.losses[name] - self.losses[first]) for name in others}

    @property
    def largest(self) -> float:
        """The largest difference over all layouts and steps, in nats; 0 for a single layout."""
        return max((float(difference.max()) for difference in self.differences.values()), default=0.0)

    @property
    def title(self) -> str:
        config = self.config
        statistics = "synchronized" if config.model.sync_batch_norm else "each replica's own"
        return (
            f"{model_name(config.model)}, batch {config.data.train_batch_size}, "
            f"learning rate {config.optimizer.learning_rate:g}, {config.model.precision}, "
            f"batch statistics {statistics}"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        differences = self.differences
        for name, losses in self.losses.items():
            compared = ("", "", "")
            if name in differences:
                difference = differences[name]
                largest = int(difference.argmax())
                compared = (f"{difference[0]:.1e}", f"{difference[largest]:.1e}", str(largest + 1))
            replicas = str(Layout.parse(name).num_replicas)
            rows.append((name, replicas, f"{losses[0]:.6f}", f"{losses[-1]:.6f}", *compared))
        return rows

    def _header(self) -> tuple[str, ...]:
        last = len(self.losses[self.reference])
        steps = ("loss at step 1", f"at step {last}")
        return ("layout", "replicas", *steps, "difference at step 1", "largest", "at step")

    def __str__(self) -> str:
        return f"{self.title}\n{text_table([self._header(), *self._rows()])}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self._header(), self._rows(), caption=self.title)


def compare_replicas(
    config_values: Mapping[str, Any],
    layouts: Sequence[str] = LAYOUTS,
    *,
    steps: int = 50,
    folder: Path | str | None = None,
    time_limit_seconds: float = 1800.0,
    announce: Callable[[str], None] = print,
) -> ReplicaComparison:
    """Train the same configuration on each layout, one after the other, and return all losses.

    Several replicas sum their gradients in another order than a single one, so rounding errors differ. They
    grow with each step, and faster at higher learning rates. With ``"precision": "float32"`` and a low
    learning rate, the losses of 50 steps agree within 1e-5. Without ``"sync_batch_norm": True`` each replica
    has its own batch statistics, and the losses differ from the first step.

    Args:
        config_values: values of ``Config``'s fields by name, without those that the layouts set.
        layouts: such as ``LAYOUTS``, ``2 processes × 2 logical devices`` or ``2 GPUs``; the first is the
            reference.
        steps: of each training.
        folder: where the run directories are kept; finished runs there aren't trained again. None: a
            temporary folder.
        time_limit_seconds: for each layout.
        announce: takes lines for people, one for each layout.

    Raises InputError, before anything is trained, for values that can't be run, such as a batch size that
    isn't a multiple of the replicas. Raises RuntimeError, with the last lines of output, if a training fails
    or takes too long.
    """
    chosen = [Layout.parse(name) for name in layouts]
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"layouts is {list(layouts)}; allowed: one or more layouts, each named once")
    decided = [name for name in _DECIDED if name in config_values]
    if decided:
        raise InputError(f"{decided[0]} is set by compare_replicas; leave it out of config_values")
    values = {**config_values, "train_steps": steps}
    values.setdefault("validate_every_steps", 0)
    config = Config.from_flat(values)
    for layout in chosen:
        config.check_replicas(layout.num_replicas)
    losses = {}
    with ExitStack() as stack:
        root = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-replicas-")))
        root.mkdir(parents=True, exist_ok=True)
        for number, (name, layout) in enumerate(zip(layouts, chosen, strict=True), 1):
            started = time.monotonic()
            job_dir = root / re.sub(r"\W+", "-", name.strip())
            _train(layout, {**values, "evaluate_test": False}, job_dir, time_limit_seconds)
            losses[name] = _read_losses(job_dir, steps)
            announce(
                f"{number} of {len(layouts)}: {name}: loss {losses[name][0]:.4f} at step 1, "
                f"{losses[name][-1]:.4f} at step {steps} ({time.monotonic() - started:.0f} s)"
            )
    return ReplicaComparison(config, losses)


def _train(layout: Layout, values: Mapping[str, Any], job_dir: Path, time_limit_seconds: float) -> None:
    """Train to the end in a child process. The process never outlives this call."""
    log = job_dir.with_suffix(".txt")
    with open(log, "w") as output:
        process = subprocess.Popen(
            layout.command(values, job_dir),
            env=layout.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the training
        )
        try:
            code: int | None = process.wait(time_limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _stop(process)
    if code == 0:
        return
    lines = log.read_text(errors="replace").strip().splitlines()
    if code == 2 and lines:
        raise InputError(lines[-1].partition("error: ")[2] or lines[-1])
    what = "took too long" if code is None else f"ended with exit code {code}"
    raise RuntimeError("\n".join([f"the training in {job_dir} {what}; its last lines:", *lines[-15:]]))


def _stop(process: subprocess.Popen) -> None:
    """End a training that still runs. SIGTERM first, so that a cluster's launcher can end its processes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read_losses(job_dir: Path, steps: int) -> NDArray[np.float64]:
    reader = MetricsReader(job_dir / "metrics.jsonl")
    reader.poll()
    rows = reader.split("train")
    if [row["step"] for row in rows] != list(range(1, steps + 1)):
        raise RuntimeError(
            f"the run in {job_dir} has {len(rows)} training rows; expected: one a step from 1 to {steps}"
        )
    return np.array([row["loss"] for row in rows], np.float64)
