"""Callbacks in real trainings of one process: what they see, add, ask for and break."""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import labkit
from labkit.callbacks.callback import Callback
from labkit.config import Config
from labkit.run_directory import RunDirectory
from labkit.training.plan import plan_training
from labkit.training.train import train as train_as_planned
from tests.properties.harness import labkit as command
from tests.properties.harness import losses, metrics
from tests.training.recorder import Recorder
from tests.training.small import FIELDS, STEPS, saved_steps, train


def trained(job_dir: Path, data_dir: Path, *callbacks: Callback, **fields: object):
    """Train with callbacks in this process; return the result."""
    values = FIELDS | {"job_dir": str(job_dir), "data_dir": str(data_dir)} | fields
    return train_as_planned(plan_training(Config.from_flat(values), callbacks=callbacks))


def test_they_are_called_at_every_point_in_order_and_change_nothing(whole, data_dir, tmp_path):
    recorder = Recorder()
    result = trained(tmp_path / "run", data_dir, recorder)
    expected: list[list[object]] = [["start", 0]]
    for step in range(1, STEPS + 1):
        expected += [["before", step], ["after", step, losses(whole)[step - 1]]]
        if step in (5, 10, STEPS):
            expected.append(["validation", step])
        if step in saved_steps(whole):
            expected.append(["checkpoint", step])
    assert recorder.calls == [*expected, ["end", "finished"]]
    assert result.state == "finished"
    assert losses(tmp_path / "run") == losses(whole)
    rows = metrics(tmp_path / "run").split("train")
    assert [row["twice_the_loss"] for row in rows] == [2 * row["loss"] for row in rows]
    assert [row["seen"] for row in metrics(tmp_path / "run").split("validation")] == [5, 10, STEPS]
    events = EventAccumulator(str(tmp_path / "run" / "events")).Reload()
    drawn = [event.value for event in events.Scalars("train/twice_the_loss")]
    assert drawn == pytest.approx([2 * row["loss"] for row in rows])


class AsksAt(Callback):
    """Asks for something after one step."""

    def __init__(self, step: int, method: str, *arguments: str) -> None:
        self.step, self.method, self.arguments = step, method, arguments

    def after_step(self, training, row):
        if row["step"] == self.step:
            getattr(training, self.method)(*self.arguments)


@pytest.mark.long
def test_a_validation_and_a_checkpoint_that_are_asked_for_come_after_that_step(whole, data_dir, tmp_path):
    job_dir = tmp_path / "run"
    asked = [AsksAt(3, "request_validation"), AsksAt(7, "request_checkpoint")]
    trained(job_dir, data_dir, *asked, AsksAt(5, "request_validation"))
    assert [row["step"] for row in metrics(job_dir).split("validation")] == [3, 5, 10, STEPS]
    assert 7 in saved_steps(job_dir)
    assert losses(job_dir) == losses(whole)


def test_a_stop_ends_the_run_as_finished_validated_saved_and_tested(whole, data_dir, tmp_path, capsys):
    job_dir = tmp_path / "run"
    result = trained(job_dir, data_dir, AsksAt(7, "request_stop", "it is good enough"))
    status = RunDirectory(job_dir).read_status()
    assert (result.state, status.state, status.step) == ("finished", "finished", 7)
    assert status.message == f"stopped after 7 steps of {STEPS}: it is good enough"
    assert losses(job_dir) == losses(whole)[:7]
    assert [row["step"] for row in metrics(job_dir).split("validation")] == [5, 7]
    assert saved_steps(job_dir)[-1] == 7
    assert len(metrics(job_dir).split("test")) == 1
    capsys.readouterr()
    assert train(job_dir, data_dir) == 0
    assert "nothing left to do" in capsys.readouterr().out


