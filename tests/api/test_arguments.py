"""Python's functions answer a wrong type in one short line, and take NumPy's numbers like Python's."""

import json
from pathlib import Path

import numpy as np
import pytest

import labkit
from labkit.config import Config
from labkit.config.config import fields_by_name
from labkit.config.fields import fields_of
from labkit.figures.compare_runs import CompareRuns
from labkit.figures.explorer import PredictionExplorer
from labkit.figures.monitor import RunMonitor
from labkit.notebook.background import start
from labkit.run_directory import RunDirectory


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nothing(*arguments: object) -> None: ...


def given(bad: object, instead: object) -> object:
    """Return the wrong value; another one where None is allowed."""
    return instead if bad is None else bad


WRONG = {
    "an array": np.zeros((64, 32, 32, 3)),
    "an array of words": np.array(["a", "b"] * 2000),
    "a list": [1] * 5000,
    "a nested list": [[np.zeros(500)] * 50] * 50,
    "a dict": {"a": 1},
    "a set": {1, 2},
    "an object": object(),
    "a function": nothing,
    "a class": int,
    "bytes": b"x",
    "a complex number": 1j,
    "a number of 5,000 digits": 10**5000,
    "an object that can't be printed": Unprintable(),
    "a text with a zero byte": "a\0b",
    "None": None,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> labkit.Run:
    """A run directory before its first step."""
    directory = RunDirectory(tmp_path_factory.mktemp("runs") / "mine")
    directory.create()
    directory.config_path.write_text(json.dumps(Config.from_flat({"dataset": "shapes"}).to_json()))
    return labkit.Run(directory.path)


CALLS = {
    "train": lambda run, bad: labkit.train(given(bad, 0)),
    "train config": lambda run, bad: Config(data=bad),
    "train preset": lambda run, bad: labkit.train(preset=given(bad, {})),
    "train overwrite": lambda run, bad: labkit.train(preset="smoke", overwrite=bad),
    "train accept_changed_code": lambda run, bad: labkit.train(preset="smoke", accept_changed_code=bad),
    "train callbacks": lambda run, bad: labkit.train(preset="smoke", callbacks=given(bad, {})),
    "evaluate": lambda run, bad: labkit.evaluate(bad),
    "evaluate split": lambda run, bad: labkit.evaluate(run, split=bad),
    "evaluate checkpoint": lambda run, bad: labkit.evaluate(run, checkpoint=bad),
    "evaluate data_dir": lambda run, bad: labkit.evaluate(run, data_dir=bad),
    "evaluate eval_batch_size": lambda run, bad: labkit.evaluate(run, eval_batch_size=bad),
    "load_run": lambda run, bad: labkit.load_run(bad),
    "Run": lambda run, bad: labkit.Run(bad),
    "runs": lambda run, bad: labkit.runs(given(bad, 5)),
    "metrics": lambda run, bad: run.metrics(bad),
    "predictions": lambda run, bad: run.predictions(bad),
    "predictions checkpoint": lambda run, bad: run.predictions("test", given(bad, "best")),
    "evaluations": lambda run, bad: run.evaluations(bad),
    "slices": lambda run, bad: run.slices(bad, "test"),
    "predict": lambda run, bad: run.predict(bad),
    "predict checkpoint": lambda run, bad: run.predict(["x.png"], checkpoint=bad),
    "confusion_matrix": lambda run, bad: run.confusion_matrix(given(bad, 5)),
    "find_learning_rate": lambda run, bad: labkit.find_learning_rate(given(bad, 0)),
    "correct_data": lambda run, bad: labkit.correct_data(bad, name="x"),
    "correct_data name": lambda run, bad: labkit.correct_data("shapes", name=bad),
    "predict skip_damaged": lambda run, bad: run.predict(["x.png"], skip_damaged=bad),
    "search": lambda run, bad: labkit.search(bad),
    "start_run": lambda run, bad: labkit.start_run(given(bad, 5)),
    "start_run config": lambda run, bad: labkit.start_run("mine", given(bad, 5)),
    "start_run total_steps": lambda run, bad: labkit.start_run("mine", total_steps=given(bad, "ten")),
    "start_run overwrite": lambda run, bad: labkit.start_run("mine", overwrite=bad),
    "start_run resume_from": lambda run, bad: labkit.start_run("mine", resume_from=given(bad, 0.5)),
    "start_run job_dir": lambda run, bad: labkit.start_run(job_dir=given(bad, 5)),
    "batch": lambda run, bad: run.batch(bad),
    "batch data_dir": lambda run, bad: run.batch(1, data_dir=given(bad, 5)),
    "replay": lambda run, bad: run.replay(bad),
    "replay data_dir": lambda run, bad: run.replay(1, data_dir=given(bad, 5)),
    "replay max_steps": lambda run, bad: run.replay(1, max_steps=bad),
    "tensorboard": lambda run, bad: run.tensorboard(bad),
    "from_flat": lambda run, bad: Config.from_flat([bad]),
    "from_flat names": lambda run, bad: Config.from_flat({5: bad}),
    "from_json": lambda run, bad: Config.from_json(bad),
    "replace": lambda run, bad: Config().replace([bad]),
    "differences": lambda run, bad: Config().differences(bad),
    "EarlyStopping": lambda run, bad: labkit.EarlyStopping(bad),
    "compare_replicas layouts": lambda run, bad: labkit.compare_replicas(bad),
    "compare_replicas steps": lambda run, bad: labkit.compare_replicas(steps=bad),
    "compare_replicas tolerance": lambda run, bad: labkit.compare_replicas(tolerance=bad),
    "compare_replicas output": lambda run, bad: labkit.compare_replicas(["1 replica"], output=given(bad, 5)),
    "compare_replicas flag": lambda run, bad: labkit.compare_replicas(num_gpus=bad),
    "start": lambda run, bad: start(given(bad, 0)),
    "start workers": lambda run, bad: start(workers=bad),
    "start ps": lambda run, bad: start(ps=bad),
    "start link": lambda run, bad: start(link=given(bad, 5)),
    "start overwrite": lambda run, bad: start(overwrite=bad),
    "CompareRuns": lambda run, bad: CompareRuns(bad),
    "CompareRuns by": lambda run, bad: CompareRuns(run, by=given(bad, 5)),
    "CompareRuns seeds_together": lambda run, bad: CompareRuns(run, seeds_together=bad),
    "RunMonitor": lambda run, bad: RunMonitor(bad),
    "PredictionExplorer": lambda run, bad: PredictionExplorer(bad),
    "PredictionExplorer split": lambda run, bad: PredictionExplorer(run, given(bad, 5)),
}
DATA = ("dataset", "data_dir", "images", "name", "image_size", "resize", "archive", "validation_size")
DATA += ("classes", "train_examples", "url", "skip_damaged", "npz", "tfrecords", "class_names")
for name in DATA:
    CALLS[f"prepare_data {name}"] = lambda run, bad, name=name: labkit.prepare_data(**{name: given(bad, 1.5)})
for name in ("sampler", "halving", "eta", "seeds", "repeats", "workers"):
    CALLS[f"search {name}"] = lambda run, bad, name=name: labkit.search({"momentum": "0,1"}, **{name: bad})
for name in fields_by_name():
    CALLS[f"field {name}"] = lambda run, bad, name=name: Config.from_flat({name: bad})


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_value_is_one_short_line(call: str, run: labkit.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.data.prepare.prepare", lambda *values, **named: pytest.fail("prepared"))
    optional = call.startswith("field ") and fields_by_name()[call.split()[1]].optional
    words = ("an array of words", "a list")
    good = {
        "prepare_data classes": words,
        "prepare_data class_names": words,
        "start_run config": ("a dict",),
        "field class_weights": ("a dict",),
    }
    for kind, value in WRONG.items():
        if kind in good.get(call, ()):
            continue
        if optional and value is None:
            continue
        with pytest.raises(labkit.InputError) as refused:
            CALLS[call](run, value)
        message = str(refused.value)
        assert len(message) < 360 and "\n" not in message and message.isprintable(), (kind, message)


def test_numpy_values_are_taken_and_recorded_as_numbers() -> None:
    given = {
        "train_steps": np.int64(30),
        "num_layers": np.array(8),
        "learning_rate": np.float32(0.5),
        "momentum": np.float64(0.25),
        "sync_batch_norm": np.bool_(True),
        "dataset": np.str_("shapes"),
        "job_dir": Path("some") / "where",
        "num_gpus": np.uint8(0),
    }
    config = Config.from_flat(given)
    plain = {"train_steps": 30, "num_layers": 8, "learning_rate": 0.5, "momentum": 0.25, "num_gpus": 0}
    expected = Config.from_flat(
        plain | {"sync_batch_norm": True, "dataset": "shapes", "job_dir": str(Path("some") / "where")}
    )
    assert json.loads(json.dumps(config.to_json())) == expected.to_json()
    assert config.fingerprint() == expected.fingerprint()
    for part in config.to_json():
        for info in fields_of(type(getattr(config, part))):
            assert type(getattr(getattr(config, part), info.name)) in (info.type, type(None))
    assert labkit.EarlyStopping(np.int32(3)).patience == 3


@pytest.mark.parametrize(
    "value", [np.float64(30.5), np.bool_(True), np.array([30]), np.datetime64("2026-01-01")]
)
def test_values_of_numpy_of_another_type_are_refused(value: object) -> None:
    with pytest.raises(labkit.InputError, match="^--train-steps is .*; allowed: a whole number"):
        Config.from_flat({"train_steps": value})


@pytest.mark.long
def test_numpy_values_in_prepare_data(tmp_path: Path) -> None:
    classes = np.array(["ring", "disc"])
    given = {"dataset": np.str_("shapes"), "data_dir": tmp_path, "classes": classes}
    manifest = labkit.prepare_data(**given, train_examples=np.int64(20), validation_size=np.array(10))
    assert manifest.classes == ("ring", "disc")
    assert (manifest.count("train"), manifest.count("validation")) == (20, 10)
    assert labkit.prepare_data("shapes", data_dir=tmp_path, classes=np.array([1, 0])).classes == (
        "ring",
        "disc",
    )
