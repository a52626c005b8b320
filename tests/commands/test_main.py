"""The command line: what it accepts, and that bad input costs one line, exit code 2 and nothing else."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.commands import main as cli
from labkit.config import fields_by_name
from labkit.distributed import task as cluster_task
from labkit.training import plan
from labkit.training import train as training


@pytest.fixture
def captured(monkeypatch):
    """The configurations that ``labkit train`` would train."""
    seen = []

    def plan_training(config, *, overwrite, task, approved):
        assert task is None and approved is None
        seen.append((config, overwrite))
        return SimpleNamespace(run_state="new", data_note="")

    result = plan.TrainResult("finished", None, 0, "", did_work=True)
    monkeypatch.setattr(plan, "plan_training", plan_training)
    monkeypatch.setattr(training, "train", lambda planned: result)
    return seen


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def run_process(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "labkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def run(capsys):
    """Runs ``labkit`` in this process; returns its exit code and what it printed."""

    def call(*arguments: str) -> SimpleNamespace:
        capsys.readouterr()
        code = cli.main(arguments)
        shown = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=shown.out, stderr=shown.err)

    return call


def test_every_field_is_a_flag(captured, monkeypatch):
    # "somewhere" describes no cluster; that is refused elsewhere.
    monkeypatch.setattr(cluster_task, "find_task", lambda config, environment: None)
    arguments, expected = [], {}
    other = {
        "dataset": "shapes",
        "model": "fast",
        "application": "MobileNetV2",
        "progressive_resizing": "16:0.5",
        "mixup_alpha": 0.0,
        "adamw_beta1": 0.9,  # --optimizer muon, like one_cycle, leaves others' options alone
        "adamw_beta2": 0.999,
        "staircase_factor": 0.1,
        "staircase_epochs": 350.0,
        "cutout_size": 0,  # the other value of --use-distortion-for-training allows no other
        "random_resized_crop": 0.0,  # the same
        "learning_rate_schedule": "one_cycle",
        "num_layers": 8,
        "resnet_version": 1,
        "block": "basic",
        "gradient_compression": "none",  # not together with float64
        "variable_strategy": "GPU",
        "num_gpus": 2,
        "eval_batch_size": 50,
        "rendezvous_seconds": 30.0,
        "peer_timeout_seconds": 3.0,
        "progress_timeout_seconds": 30.0,
        "slow_worker": "1:3",
        "model_arguments": "none",  # with a network of one's own alone
        "profile_steps": "2:4",
        "debugger_dump": False,  # not together with --xla
    }
    instead_of_steps = {"epochs", "steps_range"}
    for info in fields_by_name().values():
        value = other.get(info.name)
        if value is None and info.choices:
            value = info.choices[-1]
        elif value is None and info.name not in instead_of_steps:
            value = {int: 4, float: 0.5, bool: not info.default, str: "somewhere"}[info.type]
        expected[info.name] = None if info.name == "model_arguments" else value
        arguments += [info.flag, str(value)]
    assert cli.main(["train", *arguments]) == 0
    assert captured[0][0].flat() == expected


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--nesterov"], True),
        (["--no-nesterov"], False),
        (["--nesterov", "True"], True),
        (["--nesterov", "false"], False),
        (["--nesterov=False"], False),
        (["--no-nesterov", "False"], True),
        (["--nesterov", "--no-nesterov"], False),
    ],
)
def test_booleans_take_both_forms(captured, arguments, value):
    assert cli.main(["train", *arguments]) == 0
    assert captured[0][0].optimizer.nesterov is value


def test_flags_override_the_preset(captured):
    assert cli.main(["train", "--preset", "smoke", "--train-steps", "7"]) == 0
    config = captured[0][0]
    assert (config.run.train_steps, config.data.dataset) == (7, "shapes")


def test_none_clears_an_optional_field(captured):
    assert cli.main(["train", "--checkpoint-every-seconds", "none"]) == 0
    assert captured[0][0].run.checkpoint_every_seconds is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num-gpus", "64"], ["--num-gpus", "64", "finds 0"]),
        (["--variable-strategy", "GPU"], ["--variable-strategy", "GPU"]),
        (["--num-layers", "45"], ["--num-layers", "45", "6n+2", "44", "50"]),
        (["--job-dir", "gs://bucket/x"], ["--job-dir is 'gs://bucket/x'", "a path on this machine"]),
        (
            ["--preset", ""],
            ["unknown preset ''; known: auto, estimator_2017, tutorial_2017, resnet20_one_cycle", "smoke"],
        ),
        (["--preset", "resnet20_one_cycl"], ["preset", "did you mean 'resnet20_one_cycle'"]),
        (["--num-layer", "20"], ["--num-layer", "did you mean '--num-layers'"]),
        (["--learning-rate", "fast"], ["--learning-rate", "fast"]),
        (["--sync", "perhaps"], ["--sync", "perhaps", "True or False"]),
        (["--data-format", "NCHW"], ["--data-format", "NCHW", "channels_first"]),
        (["--dataset", "cifar10"], ["cifar10", "labkit data prepare"]),
        (["--dataset", "cifar100"], ["cifar100", "cifar10"]),
        (["--unfreeze-every-steps", "5"], ["--unfreeze-every-steps", "without --freeze"]),
        (["--start-from", "nowhere"], ["--start-from", "no run at 'nowhere'", ".keras"]),
        (["--start-from", "imagenet"], ["--model resnet", "--model keras_application"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("-") else "",
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(run, shapes_dir, tmp_path, arguments, words):
    before = tree(shapes_dir)
    # TensorFlow looks for the devices: what it says at its start, in a process of its own, counts as well.
    start = run_process if arguments == ["--num-gpus", "64"] else run
    done = start("train", "--data-dir", str(shapes_dir), "--job-dir", str(tmp_path / "job"), *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("labkit: error: ")
    for word in words:
        assert word in line
    assert not list(tmp_path.iterdir())
    assert tree(shapes_dir) == before


@pytest.mark.parametrize(
    "words",
    [
        "train --job-dir",
        "train --data-dir",
        "train --start-from",
        "cluster local -- train --job-dir",
        "cluster slurm --nodes 2 -- train --data-dir",
        "cluster slurm-task --exit-status",
        "compare --models resnet8 --output",
        "compare --models resnet8 --data-dir",
        "data prepare --archive",
        "data prepare --data-dir",
        "evaluate run --data-dir",
        "export run --data-dir",
        "export run --output",
        "profile --output",
        "profile --data-dir",
        "runs --runs-dir",
    ],
)
@pytest.mark.parametrize("address", ["gs://bucket/x", "file:///x"])
def test_an_address_is_no_path(words, address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main([*words.split(), address])
    except SystemExit as end:
        code = end.code
    assert code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words.split()[-1] in line
    assert f"{address!r}; allowed: a path on this machine" in line
    assert not list(tmp_path.iterdir())


def test_a_home_that_is_an_address_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", "s3://bucket/labkit")
    assert cli.main(["runs"]) == 2
    assert "LABKIT_HOME is 's3://bucket/labkit'; allowed: a path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["train", "profile", "compare --models resnet8"])
def test_an_empty_preset_is_refused(command, capsys):
    assert cli.main([*command.split(), "--preset", ""]) == 2
    assert "unknown preset ''; known: auto, estimator_2017" in capsys.readouterr().err


def test_a_stage_that_the_network_has_not_is_refused_before_anything_is_written(run, shapes_dir, tmp_path):
    place = ["--data-dir", str(shapes_dir), "--job-dir", str(tmp_path / "job")]
    done = run("train", *place, "--num-layers", "8", "--freeze", "stem,stage9")
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    for word in ("--freeze 'stage9'", "stem, stage1, stage2, stage3, logits"):
        assert word in line
    assert not list(tmp_path.iterdir())


def test_a_part_of_a_data_set_wants_a_folder_of_its_own(run):
    done = run("data", "prepare", "--dataset", "shapes", "--classes", "0,1")
    assert done.returncode == 2
    assert "--classes is '0,1' without --data-dir" in done.stderr


def test_data_that_is_not_prepared(run, tmp_path):
    done = run("train", "--data-dir", str(tmp_path / "nothing"), "--job-dir", str(tmp_path / "job"))
    assert done.returncode == 2
    assert "labkit data prepare --data-dir" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["/proc/nowhere/job", "{file}/job"])
def test_a_job_directory_that_cannot_be_written(run, shapes_dir, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    job_dir = place.format(file=tmp_path / "file")
    done = run("train", "--data-dir", str(shapes_dir), "--job-dir", job_dir, "--train-steps", "1")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "--job-dir" in line
    assert tree(tmp_path) == {tmp_path / "file"}


def test_a_full_disk(shapes_dir, tmp_path, monkeypatch, capsys):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10 * 2**20))
    code = cli.main(["train", "--data-dir", str(shapes_dir), "--job-dir", str(tmp_path / "job")])
    assert code == 2
    assert "10 MiB free" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_directory_that_holds_something_else(run, shapes_dir, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    done = run("train", "--data-dir", str(shapes_dir), "--job-dir", str(tmp_path), "--overwrite")
    assert done.returncode == 2
    assert tree(tmp_path) == {tmp_path / "thesis.tex"}


def test_quick_commands_start_without_tensorflow(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))  # runs of an earlier labkit are read with NumPy
    program = (
        "import sys\nfrom labkit.commands import doctor\nfrom labkit.commands.main import main\n"
        "doctor.step_seconds = lambda: (1.0, 1.0)\n"  # where the processor has bfloat16, it uses TensorFlow
        "for words in '', '--help', 'train --help-all', 'runs', 'train --list-presets', 'models', 'doctor':\n"
        "    arguments = words.split()\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        "    found = {'tensorflow', 'keras', 'numpy', 'streamlit'} & set(sys.modules)\n"
        "    assert not found, (arguments, found)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_2017_command_line_trains_and_then_has_nothing_left_to_do(run, shapes_dir, tmp_path):
    job_dir = tmp_path / "job"
    values = {
        "num-gpus": 0,
        "num-layers": 8,
        "train-steps": 6,
        "train-batch-size": 32,
        "eval-batch-size": 100,
    }
    values |= {"learning-rate": 0.1, "momentum": 0.9, "weight-decay": 2e-4, "variable-strategy": "CPU"}
    command = ["train", "--data-dir", str(shapes_dir), "--job-dir", str(job_dir)]
    command += [part for name, value in values.items() for part in (f"--{name}", str(value))]
    command += ["--use-distortion-for-training", "True", "--sync", "False", "--log-device-placement", "False"]
    first = run(*command)
    assert first.returncode == 0, first.stderr
    assert "step 6/6" in first.stdout
    before = {path: path.stat().st_mtime_ns for path in tree(job_dir)}

    again = run(*command)
    assert again.returncode == 0
    assert "nothing left to do" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in tree(job_dir)} == before

    other = run(*command, "--learning-rate", "0.2")
    assert other.returncode == 2
    assert "--learning-rate is 0.1 there, 0.2 here" in other.stderr
    assert {path: path.stat().st_mtime_ns for path in tree(job_dir)} == before

    anew = run(*command, "--learning-rate", "0.2", "--overwrite")
    assert anew.returncode == 0
    assert json.loads((job_dir / "config.json").read_text())["optimizer"]["learning_rate"] == 0.2

    evaluated = run("evaluate", str(job_dir))
    assert evaluated.returncode == 0, evaluated.stderr
    figures = json.loads((job_dir / "predictions" / "test.json").read_text())
    assert figures["examples"] == 2000
    assert sum(map(sum, figures["confusion"])) == 2000
    assert f"top-1 {figures['accuracy']:.4f}" in evaluated.stdout

    wrong = run("evaluate", str(job_dir), "--checkpoint", "999")
    assert wrong.returncode == 2
    assert "best, last, or one of the steps 6" in wrong.stderr
