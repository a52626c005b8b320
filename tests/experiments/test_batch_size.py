"""``--train-batch-size auto``: the number that it finds, records and keeps, and what it refuses."""

import json
import signal
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.experiments import batch_size
from labkit.run_directory import RunDirectory
from tests.commands.in_process import answer, refused
from tests.training.small import FIELDS

MIB = 2**20


class Machine:
    """A machine with so many MiB of free memory, on which an image takes some; 100,000 images to train on."""

    def __init__(self, monkeypatch, *, free: float, image: float, kind: str = "CPU") -> None:
        self.free, self.image, self.kind, self.peak = free * MIB, image * MIB, kind, 500 * MIB
        monkeypatch.setattr(batch_size, "available_memory", lambda: self.free)
        monkeypatch.setattr(batch_size, "_peak", lambda: self.peak)
        monkeypatch.setattr(batch_size, "_train", self._train)

    def _train(self, plan, size: int) -> None:
        needed = 200 * MIB + size * self.image
        if self.kind == "GPU" and needed > self.free:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        assert needed <= self.free, f"{size} images ended the process"
        self.peak = max(self.peak, 500 * MIB + needed)

    def found(self, examples: int = 100_000, **fields) -> list[dict]:
        config = Config.from_flat({"train_batch_size": 8} | fields)
        devices = SimpleNamespace(kind=self.kind, simulated=False)
        manifest = SimpleNamespace(count=lambda split: examples)
        plan = SimpleNamespace(config=config, manifest=manifest, devices=devices)
        return list(batch_size._fits(plan))


@pytest.mark.parametrize("free", [700, 4_000, 60_000])
@pytest.mark.parametrize("image", [0.3, 3, 45])
def test_it_is_the_largest_power_of_two_within_the_share_of_memory(monkeypatch, free, image):
    share = batch_size.SHARE * free
    fitting = [size for size in (2**n for n in range(3, 17)) if 200 + size * image <= share]
    *_, last = Machine(monkeypatch, free=free, image=image).found()
    assert last["size"] == (fitting[-1] if fitting else 8)
    assert last["tried"] <= max(last["size"], 512)


@pytest.mark.parametrize("passes", [1, 3])
def test_it_is_at_most_what_the_training_set_has(monkeypatch, passes):
    *_, last = Machine(monkeypatch, free=60_000, image=0.1).found(1_000, accumulate_steps=passes)
    assert last["size"] == {1: 512, 3: 256}[passes]
    assert "the 1,000 training images" in last["why"]


def test_a_gpu_is_filled_until_it_refuses(monkeypatch):
    found = Machine(monkeypatch, free=1_000, image=3, kind="GPU").found()
    assert [each["size"] for each in found] == [8, 16, 32, 64, 128, 256]
    assert found[-1]["why"] == "twice as many don't fit into the GPU's memory"
    with pytest.raises(InputError, match="the GPU has no memory for 8 images"):
        Machine(monkeypatch, free=210, image=3, kind="GPU").found()


def test_time_is_limited(monkeypatch):
    monkeypatch.setattr(batch_size, "SECONDS", -1)
    *_, last = Machine(monkeypatch, free=60_000, image=3).found()
    assert (last["tried"], last["size"]) == (8, 8)
    assert last["why"].startswith("no larger one was tried")


LINE = json.dumps({"tried": 16, "size": 64, "why": "because"})


@pytest.mark.parametrize(
    ("end", "size", "why"),
    [
        ("", 64, "because"),
        ("os.kill(os.getpid(), 9)", 16, "the process that tried a larger one ended (killed by SIGKILL)"),
        ("os.kill(os.getpid(), 14)", 16, "(it took longer than 10 minutes)"),
        ("sys.exit(3)", 16, "(exit code 3)"),
    ],
)
def test_the_process_that_measures_may_die(monkeypatch, capsys, end, size, why):
    code = f"import os, sys; print('a note'); print('{LINE}', flush=True); {end}"
    monkeypatch.setattr(batch_size, "python_command", lambda *words: [sys.executable, "-c", code])
    found, because = batch_size._measured(Config())
    assert found == size and because.endswith(why)
    assert capsys.readouterr().out == "a note\n16 images fit\n"


def test_where_nothing_is_measured_it_says_why(monkeypatch):
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    monkeypatch.setattr(batch_size, "python_command", lambda *words: [sys.executable, "-c", code])
    with pytest.raises(InputError, match="could be measured: killed by SIGKILL; give a number"):
        batch_size._measured(Config())


@pytest.mark.long
def test_a_run_records_the_number_and_keeps_it(data_dir, tmp_path, monkeypatch):
    fields = FIELDS | {"data_dir": data_dir, "job_dir": tmp_path / "run", "train_batch_size": "auto"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    code, out, err = answer("train", *flags, "--train-steps", "4")
    assert code == 0, err
    assert "--train-batch-size auto takes 128: twice as many are more than the 180 training images" in out
    assert recorded_config(RunDirectory(tmp_path / "run")).data.train_batch_size == 128
    monkeypatch.setattr(batch_size, "_measured", None)  # it isn't measured again
    code, out, err = answer("train", *flags, "--train-steps", "4")
    assert (code, err) == (0, "")
    assert "--train-batch-size auto takes 128: that of the run in" in out and "nothing left to do" in out


def test_what_it_refuses():
    for words in (("compare", "--models", "resnet8"), ("cluster", "local", "--", "train")):
        error = refused(*words, "--train-batch-size", "auto")
        assert "--train-batch-size is 'auto' (labkit train alone measures it); allowed: " in error
    error = refused("train", "--train-batch-size", "automatic")
    assert error.startswith("--train-batch-size is 'automatic'; allowed: a whole number")
