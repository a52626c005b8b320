"""Training a cluster from the notebook: the result of each exit status, progress, and no leftover process."""

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.errors import InputError
from labkit.notebook import background
from labkit.notebook.background import BackgroundTraining
from labkit.notebook.cluster import ClusterFailed
from labkit.notebook.progress import Progress
from labkit.run_directory import RunDirectory, RunLock, Status
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader
from labkit.training.plan import RunPlan, TrainResult

TWO = LocalCluster(2)


def train_row(step: int) -> dict[str, object]:
    return {"split": "train", "step": step, "loss": 2.0, "accuracy": 0.5}


# What stands in for the processes: prints lines, writes rows and a status, and ends with an exit code.
PROCESSES = """
import os, signal, sys
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.metrics import MetricsWriter
from labkit.startup.child import record_reason
path, code, lines, refuses, status, rows = eval(sys.argv[1])
run = RunDirectory(path)
writer = MetricsWriter(run.metrics_path)
writer.append([{"split": "train", "step": step, "loss": 2.0, "accuracy": 0.5} for step in rows])
print("\\n".join(lines))
record_reason(refuses)
if status:
    run.write_status(Status(**status))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.create()
    run.config_path.write_text("{}")
    return run


@pytest.fixture
def play(monkeypatch, run) -> Callable[..., BackgroundTraining]:
    """Return a training whose processes do what is said, and have ended."""
    finished = TrainResult("finished", run, 60, "nothing left to do", did_work=False)
    monkeypatch.setattr(background, "finished_result", lambda run: finished)

    def plan(run_state: str = "new") -> RunPlan:
        return RunPlan(Config(), SimpleNamespace(), run, run_state, "shapes", "")

    def play(
        code: int,
        *lines: str,
        refuses: str = "",
        status: Status | None = None,
        rows: tuple[int, ...] = (),
        finished: bool = False,
        cluster: LocalCluster | None = TWO,
    ) -> BackgroundTraining:
        said = (str(run.path), code, lines, refuses, status and vars(status), rows)
        command = [sys.executable, "-c", PROCESSES, repr(said)]
        return BackgroundTraining(
            plan("finished" if finished else "new"), cluster, None if finished else command
        )

    return play


@pytest.fixture
def cluster(play) -> Callable[..., TrainResult]:
    """Do what ``train_by_cluster`` does behind its checks."""

    def train(code: int, *lines: str, **given) -> TrainResult:
        training = play(code, *lines, **given)
        training.follow()
        return training.result()

    return train


def test_did_work_is_true_only_if_this_call_trained(cluster):
    done = cluster(0, status=Status("finished", step=60, message="60 steps"))
    assert (done.state, done.step, done.did_work, done.message) == ("finished", 60, True, "60 steps")
    earlier = cluster(0, finished=True)
    assert earlier.did_work is False
    assert "nothing left to do; overwrite = True trains it again" in earlier.message


def test_the_lines_of_the_cluster_are_printed(cluster, capsys):
    cluster(0, "[worker:0] run here", "", "[worker:1] ready", status=Status("finished", step=60))
    assert capsys.readouterr().out.splitlines()[:3] == ["[worker:0] run here", "", "[worker:1] ready"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_the_run(cluster, number):
    said = "SIGTERM at step 7; the same command continues"
    result = cluster(128 + number, status=Status("interrupted", step=7, message=said))
    assert (result.state, result.step, result.message) == ("interrupted", 7, said)
    assert result.signal_number == number


def test_a_cluster_killed_by_a_second_signal_reports_that_it_did_not_save(cluster):
    result = cluster(130, status=Status("running", step=7, message="training"))
    assert result.state == "interrupted"
    assert "before it could save" in result.message


def test_input_that_a_task_refuses_is_an_input_error(cluster):
    with pytest.raises(InputError, match="^--bind is 10.0.0.1; give another$"):
        cluster(
            2,
            "[worker:1] labkit: error: somewhere",
            "[cluster] worker:1 failed (exit code 2); the others have 30 s to end",
            refuses="--bind is 10.0.0.1; give another",
        )


def test_a_failed_training_returns_its_reason(cluster):
    result = cluster(1, status=Status("failed", step=3, message="loss is nan at step 3"))
    assert (result.state, result.step, result.message) == ("failed", 3, "loss is nan at step 3")


def test_the_failure_of_an_earlier_session_is_not_reported_again(cluster):
    old = Status("failed", step=3, message="loss is nan at step 3")
    with pytest.raises(ClusterFailed):
        cluster(75, status=old)
    with pytest.raises(ClusterFailed, match="exit code 1: worker:1 failed"):
        cluster(1, "[worker:1] ImportError: no", "[cluster] worker:1 failed (exit code 1)", status=old)


def test_a_cluster_without_restarts_left_fails_with_the_cause(cluster):
    last = "worker:1 was killed by SIGKILL; none of 3 restarts is left"
    with pytest.raises(ClusterFailed, match=f"^the cluster ended with exit code 75: {last}$"):
        cluster(75, f"[cluster] {last}", status=Status("interrupted", step=3, message="lost worker:1"))


def test_a_cluster_that_printed_nothing_is_reported_as_such(cluster):
    with pytest.raises(ClusterFailed, match="exit code 1: it printed nothing"):
        cluster(1)


# ---- start, wait, stop, kill ---------------------------------------------------------------------------


def test_wait_raises_one_line_and_returns_what_was_stopped(play, capsys):
    failed = Status("failed", step=3, message="loss is nan at step 3")
    with pytest.raises(ClusterFailed, match="^the training failed: loss is nan at step 3$"):
        play(1, status=failed).wait()
    stopped = Status("interrupted", step=7, message="SIGTERM at step 7; the same command continues")
    assert play(143, status=stopped, cluster=None).wait().state == "interrupted"
    assert "SIGTERM at step 7" in capsys.readouterr().out
    with pytest.raises(ClusterFailed, match="killed by SIGKILL; the same cell resumes"):
        play(-9, cluster=None).wait()


def test_a_training_that_never_begins_says_what_it_said_last(play, run):
    with pytest.raises(InputError, match="^port 2222 is taken; free it$"):
        play(2, "noise", refuses="port 2222 is taken; free it", cluster=None).wait_until_begun()
    with pytest.raises(ClusterFailed, match="exit code 3: no more"):
        play(3, "no more").wait_until_begun()


SLEEPS = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def test_waiting_has_an_end_and_what_has_not_begun_is_stopped(play, run):
    plan = RunPlan(Config(), SimpleNamespace(), run, "new", "shapes", "")
    training = BackgroundTraining(plan, None, SLEEPS)
    try:
        with pytest.raises(TimeoutError, match="still at step 0 of"):
            training.wait(0.3)
        assert training.running
        give_up = time.monotonic() + 20
        while not training.tasks:  # a busy machine starts a process late
            assert time.monotonic() < give_up
            time.sleep(0.02)
        assert list(training.tasks) == ["worker:0"]
        with pytest.raises(InputError, match="no task 'worker:1' of this training runs; there are: worker:0"):
            training.kill_task("worker:1")
        assert not training.stopping
        assert "has not begun" in training.stop()
        training.follow(timeout=20)
    finally:
        training.kill()
    assert not training.running
    assert training.result().state == "interrupted"
    assert training.stop() == "the training has ended already"
    with pytest.raises(InputError, match="none runs at the moment"):
        training.kill_task("worker:0")


BEGINS = """
import os, sys, time
from labkit.run_directory import RunDirectory, Status
RunDirectory(sys.argv[1]).write_status(Status("running", pid=os.getpid()))
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def begun(run) -> Iterator[Callable[[list[str]], BackgroundTraining]]:
    """Start a command as a training; it is killed at the end."""
    started: list[BackgroundTraining] = []

    def start(command: list[str]) -> BackgroundTraining:
        plan = RunPlan(Config(), SimpleNamespace(), run, "new", "shapes", "")
        started.append(BackgroundTraining(plan, None, command))
        return started[-1]

    yield start
    for training in started:
        training.kill()
        training.follow(timeout=20)


