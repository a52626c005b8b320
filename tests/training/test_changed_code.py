"""A run that goes on with a changed file of one's own: said, recorded, not mixed with the steps before."""

import pytest

from labkit.parts.code import code_changed_after
from labkit.run_directory import RunDirectory
from tests.properties import harness
from tests.properties.harness import metrics
from tests.training.small import FIELDS, train

NET = """
def build(input_shape, num_classes):
    import keras
    activation = "relu"
    x = images = keras.Input(input_shape)
    x = keras.layers.Conv2D(4, 3, strides=4, activation=activation)(x)
    return keras.Model(images, keras.layers.Dense(num_classes)(keras.layers.Flatten()(x)))
"""
STOPS = """
import labkit

class Stops(labkit.Callback):
    def after_step(self, training, row):
        if row["step"] == 6:
            raise RuntimeError("here")
"""


def labkit(*words: object) -> int:
    return harness.labkit(*map(str, words))


@pytest.fixture
def stopped(tmp_path, data_dir, monkeypatch):
    """A run of one's own network that ended at step 6, and the flags that continue it."""
    monkeypatch.chdir(tmp_path)  # where replays write
    (tmp_path / "nets.py").write_text(NET)
    (tmp_path / "stops.py").write_text(STOPS)
    own = {"model": f"{tmp_path / 'nets.py'}:build", "callbacks": f"{tmp_path / 'stops.py'}:Stops"}
    assert train(tmp_path / "run", data_dir, **own) == 1
    (tmp_path / "nets.py").write_text(NET.replace("relu", "tanh"))
    return RunDirectory(tmp_path / "run"), own


@pytest.mark.long
@pytest.mark.parametrize("by", ["train", "resume"])
def test_it_goes_on_with_the_new_code_and_keeps_the_old(stopped, data_dir, tmp_path, capsys, by):
    run, own = stopped
    assert train(run.path, data_dir, **own) == 2
    assert "--accept-changed-code" in capsys.readouterr().err
    if by == "train":
        values = FIELDS | {"job_dir": run.path, "data_dir": data_dir} | own
        words = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        assert labkit("train", *words, "--accept-changed-code") == 0
    else:
        assert labkit("resume", run.path, "--accept-changed-code", tmp_path / "nets.py") == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "has changed" in line]
    assert "steps after 6" in line and str(run.code_path / "until-6" / "nets.py") in line
    assert line in run.log_path.read_text()
    assert "relu" in (run.code_path / "until-6" / "nets.py").read_text()
    assert "tanh" in (run.code_path / "nets.py").read_text() and code_changed_after(run) == 6
    assert [row["step"] for row in metrics(run.path).split("train")] == list(range(1, 13))
    assert labkit("replay", run.path, "--step", 7) == 0
    capsys.readouterr()
    for words in (
        ["replay", run.path, "--step", 6],
        ["verify", run.path, "--from", 4],
        ["fork", run.path, "--at", 4],
    ):
        assert labkit(*words) == 2
        assert "was made with other code" in capsys.readouterr().err
    assert labkit("evaluate", run.path, "--checkpoint", 4) == 0
    assert "the code changed after step 6" in capsys.readouterr().out


def test_resume_takes_a_file_of_a_name_that_the_run_has(stopped, tmp_path, capsys):
    run, _ = stopped
    (tmp_path / "other.py").write_text(NET)
    assert labkit("resume", run.path, "--accept-changed-code", tmp_path / "other.py") == 2
    assert "has code of the names: nets.py, stops.py" in capsys.readouterr().err
