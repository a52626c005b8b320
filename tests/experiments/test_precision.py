"""``--precision auto``: what was measured as faster, recorded; that of the run where there is one."""

import json

import pytest

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.experiments import precision
from labkit.run_directory import RunDirectory
from tests.commands.in_process import answer, refused
from tests.training.small import FIELDS


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine with bfloat16 and no GPU, measured at twice the speed with it; returns the measurements."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(precision, "bfloat16_instructions", lambda: ["avx512_bf16"])
    monkeypatch.setattr(precision, "has_no_gpu", lambda: True)
    times: list[tuple[float, float]] = []
    monkeypatch.setattr(precision, "_measured", lambda: times.append((0.1, 0.05)) or times[-1])
    return times


@pytest.mark.parametrize(
    ("bfloat16", "chosen"), [(0.147, "float32"), (0.09, "float32"), (0.05, "mixed_bfloat16")]
)
def test_bfloat16_is_taken_where_it_is_clearly_faster(bfloat16, chosen):
    precision.keep_seconds(0.1, bfloat16)
    assert precision.faster_precision() == (chosen, precision.faster_precision()[1])
    assert f"{0.1 / bfloat16:.2f} × the speed of float32" in precision.faster_precision()[1]


def test_it_is_measured_once_on_a_machine(machine, monkeypatch):
    said: list[str] = []
    first = precision.faster_precision(said.append)
    assert first == precision.faster_precision(said.append)
    assert machine == [(0.1, 0.05)]
    assert said == ["--precision auto: measuring float32 and bfloat16, once on this machine"]
    monkeypatch.setattr(precision, "cpu_model", lambda: "another")
    precision.faster_precision(said.append)
    assert len(machine) == 2  # what another processor took says nothing of this one


def test_a_damaged_record_is_measured_again(machine):
    path = precision._path()
    path.parent.mkdir(parents=True)
    for text in ("", "[]", "{", json.dumps({precision._machine(): {"float32": "x", "bfloat16": 0}})):
        path.write_text(text)
        assert precision.faster_precision(lambda line: None)[0] == "mixed_bfloat16"
    assert len(machine) == 4


def test_without_instructions_for_it_nothing_is_measured(machine, monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_instructions", list)
    assert precision.faster_precision()[0] == "float32"
    assert not machine


@pytest.mark.long
def test_a_run_records_and_keeps_what_was_chosen(tmp_path):
    precision.keep_seconds(0.05, 0.1)
    fields = FIELDS | {"deterministic": False}  # which would stay so in this process
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    flags += ["--train-steps=1", "--precision=auto", f"--job-dir={tmp_path / 'run'}"]
    assert "--precision auto takes float32: bfloat16 was measured at 0.50 ×" in answer("train", *flags).out
    assert recorded_config(RunDirectory(tmp_path / "run")).model.precision == "float32"
    precision.keep_seconds(0.1, 0.05)
    assert f"auto takes float32: that of the run in {tmp_path / 'run'}" in answer("train", *flags).out


def test_what_it_isnt_for_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(precision, "has_no_gpu", lambda: False)
    assert "measures CPUs only" in refused("train", "--precision=auto", "--dataset=shapes")
    monkeypatch.setattr(precision, "has_no_gpu", lambda: True)
    with pytest.raises(InputError, match="labkit train alone measures it"):
        Config.from_flat({"precision": "auto"})
    cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert "of a cluster" in refused("train", "--precision=auto", "--dataset=shapes")


@pytest.mark.long
def test_the_process_that_measures_does(monkeypatch):
    monkeypatch.undo()
    float32, bfloat16 = precision._measured()
    assert 0 < min(float32, bfloat16) <= max(float32, bfloat16) < 60


def test_a_measurement_that_fails_says_so(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(precision, "MEASURE", "import sys; sys.exit(3)")
    with pytest.raises(InputError, match="it couldn't be measured: exit code 3; name a precision"):
        precision._measured()