@pytest.mark.long
def test_early_stopping_by_its_flag_stops_where_it_would_without_an_interruption(data_dir, tmp_path):
    # At this learning rate nothing is learned: the first validation remains the best.
    fields = {"early_stopping_patience": 2, "learning_rate": 0.0, "validate_every_steps": 2}
    assert train(tmp_path / "whole", data_dir, **fields) == 0
    assert RunDirectory(tmp_path / "whole").read_status().step == 6

    class Interrupts(Callback):
        def after_step(self, training, row):
            if row["step"] == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", data_dir, Interrupts(), **fields)
    assert train(tmp_path / "cut", data_dir, **fields) == 0
    status = RunDirectory(tmp_path / "cut").read_status()
    assert status.step == 6
    assert "early stopping: no better validation" in status.message


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("before_step", marks=pytest.mark.long),
        "after_checkpoint",
        pytest.param("on_end", marks=pytest.mark.long),
    ],
)
def test_a_callback_that_raises_fails_the_run_and_loses_no_step(method, whole, data_dir, tmp_path):
    def raises(self, training, *arguments):
        if training.step in (0, 5, STEPS):
            raise RuntimeError("my own mistake")

    broken = type("Broken", (Callback,), {method: raises})()
    job_dir = tmp_path / "run"
    result = trained(job_dir, data_dir, broken, checkpoint_every_steps=5, validate_every_steps=5)
    status = RunDirectory(job_dir).read_status()
    assert (result.state, status.state) == ("failed", "failed")
    assert status.message.startswith("callback Broken failed ")
    assert status.message.endswith(": RuntimeError: my own mistake")
    assert status.step == {"before_step": 1, "after_checkpoint": 6, "on_end": STEPS}[method]
    assert saved_steps(job_dir)[-1:] == [status.step]
    if method == "after_checkpoint":
        assert train(job_dir, data_dir) == 0
        assert losses(job_dir) == losses(whole)


@pytest.mark.long
def test_what_was_asked_for_is_done_before_a_signal_stops_the_run(whole, data_dir, tmp_path):
    class AsksAndStops(Callback):
        def after_step(self, training, row):
            if row["step"] == 3:
                training.request_validation()
                os.kill(os.getpid(), signal.SIGTERM)

    job_dir = tmp_path / "run"
    assert trained(job_dir, data_dir, AsksAndStops()).state == "interrupted"
    assert train(job_dir, data_dir) == 0
    assert [row["step"] for row in metrics(job_dir).split("validation")] == [3, 5, 10, STEPS]
    assert losses(job_dir) == losses(whole)


def test_check_numerics_names_the_tensor_also_where_a_checkpoint_is_due(data_dir, tmp_path):
    job_dir = tmp_path / "run"
    fields = {"check_numerics": True, "checkpoint_every_steps": 1, "learning_rate": 1e30}
    assert train(job_dir, data_dir, **fields) == 1
    status = RunDirectory(job_dir).read_status()
    assert status.message.startswith(f"step {status.step}: the first ")
    kept = job_dir / "numerics" / f"step-{status.step - 1:08d}"
    assert (kept / "state.json").is_file()
    assert all(step < status.step for step in saved_steps(job_dir))


@pytest.mark.long
def test_histograms_of_a_resumed_run_and_of_one_that_is_trained_anew_are_there_once(data_dir, tmp_path):
    class Stops(Callback):
        def after_step(self, training, row):
            if row["step"] == 3:
                raise KeyboardInterrupt

    job_dir = tmp_path / "run"
    fields = {"inspect_every_steps": 1, "train_steps": 4, "checkpoint_every_steps": 2}

    def steps() -> list[int]:
        # The reader of TensorBoard's server, which drops what a restart makes again.
        events = plugin_event_accumulator.EventAccumulator(str(job_dir / "events" / "extras")).Reload()
        [*_, tag] = [tag for tag in events.Tags()["tensors"] if tag.startswith("weights/")]
        return [event.step for event in events.Tensors(tag)]

    with pytest.raises(KeyboardInterrupt):
        trained(job_dir, data_dir, Stops(), **fields)
    time.sleep(1)  # TensorBoard reads files in the order of their names, which hold the second
    trained(job_dir, data_dir, **fields)
    assert steps() == [1, 2, 3, 4]
    values = FIELDS | {"job_dir": str(job_dir), "data_dir": str(data_dir)} | fields
    assert train_as_planned(plan_training(Config.from_flat(values), overwrite=True)).state == "finished"
    assert steps() == [1, 2, 3, 4]


