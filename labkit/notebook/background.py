"""Train in other processes while the notebook goes on: in one, or in a cluster on this machine.

The processes are those of ``labkit train`` and ``labkit cluster local``. They end with the kernel, even if it
is killed (``labkit.startup.process.Child``).
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from labkit.cluster.flags import train_arguments
from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.config.fields import argument
from labkit.distributed.heartbeat import read_heartbeats
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.errors import InputError
from labkit.figures.monitor import RunMonitor
from labkit.notebook.cluster import ClusterFailed
from labkit.notebook.progress import Progress
from labkit.run import Run
from labkit.run_directory.stop import ask_to_stop, forget_request, training_process
from labkit.startup.child import FINAL_CODES, python_command
from labkit.startup.interruption import STOPPED, stop_signals
from labkit.startup.process import Child, signal_name
from labkit.training.plan import RunPlan, TrainResult, finished_result, plan_run

BAD_INPUT = 2  # exit code of labkit's commands
POLL_SECONDS = 0.2
START_SECONDS = 600.0  # until a session has written its first status; TensorFlow's import alone takes 5 s
STEP_SECONDS = 300.0  # until the step that is waited for
KILL_SECONDS = 20.0  # until killed processes are gone; the subreaper gives up after 10 s
LAST_LINES = 3  # of the output, in the message about a training that doesn't begin


def start(
    config: Config | None = None,
    *,
    workers: int = 1,
    ps: int = 0,
    link: str | None = None,
    overwrite: bool = False,
    **flags: Any,
) -> "BackgroundTraining":
    """Start a training in other processes and return once it has begun. The notebook goes on meanwhile.

    Args:
        config: where to start from; None: what ``labkit train`` takes without a preset.
        workers: processes that train. Several are synchronous, unless there are parameter servers.
        ps: parameter servers. With one or more, a chief is started, and the training is asynchronous.
        link: gives each of several processes a host of its own on this machine, with a link of this rate to
            the others, such as ``100mbit`` (``labkit cluster local --hosts``).
        overwrite: delete the run that is in the directory and start anew.
        **flags: any flag of ``labkit train``, as in ``labkit.train``.

    Raises InputError for what ``labkit train`` refuses, and where the run is already being trained;
    ClusterFailed if the training doesn't begin.

    Example::

        training = start(lesson.config, workers=2, job_dir=lesson.folder / "two", overwrite=True)
        run = training.wait()
    """
    workers, ps = argument("workers", workers, int), argument("ps", ps, int)
    link, overwrite = argument("link", link, str, optional=True), argument("overwrite", overwrite, bool)
    if config is not None and not isinstance(config, Config):
        raise InputError(f"config is {type(config).__name__}; allowed: a labkit.Config, or flags by name")
    cluster = None if (workers, ps) == (1, 0) else LocalCluster(workers, ps)
    training = launch((config or Config()).replace(flags), cluster, link=link, overwrite=overwrite)
    training.wait_until_begun()
    return training


def launch(
    config: Config, cluster: LocalCluster | None, *, link: str | None = None, overwrite: bool = False
) -> "BackgroundTraining":
    """Check a training and start its processes; see ``start``. Doesn't wait until it has begun.

    ``cluster``: the processes to start; None: one that trains alone. A finished run isn't trained again.
    """
    plan = _plan(config, cluster, link, overwrite)
    if plan.run_state == "finished":
        return BackgroundTraining(plan, cluster, None)
    holder = training_process(plan.run) if plan.run.path.is_dir() else None
    if holder is not None:
        raise InputError(
            f"{plan.run.path} is already being trained, by process {holder}; stop it with labkit stop "
            f"{plan.run.path}, or choose another job_dir"
        )
    hosts = [] if link is None else ["--hosts", f"--link={link}"]
    words = [] if cluster is None else cluster.launcher(*hosts)
    # The data set is named, so that nothing is downloaded again.
    values = {name: plan.config.flat()[name] for name in ("dataset", "job_dir", "callbacks")}
    words += [*train_arguments(config.replace(values)), *(["--overwrite"] if overwrite else [])]
    return BackgroundTraining(plan, cluster, python_command("-m", "labkit", *words))


def _plan(config: Config, cluster: LocalCluster | None, link: str | None, overwrite: bool) -> RunPlan:
    if cluster is None:
        if link is not None:
            raise InputError(f"link is {link!r} for one process, which has no link; leave it out")
        return plan_run(config, overwrite=overwrite)
    from labkit.cluster.launch import plan_launch

    # ``announce`` is silent because the launcher prints the same lines.
    return plan_launch(
        config,
        workers=cluster.workers,
        ps=cluster.ps,
        hosts=link is not None,
        link=link,
        overwrite=overwrite,
        announce=lambda line: None,
    ).plan


class BackgroundTraining:
    """A training in other processes of this machine. ``start`` makes it.

    Attributes:
        cluster: its processes; None for one that trains alone.
        output: the lines that the processes have printed so far. ``wait`` shows them.
        killed: the names of the tasks that ``kill_task`` has killed, in order.
    """

    def __init__(self, plan: RunPlan, cluster: LocalCluster | None, command: list[str] | None) -> None:
        self.cluster = cluster
        self.output: list[str] = []
        self.killed: list[str] = []
        self._plan, self._directory = plan, plan.run
        self._total = plan.config.run.train_steps
        self._status_before = plan.run.read_status()
        self._shown = 0
        self._progress = Progress(plan.run, self._total)
        self._stop_number = 0  # of the signal that interrupted the cell
        self._asked = self._killed = False
        self._code: int | None = 0 if command is None else None
        self._ended = threading.Event()
        self._refusal = ""
        self._child = None if command is None else Child(command)
        if self._child is None:
            self._ended.set()
        else:
            threading.Thread(
                target=self._read, args=(self._child,), name="labkit output", daemon=True
            ).start()

    def __repr__(self) -> str:
        state = self.run.state if self._directory.exists() else "starting"
        step = f"step {self._step()} of {self._total}"
        return f"<training of {self._directory.name}: {state}, {step}{'' if self.running else ', ended'}>"

    # ---- what is known of it ---------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run that is trained. Raises InputError before it has begun."""
        return Run(self._directory.path)

    @property
    def running(self) -> bool:
        """Whether a process of it is still there."""
        return not self._ended.is_set()

    @property
    def stopping(self) -> bool:
        """Whether it still runs, but was asked to end."""
        return self.running and (self._asked or self._killed)

    @property
    def workers(self) -> list[str]:
        """The names of the processes that compute gradients: ``worker:0``, …"""
        return [f"worker:{index}" for index in range(1 if self.cluster is None else self.cluster.workers)]

    @property
    def tasks(self) -> dict[str, int]:
        """The process id of each of its tasks that runs now, by name. Empty while they start."""
        import psutil

        if self._child is None or not self.running:
            return {}
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._child.pid)
            if self.cluster is None:
                return dict(zip(self.workers, [child.pid for child in own.children()], strict=False))
            found = {child.pid for child in own.children(recursive=True)}
            beats = read_heartbeats(self._directory.cluster_path)
            return {name: beat.pid for name, beat in beats.items() if beat.pid in found}
        return {}

    # ---- what can be done with it ----------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> Run:
        """Show the output until the training has ended, and return the run.

        An interrupt of the cell (■) asks the training to save and stop; a second one kills it. A training
        that was stopped returns, too: then ``run.state`` is ``interrupted``, and ``start`` with the same
        values continues it.

        Args:
            timeout: seconds to wait at most; None: without end.

        Raises InputError for input that only the processes could refuse, ClusterFailed, with the reason in
        one line, if the training failed, and TimeoutError if it goes on after ``timeout`` seconds.
        """
        self.follow(timeout=argument("timeout", timeout, float, optional=True))
        result = self.result()
        if result.state == "failed":
            raise ClusterFailed(f"the training failed: {result.message}")
        if result.state == "interrupted" or not result.did_work:
            print(result.message)
        return self.run

    def monitor(self) -> RunMonitor:
        """Return the curves so far as a figure; JupyterLab adds a live panel with buttons."""
        return RunMonitor(self)

    def wait_for_step(self, step: int) -> None:
        """Show the output until ``step`` steps are done or the training has ended.

        Raises what ``wait`` raises; a training that fails before is an error here, too.
        """
        step = argument("step", step, int)
        self.follow(lambda: self._progress.step >= step, STEP_SECONDS)
        if not self.running and self._progress.step < step:
            self.wait()

    def stop(self) -> str:
        """Ask the training to save and stop; ``wait`` waits for that. Returns what was done."""
        if not self.running:
            return "the training has ended already"
        self._asked = True
        process = training_process(self._directory) if self._directory.path.is_dir() else None
        if process is not None and process in self._processes():  # not another notebook's training
            return ask_to_stop(self._directory, process)
        if self._child is not None:
            self._child.terminate()
        return "asked the training to end; it has not begun"

    def kill_task(self, name: str) -> None:
        """Kill a task with SIGKILL, to see what its loss does. Only tasks of this training can be killed.

        Args:
            name: such as ``worker:1``.

        Raises InputError if no such task runs at the moment.
        """
        tasks, name = self.tasks, argument("name", name, str)
        if name not in tasks:
            known = f"there are: {', '.join(tasks)}" if tasks else "none runs at the moment"
            raise InputError(f"no task {name!r} of this training runs; {known}")
        self.killed.append(name)
        with suppress(ProcessLookupError):
            os.kill(tasks[name], signal.SIGKILL)

    def kill(self) -> None:
        """Kill all processes at once. The last checkpoint stays, so that ``start`` can continue from it."""
        self._killed = True
        if self._child is not None:
            self._child.kill()

    def wait_until_begun(self, timeout: float = START_SECONDS) -> None:
        """Wait until this session has written its first status. Raises what ``wait`` raises."""
        try:
            give_up = time.monotonic() + timeout
            while not self._ended.wait(0.05):
                status = self._directory.read_status() if self._directory.exists() else None
                if status not in (None, self._status_before) and status.pid in self._processes():
                    return
                if time.monotonic() > give_up:
                    said = " | ".join([line for line in self.output if line][-LAST_LINES:])
                    raise ClusterFailed(
                        f"the training has not begun after {timeout:g} s, the limit, and was killed; its "
                        f"last output: {said or 'none'}"
                    )
        except BaseException:
            self.kill()
            self._ended.wait(KILL_SECONDS)
            raise
        if self.result().state == "failed":
            self.wait()

    # ---- the end ---------------------------------------------------------------------------------------

    def result(self) -> TrainResult:
        """Return the result of a training that has ended.

        Raises InputError while it runs, and InputError and ClusterFailed as ``wait``.
        """
        if self.running or self._code is None:
            raise InputError("the training still runs; call wait()")
        if self._plan.run_state == "finished":
            found = finished_result(self._directory)
            way_out = "overwrite = True trains it again, another job_dir keeps both"
            return replace(found, message=f"{found.message}; {way_out}")
        code, status = self._code, self._directory.read_status()
        if status == self._status_before:
            status = None
        message, step = (status.message, status.step) if status else ("", self._step())
        if code == 0 and status is not None and status.state == "finished":
            found = finished_result(self._directory)
            return replace(found, message=message, did_work=True)
        if code in STOPPED or ((self._asked or self._killed) and code not in FINAL_CODES):
            if status is None or status.state != "interrupted":
                message = "ended before it could save; the same cell resumes from the last checkpoint"
            number = self._stop_number or (code - 128 if code in STOPPED else None)
            return TrainResult("interrupted", self._directory, step, message, signal_number=number)
        if code == BAD_INPUT and self._refusal:
            raise InputError(self._refusal)
        if message and status is not None and status.state == "failed" and code != EXIT_LOST_PEER:
            return TrainResult("failed", self._directory, step, message)
        if code < 0:
            raise ClusterFailed(
                f"its process was killed by {signal_name(-code)}; the same cell resumes from the "
                "last checkpoint"
            )
        what = "training" if self.cluster is None else "cluster"
        raise ClusterFailed(f"the {what} ended with exit code {code}: {self._reason()}")

    def _reason(self) -> str:
        """Return the last line of the launcher, or else of the processes."""
        launcher = [line.partition("[cluster] ")[2] for line in self.output if "[cluster] " in line]
        return [*launcher[-1:], *filter(None, reversed(self.output)), "it printed nothing"][0]

    def _step(self) -> int:
        status = self._directory.read_status()
        return status.step if status else 0

    # ---- processes and output --------------------------------------------------------------------------

    def _processes(self) -> set[int]:
        """Return the ids of the processes of this training that run now."""
        import psutil

        if self._child is not None:
            with suppress(psutil.Error):
                return {child.pid for child in psutil.Process(self._child.pid).children(recursive=True)}
        return set()

    def _read(self, child: Child) -> None:
        """Collect the output until the processes have ended."""
        for line in child.lines():
            self.output.append(line)
        self._code = child.wait()
        self._refusal = child.reason
        child.close()
        with suppress(OSError):
            if training_process(self._directory) is None:  # another notebook's has its own request
                forget_request(self._directory)
        self._ended.set()

    def follow(self, until: Callable[[], bool] = lambda: False, timeout: float | None = None) -> None:
        """Show output and progress until the end, or until ``until()`` is true."""
        give_up = None if timeout is None else time.monotonic() + timeout
        handled = 0
        with stop_signals() as signals, self._progress as progress:
            while not self._ended.wait(POLL_SECONDS):
                self._show()
                progress.poll()
                if until():
                    return
                if len(signals) > handled:
                    handled += 1
                    self._stop_number = signals[0]
                    if handled > 1:
                        self.kill()
                    else:
                        self.stop()
                if give_up is not None and time.monotonic() > give_up:
                    raise TimeoutError(f"still at step {progress.step} of {self._total} after {timeout:g} s")
            progress.poll()
            self._show()

    def _show(self) -> None:
        lines = self.output[self._shown :]
        self._shown += len(lines)
        for line in lines:
            print(line, flush=True)
