"""``labkit.train`` in a process where TensorFlow and Keras were used before, with other settings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.startup.quiet_import import check_keras_backend, import_tensorflow

pytestmark = pytest.mark.slow

# Three steps of the smoke preset, then what reads the run again.
TRAIN = """
import json, sys
import labkit
run = labkit.train(
    preset="smoke", train_steps=3, eval_batch_size=1000, deterministic=True, job_dir=sys.argv[1]
)
print("RESULT " + json.dumps({
    "losses": run.metrics()["loss"].tolist(),
    "test": run.metrics("test")["loss"].tolist(),
    "evaluated": labkit.evaluate(run)["loss"],
    "replayed": run.replay(3).metrics["loss"],
    "threads": run.environment["threads"]["intra"],
}))
"""
USED = """
import keras
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(2)
tf.config.set_soft_device_placement(False)
keras.config.set_dtype_policy("mixed_bfloat16")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(tf.ones([8, 4]), tf.ones([8, 2]), verbose=0)

def settings():
    config = keras.config
    values = [config.floatx(), config.image_data_format(), config.epsilon(), config.dtype_policy().name]
    return [*values, tf.config.get_soft_device_placement()]

before = settings()
assert before == ["float16", "channels_first", 0.1, "mixed_bfloat16", False], before
"""
AFTER = """
assert settings() == before, settings()
tf.random.uniform([1])  # refused while operations have to be deterministic
model.fit(tf.ones([8, 4]), tf.ones([8, 2]), verbose=0)
refused = []
for asked in ({"num_intra_threads": 1}, {"num_gpus": 2, "simulate_missing_gpus": True}):
    try:
        labkit.train(preset="smoke", job_dir=sys.argv[1] + "-other", **asked)
    except labkit.InputError as error:
        refused.append(str(error))
print("REFUSED " + json.dumps(refused))
"""


def outputs(code: str, *arguments: str, **variables: str) -> dict[str, object]:
    """Run code in a process of its own, like a kernel; return the JSON of its marked lines by their mark."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    marked = (line.partition(" ") for line in ended.stdout.splitlines())
    return {mark: json.loads(text) for mark, _, text in marked if mark in ("RESULT", "REFUSED")}


@pytest.mark.long
def test_other_work_before_changes_no_result_and_is_not_changed(shapes: Manifest, tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text(
        json.dumps({"floatx": "float16", "image_data_format": "channels_first", "epsilon": 0.1})
    )
    clean = outputs(TRAIN, str(tmp_path / "clean"))["RESULT"]
    used = outputs(USED + TRAIN + AFTER, str(tmp_path / "used"), KERAS_HOME=str(tmp_path))
    assert isinstance(clean, dict) and isinstance(used["RESULT"], dict)
    assert clean["losses"] == pytest.approx([2.573417, 2.739981, 2.350445], abs=1e-4)
    assert clean["replayed"] == clean["losses"][2] and clean["evaluated"] == clean["test"][0]
    assert used["RESULT"] == clean | {"threads": 2}
    threads, devices = used["REFUSED"]  # type: ignore[misc]
    assert "--num-intra-threads is 1, but TensorFlow is already running in this process with 2;" in threads
    assert "--num-gpus is 2 with --simulate-missing-gpus, but" in devices
    assert "1 logical CPU device; restart the kernel" in devices


REPEATED = """
import json, sys
import labkit

def losses(name, **values):
    quick = {"train_steps": 1, "evaluate_test": False, "validate_every_steps": 0}
    run = labkit.train(preset="smoke", job_dir=f"{sys.argv[1]}/{name}", **quick, **values)
    return [run.environment["replicas"], run.metrics()["loss"].tolist()]

two = {"num_gpus": 2, "simulate_missing_gpus": True}
print("RESULT " + json.dumps([losses("a", **two), losses("b"), losses("c", **two)]))
"""


@pytest.mark.long
def test_trainings_on_fewer_devices_follow_in_one_process(shapes: Manifest, tmp_path: Path) -> None:
    found = outputs(REPEATED, str(tmp_path))["RESULT"]
    assert isinstance(found, list)
    assert [replicas for replicas, _ in found] == [2, 1, 2]
    assert found[0] == found[2]


@pytest.mark.parametrize("way", ["variable", "file"])
def test_another_backend_of_keras_is_one_line(way: str, tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    variables = {"KERAS_BACKEND": "torch"} if way == "variable" else {"KERAS_HOME": str(tmp_path)}
    name, where = ("torch", "KERAS_BACKEND") if way == "variable" else ("jax", str(tmp_path / "keras.json"))
    inherited = {key: value for key, value in os.environ.items() if key != "KERAS_BACKEND"}
    for command in (["train", "--preset", "smoke"], ["models", "vgg11", "--json"], ["doctor"]):
        ended = subprocess.run(
            [sys.executable, "-m", "labkit", *command],
            env=inherited | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        shown = ended.stdout if command == ["doctor"] else ended.stderr
        assert f"Keras's backend is {name!r} ({where}), and labkit needs tensorflow" in shown
        assert "set KERAS_BACKEND=tensorflow" in shown
        if command == ["doctor"]:
            assert ended.returncode == 1
        else:
            assert ended.returncode == 2 and "Traceback" not in shown


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"floatx": "half"}, "floatx is 'half'; allowed: float32, float16, float64"),
        ({"epsilon": 1}, "epsilon is 1; allowed: a number with a decimal point"),
        (["jax"], "isn't a JSON object"),
    ],
)
def test_settings_that_keras_refuses_are_one_line(content, reason, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text(json.dumps(content))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(InputError, match=f"{tmp_path}/keras.json.*{reason}.*remove the file"):
        check_keras_backend()


def test_a_kernel_without_the_quicker_kernels_is_told_so(monkeypatch) -> None:
    monkeypatch.setattr("labkit.startup.tf_compat.uses_onednn", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    import_tensorflow()  # a choice, here of the tests: nothing to tell
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    with pytest.warns(UserWarning, match="twice as long.*restart the kernel with TF_ENABLE_ONEDNN_OPTS=1"):
        import_tensorflow()


def test_a_process_of_labkit_takes_memory_of_gpus_only_as_it_needs_it(tmp_path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "class config:\n"
        "    list_physical_devices = lambda kind=None: ['cpu', 'a', 'b'] if kind is None else ['a', 'b']\n"
        "    class experimental:\n"
        "        set_memory_growth = lambda gpu, grows: print(gpu, grows)\n"
    )
    program = "from labkit.startup.quiet_import import import_tensorflow; import_tensorflow()"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "a True\nb True\n"
