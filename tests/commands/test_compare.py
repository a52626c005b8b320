"""``labkit compare``: what is trained where, what isn't trained again, and how it ends."""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from labkit.commands import main as cli
from labkit.config import Config, fields_by_name
from labkit.config.architectures import NAMED_FIELDS
from labkit.errors import InputError
from labkit.experiments.comparison import execute
from labkit.experiments.comparison.child import REPEATS, WARM_UP_BATCHES, images_per_second
from labkit.experiments.comparison.files import (
    OF_EACH,
    add_peak_memory,
    budget_of,
    measurements_path,
    read_measurements,
    shared_fields,
)
from labkit.experiments.comparison.plan import plan_comparison
from labkit.experiments.comparison.read import read_comparison
from labkit.experiments.trials import Trial, run_trial
from labkit.run_directory import RunDirectory, RunLock
from labkit.run_directory.reader import MetricsReader
from tests.commands import fake_training

CHECK = execute.check_command
FAKE = [sys.executable, fake_training.__file__]
SHORT = {"dataset": "shapes", "train_steps": 8, "train_batch_size": 16, "validate_every_steps": 0}
MEGABYTE = 2**20


@pytest.fixture(scope="module", autouse=True)
def shapes_at_home(shapes):
    """The embedded data set, where trainings look for it."""


@pytest.fixture
def output(tmp_path) -> Path:
    return tmp_path / "comparison"


@pytest.fixture
def faked(monkeypatch) -> None:
    """Let ``labkit compare`` train and measure without TensorFlow."""
    monkeypatch.setattr(execute, "train_command", fake_training.train_command)
    monkeypatch.setattr(execute, "measure_command", fake_training.stand_in_measure_command)
    monkeypatch.setattr(execute, "check_command", fake_training.stand_in_check_command)


def arguments(output: Path | None, models: str = "resnet8,vgg11", seeds: int = 2, **values) -> list[str]:
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in (SHORT | values).items() if value is not None
    ]
    place = [] if output is None else ["--output", str(output)]
    return ["compare", "--models", models, "--seeds", str(seeds), *place, *flags]


def behave(output: Path, **behaviour: object) -> None:
    """Say what goes wrong in runs; ``resnet8_seed0`` is the run ``resnet8-seed0``."""
    by_run = {name.replace("_seed", "-seed"): value for name, value in behaviour.items()}
    output.with_name("behaviour.json").write_text(json.dumps(by_run))


def starts(output: Path) -> list[str]:
    """Return what was started since the last call."""
    path = output.with_name("starts.txt")
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def plan(output: Path | None, models: str = "resnet8,vgg11", seeds: int = 2, **values):
    def refuse(config: Config) -> None:
        raise AssertionError("the data set is there")

    return plan_comparison(models.split(","), seeds, SHORT | values, output and str(output), prepare=refuse)


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.rglob("*")}


