"""Following a run: each checkpoint once, whatever happens meanwhile to the run, its files and followers."""

import json
import multiprocessing
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.charts.store import CurveStore
from labkit.analysis.curves import read_curves
from labkit.commands import main as cli
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.find import remember
from labkit.run_directory.metrics import (
    MetricsWriter,
    append_evaluation,
    evaluations_path,
    evaluations_that_count,
)
from labkit.run_directory.reader import read_metrics
from labkit.run_directory.rows import RowReader
from labkit.run_directory.watch import RunWatch, wait_for_run
from labkit.training.follow import Follower, FollowResult


def evaluation(step: int, split: str = "validation", read: float = 100.0, **values: float) -> dict:
    figures = {"loss": 1.0, "accuracy": 0.5, "top5_accuracy": 0.9, "examples": 10, "seconds": 0.1}
    return {"split": split, "step": step, **figures, "wall_time": read, **values}


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeRun:
    """A training's side of a run directory, and an evaluator whose checkpoints are a set of steps.

    ``during``: what happens while a step is evaluated; ``vanishing``: steps that are pruned while read.
    """

    def __init__(self, path: Path) -> None:
        self.run = RunDirectory(path)
        self.run.create()
        self.split = "validation"
        self.saved: set[int] = set()
        self.damaged: set[int] = set()
        self.vanishing: set[int] = set()
        self.during: dict[int, list] = {}
        self.evaluated: list[int] = []
        self.events: list[int] = []
        self.lines: list[str] = []
        self.read_at = 100.0

    def status(self, state: str, step: int = 0, heartbeat: float = 1.0, **values) -> None:
        host = values.pop("host", "elsewhere")
        self.run.write_status(
            Status(state, step=step, total_steps=60, heartbeat=heartbeat, host=host, **values)
        )

    def steps(self) -> list[int]:
        return sorted(self.saved)

    def load(self, step: int) -> None:
        if step in self.vanishing:
            self.saved.discard(step)
        if step not in self.saved or step in self.damaged:
            raise InputError(f"checkpoint {step} can't be restored")
        self._step = step

    def evaluate(self) -> tuple[None, dict]:
        self.evaluated.append(self._step)
        row = evaluation(self._step, self.split, read=self.read_at)
        for happens in self.during.pop(self._step, []):
            happens()
        return None, row

    def write_event(self, row: dict) -> None:
        self.events.append(row["step"])

    def close(self) -> None:
        pass

    def follow(self, *pauses, split: str = "validation", wait_seconds: float = 60.0):
        """Follow; at each pause the next of ``pauses`` happens, then 100 seconds pass at each."""
        self.split = split
        clock, left = Clock(), list(pauses)

        def pause() -> None:
            if left:
                left.pop(0)()
            else:
                clock.now += 100

        watch = RunWatch(self.run, wait_seconds, clock)
        standing = Follower(self.run, split, self, watch, pause, self.lines.append).follow()
        assert not left, "the follower ended before everything had happened"
        return standing

    def rows(self) -> list[int]:
        """The steps in evaluations.jsonl, in order of writing."""
        path = evaluations_path(self.run.metrics_path)
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def fake(tmp_path) -> FakeRun:
    return FakeRun(tmp_path / "run")


# ---- which checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", ["running", "interrupted"])
def test_each_checkpoint_is_evaluated_once_as_it_appears_until_the_run_is_finished(fake, meanwhile):
    fake.status(meanwhile, 10)
    fake.saved, fake.damaged = {5, 10}, {5}

    def later():
        fake.saved |= {20, 30}
        fake.status("running", 30)

    def end():
        fake.saved.add(60)
        fake.status("finished", 60)

    fake.during[30] = [end]
    standing = fake.follow(later, lambda: None)
    assert (standing.state, standing.over) == ("finished", True)
    assert fake.evaluated == fake.rows() == fake.events == [10, 20, 30, 60]
    assert len([line for line in fake.lines if "left out" in line]) == 1, "the damaged one is told once"
    assert any("waiting 60 s" in line for line in fake.lines) is (meanwhile == "interrupted")


def test_what_either_file_holds_is_not_evaluated_again(fake):
    fake.saved = {10, 20, 30, 40}
    fake.status("finished", 40)
    MetricsWriter(fake.run.metrics_path).append(
        [{"split": "train", "step": 10, "loss": 1.0}, evaluation(20), evaluation(30, split="test")]
    )
    append_evaluation(fake.run.metrics_path, evaluation(40), [])
    append_evaluation(fake.run.metrics_path, evaluation(30, split="test"), [])
    fake.follow()
    assert fake.evaluated == [10, 30]
    fake.follow()
    assert fake.evaluated == [10, 30]
    fake.saved = {10}
    fake.follow(split="train")
    assert fake.evaluated == [10, 30, 10], "the batches' own figures are no evaluation"
    assert CurveStore(fake.run.metrics_path).poll().curve("train", "loss").y.tolist() == [1.0]
    assert read_curves(fake.run).curve("train", "loss").value.tolist() == [1.0]


