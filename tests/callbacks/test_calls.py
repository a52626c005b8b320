"""What callbacks return and raise is checked, and said in one line that names the callback."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.callbacks import calls as calls_module
from labkit.callbacks.builtin import EarlyStopping
from labkit.callbacks.callback import Callback, TrainingFailed, TrainingView, callbacks_of, checked_callbacks
from labkit.callbacks.calls import Calls
from labkit.config import Config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter

ROW = {"split": "train", "step": 7, "loss": 1.5, "accuracy": 0.5}


class Returns(Callback):
    def __init__(self, value):
        self.value = value

    def after_step(self, training, row):
        return self.value


class Raises(Callback):
    def __init__(self, error):
        self.error = error
        self.ends = []

    def after_step(self, training, row):
        raise self.error

    def on_end(self, training, state):
        self.ends.append(state)


def view(tmp_path, step: int = 0) -> TrainingView:
    network = SimpleNamespace(
        config=Config.from_flat({"train_steps": 100}),
        steps_per_epoch=10.0,
        manifest=SimpleNamespace(splits={"validation": ["a shard"]}),
    )
    return TrainingView(network, RunDirectory(tmp_path), print, step)


@pytest.fixture
def made(tmp_path):
    said: list[str] = []

    def make(*callbacks: Callback) -> tuple[Calls, list[str]]:
        calls = Calls([Callback(), *callbacks], view(tmp_path), heartbeat=said.append, say=said.append)
        opened.append(calls)
        return calls, said

    opened: list[Calls] = []
    yield make
    for calls in opened:
        calls.on_end("finished")


@pytest.mark.parametrize(
    "value", [2, 2.5, np.float32(2.5), np.array(3), np.int64(4)], ids=lambda value: type(value).__name__
)
def test_a_number_of_any_kind_is_a_metric(made, value):
    calls, said = made(Returns({"noise": value}))
    assert calls.after_step(ROW) == {"noise": float(value)}
    assert not calls.failure and not said


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], "it returned [1]; allowed: None, or a dict of numbers by name"),
        ({"loss": 1.0}, "it named a metric 'loss', which the metrics row already has; choose another name"),
        ({"step": 1.0}, "it named a metric 'step', which labkit uses itself; choose another name"),
        ({"f1_micro": 1.0}, "it named a metric 'f1_micro', which labkit uses itself"),
        ({"resumed_at_step": 1.0}, "it named a metric 'resumed_at_step', which labkit uses itself"),
        ({"noise": 10**400}, "its metric 'noise' is 1000"),
        ({"a b": 1.0}, "it named a metric 'a b'; allowed: letters, digits, _ . - and /, with a letter first"),
        ({3: 1.0}, "it named a metric 3; allowed"),
        ({"noise": np.zeros(3)}, "its metric 'noise' is an array of shape (3,); allowed: one"),
        ({"noise": "high"}, "its metric 'noise' is 'high'; allowed: one number"),
        ({"noise": None}, "its metric 'noise' is None; allowed: one number"),
        ({"noise": True}, "its metric 'noise' is True; allowed: one number"),
        ({"other": 1}, "it named a metric 'other', which the metrics row already has"),
    ],
)
def test_anything_else_fails_with_a_sentence(made, value, words):
    calls, _ = made(Returns({"other": 2}), Returns(value))
    assert calls.after_step(ROW).keys() <= {"other"}
    assert calls.failure.startswith(f"callback Returns, step 7: {words}")
    assert "\n" not in calls.failure


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_kept_and_said_once(made, value):
    calls, said = made(Returns({"noise": value}))
    for _ in range(3):
        np.testing.assert_equal(calls.after_step(ROW), {"noise": value})
    assert not calls.failure
    assert said == [f"note: callback Returns, step 7: its metric 'noise' is {value}"]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ValueError("no\nsecond line"), "callback Raises failed after step 7: ValueError: no"),
        (TrainingFailed("the first NaN is in stage1"), "the first NaN is in stage1"),
    ],
)
def test_an_exception_names_the_callback_and_the_step_and_nobody_is_called_after_it(made, error, failure):
    first, second = Raises(error), Raises(KeyError("never"))
    calls, said = made(first, second)
    for _ in range(2):
        assert calls.after_step(ROW) == {}
        assert calls.failure == failure
    if type(error) is ValueError:  # said with the line of the user's code
        assert any("in after_step" in line and __file__ in line for line in said)
    calls.on_end("failed")
    calls.on_end("failed")
    assert first.ends == second.ends == ["failed"]


def test_the_row_cannot_be_changed(made):
    class Changes(Callback):
        def after_step(self, training, row):
            row["loss"] = 0.0

    calls, _ = made(Changes())
    calls.after_step(ROW)
    assert "TypeError" in calls.failure and ROW["loss"] == 1.5


def test_a_slow_call_is_reported_while_it_runs_and_after_it(made, monkeypatch):
    monkeypatch.setattr(calls_module, "SECONDS_UNTIL_REPORTED", 0.05)
    reported = threading.Event()

    class Slow(Callback):
        def after_step(self, training, row):
            assert reported.wait(20)

    said: list[str] = []

    def beat(text: str) -> None:
        said.append(text)
        reported.set()

    calls, _ = made(Slow())
    calls._heartbeat, calls._say = beat, said.append
    calls.after_step(ROW)
    assert not calls.failure
    assert said[0].startswith("callback Slow after step 7 has been running for")
    assert said[-1].startswith("note: callback Slow took") and said[-1].endswith("training waited for it")


# ---- early stopping ------------------------------------------------------------------------------------


def validations(*accuracies: float) -> list[dict]:
    return [
        {"split": "validation", "step": 10 * number, "accuracy": accuracy}
        for number, accuracy in enumerate(accuracies, 1)
    ]


def test_early_stopping_counts_validations_without_a_better_one_in_each_training(tmp_path):
    stopping = EarlyStopping(2)
    for _ in range(2):
        training = view(tmp_path)
        stopping.on_start(training)
        for row in validations(0.5, 0.4, 0.6, 0.6):
            stopping.after_validation(training, row)
            assert not training.requests.stop
        stopping.after_validation(training, {"step": 50, "accuracy": 0.59})
        assert training.requests.stop == (
            "early stopping: no better validation than 0.6000 at step 30 in 2 validations"
        )


def test_after_a_resume_early_stopping_counts_on_but_not_what_is_made_again(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.append(validations(0.5, 0.4, 0.3))  # of steps 10, 20, 30
    writer.close()
    training, stopping = view(tmp_path, 25), EarlyStopping(2)
    stopping.on_start(training)
    assert not training.requests.stop  # step 30 is trained again
    stopping.after_validation(training, {"step": 30, "accuracy": 0.3})
    assert training.requests.stop


@pytest.mark.parametrize("patience", [0, -1, "3", 1.5, True])
def test_patience_is_a_whole_number(patience):
    with pytest.raises(InputError, match="patience is .*; allowed: a whole number of at least 1"):
        EarlyStopping(patience)


def test_early_stopping_without_a_validation_split_fails_the_run(made):
    calls, _ = made(EarlyStopping(1))
    calls.training.network.manifest.splits = {}
    calls.on_start()
    assert calls.failure == "EarlyStopping needs a validation split, which the data set doesn't have"


# ---- what may be given ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (EarlyStopping, "callbacks is an object of type"),
        (EarlyStopping(1), "callbacks is an object of EarlyStopping; allowed: a list of labkit.Callback"),
        ([EarlyStopping], "callbacks holds the class EarlyStopping; allowed: objects, EarlyStopping()"),
        (
            [type("Typo", (Callback,), {"after_steps": print})()],
            "callback Typo has a method 'after_steps'",
        ),
        ([print], "callbacks holds an object of builtin_function_or_method; allowed: objects of classes"),
        ("file.py", "callbacks is an object of str; allowed: a list of labkit.Callback objects"),
    ],
)
def test_callbacks_are_a_list_of_objects(given, words):
    with pytest.raises(InputError) as error:
        checked_callbacks(given)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("callbacks = [", "can't be run: SyntaxError"),
        ("x = 1", "defines no callbacks; write: callbacks = [MyCallback()]"),
        ("callbacks = [1]", "callbacks holds an object of int; allowed"),
    ],
)
def test_a_file_without_usable_callbacks_is_refused(tmp_path, text, words):
    path = tmp_path / "mine.py"
    with pytest.raises(InputError) as error:
        callbacks_of(Config.from_flat({"callbacks": str(path)}), {str(path): text.encode()})
    assert str(error.value).startswith(f"--callbacks {path}") and words in str(error.value)
    assert "\n" not in str(error.value)