def test_another_notebooks_session_of_the_run_is_not_taken_for_its_own(begun, run):
    loser = begun(SLEEPS)
    run.write_status(Status("running", pid=os.getpid()))
    lock = RunLock(run)
    assert lock.acquire()
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *given: asked.append(1))
    try:
        assert "it has not begun" in loser.stop()
        time.sleep(0.1)
        assert asked == []
        with pytest.raises(ClusterFailed, match=r"not begun after 0\.1 s, the limit, .* last output: "):
            begun(SLEEPS).wait_until_begun(0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
        lock.release()
    own = begun([sys.executable, "-c", BEGINS, str(run.path)])
    own.wait_until_begun(60)
    assert own.running
    with pytest.raises(InputError, match="the training still runs; call wait()"):
        own.result()


def test_nothing_is_written_to_the_pipe_of_a_training_that_has_ended(play, monkeypatch):
    training = play(0)
    training.follow(timeout=20)
    monkeypatch.setattr(os, "write", lambda *given: pytest.fail("a descriptor that may be another's"))
    training.kill()


def test_a_task_that_is_lost_is_reported(play, run):
    plan = RunPlan(Config(), SimpleNamespace(), run, "new", "shapes", "")
    training = BackgroundTraining(plan, None, SLEEPS)
    while not training.output:
        time.sleep(0.01)
    training.kill_task("worker:0")
    assert training.killed == ["worker:0"]
    with pytest.raises(ClusterFailed, match="killed by SIGKILL"):
        training.wait(20)


def test_a_run_that_is_being_trained_is_not_started_again(shapes, run):
    run.config_path.unlink()
    lock = RunLock(run)
    assert lock.acquire()
    try:
        with pytest.raises(
            InputError, match=f"already being trained, by process {os.getpid()}; stop it with"
        ):
            background.start(dataset="shapes", job_dir=run.path)
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"workers": True}, "workers is True"),
        ({"workers": 0}, "--workers is 0"),
        ({"overwrite": 1}, "overwrite is 1"),
        ({"config": "smoke"}, "config is str"),
        ({"train_stps": 3}, "did you mean 'train_steps'"),
    ],
)
def test_bad_values_are_refused_before_anything_starts(given, words):
    with pytest.raises(InputError, match=words):
        background.start(**given)