def test_a_checkpoint_that_is_pruned_while_it_is_read_gives_way_to_the_newest(fake):
    fake.saved, fake.vanishing = {10, 20, 30, 40}, {10}
    fake.status("finished", 40)
    fake.follow()
    assert fake.evaluated == [40, 20, 30]
    assert "step 10 was removed" in fake.lines[0]


@pytest.mark.parametrize("read_at", [200.0, 120.0], ids=["", "by a clock that is behind"])
def test_a_checkpoint_that_was_trained_anew_after_a_seam_is_evaluated_anew(fake, read_at):
    fake.saved = {10, 20, 30}
    fake.status("interrupted", 30)
    fake.follow()
    # Step 30 is lost, the training goes on from 20, and makes another step 30.
    writer = MetricsWriter(fake.run.metrics_path)
    writer.append([{"resumed_at_step": 20, "wall_time": 150.0}])
    fake.status("finished", 30)
    fake.read_at = read_at
    fake.follow()
    assert fake.evaluated == [10, 20, 30, 30]
    rows = RowReader(evaluations_path(fake.run.metrics_path)).poll()
    counting = evaluations_that_count(rows, [])
    assert [row["wall_time"] for row in counting] == [100.0, 100.0, 100.0]
    reader = read_metrics(fake.run)
    counting = evaluations_that_count(rows, reader.resume_points)
    assert [(row["step"], row["wall_time"]) for row in counting] == [(10, 100.0), (20, 100.0), (30, read_at)]


def test_figures_of_a_run_that_was_started_over_meanwhile_are_dropped(fake):
    fake.saved = {40}
    fake.status("running", 40)
    MetricsWriter(fake.run.metrics_path).append([{"split": "train", "step": 40}])

    def overwrite():
        fake.saved.clear()
        fake.run.metrics_path.unlink()
        MetricsWriter(fake.run.metrics_path).append([{"split": "train", "step": 1}])

    fake.during[40] = [overwrite]
    fake.follow(lambda: fake.status("finished", 1))
    assert fake.evaluated == [40]
    assert fake.rows() == []
    assert "started over" in fake.lines[0]


def test_another_follower_that_was_quicker_has_the_row_and_one_torn_by_a_kill_is_written_anew(fake):
    fake.saved = {10}
    fake.status("finished", 10)
    path = fake.run.metrics_path
    fake.during[10] = [lambda: append_evaluation(path, evaluation(10, accuracy=0.75), [])]
    fake.follow()
    assert fake.rows() == [10] and fake.events == []
    with open(evaluations_path(path), "a") as file:
        file.write('{"split": "validation", "step": 20, "lo')
    assert append_evaluation(path, evaluation(20), [])
    assert not append_evaluation(path, evaluation(20), [])
    assert fake.rows() == [10, 20]


def append_all(path: Path, turn) -> None:
    turn.wait()
    for step in range(1, 41):
        append_evaluation(path, evaluation(step), [])


@pytest.mark.long
def test_followers_at_the_same_time_write_each_row_once(tmp_path, monkeypatch):
    # A spawned process runs the main module again; Streamlit's tests put a page in its place.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    path = tmp_path / "metrics.jsonl"
    context = multiprocessing.get_context("spawn")
    turn = context.Barrier(3)
    processes = [context.Process(target=append_all, args=(path, turn)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    reader = RowReader(evaluations_path(path))
    assert [row["step"] for row in reader.poll()] == list(range(1, 41))
    assert reader.damaged_lines == 0


# ---- when it ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["interrupted", "failed"])
def test_a_run_that_stands_still_gets_its_time_and_may_go_on(fake, state):
    fake.saved = {10}
    fake.status(state, 10, message="SIGTERM")
    clock = Clock()
    watch = RunWatch(fake.run, 60.0, clock)
    assert not watch.look().over
    clock.now += 59
    assert not watch.look().over
    fake.status("running", 11)
    assert watch.look().state == "running"
    fake.status(state, 20, message="SIGTERM at step 20")
    assert not watch.look().over
    clock.now += 60
    standing = watch.look()
    assert standing.over and standing.state == state
    assert f"is {state} at step 20 of 60" in standing.message
    standing = fake.follow(wait_seconds=0.0)
    assert fake.rows() == [10], "what is there is evaluated before the end"
    assert standing.state == state and "SIGTERM at step 20" in standing.message


def test_a_killed_run_is_dead_at_once_and_a_silent_one_after_its_own_time(fake):
    clock = Clock()
    mute = RunWatch(fake.run, 60.0, clock)
    assert not mute.look().over
    clock.now += 60
    assert mute.look().over and "has not written its status yet" in mute.look().message
    fake.status("running", 10, pid=2**22 + 1, host=socket.gethostname())
    assert RunWatch(fake.run, 0.0, clock).look().state == "lost"
    fake.status("running", 10, stalled_after_seconds=300.0)
    watch = RunWatch(fake.run, 60.0, clock)
    for heartbeat in range(20):  # its clock is wrong by decades: changes count, not clocks
        fake.status("running", 10, heartbeat=float(heartbeat), stalled_after_seconds=300.0)
        clock.now += 299
        assert watch.look().state == "running"
    for seconds, state, over in ((299, "running", False), (1, "stalled", False), (60, "stalled", True)):
        clock.now += seconds
        assert (watch.look().state, watch.look().over) == (state, over)


def test_a_run_that_is_not_there_yet_may_appear_as_a_directory_or_in_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []

    def appear(path: Path):
        def make() -> None:
            path.mkdir(parents=True)
            (path / "config.json").write_text("{}")

        return make

    for name, place in (("here", tmp_path / "here"), ("home", tmp_path / "runs" / "home")):
        assert wait_for_run(name, 60.0, appear(place), lines.append).path == place
    assert len(lines) == 2 and "no run at 'here' yet" in lines[0]
    with pytest.raises(InputError, match=r"no run at 'never' within 0 s \(--wait-seconds\)"):
        wait_for_run("never", 0.0, lambda: None, lines.append)
    for folder in ("a", "b"):
        appear(tmp_path / folder / "twice")()
        remember(RunDirectory(tmp_path / folder / "twice"))
    with pytest.raises(InputError, match="several runs are named 'twice'"):
        wait_for_run("twice", 60.0, lambda: None, lines.append)


# ---- what readers show ---------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["train", "validate", "beside", "test beside"]), st.integers(1, 30)),
        st.tuples(st.just("resume_point"), st.integers(0, 30)),
        st.tuples(st.just("poll"), st.just(0)),
    ),
    max_size=25,
)


