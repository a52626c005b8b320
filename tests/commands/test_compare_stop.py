"""``labkit compare`` is stopped and continued, with stand-ins and with real trainings."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.commands import main as cli
from labkit.experiments.comparison.read import read_comparison
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader
from tests.commands import fake_training
from tests.commands.fake_training import arguments, behave, starts
from tests.commands.in_process import tree

FAKE = [sys.executable, fake_training.__file__]
MEGABYTE = 2**20

pytestmark = pytest.mark.usefixtures("shapes")  # where trainings look for them


def stop_when(happened: Callable[[], bool], command: list[str], number: int, log: Path) -> int:
    """Send a signal to a command once something has happened; return its exit code."""
    with open(log, "w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Tests that were started in the background ignore Ctrl-C, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            give_up = time.monotonic() + 200
            while not happened():
                assert process.poll() is None and time.monotonic() < give_up, log.read_text()[-3000:]
                time.sleep(0.01)
            process.send_signal(number)
            return process.wait(200)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_stop_is_passed_on_and_the_same_command_goes_on(number, output, faked):
    behave(output, vgg11_seed0="wait")
    run = RunDirectory(output / "vgg11-seed0")

    def running() -> bool:
        status = run.read_status()
        return status is not None and status.state == "running"

    log = output.with_suffix(".txt")
    command = [*FAKE, *arguments(output, seeds=2)]
    assert stop_when(running, command, number, log) == 128 + number, log.read_text()
    assert run.read_status().state == "interrupted"
    assert starts(output)[-1] == "train vgg11-seed0"
    shown = log.read_text()
    assert "vgg11, seed 0: interrupted at step 1: SIGTERM at step 1" in shown
    assert shown.endswith("stopped; the same command continues\n")

    behave(output)
    assert cli.main(arguments(output, seeds=1)) == 0
    assert starts(output) == ["resume vgg11-seed0", "measure vgg11-seed0"]


@pytest.mark.slow
@pytest.mark.long
def test_two_models_two_seeds_interrupted_and_resumed(output):
    # Measuring takes as long as a short training: one run of four shows that it works.
    command = [
        *FAKE, "measure-one", "resnet8-seed0",
        *arguments(output, "resnet8,tutorial_cnn", 2, train_steps=60, batch_norm_decay=0.9, num_gpus=0,
                   eval_batch_size=500)[1:],
    ]  # fmt: skip
    metrics = RunDirectory(output / "resnet8-seed0").metrics_path
    log = output.with_suffix(".txt")

    def training() -> bool:
        return metrics.exists() and metrics.read_bytes().count(b"\n") >= 3

    assert stop_when(training, command, signal.SIGTERM, log) == 128 + signal.SIGTERM, log.read_text()[-3000:]
    status = RunDirectory(metrics.parent).read_status()
    assert status.state == "interrupted" and 0 < status.step < 60
    assert not (output / "tutorial_cnn-seed0").exists()

    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"continuing from step {status.step} of 60" in done.stdout
    comparison = read_comparison(output)
    assert [len(model.finished) for model in comparison.models] == [2, 2]
    for run in comparison.runs:
        reader = MetricsReader(output / f"{run.model}-seed{run.seed}" / "metrics.jsonl")
        reader.poll()
        assert [row["step"] for row in reader.split("train")] == list(range(1, 61))
        assert 0 < run.test_accuracy < 1 and 0 < run.validation_accuracy < 1
        assert run.training_images_per_second > 0 and run.training_seconds > 0
        assert 200 * MEGABYTE < run.peak_memory_bytes < 8000 * MEGABYTE
    measured = comparison.models[0].runs[0]
    assert (measured.parameters, measured.inference_images_per_second != 1000.0) == (75_290, True)
    # He et al. 2015, section 4.2: a first layer, then two at each resolution, the first of which has half of
    # the input channels; a dense layer.
    by_hand = 1024 * 9 * (3 * 16 + 2 * 16 * 16) + 256 * 9 * (16 * 32 + 32 * 32) + 64 * 9 * (32 * 64 + 64 * 64)
    assert measured.multiply_adds == by_hand + 64 * 10

    before = tree(output)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stderr) == (0, "")
    assert tree(output) == before
