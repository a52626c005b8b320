"""Commands in separate processes: run to their end, observed, or paused while others have their turn.

On shared machines the speed drifts by tens of per cent from minute to minute. The processes of a comparison
therefore exist at the same time and take turns of some seconds while the others are paused.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.common import ROOT
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader

SECONDS_TO_START = 300.0
SECONDS_WITHOUT_A_STEP = 120.0
SECONDS_TO_END = 90.0  # of a launcher with all its tasks
POLL_SECONDS = 0.02
LABKIT = str(Path(sys.executable).with_name("labkit"))
Row = dict[str, Any]

# The allocator settings with which every side of a comparison is measured. By default glibc returns big
# buffers to the kernel and requests them again for the next operation, with a page fault for each 4 KiB.
# "keeping" makes it keep them. Neither jemalloc nor tcmalloc is on PyPI.
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "keeping": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "100000000000",
        "MALLOC_TOP_PAD_": "268435456",
    },
}


def environment_with(allocator: str) -> dict[str, str]:
    """Return this process's environment with the variables of ``allocator`` and of no other setting."""
    known = {*ALLOCATORS["keeping"], "TF_CPU_ALLOCATOR_USE_BFC"}
    kept = {name: value for name, value in os.environ.items() if name not in known}
    return kept | ALLOCATORS[allocator]


def train_command(options: argparse.Namespace, manifest: Manifest, **fields: object) -> list[str]:
    """Return ``labkit``'s arguments for training steps only, without validation and checkpoints.

    Weight decay is decoupled, as in Keras, so that both sides compute the same update. ``options``: have the
    depth of a ResNet and the size of a batch. ``fields``: of the configuration, beside these or in their
    place.
    """
    values = {
        "dataset": manifest.dataset,
        "data_dir": manifest.directory.parent,
        "num_gpus": 0,
        "model": "resnet",
        "num_layers": options.num_layers,
        "train_batch_size": options.batch_size,
        "train_steps": 100_000,  # never reached: the process is ended
        "learning_rate_schedule": "constant",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 2e-4,
        "weight_decay_mode": "decoupled",
        "validate_every_steps": 0,
        "checkpoint_every_seconds": 1_000_000,
        "input_path": "memory",
        **fields,
    }
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items()]
    return ["train", *(word for pair in pairs for word in pair)]


def run(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> float:
    """Run a command to its end and return its seconds. Its output is appended to ``log``.

    Raises RuntimeError with the end of the output if it fails.
    """
    started = time.perf_counter()
    with Process(command, log, environment) as process:
        code = process.process.wait()
        seconds = time.perf_counter() - started
        if code:
            raise process.failure(f"{' '.join([Path(command[0]).name, *command[1:]])} ended")
    return seconds


class Process:
    """A command whose output goes to ``log``, ended with the block.

    ``environment``: None: this process's. ``options``: of ``subprocess.Popen``.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with open(log, "ab") as output:
            streams: dict[str, Any] = {"stdout": output, "stderr": output} | options
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, **streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in filter(None, (self.process.stdin, self.process.stdout)):
            stream.close()

    def failure(self, what: str) -> RuntimeError:
        """Return an error with the end of the output."""
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return RuntimeError(f"{what}; exit code {self.process.poll()}; the end of its output:\n{tail}")

    def wait_until(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        """Wait for a condition. Raises RuntimeError if the process ends before, or after ``seconds``."""
        give_up = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise self.failure(f"no {what}")
            time.sleep(POLL_SECONDS)

    def pause(self) -> None:
        """Stop the process, and return when it has stopped: signals arrive with a delay."""
        self.process.send_signal(signal.SIGSTOP)
        watched = psutil.Process(self.process.pid)
        while watched.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(POLL_SECONDS)

    def cpu_seconds(self) -> float:
        """Return the CPU time that it and its children have used."""
        return sum(sum(one.cpu_times()[:2]) for one in self.family())

    def family(self) -> list[psutil.Process]:
        """Return the process and its children."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]


class Training(Process):
    """A command of ``labkit`` that trains, observed through its run directory and paused with SIGSTOP.

    Args:
        folder: where its run directory and log go.
        arguments: of ``labkit``, without ``--job-dir``: of ``train`` or ``cluster local``.
        environment: of the process; None: this process's.
    """

    def __init__(
        self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.run = RunDirectory(folder / "run")
        self._reader = MetricsReader(self.run.metrics_path)
        self._is_launcher = arguments[0] == "cluster"
        self._step, self._give_up = 0, time.monotonic() + SECONDS_TO_START
        command = [LABKIT, *arguments, "--job-dir", str(self.run.path)]
        self.started = time.time()  # the clock of the rows' wall_time
        super().__init__(command, folder / "train.log", environment)

    def __exit__(self, *error: object) -> None:
        if self._is_launcher and self.process.poll() is None:  # it ends its tasks
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(SECONDS_TO_END)
        super().__exit__(*error)

    def poll(self) -> list[Row]:
        """Return the rows so far."""
        self._reader.poll()
        return self._reader.rows

    def wait_for_rows(self, enough: Callable[[list[Row]], object]) -> list[Row]:
        """Wait until the rows are ``enough`` and return them.

        Raises RuntimeError with the end of its output if it ends before that or stalls.
        """
        while not enough(rows := self.poll()):
            self.check()
            time.sleep(POLL_SECONDS)
        return list(rows)

    def check(self) -> None:
        """Raise RuntimeError with the end of its output if it has ended or makes no steps any more."""
        if len(self._reader.rows) > self._step:
            self._step = len(self._reader.rows)
            self._give_up = time.monotonic() + SECONDS_WITHOUT_A_STEP
        if self.process.poll() is not None or time.monotonic() > self._give_up:
            raise self.failure(f"labkit {self._reader.path.parent} made no step {self._step + 1}")

    def start(self, warmup_steps: int) -> None:
        """Wait for ``warmup_steps`` steps, then pause."""
        self.wait_for_rows(lambda rows: len(rows) >= max(1, warmup_steps))
        self.pause()

    def turn(self, steps: int) -> list[Row]:
        """Resume for ``steps`` whole steps, then pause again.

        Returns ``steps`` + 1 metrics rows: those of the steps and the one before. The step during which the
        process was paused and the one after it, whose input was already prefetched, are left out.
        """
        first = len(self.poll()) + 2
        self._give_up = time.monotonic() + SECONDS_WITHOUT_A_STEP
        self.process.send_signal(signal.SIGCONT)
        rows = self.wait_for_rows(lambda rows: len(rows) >= first + steps)
        self.pause()
        return rows[first - 1 : first + steps]

    def speed(self, steps: int, batch_size: int) -> float:
        """Return the images per second of a turn."""
        return images_per_second(self.turn(steps), batch_size)


def images_per_second(rows: Sequence[Row], batch_size: int) -> float:
    """Return the speed over all steps, and all time, between the rows, which may be in any order."""
    steps, times = ([row[name] for row in rows] for name in ("step", "wall_time"))
    return (max(steps) - min(steps)) * batch_size / (max(times) - min(times))


class Turns(Process):
    """A process of this package that measures one turn for each line (see ``turns.serve_turns``).

    Args:
        module: its name within ``benchmarks``.
        folder: where its log goes.
        options: what it is told (see ``turns.turn_options``).
        environment: of the process.
    """

    def __init__(
        self, module: str, folder: Path, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self._module = module
        command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(options)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        super().__init__(command, folder / f"{module}.log", environment, **pipes)

    def turn(self) -> dict[str, Any]:
        """Let it measure one turn and return the result."""
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