# ---- progress ------------------------------------------------------------------------------------------


class Recorder:
    """Replaces ``Console`` and records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def start_progress(self, completed: int, total: int) -> None:
        self.calls.append(("start", completed, total))

    def progress(self, completed: int, text: str, loss: float) -> None:
        self.calls.append(("step", completed, loss))

    def stop_progress(self) -> None:
        self.calls.append(("stop",))

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.fixture
def console(monkeypatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr("labkit.notebook.progress.Console", lambda: recorder)
    return recorder


def test_every_step_is_shown_up_to_the_last(cluster, console):
    cluster(0, rows=(1, 2, 3), status=Status("finished", step=60))
    steps = [("step", step, 2.0) for step in (1, 2, 3)]
    assert console.calls == [("start", 0, Config().run.train_steps), *steps, ("close",)]


def test_a_resumed_run_shows_only_new_steps_and_a_new_bar_after_each_restart(console, tmp_path):
    run = RunDirectory(tmp_path)
    writer = MetricsWriter(run.metrics_path)
    writer.append([train_row(1), train_row(2)])
    progress = Progress(run, 9)
    with progress:
        writer.mark_resume_point(1)
        writer.append([train_row(2), train_row(3)])
        progress.poll()
        writer.mark_resume_point(2)
        progress.poll()
        writer.append([train_row(3)])
        progress.poll()
    writer.close()
    assert console.calls == [
        ("stop",),
        ("start", 1, 9),
        ("step", 2, 2.0),
        ("step", 3, 2.0),
        ("stop",),
        ("start", 2, 9),
        ("step", 3, 2.0),
        ("close",),
    ]


def test_unreadable_metrics_end_the_progress_but_not_the_training(cluster, console, monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    polls: Iterator[object] = iter([False])

    def poll(reader: MetricsReader) -> object:
        try:
            return next(polls)
        except StopIteration:
            raise OSError("the disk is gone") from None

    monkeypatch.setattr(MetricsReader, "poll", poll)
    assert cluster(0, status=Status("finished", step=60)).state == "finished"
    assert "progress can't be shown: the disk is gone" in said.getvalue()


# ---- in a kernel ---------------------------------------------------------------------------------------

CELL = """\
import os, signal, pathlib
pathlib.Path({pid!r}).write_text(str(os.getpid()))
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit SIG_IGN
from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.notebook.prepared import train_by_cluster
config = Config.from_flat({{
    "dataset": "shapes", "job_dir": {run!r}, "num_layers": 8, "train_batch_size": 16, "eval_batch_size": 500,
    "train_steps": 100_000, "validate_every_steps": 0, "num_gpus": 0,
}})
result = train_by_cluster(config, LocalCluster(2))
print(result.state, result.signal_number, result.step)
"""


def wait_for(found: Callable[[], object], thread: threading.Thread) -> None:
    """Wait until ``found`` returns something. The thread that produces it must still run."""
    end = time.monotonic() + 120
    while not found():
        assert thread.is_alive() and time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.long
def test_an_interrupt_saves_and_a_killed_kernel_leaves_no_process(tmp_path):
    run, pid = RunDirectory(tmp_path / "run"), tmp_path / "pid"
    source = CELL.format(pid=str(pid), run=str(run.path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for _ in range(2)])
    client = NotebookClient(notebook, timeout=240, kernel_name="python3")
    ends: list[BaseException | None] = []

    def execute() -> None:
        try:
            client.execute()
            ends.append(None)
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=execute, daemon=True)
    thread.start()
    reader = MetricsReader(run.metrics_path)
    wait_for(lambda: reader.poll() and any(row["step"] == 3 for row in reader), thread)
    os.killpg(os.getpgid(int(pid.read_text())), signal.SIGINT)  # what ■ in the toolbar does
    wait_for(lambda: reader.poll() and reader.resume_points, thread)  # the second cell resumes
    kernel = psutil.Process(int(pid.read_text()))
    started = kernel.children(recursive=True)
    kernel.kill()
    _, alive = psutil.wait_procs(started, timeout=30)
    thread.join(60)

    text = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    saved = reader.resume_points[0].step
    assert f"interrupted {int(signal.SIGINT)} {saved}" in text
    assert saved >= 3
    assert len(started) >= 4, "two subreapers, two workers"
    assert not alive
    assert isinstance(ends[0], DeadKernelError)
