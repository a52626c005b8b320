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
from labkit.notebook import background, prepared
from labkit.notebook.background import BackgroundTraining
from labkit.notebook.cluster import ClusterFailed
from labkit.notebook.prepared import Prepared
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


def test_each_line_and_step_is_shown_and_a_finished_run_trains_nothing(cluster, console, capsys):
    finished = Status("finished", step=60, message="60 steps")
    done = cluster(0, "[worker:0] run here", "", "[worker:1] ready", rows=(1, 2, 3), status=finished)
    assert (done.state, done.step, done.did_work, done.message) == ("finished", 60, True, "60 steps")
    assert capsys.readouterr().out.splitlines()[:3] == ["[worker:0] run here", "", "[worker:1] ready"]
    steps = [("step", step, 2.0) for step in (1, 2, 3)]
    assert console.calls == [("start", 0, Config().run.train_steps), *steps, ("close",)]
    earlier = cluster(0, finished=True)
    assert earlier.did_work is False
    assert "nothing left to do; overwrite = True trains it again" in earlier.message


FAILED = Status("failed", step=3, message="loss is nan at step 3")
SAVED = Status("interrupted", step=7, message="saved at step 7; the same command continues")
LOST = "worker:1 was killed by SIGKILL; none of 3 restarts is left"


@pytest.mark.parametrize(
    ("code", "status", "state", "said"),
    [
        *((128 + number, SAVED, "interrupted", SAVED.message) for number in (2, 15, 1)),
        (130, Status("running", step=7, message="training"), "interrupted", "before it could save"),
        (1, FAILED, "failed", "loss is nan at step 3"),
    ],
)
def test_a_signal_interrupts_the_run_and_a_failure_has_its_reason(cluster, code, status, state, said):
    result = cluster(code, status=status)
    assert (result.state, result.step) == (state, status.step) and said in result.message
    assert state == "failed" or result.signal_number == code - 128


REFUSED = "--bind is 10.0.0.1; give another"


@pytest.mark.parametrize(
    ("code", "lines", "refuses", "error", "said"),
    [
        (2, ["[worker:1] labkit: error: somewhere"], REFUSED, InputError, f"^{REFUSED}$"),
        (75, [], "", ClusterFailed, "exit code 75"),
        (1, ["[cluster] worker:1 failed"], "", ClusterFailed, "exit code 1: worker:1 failed"),
        (75, [f"[cluster] {LOST}"], "", ClusterFailed, f"^the cluster ended with exit code 75: {LOST}$"),
        (1, [], "", ClusterFailed, "exit code 1: it printed nothing"),
    ],
    ids=["refused", "lost", "failed", "no restart left", "silent"],
)
def test_what_ended_a_cluster_is_said_and_no_earlier_failure(run, cluster, code, lines, refuses, error, said):
    run.write_status(FAILED)  # of an earlier session
    with pytest.raises(error, match=said):
        cluster(code, *lines, refuses=refuses, status=FAILED)


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


def test_waiting_has_an_end_and_what_has_not_begun_is_stopped(begun):
    training = begun(SLEEPS)
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


def test_a_task_that_is_lost_is_reported(begun):
    training = begun(SLEEPS)
    while not training.output:
        time.sleep(0.01)
    training.kill_task("worker:0")
    assert training.killed == ["worker:0"]
    with pytest.raises(ClusterFailed, match="killed by SIGKILL"):
        training.wait(20)


@pytest.mark.parametrize("of_cluster", [True, False], ids=["cluster", "this process"])
def test_an_earlier_run_is_overwritten_once_however_often_one_trains(of_cluster, run, monkeypatch):
    """An interrupted training goes on when its cell is run again."""
    asked = []

    def train(*given, **named):
        asked.append(named["overwrite"] if of_cluster else given[0].overwrite)
        if len(asked) == 1:
            raise InputError("it is already being trained")
        return TrainResult("interrupted", run, 7, "saved at step 7")

    for name in ("train", "train_by_cluster"):
        monkeypatch.setattr(prepared, name, train)
    monkeypatch.setattr(prepared, "refreshed", lambda plan: plan)
    plan = RunPlan(Config(), SimpleNamespace(), run, "new", "shapes", "", overwrite=True)
    found = Prepared(Config(), plan.manifest, "", SimpleNamespace(), plan, TWO if of_cluster else None, True)
    with pytest.raises(InputError, match="already being trained"):
        found.train()
    for _ in range(2):
        found.train()
    assert asked == [True, True, False]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"workers": True}, "workers is True"),
        ({"workers": 0}, "--workers is 0"),
        ({"overwrite": 1}, "overwrite is 1"),
        ({"config": "smoke"}, "config is str"),
        ({"train_stps": 3}, "did you mean 'train_steps'"),
        ({"dataset": "shapes"}, r"already being trained, by process \d+; stop it with"),
    ],
    ids=str,
)
def test_what_is_refused_is_refused_before_anything_starts(given, words, shapes, run):
    run.config_path.unlink()
    lock = RunLock(run)
    assert lock.acquire()
    try:
        with pytest.raises(InputError, match=words):
            background.start(**given, job_dir=run.path)
    finally:
        lock.release()


# ---- progress ------------------------------------------------------------------------------------------


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
