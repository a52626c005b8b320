"""Functions, classes and models that are given in place of a name become files for other processes."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import labkit
from labkit.errors import InputError
from labkit.parts.code import allow, named_object
from labkit.parts.objects import as_files
from tests import own_nets

ROOT = Path(__file__).parents[2]


def as_file(value, folder):
    """The reference that a value becomes, in a copy that stays."""
    with as_files({"model": value}) as flags:
        path, _, name = flags["model"].rpartition(":")
        copy = folder / Path(path).name
        copy.write_bytes(Path(path).read_bytes())
        allow({str(copy): copy.read_bytes()})
        return f"{copy}:{name}"


def test_names_stay_and_functions_of_modules_are_their_file():
    for value in ("resnet", None, "a.py:b"):
        with as_files({"model": value}) as flags:
            assert flags["model"] == value
    with as_files({"model": own_nets.functional}) as flags:
        assert flags["model"] == f"{ROOT / 'tests' / 'own_nets.py'}:functional"
    with as_files({"train_steps": 3}) as flags:
        assert flags == {"train_steps": 3}


NOTEBOOK = """
import keras
import numpy as np
from keras import layers as ls

WIDTH, SHAPE = 4, (3, 3)

class Block(ls.Layer):
    def __init__(self):
        super().__init__()
        self.conv = ls.Conv2D(WIDTH, SHAPE)

    def call(self, x):
        return twice(self.conv(x))

def twice(x):
    return sum([value for value in (x, x)])

x, value = np.float64(3), object()  # of another cell

def build(input_shape, num_classes, units=5):
    return keras.Sequential([Block(), ls.Flatten(), ls.Dense(int(np.sqrt(units**2))), ls.Dense(num_classes)])
"""


@pytest.mark.long
def test_a_function_of_a_notebook_brings_all_that_it_uses(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(
        NOTEBOOK
        + f"""
from pathlib import Path
from labkit.parts.objects import as_files
with as_files({{"model": build}}) as flags:
    path, _, name = flags["model"].rpartition(":")
    assert name == "build"
    Path({str(tmp_path / "kept.py")!r}).write_text(Path(path).read_text())
"""
    )
    subprocess.run([sys.executable, script], check=True, timeout=120, cwd=ROOT)
    kept = tmp_path / "kept.py"
    allow({str(kept): kept.read_bytes()})
    model = named_object("--model", f"{kept}:build")((8, 8, 1), 2)
    assert model(np.ones((1, 8, 8, 1), np.float32)).shape == (1, 2)
    lines = kept.read_text().splitlines()
    assert {"import keras", "import keras.layers as ls", "WIDTH = 4"} <= set(lines)
    assert "labkit" not in kept.read_text()
    assert not any(line.startswith(("x =", "value =")) for line in lines), "names of their own variables"


def test_a_keras_model_is_saved_with_its_weights_and_the_same_bytes(tmp_path):
    model = own_nets.mlp((4, 4, 1), 3)
    contents = []
    for _ in range(2):
        with as_files({"model": model}) as flags:
            contents.append(Path(flags["model"]).read_bytes())
            again = keras.saving.load_model(flags["model"])
    assert contents[0] == contents[1]
    for weight, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(weight, other)


def test_what_cannot_be_a_file_is_refused_in_one_line():
    data = np.ones(3)

    def uses_data(input_shape, num_classes):
        return data

    for value, said in (
        (3, "model is 3; allowed: a name, 'FILE.py:NAME', a function"),
        (lambda shape, classes: None, "give a function that is defined with def"),
        (uses_data, "uses 'data'"),
        (own_nets.subclassed((8, 8, 1), 2), "can't be saved"),
    ):
        with pytest.raises(InputError) as refused, as_files({"model": value}):
            pass
        assert said in str(refused.value) and "\n" not in str(refused.value)


def test_two_functions_of_one_name_are_told_apart():
    def times(factor):
        def loss(labels, logits):
            return factor * logits[:, 0]

        return loss

    refused = pytest.raises(InputError, match=r"two values of the name 'loss'.*other names")
    with refused, as_files({"metrics": [times(1), times(2)]}):
        pass
    with as_files({"metrics": [times(1), "auc"], "loss": times(2)}) as flags:
        texts = [Path(flags[name].partition(":")[0]).read_text() for name in ("metrics", "loss")]
    assert ["factor = 1" in text for text in texts] == [True, False]
    with as_files({"loss": times(1), "augment": times(2)}) as flags:  # either may be written first
        texts = [Path(flags[name].partition(":")[0]).read_text() for name in ("loss", "augment")]
    assert ["factor = 1" in text for text in texts] == [True, False]


@pytest.mark.slow
def test_a_saved_model_is_trained_from_its_weights(tmp_path, shapes):
    model = own_nets.mlp((32, 32, 3), 10, units=4)
    once = {"dataset": "shapes", "num_gpus": 0, "job_dir": tmp_path / "run"}
    settled = {"learning_rate": 1e-6, "weight_decay": 0.0, "validate_every_steps": 0, "evaluate_test": False}
    run = labkit.train(model=model, train_steps=2, checkpoint_every_steps=1, **once, **settled)
    assert run.state == "finished" and (tmp_path / "run" / "code" / "model.keras").is_file()
    from labkit.analysis.network import load_network

    trained = load_network(run, "last").model
    for weight, before in zip(trained.weights, model.weights, strict=True):
        np.testing.assert_allclose(weight, before, atol=1e-4)
    with pytest.raises(InputError, match="saved model is trained in float32"):
        labkit.train(model=model, precision="float64", **once | {"job_dir": tmp_path / "other"})