@given(events=EVENTS)
@settings(max_examples=80, deadline=None)
def test_both_files_are_one_curve_with_each_step_once(tmp_path_factory, events):
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    writer, store = MetricsWriter(run.metrics_path), CurveStore(run.metrics_path)
    # What counts: by split, step to loss. The training's own row goes before one beside it.
    own: dict[tuple[str, int], float] = {}
    beside: dict[tuple[str, int], float] = {}
    trained = 0
    for time, (kind, number) in enumerate(events):
        loss = float(time)
        if kind == "train":
            writer.append(
                [{"split": "train", "step": trained + 1 + place, "loss": 1.0} for place in range(number)]
            )
            trained += number
        elif kind == "validate" and trained and ("validation", trained) not in own:
            writer.append([evaluation(trained, loss=loss, read=time)])
            own["validation", trained] = loss
        elif "beside" in kind and number <= trained:
            split = "test" if "test" in kind else "validation"
            reader = read_metrics(run)
            append_evaluation(
                run.metrics_path, evaluation(number, split, loss=loss, read=time), reader.resume_points
            )
            beside.setdefault((split, number), loss)
        elif kind == "resume_point" and number <= trained:
            writer.append([{"resumed_at_step": number, "wall_time": time}])
            trained = number
            own = {key: value for key, value in own.items() if key[1] <= number}
            beside = {key: value for key, value in beside.items() if key[1] <= number}
        elif kind == "poll":
            store.poll()
    writer.close()
    snapshot, curves = store.poll(), read_curves(run)
    for split in ("validation", "test"):
        expected = {step: loss for (name, step), loss in (beside | own).items() if name == split}
        for curve, values in (
            (shown := snapshot.curve(split, "loss"), shown.y),
            (drawn := curves.curve(split, "loss"), drawn.value),
        ):
            assert curve.step.tolist() == sorted(expected)
            assert values.tolist() == [expected[step] for step in sorted(expected)]
    assert snapshot.curve("train", "loss").step.tolist() == list(range(1, trained + 1))
    assert store.poll().version == snapshot.version, "nothing was written, nothing is drawn anew"


# ---- the command ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--watch", "--wait-seconds", "0"], ["no run at 'nowhere' within 0 s"]),
        (["--watch", "--checkpoint", "best"], ["--checkpoint is 'best' with --watch"]),
        (["--wait-seconds", "5"], ["--wait-seconds is for --watch"]),
        (["--watch", "--wait-seconds", "soon"], ["--wait-seconds", "'soon'", "at least 0"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    assert cli.main(["evaluate", "nowhere", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    [line] = shown.err.splitlines()
    assert all(word in line for word in words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (FollowResult("finished", "", 3), 0),
        (FollowResult("interrupted", "", 3), 1),
        (FollowResult("stopped", "", 3, 15), 143),
    ],
)
def test_the_exit_code_says_how_it_ended_and_the_split_is_validation(monkeypatch, capsys, result, code):
    asked = {}

    def follow(run, **values):
        asked.update(values, run=run)
        return result

    monkeypatch.setattr("labkit.training.follow.follow", follow)
    assert cli.main(["evaluate", "mine", "--watch", "--num-intra-threads", "1"]) == code
    assert asked["run"] == "mine" and asked["split"] == "validation"
    assert (asked["num_intra_threads"], asked["wait_seconds"]) == (1, 60.0)
    assert "3 checkpoints evaluated" in capsys.readouterr().out