# ---- what is asked for ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], ["--models", "resnet20,vgg11"]),
        (["--models", "resnet8,resnet8"], ["resnet8", "more than once"]),
        (["--models", "resnet21"], ["'resnet21'", "6n+2"]),
        (["--models", "resnet_20"], ["did you mean 'resnet20'"]),
        (["--models", "resnet8,"], ["--models is 'resnet8,'", "an extra comma"]),
        (["--models", "vgg"], ["'vgg' lacks its depth", "vgg11, vgg13"]),
        (["--models", "resnet8", "--seeds", "0"], ["--seeds is 0", "1 or more"]),
        (["--models", "resnet8", "--seeds", "many"], ["--seeds", "many", "whole number"]),
        (["--models", "resnet8", "--seed", "3"], ["--seed is 3", "--seeds"]),
        (["--models", "resnet8", "--job-dir", "x"], ["--job-dir is 'x'", "--output"]),
        (["--model", "resnet"], ["--model is 'resnet'", "--models"]),
        (["--models", "resnet8", "--num-layers", "20"], ["--num-layers is 20", "resnet20"]),
        (["--models", "fast,resnet8", "--activation", "gelu"], ["resnet8: --activation", "'relu'"]),
        (["--models", "resnet8", "--learning-rate", "fast"], ["--learning-rate", "fast"]),
        (["--models", "resnet8", "--preset", "fas"], ["preset", "'fast'"]),
        (["--models", "resnet8", "--sync"], ["--sync"]),
        (
            ["--models", "resnet8", "--train-batch-size", "9001"],
            ["--train-batch-size is 9001", "at most 9000"],
        ),
        (["--models", "resnet8", "--data-dir", "/nowhere"], ["/nowhere", "labkit data prepare"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(given, words, output, monkeypatch, capsys):
    monkeypatch.setattr(execute, "run_trial", lambda *_: pytest.fail("a process was started"))
    try:
        code = cli.main(["compare", "--output", str(output), "--dataset", "shapes", *given])
    except SystemExit as end:  # what the parser itself refuses
        code = end.code
    assert code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    for word in words:
        assert word in shown.err
    assert not output.exists()


def test_a_missing_package_is_named_before_anything_is_trained(output, monkeypatch, capsys):
    monkeypatch.setattr(execute, "run_trial", lambda *_: pytest.fail("a process was started"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(arguments(output)) == 2
    error = capsys.readouterr().err
    assert error.startswith("labkit: error: labkit compare needs matplotlib, not installed here; ")
    assert "pip install '.[notebook]'" in error
    assert not output.exists()


def test_a_cluster_is_refused(monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(InputError, match="TF_CONFIG"):
        plan(None)


def test_a_directory_of_something_else_is_refused(output):
    output.mkdir()
    (output / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"neither empty nor a comparison: it holds thesis\.tex"):
        plan(output)


def test_every_field_is_of_the_budget_of_a_run_or_of_no_weight():
    # What decides neither the weights nor a measurement; a new field has to be thought about here.
    of_no_weight = {
        "data_dir", "log_device_placement", "log_every_steps", "log_every_seconds", "checkpoint_every_steps",
        "allow_soft_placement",
        "checkpoint_every_seconds", "keep_checkpoints", "inspect_every_steps", "write_graph",
        "write_images", "callbacks", "check_numerics", "debugger_dump", "profile_steps",
    }  # fmt: skip
    cluster = {name for name, info in fields_by_name().items() if info.group == "cluster"}
    known = {*budget_of(Config()), *NAMED_FIELDS, *OF_EACH, *cluster, *of_no_weight}
    # Those that a transfer or another part of labkit adds are part of a run's identity, or are listed above.
    assert set(fields_by_name()) == known
    assert {*budget_of(Config()), *of_no_weight} == set(shared_fields())


def test_a_length_in_epochs_becomes_the_steps_of_the_budget(output, faked):
    command = arguments(output, "resnet8", 1, train_steps=None, epochs=0.05, train_batch_size=50)
    for _ in range(2):  # the second call finds the same comparison
        assert cli.main(command) == 0
    config = RunDirectory(output / "resnet8-seed0").read_config()
    assert (config["run"]["train_steps"], config["run"]["epochs"]) == (9, None)
    assert json.loads((output / "comparison.json").read_text())["budget"]["train_steps"] == 9


def test_a_preset_gives_the_recipe_and_the_names_the_models(output, faked):
    assert cli.main(
        ["compare", "--preset", "resnet20_one_cycle", "--models", "vgg11,wide_resnet10_0.5", "--seeds", "1",
         "--dataset", "shapes", "--train-steps", "8", "--output", str(output)]
    ) == 0  # fmt: skip
    configs = [
        RunDirectory(output / f"{name}-seed0").read_config() for name in ("vgg11", "wide_resnet10_0.5")
    ]
    models = [(config["model"]["model"], config["model"]["num_layers"]) for config in configs]
    assert models == [("vgg", 11), ("wide_resnet", 10)]
    for config in configs:
        assert config["optimizer"]["learning_rate_schedule"] == "one_cycle"
        assert config["run"]["train_steps"] == 8
    assert configs[1]["model"]["width_factor"] == 0.5


def test_seeds_come_in_turn_with_one_configuration_but_for_model_and_seed(output):
    trials = plan(output, "resnet8,vgg11", 2).trainings
    assert [(trial.model, trial.seed) for trial in trials] == [
        ("resnet8", 0), ("vgg11", 0), ("resnet8", 1), ("vgg11", 1),
    ]  # fmt: skip
    for trial in trials:
        own = {"model", "num_layers", "seed", "job_dir"}
        shared = [{k: v for k, v in t.config.flat().items() if k not in own} for t in (trials[0], trial)]
        assert shared[0] == shared[1]
        assert trial.config.run.seed == trial.seed
        assert trial.run.path == output / f"{trial.model}-seed{trial.seed}"


def test_the_default_directory_follows_from_the_budget_alone(session_home):
    first = plan(None, "resnet8", 1).output
    assert first.parent == session_home / "comparisons"
    assert plan(None, "vgg11", 3).output == first
    assert plan(None, "resnet8", 1, learning_rate=0.3).output != first
    assert plan(None, "resnet8", 1, num_intra_threads=1).output != first
    assert plan(None, "resnet8", 1, log_every_steps=3).output == first


# ---- what is done --------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again_and_more_is_added(output, faked, capsys):
    assert cli.main(arguments(output, "vgg11", 2)) == 0
    assert starts(output) == [
        "train vgg11-seed0", "measure vgg11-seed0", "train vgg11-seed1", "measure vgg11-seed1",
    ]  # fmt: skip
    shown = capsys.readouterr().out
    assert "training 2 of 2: vgg11, seed 1" in shown
    # (0.5 + 0.6) / 2, and its deviation, on the test set and in validation.
    assert shown.count("55.00 ± 7.07 %") == 2
    assert all((output / f"results.{kind}").is_file() for kind in ("csv", "json", "md", "png"))

    before = snapshot(output)
    assert cli.main(arguments(output, "vgg11", 2)) == 0
    assert snapshot(output) == before
    assert starts(output) == []
    again = capsys.readouterr().out
    assert shown.endswith(again) and "vgg11" in again

    assert cli.main(arguments(output, "resnet8,vgg11", 2)) == 0
    assert [line for line in starts(output) if line.startswith("train")] == [
        "train resnet8-seed0", "train resnet8-seed1",
    ]  # fmt: skip
    assert [model.name for model in read_comparison(output).models] == ["resnet8", "vgg11"]


@pytest.mark.long
def test_a_narrower_comparison_in_the_same_place_hides_nothing(output, faked, capsys):
    assert cli.main(arguments(output, "resnet8,vgg11", 2)) == 0
    before = snapshot(output)
    capsys.readouterr()
    assert cli.main(arguments(output, "vgg11", 1)) == 0
    assert snapshot(output) == before
    assert "resnet8" in capsys.readouterr().out
    starts(output)

    assert cli.main(arguments(output, "resnet14,vgg11", 1)) == 0
    assert [line for line in starts(output) if line.startswith("train")] == ["train resnet14-seed0"]
    found = read_comparison(output)
    assert [(model.name, len(model.finished)) for model in found.models] == [
        ("resnet8", 2), ("vgg11", 2), ("resnet14", 1),
    ]  # fmt: skip
    assert "resnet14, seed 1: not started" in found.notes()
    rows = (output / "results.csv").read_text().splitlines()
    assert [row.split(",")[:3] for row in rows[1:]] == [
        ["resnet8", "2", "2"], ["vgg11", "2", "2"], ["resnet14", "2", "1"],
    ]  # fmt: skip


def test_the_command_of_a_comparison_does_it_again(tmp_path, session_home, faked):
    output = tmp_path / "two words; and $more"
    data = tmp_path / "my data"
    data.symlink_to(session_home / "data")
    given = {"freeze": "stem,stage1_*", "gradient_clip_norm": 1.5, "weight_decay_of": "kernels"}
    assert cli.main([*arguments(output, "resnet8", 1, data_dir=data, **given)]) == 0
    starts(output)
    command = read_comparison(output).command
    before = snapshot(output)
    by_shell = f"for word in {command}; do printf '%s\\0' \"$word\"; done"
    done = subprocess.run(["sh", "-c", by_shell], capture_output=True, text=True, check=True)
    first, *flags = done.stdout.split("\0")[:-1]
    assert first == "labkit" and str(data) in flags
    assert cli.main(flags) == 0
    assert starts(output) == [] and snapshot(output) == before


def test_another_budget_in_the_same_directory_is_refused_with_its_difference(output, faked, capsys):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    before = snapshot(output)
    capsys.readouterr()
    assert cli.main(arguments(output, "resnet8", 1, train_steps=9, num_intra_threads=1)) == 2
    shown = capsys.readouterr().err
    assert "--num-intra-threads is 0 there, 1 here; --train-steps is 8 there, 9 here;" in shown
    assert snapshot(output) == before
    # What was chosen stays so.
    assert cli.main(arguments(output, "resnet8", 1, dataset="auto")) == 0


def test_another_budget_is_refused_before_data_are_prepared(output, faked, tmp_path):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    with pytest.raises(InputError, match="--train-steps is 8 there, 9 here"):
        plan(output, "resnet8", 1, train_steps=9, data_dir=str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="holds no prepared data set"):
        plan(output, "resnet8", 1, data_dir=str(tmp_path / "nothing"))


def test_other_data_are_refused(output, faked):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    path = output / "comparison.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_checksum": "0123456789abcdef"}))
    with pytest.raises(InputError, match="the checksum of shapes is 0123456789ab there"):
        plan(output, "resnet8", 1)


def test_a_second_comparison_at_the_same_time_is_refused(output, faked, capsys):
    output.mkdir()
    lock = RunLock(RunDirectory(output))
    assert lock.acquire()
    assert cli.main(arguments(output)) == 2
    assert "is being written by another process" in capsys.readouterr().err
    lock.release()
    assert starts(output) == []


def test_without_its_request_a_comparison_is_known_by_its_runs(output, faked):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    (output / "comparison.json").unlink()
    starts(output)
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    assert starts(output) == []
    (output / "comparison.json").unlink()
    with pytest.raises(InputError, match="--train-steps is 8 there, 9 here"):
        plan(output, "resnet8", 1, train_steps=9)


def test_a_measurement_of_a_run_that_was_removed_is_not_kept(output, faked):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    run = RunDirectory(output / "resnet8-seed0")
    measurements_path(run).write_text('{"inference_images_per_second": 1, "peak_memory_bytes": 1}')
    subprocess.run(["rm", "-r", str(run.path)], check=True)
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    assert read_measurements(run)["inference_images_per_second"] == 1000.0
    assert read_measurements(run).get("peak_memory_bytes") != 1


# ---- how it ends ---------------------------------------------------------------------------------------


def test_a_failed_training_stops_no_other_and_is_tried_again_when_asked(output, faked, capsys):
    behave(output, resnet8_seed0="fail")
    assert cli.main(arguments(output, seeds=1)) == 1
    shown = capsys.readouterr().out
    assert "resnet8, seed 0: failed at step 1: loss is nan at step 1" in shown
    assert "0 of 1" in shown and "1 of 1" in shown and "--retry-failed" in shown
    assert starts(output) == ["train resnet8-seed0", "train vgg11-seed0", "measure vgg11-seed0"]

    assert cli.main(arguments(output, seeds=1)) == 1
    assert starts(output) == []

    behave(output)
    assert cli.main([*arguments(output, seeds=1), "--retry-failed"]) == 0
    assert starts(output) == ["resume resnet8-seed0", "measure resnet8-seed0"]


def test_a_killed_training_is_a_failure_and_is_tried_again(output, faked, capsys):
    behave(output, resnet8_seed0="kill")
    assert cli.main(arguments(output, seeds=1)) == 1
    assert "resnet8, seed 0 failed (killed by SIGKILL); the comparison continues" in capsys.readouterr().out
    assert "train vgg11-seed0" in starts(output)
    behave(output)
    assert cli.main(arguments(output, seeds=1)) == 0
    assert starts(output) == ["resume resnet8-seed0", "measure resnet8-seed0"]


def test_what_the_first_training_refuses_leaves_nothing_behind(output, faked, monkeypatch):
    monkeypatch.setattr(execute, "train_command", lambda config: [sys.executable, "-c", "exit(2)"])
    assert cli.main(arguments(output / "deep")) == 2
    assert not output.exists()


def test_a_network_that_cannot_be_is_refused_before_any_training(output, faked, monkeypatch, capfd):
    monkeypatch.setattr(execute, "check_command", CHECK)
    command = arguments(output, "resnet8,tutorial_cnn", 1, progressive_resizing="16:0.5")
    assert cli.main(command) == 2
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("labkit: error: tutorial_cnn: --progressive-resizing has images of 16 pixels")
    assert not output.exists() and starts(output) == []


def test_networks_are_checked_for_what_is_to_begin_alone(output, faked, monkeypatch):
    checked: list[list[str]] = []

    def check_command(configs: Mapping[str, Config]) -> list[str]:
        checked.append(list(configs))
        return fake_training.stand_in_check_command(configs)

    monkeypatch.setattr(execute, "check_command", check_command)
    behave(output, resnet8_seed0="fail")
    for models in ("resnet8", "resnet8", "resnet8,vgg11,resnet14"):
        cli.main(arguments(output, models, 1))
    assert checked == [["resnet8"], ["vgg11", "resnet14"]]


def test_a_check_that_breaks_is_said_in_one_line(output, faked, monkeypatch, capsys):
    monkeypatch.setattr(execute, "check_command", lambda configs: [sys.executable, "-c", "exit(3)"])
    assert cli.main(arguments(output)) == 2
    shown = capsys.readouterr().err
    assert shown == "labkit: error: the networks could not be checked (exit code 3); nothing was trained\n"
    assert not output.exists()


class Once(list):
    """Signals that come when ``happened`` says so."""

    def __init__(self, happened: Callable[[], bool], *numbers: int) -> None:
        self._happened, self._numbers = happened, numbers

    def __len__(self) -> int:
        if not super().__len__() and self._happened():
            self.extend(self._numbers)
        return super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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


def test_a_second_request_kills(tmp_path):
    ready = tmp_path / "ready"
    deaf = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    signals = Once(ready.exists, signal.SIGINT, signal.SIGINT)
    assert run_trial(Trial([sys.executable, "-c", deaf]), signals).code == -signal.SIGKILL


@pytest.mark.long
def test_peak_memory_is_that_of_the_process_alone():
    def program(megabytes: int) -> list[str]:
        return [sys.executable, "-c", f"held = b'x' * ({megabytes} << 20)"]

    peaks = "from labkit.experiments.trials import Trial, run_trial\n" + "".join(
        f"print(run_trial(Trial({program(megabytes)}), []).peak_memory_bytes)\n" for megabytes in (300, 400)
    )
    done = subprocess.run([sys.executable, "-c", peaks], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert 300 * MEGABYTE < first < 360 * MEGABYTE
    assert 98 * MEGABYTE < second - first < 102 * MEGABYTE

    hidden = "held = b'x' * (500 << 20)\n" + peaks  # a parent's memory is never given as a child's
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "None"]


def test_the_largest_session_of_a_training_counts(tmp_path):
    run = RunDirectory(tmp_path / "resnet8-seed0")
    for session in (700, 900, None, 800):
        add_peak_memory(run, session)
    assert read_measurements(run) == {"peak_memory_bytes": 900}


# ---- inference -----------------------------------------------------------------------------------------


def test_inference_is_timed_behind_the_compiling_batch_in_repeats_of_half_a_second():
    seconds = itertools.chain([9.0, 0.3], itertools.repeat(0.2))
    now, calls = 0.0, 0

    def predict() -> None:
        nonlocal now, calls
        now += next(seconds)
        calls += 1

    assert images_per_second(predict, 100, clock=lambda: now) == pytest.approx([500.0] * REPEATS)
    assert calls == WARM_UP_BATCHES + 3 * REPEATS


# ---- for real ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_two_models_two_seeds_interrupted_and_resumed(output):
    # Measuring takes as long as a short training: one run of four shows that it works.
    command = [
        *FAKE, "measure-one", "resnet8-seed0",
        *arguments(output, "resnet8,tutorial_cnn", 2, train_steps=100, batch_norm_decay=0.9, num_gpus=0,
                   eval_batch_size=500)[1:],
    ]  # fmt: skip
    metrics = RunDirectory(output / "resnet8-seed0").metrics_path
    log = output.with_suffix(".txt")

    def training() -> bool:
        return metrics.exists() and metrics.read_bytes().count(b"\n") >= 3

    assert stop_when(training, command, signal.SIGTERM, log) == 128 + signal.SIGTERM, log.read_text()[-3000:]
    status = RunDirectory(metrics.parent).read_status()
    assert status.state == "interrupted" and 0 < status.step < 100
    assert not (output / "tutorial_cnn-seed0").exists()

    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"continuing from step {status.step} of 100" in done.stdout
    comparison = read_comparison(output)
    assert [len(model.finished) for model in comparison.models] == [2, 2]
    for run in comparison.runs:
        reader = MetricsReader(output / f"{run.model}-seed{run.seed}" / "metrics.jsonl")
        reader.poll()
        assert [row["step"] for row in reader.split("train")] == list(range(1, 101))
        assert 0 < run.test_accuracy < 1 and 0 < run.validation_accuracy < 1
        assert run.training_images_per_second > 0 and run.training_seconds > 0
        assert 200 * MEGABYTE < run.peak_memory_bytes < 8000 * MEGABYTE
    measured = comparison.models[0].runs[0]
    assert (measured.parameters, measured.inference_images_per_second != 1000.0) == (75_290, True)
    # He et al. 2015, section 4.2: a first layer, then two at each resolution, the first of which has half of
    # the input channels; a dense layer.
    by_hand = 1024 * 9 * (3 * 16 + 2 * 16 * 16) + 256 * 9 * (16 * 32 + 32 * 32) + 64 * 9 * (32 * 64 + 64 * 64)
    assert measured.multiply_adds == by_hand + 64 * 10

    before = snapshot(output)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stderr) == (0, "")
    assert snapshot(output) == before
