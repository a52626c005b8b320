"""The loop on a real, small network: rows, validations, checkpoints, a stop, what compiles, a failure."""

import contextlib
import io
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.parts.code import allow
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import WEIGHT_NOT_FINITE
from labkit.run_directory.metrics import Selection
from labkit.training.telemetry import SECONDS_TO_START
from tests.properties.harness import assert_bit_equal, checkpoint_values, losses, metrics
from tests.training.small import BATCH, STEPS, TEST, TRAIN, VALIDATION, saved_steps, train


def test_each_step_has_a_row(whole):
    rows = metrics(whole).split("train")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert row["epoch"] == pytest.approx(row["step"] * BATCH / TRAIN)
        assert row["examples_per_second"] == pytest.approx(BATCH / row["seconds_per_step"])
        assert 0 <= row["input_wait_fraction"] <= 1
    status = RunDirectory(whole).read_status()
    assert (status.state, status.step, status.total_steps) == ("finished", STEPS, STEPS)


def test_it_validates_and_saves_when_asked_and_at_the_end_and_tests_the_best(whole):
    validations, (test,) = metrics(whole).split("validation"), metrics(whole).split("test")
    assert [row["step"] for row in validations] == [5, 10, STEPS]
    assert {row["examples"] for row in validations} == {VALIDATION} and test["examples"] == TEST
    selection = Selection()
    chosen = [row["step"] for row in validations if selection.add(row)]
    assert saved_steps(whole) == sorted({4, 8, 12, *chosen})
    assert test["step"] == chosen[-1] == selection.step


class SignalAt(io.StringIO):
    """Output that sends SIGUSR1 to this process, as a batch system does, when a line says ``words``."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def write(self, text: str) -> int:
        if self._words in text:
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().write(text)


def test_a_stop_saves_and_going_on_from_there_equals_no_stop(whole, data_dir, tmp_path):
    stopped = tmp_path / "stopped"
    with contextlib.redirect_stdout(SignalAt(f"step 7/{STEPS}")):
        assert train(stopped, data_dir) == 128 + signal.SIGUSR1
    status = RunDirectory(stopped).read_status()
    assert (status.state, status.step) == ("interrupted", 7)
    assert saved_steps(stopped)[-1] == 7 and not metrics(stopped).split("test")

    assert train(stopped, data_dir) == 0
    assert [resume_point.step for resume_point in metrics(stopped).resume_points] == [7]
    assert losses(stopped) == losses(whole)
    assert_bit_equal(checkpoint_values(whole, STEPS), checkpoint_values(stopped, STEPS))
    for split in ("validation", "test"):
        ours, theirs = metrics(whole).split(split), metrics(stopped).split(split)
        assert [(row["step"], row["loss"]) for row in ours] == [(row["step"], row["loss"]) for row in theirs]


@pytest.mark.timeout(60)
def test_without_a_second_between_checkpoints_each_step_has_one(data_dir, tmp_path):
    job_dir = tmp_path / "run"
    assert train(job_dir, data_dir, train_steps=3, checkpoint_every_seconds=0) == 0
    assert saved_steps(job_dir) == [0, 1, 2, 3]


def test_a_loss_that_is_not_finite_fails_the_run_and_names_the_step(data_dir, tmp_path):
    job_dir = tmp_path / "run"
    assert train(job_dir, data_dir, learning_rate=1e18, checkpoint_every_steps=100) == 1
    rows, status = metrics(job_dir).split("train"), RunDirectory(job_dir).read_status()
    assert status.state == "failed" and status.step == rows[-1]["step"] < STEPS
    assert re.match(rf"loss is -?(NaN|inf) at step {status.step};", status.message)


def test_weights_that_are_not_finite_are_not_saved_and_named(data_dir, tmp_path):
    job_dir = tmp_path / "run"
    assert train(job_dir, data_dir, learning_rate=1e39, checkpoint_every_steps=1) == 1
    status = RunDirectory(job_dir).read_status()
    assert status.message.startswith(WEIGHT_NOT_FINITE) and status.step not in saved_steps(job_dir)


def test_a_loss_of_ones_own_that_is_not_finite_is_named(data_dir, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def loss(labels, logits):\n    return 0 * logits[:, 0] / 0\n")
    allow({str(mine): mine.read_bytes()})
    assert train(tmp_path / "run", data_dir, loss=f"{mine}:loss") == 1
    assert f"look at --loss {mine}:loss, which may" in RunDirectory(tmp_path / "run").read_status().message


@contextlib.contextmanager
def statuses(job_dir: Path) -> Iterator[set[tuple[int, str, float]]]:
    """Look at the status all the time: completed steps, message, seconds until the run counts as stalled."""
    seen, done, run = set(), threading.Event(), RunDirectory(job_dir)

    def look() -> None:
        while not done.wait(0.005):
            status = run.read_status()
            if status:
                seen.add((status.step, status.message, status.stalled_after_seconds))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def test_what_compiles_anew_is_announced_and_left_out_of_the_average(data_dir, tmp_path, capsys):
    job_dir = tmp_path / "run"
    fields = {
        "model": "resnet",
        "num_layers": 8,
        "progressive_resizing": "16:0.25,24:0.5",  # until step 3, and step 6
        "freeze": "stage1,stage2",
        "unfreeze_every_steps": 6,
        "validate_every_steps": 0,
        "checkpoint_every_steps": 100,
    }
    with statuses(job_dir) as seen:
        assert train(job_dir, data_dir, **fields) == 0
    said = capsys.readouterr().out
    for line in (
        "images of 24 x 24 pixels from step 4 on",
        "stage2 thaws after step 6: ",
        "images of 32 x 32 pixels from step 7 on",
    ):
        assert said.count(line) == 1
    compiling = {(step, message) for step, message, limit in seen if limit == SECONDS_TO_START}
    assert {(3, "images of 24 x 24 pixels"), (6, "stage2 thaws; images of 32 x 32 pixels")} <= compiling

    seconds = {row["step"]: row["seconds_per_step"] for row in metrics(job_dir).split("train")}
    others = [taken for step, taken in seconds.items() if step not in (1, 4, 7)]
    assert sum(others) < sum(seconds.values()) / 2, "a step that compiles takes as long as many"
    [average] = re.findall(rf"step {STEPS}/{STEPS} .*average (\d+)", said)
    assert BATCH * STEPS / sum(seconds.values()) < int(average) / 2
    assert int(average) <= BATCH / (sum(others) / len(others)) + 1
