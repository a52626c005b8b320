"""Train from the notebook, in its own process or in a cluster that it starts and follows."""

import contextvars
import dataclasses
import signal
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.errors import InputError
from labkit.notebook.cluster import ClusterFailed
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader
from labkit.training.console import Console
from labkit.training.plan import TrainResult, plan_run

if TYPE_CHECKING:
    from labkit.notebook.parameters import Parameters
    from labkit.notebook.prepared import Prepared

__all__ = ["train", "train_by_cluster"]

BAD_INPUT = 2  # exit code of labkit's commands
ERROR_PREFIX = "labkit: error: "  # of the line in which they give the reason
POLL_SECONDS = 0.5


def train(prepared: "Prepared", parameters: "Parameters") -> TrainResult:
    """Train the run to its end, or resume it. Interrupting the cell saves a checkpoint and stops.

    Raises InputError if the run can't be trained, ClusterFailed if a cluster doesn't finish the training.
    """
    if parameters.cluster is not None:
        return train_by_cluster(prepared.config, parameters.cluster, overwrite=parameters.overwrite)
    return prepared.plan.looked_up_again().train()


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
    from labkit.cluster.launch import plan_launch

    # ``announce`` is silent because the first worker prints the same lines.
    launch = plan_launch(
        config, workers=cluster.workers, ps=cluster.ps, overwrite=overwrite, announce=lambda line: None
    )
    if launch.finished:
        found = launch.plan.train()  # only reads the finished run
        way_out = "overwrite = True trains it again, another job_dir keeps both"
        return dataclasses.replace(found, message=f"{found.message}; {way_out}")
    output = _Output()
    before = launch.run.read_status()
    with _Follower(launch.run, launch.config.run.train_steps):
        code = launch.start(output=output)
    status = launch.run.read_status()
    message = status.message if status is not None and status != before else ""
    if code == 0 and status is not None and status.state == "finished":
        return dataclasses.replace(
            plan_run(launch.config, uses_devices=False).train(), message=message, did_work=True
        )
    step = status.step if status else 0
    if code in _STOPPED:
        if status is None or status.state != "interrupted":
            message = "ended before it could save; the same cell resumes from the last checkpoint"
        return TrainResult("interrupted", launch.run, step, message, signal_number=code - 128)
    if code == BAD_INPUT and output.error:
        raise InputError(output.error)
    if message and status is not None and status.state == "failed" and code != EXIT_LOST_PEER:
        return TrainResult("failed", launch.run, step, message)
    raise ClusterFailed(f"the cluster ended with exit code {code}: {output.reason}")


_STOPPED = [128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]


class _Output:
    """Prints the lines of a cluster and remembers those that explain why it ended."""

    def __init__(self) -> None:
        self.error = ""
        self._last = self._verdict = ""

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        self._last = line or self._last
        if line.startswith("[cluster] "):
            self._verdict = line.removeprefix("[cluster] ")
        elif ERROR_PREFIX in line:
            self.error = line.partition(ERROR_PREFIX)[2]

    @property
    def reason(self) -> str:
        return self._verdict or self._last or "it printed nothing"


class _Follower:
    """Shows the progress of a run that other processes train, from a thread that polls its metrics."""

    def __init__(self, run: RunDirectory, total_steps: int) -> None:
        self._reader = MetricsReader(run.metrics_path, keep_rows=False)
        self._total = total_steps
        self._console = Console()
        self._started = False
        self._ending = threading.Event()
        # The copied context makes IPython attach the thread's output to the running cell.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)

    def __enter__(self) -> Self:
        self._reader.poll()  # skips the rows of earlier sessions
        self._known = (self._reader.generation, len(self._reader.resume_points))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        self._console.close()

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(POLL_SECONDS)
            try:
                self._poll()
            except OSError as error:  # the training continues without progress
                print(f"progress can't be shown: {error}", file=sys.stderr, flush=True)
                return

    def _poll(self) -> None:
        rows = self._reader.poll()
        state = (self._reader.generation, len(self._reader.resume_points))
        if state != self._known:  # the cluster was restarted
            self._known, self._started = state, False
            self._console.stop_progress()
        for row in rows:
            if row.get("split") == "train":
                self._show(row)

    def _show(self, row: dict[str, Any]) -> None:
        step, loss = row["step"], row["loss"]
        if not self._started:
            self._started = True
            self._console.start_progress(step - 1, self._total)
        self._console.progress(step, f"loss {loss:.3f} accuracy {row['accuracy']:.3f}", loss)
