"""A real cluster and its launcher, for tests that kill, freeze or stop parts of it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.distributed.heartbeat import heartbeat_path, read_heartbeat
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader, read_metrics
from labkit.run_directory.rows import RowReader

# Small enough for seconds, with a schedule by which every step is known: no two have the same learning rate.
SMALL = {
    "dataset": "shapes",
    "num_layers": 8,
    "train_batch_size": 16,
    "eval_batch_size": 100,
    "learning_rate": 0.01,
    "learning_rate_schedule": "cosine",
    "batch_norm_decay": 0.9,
    "train_steps": 60,
    "log_every_steps": 10,
    "checkpoint_every_steps": 10,
    "checkpoint_every_seconds": None,
    "validate_every_steps": 0,
    "evaluate_test": False,
    "num_gpus": 0,
    "rendezvous_seconds": 60.0,
    "peer_timeout_seconds": 5.0,
}
# The marks of a file whose tests hurt a cluster.
HURTS = [getattr(pytest.mark, name) for name in ("long", "faults", "slow", "alone")]
MARK = "LABKIT_TEST_CLUSTER"  # a variable that every process of a cluster inherits
LIMIT = 100.0  # seconds until a test gives up; nothing waits for it to pass
LOOK = 0.01  # seconds between two looks


def flags(job_dir: Path, **fields: object) -> list[str]:
    """Return the flags of ``labkit train`` for ``SMALL`` with other values for ``fields``."""
    given = SMALL | fields
    pairs = [("--" + name.replace("_", "-"), str(value)) for name, value in given.items()]
    return ["--job-dir", str(job_dir), *(word for pair in pairs for word in pair)]


def until(condition: Callable[[], Any], what: Callable[[], object], limit: float = LIMIT) -> Any:
    """Return the first true value of ``condition``; fail with ``what`` after ``limit`` seconds."""
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end, what()
        time.sleep(LOOK)
    return found


@dataclass(frozen=True)
class Line:
    """A line of output, and the monotonic time when it came."""

    time: float
    text: str


class Cluster:
    """``labkit cluster local`` in its own process, with its tasks and its output.

    Args:
        job_dir: the run directory.
        ps: parameter servers; 0: synchronous.
        workers: tasks that train.
        hosts: whether each task has a host of its own.
        max_restarts: after the loss of a process.
        fields: of the training, over those of ``SMALL``.
    """

    def __init__(
        self,
        job_dir: Path,
        *,
        ps: int = 0,
        workers: int = 2,
        hosts: bool = False,
        max_restarts: int = 3,
        **fields: object,
    ) -> None:
        self.run, self.chief = RunDirectory(job_dir), "chief:0" if ps else "worker:0"
        self.lines: list[Line] = []
        self._mark = uuid.uuid4().hex
        self._ended: float | None = None
        size = ["--workers", str(workers), "--ps", str(ps), *(["--hosts"] if hosts else [])]
        size += ["--max-restarts", str(max_restarts)]
        command = [sys.executable, "-m", "labkit", "cluster", "local", *size]
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        self.launcher = subprocess.Popen(
            [*command, "--", "train", *flags(job_dir, **fields)],
            env=environment | {MARK: self._mark, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Tests that run in the background ignore Ctrl-C, and the launcher would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.launcher.stdout is not None
        for text in self.launcher.stdout:
            self.lines.append(Line(time.monotonic(), text.rstrip()))

    # ---- processes -------------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Return all running descendants of the launcher, itself and orphans included."""
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self._mark]

    def task(self, name: str) -> psutil.Process | None:
        """Return the process of a task (not its subreaper); None if there is none."""
        for process in self.processes():
            with suppress(psutil.Error):
                is_task = process.cmdline()[1:5] == ["-P", "-m", "labkit", "train"]
                if is_task and _task_name(_environment(process)) == name:
                    return process
        return None

    def send(self, name: str, number: int) -> float:
        """Send a signal to a task, or to the ``launcher``; return the monotonic time of it."""
        if name == "launcher":
            self.launcher.send_signal(number)
        else:
            until(lambda: self.task(name), self.text).send_signal(number)
        return time.monotonic()

    def end(self, limit: float = LIMIT) -> int:
        """Wait for the launcher's end and return its exit code; no process of the cluster may be left."""
        try:
            code = self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end\n{self.text()}") from None
        left = self.processes()
        if code != -signal.SIGKILL:
            assert not left, f"{left} outlived the launcher\n{self.text()}"
        self._reader.join(10.0)
        return code

    def destroy(self) -> None:
        """Kill what a failed test has left."""
        self.launcher.kill()
        self.launcher.wait()
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()

    # ---- what can be seen ------------------------------------------------------------------------------

    def text(self) -> str:
        return "\n".join(line.text for line in list(self.lines))

    def said(self, pattern: str, since: float = 0.0) -> Line | None:
        """Return the first line since a moment that matches a regular expression."""
        return next(
            (line for line in list(self.lines) if line.time >= since and re.search(pattern, line.text)), None
        )

    def joins(self, name: str) -> bool:
        """Return whether a task sends heartbeats and is not in a session yet."""
        heartbeat, process = read_heartbeat(heartbeat_path(self.run.cluster_path, name)), self.task(name)
        return bool(heartbeat and process and heartbeat.pid == process.pid and heartbeat.phase == "waiting")

    def metrics(self) -> MetricsReader:
        return read_metrics(self.run)

    def step(self) -> int:
        """Return the step of the last row."""
        return max((row["step"] for row in self.metrics().split("train")), default=0)

    def restarts(self) -> int:
        """Return how often the launcher has started all tasks again."""
        return len([line for line in list(self.lines) if "; restart " in line.text])

    def resumed_at(self) -> list[int]:
        """Return the steps of the checkpoints from which it went on."""
        return [point.step for point in self.metrics().resume_points]

    def checkpoints(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        return sorted(int(path.name[5:]) for path in self.run.checkpoints_path.glob("step-*"))

    def unfinished(self, after: int = 0) -> list[int]:
        """Return the steps after ``after`` whose checkpoint is being written."""
        found = (path.name for path in self.run.checkpoints_path.glob(".step-*.tmp"))
        steps = {int(name.split("-")[1].split(".")[0]) for name in found}
        return sorted(steps - set(self.checkpoints()) - set(range(after + 1)))

    def validates(self, step: int) -> bool:
        """Return whether the validation of a step has begun and is not done."""
        metrics = self.metrics()
        validated = any(row["step"] >= step for row in metrics.split("validation"))
        return self.step() == step and not validated

    def freeze_while_saving(self, after: int) -> int:
        """Stop the chief in the middle of writing a checkpoint of a step after ``after``; return the step."""

        chief = until(lambda: self.task(self.chief), self.text)

        def caught() -> int | None:
            if not self.unfinished(after):
                return None
            chief.suspend()
            # Check again once it has stopped: the checkpoint may have been completed meanwhile.
            until(lambda: chief.status() == psutil.STATUS_STOPPED, self.text)
            found = self.unfinished(after)
            if found:
                return found[0]
            chief.resume()
            return None

        end = time.monotonic() + LIMIT
        while (step := caught()) is None:
            assert self.launcher.poll() is None and time.monotonic() < end, self.text()
        return step


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):  # of another user, or gone meanwhile
        return {}


def _task_name(environment: dict[str, str]) -> str:
    task: dict[str, Any] = json.loads(environment.get("TF_CONFIG", "{}")).get("task", {})
    return f"{task.get('type')}:{task.get('index')}"


def worker_rows(run: RunDirectory, name: str) -> Iterator[dict[str, Any]]:
    """Return the rows that say what a worker did, in order."""
    return iter(RowReader(run.cluster_path / f"{name.replace(':', '-')}.jsonl").poll())
