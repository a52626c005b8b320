"""Whether N replicas are one: the same training on several layouts of devices and processes, step by step.

Needs no TensorFlow here: every layout trains in processes of its own, which have one strategy each.
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
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config, fields_by_name
from labkit.config.architectures import model_name
from labkit.errors import InputError
from labkit.run_directory.metrics import MetricsReader

__all__ = ["LAYOUTS", "Layout", "ReplicaComparison", "compare_replicas"]

LAYOUTS = ("1 replica", "2 logical devices", "2 processes", "4 logical devices")
GRACE_SECONDS = 15.0  # for a training that is told to stop: it saves a checkpoint first
_LAYOUT = re.compile(r"(?:(?P<processes>\d+) process(?:es)?)?(?: [×x] )?(?:(?P<devices>\d+) (?P<kind>.+))?")
_KINDS = {"replica": "CPU", "logical device": "CPU", "GPU": "GPU"}
# What a layout or the comparison itself decides.
_DECIDED = ("job_dir", "train_steps", "num_gpus", "simulate_missing_gpus", "sync", "evaluate_test")


@dataclass(frozen=True)
class Layout:
    """Where the replicas are: ``processes`` that train in step, each with ``devices`` of ``kind``."""

    processes: int = 1
    devices: int = 1
    kind: str = "CPU"

    @property
    def num_replicas(self) -> int:
        return self.processes * self.devices

    @classmethod
    def parse(cls, name: str) -> "Layout":
        """Return the layout of a name such as ``2 processes × 2 logical devices``. Raises InputError."""
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
        """Return the command that trains ``values`` on this layout."""
        simulates = self.kind == "CPU" and self.devices > 1
        mine = {
            "job_dir": job_dir,
            "num_gpus": self.devices if simulates or self.kind == "GPU" else 0,
            "simulate_missing_gpus": simulates,
        }
        if self.processes > 1:
            mine["sync"] = True
        fields = fields_by_name()
        command = [sys.executable, "-m", "labkit"]
        if self.processes > 1:
            command += ["cluster", "local", "--workers", str(self.processes), "--"]
        command.append("train")
        for name, value in {**values, **mine}.items():
            command += [fields[name].flag, "none" if value is None else str(value)]
        return command

    def environment(self) -> dict[str, str]:
        """Return the environment of that command: without GPUs where the layout is of CPU devices."""
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        return environment | ({"CUDA_VISIBLE_DEVICES": "-1"} if self.kind == "CPU" else {})


@dataclass(frozen=True)
class ReplicaComparison:
    """Losses of one training on several layouts; shows itself as a table in a notebook.

    ``config``: what was trained. ``losses``: by layout, in order, float64 [steps] in nats; the others are
    compared with the first.
    """

    config: Config
    losses: Mapping[str, NDArray[np.float64]]

    @property
    def reference(self) -> str:
        """The layout that the others are compared with."""
        return next(iter(self.losses))

    @property
    def differences(self) -> dict[str, NDArray[np.float64]]:
        """|loss − loss of the reference| of the other layouts, float64 [steps]."""
        first, *others = self.losses
        return {name: np.abs(self.losses[name] - self.losses[first]) for name in others}

    @property
    def largest(self) -> float:
        """The largest difference of all layouts and steps; 0 where there is only one layout."""
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
                apart = differences[name]
                compared = (f"{apart[0]:.1e}", f"{apart.max():.1e}", str(int(apart.argmax()) + 1))
            replicas = str(Layout.parse(name).num_replicas)
            rows.append((name, replicas, f"{losses[0]:.6f}", f"{losses[-1]:.6f}", *compared))
        return rows

    def _header(self) -> tuple[str, ...]:
        last = len(self.losses[self.reference])
        steps = ("loss at step 1", f"at step {last}")
        return ("layout", "replicas", *steps, "apart at step 1", "largest", "at step")

    def __str__(self) -> str:
        table = [self._header(), *self._rows()]
        width, *widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [[row[0].ljust(width), *map(str.rjust, row[1:], widths)] for row in table]
        return "\n".join([self.title, *("  ".join(line).rstrip() for line in lines)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line(row, "td") for row in self._rows())
        return (
            f"<table><caption><b>{escape(self.title)}</b></caption>"
            f"<thead>{line(self._header(), 'th')}</thead><tbody>{body}</tbody></table>"
        )


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

    The gradients of several replicas are summed in another order than that of one, and the rounding errors
    grow with the steps, the faster the higher the learning rate. ``"precision": "float32"`` at a gentle rate
    keeps 50 steps within 1e-5; without ``"sync_batch_norm": True`` the statistics, and with them the losses,
    differ from the first step on.

    Args:
        config_values: names and values of ``Config``'s fields, without those that the layouts decide.
        layouts: such as ``LAYOUTS``, ``2 processes × 2 logical devices`` or ``2 GPUs``; the first is the
            reference.
        steps: of each training.
        folder: keeps the run directories, and what is finished there isn't trained again; None: a
            temporary folder.
        time_limit_seconds: for one layout.
        announce: takes lines for people, one for each layout.

    Raises InputError, before anything is trained, for values that can't be run (a batch that the replicas
    don't divide, too); RuntimeError, with its last lines, where a training fails or takes too long.
    """
    chosen = [Layout.parse(name) for name in layouts]
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"layouts are {list(layouts)}; allowed: one or more, each once")
    decided = [name for name in _DECIDED if name in config_values]
    if decided:
        raise InputError(f"{decided[0]} is not for the caller of compare_replicas to choose; leave it out")
    values = {**config_values, "train_steps": steps}
    values.setdefault("validate_every_steps", 0)
    config = Config.from_flat(values)
    for layout in chosen:
        config.check_replicas(layout.num_replicas)
    losses = {}
    with ExitStack() as stack:
        place = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-replicas-")))
        place.mkdir(parents=True, exist_ok=True)
        for number, (name, layout) in enumerate(zip(layouts, chosen, strict=True), 1):
            started = time.monotonic()
            job_dir = place / re.sub(r"\W+", "-", name.strip())
            _train(layout, {**values, "evaluate_test": False}, job_dir, time_limit_seconds)
            losses[name] = _read_losses(job_dir, steps)
            announce(
                f"{number} of {len(layouts)}: {name}: loss {losses[name][0]:.4f} at step 1, "
                f"{losses[name][-1]:.4f} at step {steps} ({time.monotonic() - started:.0f} s)"
            )
    return ReplicaComparison(config, losses)


def _train(layout: Layout, values: Mapping[str, Any], job_dir: Path, time_limit_seconds: float) -> None:
    """Train to the end in a child process, which doesn't outlive this call."""
    log = job_dir.with_suffix(".txt")
    with open(log, "w") as output:
        process = subprocess.Popen(
            layout.command(values, job_dir),
            env=layout.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt is for us alone: we stop the training ourselves
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
    """End a training that still runs: politely first, since a cluster's launcher has processes to reap."""
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
        raise RuntimeError(f"the run in {job_dir} has {len(rows)} training rows; expected: {steps}, in order")
    return np.array([row["loss"] for row in rows], np.float64)
