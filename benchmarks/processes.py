"""`labkit train` and its peers in separate processes, of which only one runs at a time.

On shared machines the speed drifts by tens of per cent from minute to minute. The processes of a comparison
therefore exist at the same time and take turns of some seconds while the others are paused.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.common import ROOT
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader

__all__ = ["Training", "Turns", "train_flags", "train_images_per_second"]

SECONDS_TO_START = 300.0
SECONDS_WITHOUT_A_STEP = 120.0
POLL_SECONDS = 0.02


def train_flags(
    manifest: Manifest,
    *,
    num_layers: int,
    batch_size: int,
    model: str = "resnet",
    input_path: str = "memory",
    precision: str = "float32",
) -> list[str]:
    """Return flags of ``labkit train`` for training steps only, without validation and checkpoints.

    Weight decay is decoupled, as in Keras, so that both sides compute the same update.
    """
    values = {
        "dataset": manifest.dataset,
        "data-dir": manifest.directory.parent,
        "num-gpus": 0,
        "model": model,
        "num-layers": num_layers,
        "precision": precision,
        "train-batch-size": batch_size,
        "train-steps": 100_000,  # never reached: the process is ended
        "learning-rate-schedule": "constant",
        "learning-rate": 0.1,
        "momentum": 0.9,
        "weight-decay": 2e-4,
        "weight-decay-mode": "decoupled",
        "validate-every-steps": 0,
        "checkpoint-every-seconds": 1_000_000,
        "input-path": input_path,
    }
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


class _Worker:
    """A process with a log that is ended with the block. ``environment`` None: this process's."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._stdout(errors),
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environment,
            )

    def _stdout(self, log: Any) -> Any:
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def failure(self, what: str) -> RuntimeError:
        """Return an error with the end of the process's log."""
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return RuntimeError(f"{what}; exit code {self.process.poll()}; the end of its log:\n{tail}")


class Training(_Worker):
    """``labkit train``, unchanged, observed through its run directory and paused with SIGSTOP.

    Args:
        folder: where its run directory and log go.
        flags: of ``labkit train``, without ``--job-dir``.
        environment: of the process; None: this process's.
    """

    def __init__(
        self, folder: Path, flags: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run = RunDirectory(folder / "run")
        self._reader = MetricsReader(self.run.metrics_path)
        command = [sys.executable, "-m", "labkit", "train", "--job-dir", str(self.run.path), *flags]
        super().__init__(command, folder / "train.log", environment)

    def start(self, warmup_steps: int) -> None:
        """Wait for ``warmup_steps`` steps, then pause."""
        self._wait_for_step(1, SECONDS_TO_START)
        self._wait_for_step(max(1, warmup_steps), SECONDS_WITHOUT_A_STEP)
        self._hold()

    def turn(self, steps: int) -> list[dict[str, Any]]:
        """Resume for ``steps`` whole steps, then pause again.

        Returns ``steps`` + 1 metrics rows: those of the steps and the one before. The step during which the
        process was paused and the one after it, whose input was already prefetched, are left out.
        """
        self._take_rows()
        os.kill(self.process.pid, signal.SIGCONT)
        first = len(self._reader.rows) + 2
        self._wait_for_step(first + steps, SECONDS_WITHOUT_A_STEP * max(1, steps // 10))
        self._hold()
        return self._reader.rows[first - 1 : first + steps]

    def _hold(self) -> None:
        """Pause the process, and return when it has stopped: signals arrive with a delay."""
        os.kill(self.process.pid, signal.SIGSTOP)
        watched = psutil.Process(self.process.pid)
        while watched.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(POLL_SECONDS)

    def _take_rows(self) -> None:
        if self._reader.path.exists():
            self._reader.poll()

    def _wait_for_step(self, step: int, seconds: float) -> None:
        """Wait until the row of ``step`` is written; there is one row per step, from 1."""
        give_up = time.monotonic() + seconds
        while True:
            self._take_rows()
            if len(self._reader.rows) >= step:
                return
            if self.process.poll() is not None:
                raise self.failure(f"labkit train ended before step {step}")
            if time.monotonic() > give_up:
                raise self.failure(f"labkit train did not reach step {step} in {seconds:.0f} s")
            time.sleep(POLL_SECONDS)


def train_images_per_second(rows: Sequence[dict[str, Any]], batch_size: int) -> float:
    """Return the speed over a turn's rows, from the first row to the last; all time in between counts."""
    return (len(rows) - 1) * batch_size / (rows[-1]["wall_time"] - rows[0]["wall_time"])


class Turns(_Worker):
    """A process of this package that measures one turn for each line (see ``turns.serve_turns``).

    Args:
        module: its name within ``benchmarks``.
        folder: where its log goes.
        flags: of the module.
        environment: of the process; None: this process's.
    """

    def __init__(
        self, module: str, folder: Path, flags: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._module = module
        command = [sys.executable, "-m", f"benchmarks.{module}", *flags]
        super().__init__(command, folder / f"{module}.log", environment)

    def _stdout(self, log: Any) -> Any:
        return subprocess.PIPE

    def turn(self) -> dict[str, Any]:
        """Let it measure one turn and return the result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.wait()
            raise self.failure(f"benchmarks.{self._module} ended")
        return json.loads(line)
