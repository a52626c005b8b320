"""``labkit compare``: what is trained where, what isn't trained again, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.commands import main as cli
from labkit.config import Config, fields_by_name
from labkit.config.architectures import NAMED_FIELDS, model_name
from labkit.errors import InputError
from labkit.experiments.comparison import plan as comparison
from labkit.experiments.comparison.files import (
    OF_EACH,
    budget_of,
    measurements_path,
    read_measurements,
    shared_fields,
)
from labkit.experiments.comparison.plan import plan_comparison
from labkit.experiments.comparison.read import read_comparison
from labkit.run_directory import RunDirectory, RunLock
from tests.commands.fake_training import SHORT, arguments, behave, starts
from tests.commands.in_process import refused, tree
from tests.tiny import prepare_tiny

CHECK = comparison.check_command
OWN = os.path.relpath(Path(__file__).parents[1] / "own_nets.py")


pytestmark = pytest.mark.usefixtures("shapes")  # where trainings look for them


def plan(output: Path | None, models: str = "resnet8,vgg11", seeds: int = 2, **values):
    return plan_comparison(models.split(","), seeds, SHORT | values, output and str(output))


# ---- what is asked for ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", ["--models", "resnet20,vgg11"]),
        ("--models resnet8,resnet8", ["resnet8", "more than once"]),
        ("--models resnet21", ["'resnet21'", "6n+2"]),
        ("--models resnet8,", ["--models is 'resnet8,'", "an extra comma"]),
        ("--models resnet8 --seeds 0", ["--seeds is 0", "1 or more"]),
        ("--models resnet8 --seeds many", ["--seeds", "many", "whole number"]),
        ("--models resnet8 --seed 3", ["--seed is 3", "--seeds"]),
        ("--models resnet8 --job-dir x", ["--job-dir is 'x'", "--output"]),
        ("--model resnet", ["--model is 'resnet'", "--models"]),
        ("--models resnet8 --num-layers 20", ["--num-layers is 20", "resnet20"]),
        ("--models none.py:mlp,resnet8", ["none.py:mlp", "can't be read"]),
        (f"--models {OWN}:mlp,./{OWN}:mlp", ["two own_nets.mlp", "rename"]),
        ("--models fast,resnet8 --activation gelu", ["resnet8: --activation", "'relu'"]),
        ("--models resnet8 --sync", ["--sync"]),
        ("--models resnet8 --train-batch-size 9001", ["--train-batch-size is 9001", "at most 9000"]),
        ("--models resnet8 --folds 1", ["--folds is 1; allowed: 2 to 50"]),
        ("--models resnet8 --folds 5 --fold 2/5", ["--fold is 2/5 with --folds 5"]),
        ("--models resnet8 --data-dir /nowhere", ["/nowhere", "labkit data prepare"]),
        ("TF_CONFIG --models resnet8", ["TF_CONFIG"]),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(given, words, output, monkeypatch):
    monkeypatch.setattr(comparison, "run_trial", lambda *_: pytest.fail("a process was started"))
    if given.startswith("TF_CONFIG "):
        cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    flags = given.removeprefix("TF_CONFIG ").split()
    line = refused("compare", "--output", output, "--dataset", "shapes", *flags)
    assert all(word in line for word in words), line
    assert not output.exists()


def test_a_network_of_ones_own_is_named_after_its_file_and_keeps_its_place(output):
    planned = plan(output, f"{OWN}:mlp,resnet8", seeds=1)
    assert planned.request.models == ("own_nets.mlp", "resnet8")
    [mine, _] = planned.trainings
    assert mine.config.run.job_dir == str(output / "own_nets.mlp-seed0")
    assert mine.config.model.model == f"{Path(OWN).absolute()}:mlp"


@pytest.mark.long
@pytest.mark.slow
def test_a_network_of_ones_own_is_compared_with_a_built_in_one(output):
    flags = ["--models", f"{OWN}:mlp,resnet8", "--seeds", "1", "--preset", "smoke", "--train-steps", "3"]
    assert cli.main(["compare", "--output", str(output), *flags]) == 0
    runs = read_comparison(output).runs
    assert [(run.model, run.state) for run in runs] == [("own_nets.mlp", "finished"), ("resnet8", "finished")]


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
        "write_images", "callbacks", "callback_arguments", "check_numerics", "debugger_dump", "profile_steps",
    }  # fmt: skip
    cluster = {name for name, info in fields_by_name().items() if info.group == "cluster"}
    known = {*budget_of(Config()), *NAMED_FIELDS, *OF_EACH, *cluster, *of_no_weight}
    # Those that a transfer or another part of labkit adds are part of a run's identity, or are listed above.
    assert set(fields_by_name()) == known
    assert {*budget_of(Config()), *of_no_weight} == set(shared_fields())


@pytest.mark.long
def test_a_length_in_epochs_becomes_the_steps_of_the_budget(output, faked):
    command = arguments(output, "resnet8", 1, train_steps=None, epochs=0.05, train_batch_size=50)
    for _ in range(2):  # the second call finds the same comparison
        assert cli.main(command) == 0
    config = RunDirectory(output / "resnet8-seed0").read_config()
    assert (config["run"]["train_steps"], config["run"]["epochs"]) == (9, None)
    assert json.loads((output / "comparison.json").read_text())["budget"]["train_steps"] == 9


@pytest.mark.long
def test_each_fold_is_trained_once_and_the_same_command_finds_them(output, faked, tmp_path):
    data_dir = prepare_tiny(tmp_path / "data").directory.parent
    command = [*arguments(output, "resnet8", 1, data_dir=data_dir), "--folds", "3"]
    for _ in range(2):
        assert cli.main(command) == 0
    names = [f"resnet8-fold-{number}-of-3-seed0" for number in (1, 2, 3)]
    assert starts(output) == [f"{what} {name}" for name in names for what in ("train", "measure")]
    for number, name in enumerate(names, 1):
        data = RunDirectory(output / name).read_config()["data"]
        assert (data["dataset"], data["fold"]) == (f"shapes-fold-{number}-of-3", f"{number}/3")
    assert "--folds is 3 there, 0 here" in refused(*arguments(output, "resnet8", 1, data_dir=data_dir))
    assert len(read_comparison(output).runs) == 3


@pytest.mark.long
def test_one_fold_for_all_is_a_setting_like_others(output, faked, tmp_path):
    data_dir = prepare_tiny(tmp_path / "data").directory.parent
    command = [*arguments(output, "resnet8", 1, data_dir=data_dir), "--fold", "2/3"]
    for _ in range(2):
        assert cli.main(command) == 0
    assert starts(output) == ["train resnet8-seed0", "measure resnet8-seed0"]
    assert RunDirectory(output / "resnet8-seed0").read_config()["data"]["dataset"] == "shapes-fold-2-of-3"


@pytest.mark.long
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
    order = [("resnet8", 0), ("vgg11", 0), ("resnet8", 1), ("vgg11", 1)]
    for (model, seed), trial in zip(order, trials, strict=True):
        own = {"model", "num_layers", "seed", "job_dir"}
        shared = [{k: v for k, v in t.config.flat().items() if k not in own} for t in (trials[0], trial)]
        assert shared[0] == shared[1]
        assert (model_name(trial.config.model), trial.config.run.seed) == (model, seed)
        assert trial.run.path == output / f"{model}-seed{seed}"


def test_the_default_directory_follows_from_the_budget_alone(session_home):
    first = plan(None, "resnet8", 1).output
    assert first.parent == session_home / "comparisons"
    assert plan(None, "vgg11", 3).output == first
    assert plan(None, "resnet8", 1, learning_rate=0.3).output != first
    assert plan(None, "resnet8", 1, num_intra_threads=1).output != first
    assert plan(None, "resnet8", 1, log_every_steps=3).output == first


# ---- what is done --------------------------------------------------------------------------------------


def trained(output: Path) -> list[str]:
    return [line.split()[1] for line in starts(output) if line.startswith("train")]


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

    before = tree(output)
    assert cli.main(arguments(output, "vgg11", 2)) == 0
    assert tree(output) == before
    assert starts(output) == []
    again = capsys.readouterr().out
    assert shown.endswith(again) and "vgg11" in again

    assert cli.main(arguments(output, "resnet8,vgg11", 2)) == 0
    assert trained(output) == ["resnet8-seed0", "resnet8-seed1"]
    assert cli.main(arguments(output, "resnet14,vgg11", 1)) == 0  # a narrower one hides nothing
    assert trained(output) == ["resnet14-seed0"]
    found = read_comparison(output)
    counts = [(model.name, len(model.finished)) for model in found.models]
    assert counts == [("resnet8", 2), ("vgg11", 2), ("resnet14", 1)]
    assert "resnet14, seed 1: not started" in found.notes()


def test_the_command_of_a_comparison_does_it_again(tmp_path, session_home, faked):
    output = tmp_path / "two words; and $more"
    data = tmp_path / "my data"
    data.symlink_to(session_home / "data")
    given = {"freeze": "stem,stage1_*", "gradient_clip_norm": 1.5, "weight_decay_of": "kernels"}
    assert cli.main([*arguments(output, "resnet8", 1, data_dir=data, **given)]) == 0
    starts(output)
    command = read_comparison(output).command
    before = tree(output)
    by_shell = f"for word in {command}; do printf '%s\\0' \"$word\"; done"
    done = subprocess.run(["sh", "-c", by_shell], capture_output=True, text=True, check=True)
    first, *flags = done.stdout.split("\0")[:-1]
    assert first == "labkit" and str(data) in flags
    assert cli.main(flags) == 0
    assert starts(output) == [] and tree(output) == before


def test_another_budget_or_other_data_in_the_same_directory_are_refused_with_the_difference(
    output, faked, capsys, tmp_path
):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    before = tree(output)
    capsys.readouterr()
    assert cli.main(arguments(output, "resnet8", 1, train_steps=9, num_intra_threads=1)) == 2
    shown = capsys.readouterr().err
    assert "--num-intra-threads is 0 there, 1 here; --train-steps is 8 there, 9 here;" in shown
    assert tree(output) == before
    # What was chosen stays so.
    assert cli.main(arguments(output, "resnet8", 1, dataset="auto")) == 0
    nowhere = {"data_dir": str(tmp_path / "nothing")}  # the budget is compared before data are prepared
    with pytest.raises(InputError, match="--train-steps is 8 there, 9 here"):
        plan(output, "resnet8", 1, train_steps=9, **nowhere)
    with pytest.raises(InputError, match="holds no prepared data set"):
        plan(output, "resnet8", 1, **nowhere)
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


@pytest.mark.long
def test_without_its_request_a_comparison_is_known_by_its_runs(output, faked):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    (output / "comparison.json").unlink()
    starts(output)
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    assert starts(output) == []
    (output / "comparison.json").unlink()
    with pytest.raises(InputError, match="--train-steps is 8 there, 9 here"):
        plan(output, "resnet8", 1, train_steps=9)


@pytest.mark.long
def test_a_measurement_of_a_run_that_was_removed_is_not_kept(output, faked):
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    run = RunDirectory(output / "resnet8-seed0")
    measurements_path(run).write_text('{"inference_images_per_second": 1, "peak_memory_bytes": 1}')
    subprocess.run(["rm", "-r", str(run.path)], check=True)
    assert cli.main(arguments(output, "resnet8", 1)) == 0
    assert read_measurements(run)["inference_images_per_second"] == 1000.0
    assert read_measurements(run).get("peak_memory_bytes") != 1


# ---- how it ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said", "again"),
    [
        pytest.param(
            "fail",
            "resnet8, seed 0: failed at step 1: loss is nan at step 1",
            "--retry-failed",
            marks=pytest.mark.long,
        ),
        ("kill", "resnet8, seed 0 failed (killed by SIGKILL); the comparison continues", None),
    ],
)
def test_a_failed_training_stops_no_other_and_is_tried_again(output, faked, capsys, how, said, again):
    behave(output, resnet8_seed0=how)
    assert cli.main(arguments(output, seeds=1)) == 1
    shown = capsys.readouterr().out
    assert said in shown and "0 of 1" in shown and "1 of 1" in shown
    assert starts(output) == ["train resnet8-seed0", "train vgg11-seed0", "measure vgg11-seed0"]
    if again:  # what failed by itself would fail again, unless it is asked for
        assert again in shown
        assert cli.main(arguments(output, seeds=1)) == 1
        assert starts(output) == []
    behave(output)
    assert cli.main([*arguments(output, seeds=1), *filter(None, [again])]) == 0
    assert starts(output) == ["resume resnet8-seed0", "measure resnet8-seed0"]


@pytest.mark.parametrize("command", ["train_command", "check_command"])
def test_what_is_refused_first_leaves_nothing_behind(output, faked, monkeypatch, capsys, command):
    code = {"train_command": 2, "check_command": 3}[command]
    monkeypatch.setattr(comparison, command, lambda given: [sys.executable, "-c", f"exit({code})"])
    assert cli.main(arguments(output / "deep")) == 2
    assert not output.exists()
    error = "labkit: error: the networks could not be checked (exit code 3); nothing was trained\n"
    assert (capsys.readouterr().err == error) is (code == 3)


@pytest.mark.long
def test_a_network_that_cannot_be_is_refused_before_any_training(output, faked, monkeypatch, capfd):
    monkeypatch.setattr(comparison, "check_command", CHECK)
    command = arguments(output, "resnet8,tutorial_cnn", 1, progressive_resizing="16:0.5")
    assert cli.main(command) == 2
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("labkit: error: tutorial_cnn: --progressive-resizing has images of 16 × 16")
    assert not output.exists() and starts(output) == []
