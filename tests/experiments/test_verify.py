"""A run that is what it says is told from one of which a single bit was changed."""

import hashlib
import json
import math
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from labkit.distributed.cpu import cpu_model
from labkit.distributed.devices import Devices
from labkit.experiments.verify import Difference, VerifiedSteps, _weights
from labkit.run_directory import RunDirectory
from labkit.run_directory.certificate import read_certificate, write_certificate
from labkit.training.session import processors
from tests.experiments.conftest import KEPT, STEPS
from tests.properties.harness import labkit


@pytest.fixture
def run(trained, tmp_path) -> RunDirectory:
    return RunDirectory(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def verify(capsys):
    """Return what calls the command, and gives its exit code and what it printed."""

    def call(run: RunDirectory, *flags: str) -> tuple[int, str]:
        capsys.readouterr()
        code = labkit("verify", str(run.path), *flags)
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def flip(path: Path, at: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def digit_of_loss(run: RunDirectory, step: int) -> int:
    """Return where in the metrics the sixth decimal of a training step's loss is."""
    found = re.search(rb'"split": "train", "step": %d,.*?"loss": [0-9].[0-9]{5}([0-9])' % step, metrics(run))
    return found.start(1)


def metrics(run: RunDirectory) -> bytes:
    return run.metrics_path.read_bytes()


def test_an_untouched_run_is_bit_equal(run, verify):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    code, said = verify(run)
    assert code == 0
    assert f"bit-equal: steps {KEPT + 1} to {STEPS} of the run" in said
    assert f"the weights after step {STEPS} are those of the checkpoint, bit by bit" in said
    assert read_certificate(run).sha256 in said
    code, said = verify(run, "--from", "0", "--steps", str(STEPS))
    assert code == 0
    assert f"bit-equal: steps 1 to {STEPS}" in said
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_changed_bit_of_a_row_is_named_with_and_without_the_certificate(run, verify):
    flip(run.metrics_path, digit_of_loss(run, 7))
    code, said = verify(run)
    assert code == 1
    assert re.search(r"metrics.jsonl, line \d+ was changed", said)
    run.certificate_path.unlink()
    code, said = verify(run)
    assert code == 1
    assert "step 7 is the first that differs: loss was" in said
    assert "nothing in the recorded environment explains it" in said
    assert verify(run, "--from", str(STEPS))[0] == 2


@pytest.mark.long
def test_another_processor_explains_a_difference_in_rounding(run, verify, monkeypatch):
    flip(run.metrics_path, digit_of_loss(run, STEPS))
    run.certificate_path.unlink()
    rounded = Difference(STEPS, "kernel", 0.1, 0.1000001)
    monkeypatch.setattr("labkit.experiments.verify._weights", lambda *_: rounded)
    environment = run.read_environment()
    assert environment["processors"] == [cpu_model()]
    environment["processors"] = ["NVIDIA A100-SXM4-40GB"]
    run.environment_path.write_text(json.dumps(environment))
    code, said = verify(run)
    assert (code, "equal to rounding" in said) == (0, True)
    assert "NVIDIA A100-SXM4-40GB" in said and cpu_model() in said
    del environment["processors"]  # as in a run of an older labkit
    run.environment_path.write_text(json.dumps(environment))
    assert "nothing in the recorded environment explains it" in verify(run)[1]


def test_the_gpus_of_a_training_are_named(monkeypatch):
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU") for index in range(3)]
    details = {gpus[0]: {"device_name": "NVIDIA A100-SXM4-40GB"}, gpus[1]: {}}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.__getitem__)
    devices = Devices("GPU", ("/gpu:0", "/gpu:1"))
    assert processors(devices) == ["NVIDIA A100-SXM4-40GB", "/physical_device:GPU:1"]


def test_a_loss_that_differs_on_the_way_to_equal_weights_is_no_rounding():
    found = Difference(7, "loss", 0.5, 0.003)
    result = VerifiedSteps(
        "", 1, 9, differences=[Difference(6, "loss", 0.3, 0.30001), found], weights={9: None}
    )
    assert result.changed_row(1e-4) == found
    for weights in ({9: Difference(9, "kernel", 0.1, 0.2)}, {5: None}, {}):
        assert VerifiedSteps("", 1, 9, differences=[found], weights=weights).changed_row(1e-4) is None


@pytest.mark.parametrize("kept", [np.array([np.nan, 2.0, 3.0]), np.array(np.nan), np.array([1.0, np.inf])])
def test_a_weight_that_became_no_number_is_no_rounding(kept, monkeypatch):
    variable = tf.Variable(np.ones_like(kept))

    class Store:
        def __init__(self, folder): ...

        def restore(self, checkpoint, step):
            variable.assign(kept)

    monkeypatch.setattr("labkit.training.checkpoints.CheckpointStore", Store)
    monkeypatch.setattr("labkit.optim.network.variable_names", lambda *parts: [("conv2d", "kernel")])
    parts = dict.fromkeys(("model", "optimizer", "average"))
    network = SimpleNamespace(state_variables=[variable], checkpoint=lambda: None, **parts)
    found = _weights(network, Path(), 5)
    assert found is not None and not np.isfinite(found.recorded) and found.size == math.inf
    assert VerifiedSteps("the initial weights", 1, 5, weights={5: found}).changed_checkpoint(1e-4) is found
    assert (variable.numpy() == 1).all()


def test_a_removed_row_is_found_and_one_that_was_added_since_is_no_change(run, verify):
    lines = metrics(run).splitlines(keepends=True)
    run.metrics_path.write_bytes(b"".join([*lines, b'{"split": "train", "step": 9}\n']))
    assert verify(run, "--files-only")[0] == 0
    run.metrics_path.write_bytes(b"".join(lines[:-1]))
    code, said = verify(run, "--files-only")
    assert (code, "metrics.jsonl: 1 row of" in said) == (1, True)
    run.certificate_path.unlink()
    run.metrics_path.write_bytes(b"".join(line for line in lines if b'"step": 7,' not in line))
    code, said = verify(run)
    assert (code, "has no readable row of step 7" in said) == (2, True), "that is no difference"
    run.metrics_path.unlink()
    code, said = verify(run)
    assert (code, "no step yet" in said) == (2, True)


@pytest.mark.parametrize("step", [KEPT, STEPS])
def test_a_changed_bit_of_a_weight_is_named(run, verify, step):
    folder = run.checkpoints_path / f"step-{step:08d}"
    [weights] = folder.glob("variables.data-*")
    flip(weights, weights.stat().st_size // 2)
    code, said = verify(run)
    assert code == 1
    assert f"checkpoints/{folder.name}/{weights.name} was changed" in said
    assert re.search(rf"checkpoints/{folder.name}: [a-z_ ]*\w+/\w+ was changed", said)


@pytest.mark.long
def test_a_checkpoint_of_another_step_is_no_rounding(run, verify):
    run.certificate_path.unlink()
    config = json.loads(run.config_path.read_text())
    config["run"]["deterministic"] = False  # so that rounding is expected
    run.config_path.write_text(json.dumps(config))
    code, said = verify(run)
    assert code == 0
    kept, last = (run.checkpoints_path / f"step-{step:08d}" for step in (KEPT, STEPS))
    for path in kept.glob("variables*"):
        shutil.copy(path, last / path.name)
    code, said = verify(run)
    assert (code, f"the checkpoint of step {STEPS} was changed" in said) == (1, True)
    shutil.copy(kept / "state.json", last)
    code, said = verify(run, "--files-only")
    assert (code, f"checkpoints/{last.name}/state.json is no state of step {STEPS}" in said) == (1, True)


def test_changed_code_is_named_and_code_that_a_session_replaced_is_not(run, verify):
    run.code_path.mkdir(exist_ok=True)
    (run.code_path / "net.py").write_text("width = 8\n")
    certificate = read_certificate(run)
    write_certificate(run, step=STEPS, settings=certificate.settings, data=certificate.data)
    assert verify(run, "--files-only")[0] == 0
    (run.code_path / "net.py").write_text("width = 9\n")
    code, said = verify(run, "--files-only")
    assert (code, "code/net.py was changed" in said) == (1, True)
    (run.code_path / "until-8").mkdir()
    (run.code_path / "until-8" / "net.py").write_text("width = 8\n")
    assert verify(run, "--files-only")[0] == 0


def test_a_certificate_of_a_labkit_that_hashed_no_code_is_read(run):
    content = json.loads(run.certificate_path.read_text())
    old = {name: value for name, value in content.items() if name not in ("code", "sha256")}
    sha256 = hashlib.sha256(json.dumps(old, sort_keys=True).encode()).hexdigest()
    run.certificate_path.write_text(json.dumps(old | {"sha256": sha256}))
    assert read_certificate(run).sha256 == sha256


def test_a_setting_that_is_newer_than_the_certificate_is_a_change_unless_it_has_its_default(run, verify):
    certificate = read_certificate(run)
    settings = {name: value for name, value in certificate.settings.items() if name != "ghost_batches"}
    write_certificate(run, step=STEPS, settings=settings | {"removed_since": 1}, data=certificate.data)
    assert verify(run, "--files-only")[0] == 0
    config = json.loads(run.config_path.read_text())
    config["data"]["ghost_batches"] = 2
    run.config_path.write_text(json.dumps(config))
    code, said = verify(run, "--files-only")
    assert (code, "ghost_batches was None and is 2" in said) == (1, True)


def test_a_changed_bit_of_an_image_is_named(run, data_dir, tmp_path, verify):
    copied = shutil.copytree(data_dir, tmp_path / "data")
    [first, *_] = sorted((copied / "shapes").glob("train-*"))
    length = int.from_bytes(first.read_bytes()[:8], "little")
    flip(first, 16 + length + 200)  # in the second record: each has 16 bytes around it
    code, said = verify(run, "--data-dir", str(copied))
    assert code == 1
    assert f"image 1 of 'train' in {first} was changed" in said
    os.truncate(first, 100)
    assert f"data: {first} was changed" in verify(run, "--data-dir", str(copied))[1]
    first.unlink()
    assert f"data: {first} is missing" in verify(run, "--data-dir", str(copied))[1]


def test_a_changed_setting_and_a_changed_certificate_are_named(run, verify):
    config = json.loads(run.config_path.read_text())
    config["optimizer"]["learning_rate"] = 0.06
    run.config_path.write_text(json.dumps(config))
    code, said = verify(run)
    assert code == 1
    assert "config.json: learning_rate was 0.05 and is 0.06" in said
    flip(run.certificate_path, 2000)
    code, said = verify(run)
    assert code == 2
    assert "damaged or was changed" in said
    assert said.count("\n") == 1
    run.certificate_path.write_text("[]")
    code, said = verify(run)
    assert f"{run.certificate_path} is damaged or was changed (it isn't a JSON object), so" in said


def test_a_start_or_steps_that_are_not_there_are_refused(run, verify):
    kept = ", ".join(map(str, [0, *run.checkpoint_steps()]))
    for flags, words in [
        (["--from", "1"], f"--from is 1; allowed: {kept}"),
        (["--steps", "9"], "--steps is 9; allowed: 1 to 2"),
        (["--steps", "0"], "--steps is 0"),
        (["--steps=-3"], "--steps is -3; allowed: a whole number from 1"),
        (["--tolerance", "nan"], "--tolerance: 'nan'; allowed: a number from 0"),
    ]:
        code, said = verify(run, *flags)
        assert code == 2
        assert words in said