def test_they_see_weights_and_logits_of_the_step(data_dir, tmp_path):
    class Looks(Callback):
        def after_step(self, training, row):
            weights = training.weights()
            norm = math.sqrt(sum(float((values**2).sum()) for values in weights.values()))
            height, width, channels = training.network.manifest.image_shape
            images = np.zeros((2, height, width, channels), np.uint8)
            logits = training.logits(images)
            assert logits.shape == (2, 10) and (logits[0] == logits[1]).all()
            assert row["step"] == training.step and len(training.rows("train")) == training.step - 1
            return {"weight_norm": norm}

    assert trained(tmp_path / "run", data_dir, Looks(), train_steps=3).state == "finished"
    norms = [row["weight_norm"] for row in metrics(tmp_path / "run").split("train")]
    assert len(set(norms)) == 3


def test_before_a_step_they_see_its_own_batch_with_the_weights_that_it_begins_with(data_dir, tmp_path):
    class Foresees(Callback):
        def before_step(self, training, step):
            images, labels = training.batch(step)
            logits = training.logits(images).astype(float)
            logits -= logits.max(axis=1, keepdims=True)
            chosen = logits[range(len(labels)), labels]
            self.loss = float((np.log(np.exp(logits).sum(axis=1)) - chosen).mean())

        def after_step(self, training, row):
            return {"foreseen": self.loss}

    assert trained(tmp_path / "run", data_dir, Foresees(), train_steps=3).state == "finished"
    for row in metrics(tmp_path / "run").split("train"):
        assert row["foreseen"] == pytest.approx(row["loss"], rel=1e-5)


def test_callbacks_come_from_a_file_on_the_command_line(data_dir, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(Path(sys.modules[Recorder.__module__].__file__).read_text())
    assert train(tmp_path / "run", data_dir, callbacks=path, train_steps=3) == 0
    assert json.loads((tmp_path / "run.calls.json").read_text())[-1] == ["end", "finished"]
    assert "twice_the_loss" in metrics(tmp_path / "run").split("train")[0]
    assert train(tmp_path / "other", data_dir, callbacks=tmp_path / "none.py") == 2
    assert "none.py can't be read: No such file" in capsys.readouterr().err


MINE = """
import labkit

class Marks(labkit.Callback):
    def __init__(self, name="mark", value=0, fails_at=0):
        self.name, self.value, self.fails_at = name, value, fails_at

    def after_step(self, training, row):
        if row["step"] == self.fails_at:
            raise RuntimeError("here")
        return {self.name: self.value}

def both(**arguments):
    return [Marks(**arguments), Marks("other", 2)]

made = Marks()
nothing = dict
"""


def test_a_class_in_a_file_gets_its_arguments_also_on_resume(data_dir, tmp_path):
    path, job_dir = tmp_path / "mine.py", tmp_path / "run"
    path.write_text(MINE)
    arguments = {"callback": f"{path}:both", "callback_arguments": '{"value": 7, "fails_at": 2}'}
    assert train(job_dir, data_dir, **arguments, train_steps=4) == 1
    path.unlink()  # a run keeps its own copy
    assert command("resume", str(job_dir)) == 0
    rows = metrics(job_dir).split("train")
    assert [(row.get("mark"), row["other"]) for row in rows if "other" in row] == [(7, 2)] * 3


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (":Marks", "values=1", "unexpected keyword argument 'values'"),
        (":Marks", "value", "NAME=VALUE"),
        (":Mark", "none", "did you mean 'Marks'?"),
        (":made", "none", "allowed: a class derived from labkit.Callback, or a function"),
        (":nothing", "none", "callbacks is an object of dict"),
        ("", "value=1", "it needs a class or a function, --callbacks FILE.py:NAME"),
    ],
)
def test_a_class_that_gives_no_callback_is_one_line(data_dir, tmp_path, capsys, name, arguments, said):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    assert train(tmp_path / "run", data_dir, callbacks=f"{path}{name}", callback_arguments=arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line and not (tmp_path / "run").exists()


def test_the_function_takes_a_list_and_refuses_a_class(data_dir, tmp_path):
    recorder = Recorder()
    values = FIELDS | {"job_dir": tmp_path / "run", "data_dir": data_dir, "train_steps": 2}
    run = labkit.train(callbacks=[recorder], **values)
    assert run.metrics("train")["twice_the_loss"].shape == (2,)
    with pytest.raises(labkit.InputError, match=r"the class Recorder; allowed: objects, Recorder\(\)"):
        labkit.train(callbacks=[Recorder], **values)
