"""``labkit replicas``: what it prints and writes, how it refuses and stops, and one comparison for real."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from labkit.experiments.replicas import Layout, compare
from labkit.run_directory import RunDirectory
from tests import own_nets
from tests.commands.in_process import answer, refused
from tests.experiments import replica_training

OWN_CODE = ("--model", f"{own_nets.__file__}:functional", "--loss", f"{own_nets.__file__}:plain_loss")
TWO = ("--layouts", "1 replica,2 processes", "--steps", "3")

pytestmark = pytest.mark.usefixtures("shapes")  # where trainings look for them


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(Layout, "command", replica_training.command)


@pytest.mark.long
def test_table_figure_and_losses_are_printed_and_written(pretended, tmp_path):
    command = ["replicas", "--output", tmp_path, *TWO, "--num-layers", "14", "--tolerance", "2e-7"]
    code, shown, _ = answer(*command)
    assert code == 0
    assert shown.index("training 3 of 3: 2 processes, own statistics") < shown.index("resnet14 on shapes")
    assert "All layouts agree with 1 replica within 2e-07 nats." in shown
    assert "is another" in shown and f"replicas.png, .md and .json are in {tmp_path}" in shown
    assert (tmp_path / "replicas.png").read_bytes()[1:4] == b"PNG"
    assert "| 2 processes | 1.000000 |" in (tmp_path / "replicas.md").read_text()
    [first, second] = json.loads((tmp_path / "replicas.json").read_text())["comparisons"]
    assert (first["agrees"], second["agrees"]) == (True, False)

    before = (tmp_path / "replicas.png").stat().st_mtime_ns
    code, shown, _ = answer(*command)
    assert code == 0 and shown.count("already finished") == 3
    assert (tmp_path / "replicas.png").stat().st_mtime_ns == before

    code, shown, _ = answer("replicas", "--output", tmp_path / "one", *TWO, "--no-sync-batch-norm")
    assert code == 0 and "training 2 of 2: 2 processes, own statistics" in shown
    assert "Synchronized batch normalization" not in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--layouts", "1 replica,2 TPUs"], ["'2 TPUs' is unknown", "'N processes'"]),
        (["--layouts", ""], ["layout '' is unknown"]),
        (["--layouts", "1 replica,3 processes"], ["--train-batch-size is 128 with 3", "multiples of 3"]),
        (["--layouts", "1 replica,128 processes"], ["128 processes", "at most"]),
        (["--steps=some"], ["--steps", "some", "whole number"]),
        (["--tolerance=small"], ["--tolerance", "small", "above 0"]),
        (["--tolerance=nan"], ["--tolerance is nan", "above 0"]),
        (["--train-steps=5"], ["--train-steps is 5", "--steps"]),
        (["--job-dir=x"], ["--job-dir is 'x'", "--output"]),
        (["--num-gpus=2"], ["--num-gpus is 2", "'2 GPUs'"]),
        (["--sync"], ["--sync is True", "name layouts"]),
        (["--early-stopping-patience=1"], ["--early-stopping-patience is 1", "stop early"]),
        (["--test-time-augmentation=mirror"], ["--test-time-augmentation is 'mirror'", "nothing else"]),
        (["--bind=0.0.0.0"], ["--bind is '0.0.0.0'", "leave it out"]),
        (["--variable-placement=greedy"], ["--variable-placement is 'greedy'", "no layout has parameter"]),
        (["--max-staleness=3"], ["--max-staleness is 3", "no layout has parameter servers"]),
        (["--slow-worker=1:3"], ["--slow-worker is '1:3'", "not every layout has workers"]),
        (["--callbacks=mine.py"], ["--callbacks is 'mine.py'", "leave it out"]),
        (["--inspect-every-steps=2"], ["--inspect-every-steps is 2", "labkit train"]),
        (["--layout", "1 replica"], ["--layout", "did you mean '--layouts'"]),
        (["--output=/dev/null/x"], ["--output /dev/null/x", "not a directory"]),
        *(
            ([flag], [flag.partition("=")[0], "is", "labkit train"])
            for flag in (
                "--check-numerics",
                "--write-graph",
                "--write-images",
                "--profile-steps=1:2",
                "--debugger-dump",
                "--log-device-placement",
            )
        ),
    ],
    ids=lambda value: value[0],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(flags, words, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "run_trial", lambda *_, **__: pytest.fail("a process was started"))
    line = refused("replicas", "--output", tmp_path / "new", *flags)
    assert all(word in line for word in words), line
    assert not (tmp_path / "new").exists()


def test_a_failed_training_is_exit_code_1_with_the_end_of_its_output(monkeypatch, tmp_path):
    program = "import sys; print('the reason'); sys.exit(1)"
    monkeypatch.setattr(Layout, "command", lambda self, config: [sys.executable, "-c", program])
    code, _, error = answer("replicas", "--output", tmp_path, *TWO)
    assert code == 1
    assert error.startswith("labkit: error: the training in") and error.endswith("the reason\n")


@pytest.mark.long
def test_ctrl_c_ends_the_trainings_processes_and_the_same_command_continues(pretended, tmp_path):
    run = RunDirectory(tmp_path / "2-processes-synchronized")
    command = [sys.executable, replica_training.__file__, "labkit", "--output", str(tmp_path), *TWO]
    process = subprocess.Popen(
        command,
        env=os.environ | {"WAITS": run.name},
        stdout=subprocess.PIPE,
        text=True,
        # Tests that were started in the background ignore Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        give_up = time.monotonic() + 60
        while run.read_status() is None:
            assert process.poll() is None and time.monotonic() < give_up
            time.sleep(0.02)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert shown.endswith("stopped; the same command continues\n")
    assert len(children) > 1 and not any(child.is_running() for child in children)
    status = run.read_status()
    assert status is not None and status.state == "interrupted"

    code, shown, _ = answer("replicas", "--output", tmp_path, *TWO)
    assert code == 0 and shown.count("already finished") == 1


@pytest.mark.slow
@pytest.mark.long  # the replicas of one run are compared by tests/properties, too
@pytest.mark.parametrize(
    ("layout", "flag", "own"),
    [
        ("2 logical devices", "--sync-batch-norm", ()),
        ("2 logical devices", "--no-sync-batch-norm", ()),
        ("2 processes", "--no-sync-batch-norm", ()),
        ("2 processes", "--sync-batch-norm", OWN_CODE),
    ],
)
def test_two_real_replicas_train_like_one_unless_each_has_statistics_of_its_own(layout, flag, own, tmp_path):
    small = ("--train-batch-size", "32", "--steps", "4", *own)
    done = answer("replicas", "--output", tmp_path, "--layouts", f"1 replica,{layout}", *small, flag)
    assert done.code == 0, done
    [found] = json.loads((tmp_path / "replicas.json").read_text())["comparisons"]
    result = {row["layout"]: row for row in found["layouts"]}[layout]
    if flag == "--no-sync-batch-norm":
        assert not result["agrees"] and result["largest_difference"] > 1e-3
        return
    # Equal, and yet not the same computation: else this would compare a training with itself.
    assert result["agrees"] and 0 < result["largest_difference"] < 1e-5
    environments = [RunDirectory(path.parent).read_environment() for path in tmp_path.glob("*/config.json")]
    assert sorted(environment["replicas"] for environment in environments) == [1, 2]
