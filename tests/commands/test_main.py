"""The command line: what it accepts, and that bad input costs one line, exit code 2 and nothing else."""

import json
import os
import select
import shutil
import subprocess
import sys

import pytest

import labkit
from labkit.commands import main as cli
from labkit.config import fields_by_name
from labkit.distributed import task as cluster_task
from tests.commands.in_process import answer, refused, tree
from tests.tiny import prepare_tiny


def test_every_field_is_a_flag(captured, monkeypatch):
    # "somewhere" describes no cluster; that is refused elsewhere.
    monkeypatch.setattr(cluster_task, "find_task", lambda config, environment: None)
    arguments, expected = [], {}
    other = {
        "dataset": "shapes",
        "fold": "2/5",
        "model": "fast",
        "application": "MobileNetV2",
        "progressive_resizing": "16:0.5",
        "mixup_alpha": 0.0,
        "cutmix_alpha": 0.0,
        "random_rotation": 0.0,
        "trivial_augment": False,
        "adamw_beta1": 0.9,  # --optimizer muon, like one_cycle, leaves others' options alone
        "adamw_beta2": 0.999,
        "staircase_factor": 0.1,
        "staircase_epochs": 350.0,
        "cutout_size": 0,  # the other value of --use-distortion-for-training allows no other
        "random_resized_crop": 0.0,  # the same
        "brightness": 0.0,
        "crop_padding": 4,
        "crop_padding_mode": "constant",
        "flip": "random",
        "contrast": 0.0,
        "learning_rate_schedule": "one_cycle",
        "num_layers": 8,
        "resnet_version": 1,
        "block": "basic",
        "bottleneck_stride": "first",
        "gradient_compression": "none",  # not together with float64
        "variable_strategy": "GPU",
        "num_gpus": 2,
        "eval_batch_size": 50,
        "ghost_batches": 2,  # of each of two replicas, 4 images in all
        "rendezvous_seconds": 30.0,
        "peer_timeout_seconds": 3.0,
        "progress_timeout_seconds": 30.0,
        "slow_worker": "1:3",
        "augment": "mine.py:noisy",
        "balanced_sampling": False,  # not together with --class-weights balanced
        "optimizer": "muon",
        "loss": "sigmoid",
        "class_weights": "balanced",
        "metrics": "auc",
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
        if info.of_code:  # with a part of one's own alone
            value = "none"
        expected[info.name] = None if info.of_code else value
        arguments += [info.flag, str(value)]
    assert cli.main(["train", *arguments]) == 0
    assert captured[0].flat() == expected


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ("--nesterov", True),
        ("--no-nesterov", False),
        ("--nesterov True", True),
        ("--nesterov false", False),
        ("--nesterov=False", False),
        ("--no-nesterov False", True),
        ("--nesterov --no-nesterov", False),
    ],
)
def test_booleans_take_both_forms(captured, flags, value):
    assert cli.main(["train", *flags.split()]) == 0
    assert captured[0].optimizer.nesterov is value


def test_flags_override_the_preset_and_none_clears_an_optional_field(captured):
    flags = ["--train-steps", "7", "--checkpoint-every-seconds", "none"]
    assert cli.main(["train", "--preset", "smoke", *flags]) == 0
    config = captured[0]
    assert (config.run.train_steps, config.data.dataset) == (7, "shapes")
    assert config.run.checkpoint_every_seconds is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--variable-strategy GPU", ["--variable-strategy", "GPU"]),
        ("--num-layers 45", ["--num-layers", "45", "6n+2", "44", "50"]),
        ("--preset=", ["unknown preset ''; known: auto, estimator_2017, tutorial_2017", "smoke"]),
        ("--preset resnet20_one_cycl", ["preset", "did you mean 'resnet20_one_cycle'"]),
        ("--learning-rate fast", ["--learning-rate", "fast"]),
        (
            "--preset smoke --num-gpus 3 --simulate-missing-gpus",
            ["--train-batch-size is 32 with 3 replicas", "(--train-batch-size is of --preset smoke)"],
        ),
        ("--train-batch-size 1 --mixup-alpha 0.2", ["--train-batch-size is 1", "at least 2"]),
        ("--sync perhaps", ["--sync", "perhaps", "True or False"]),
        ("--data-format NCHW", ["--data-format", "NCHW", "channels_first"]),
        ("--dataset cifar10", ["cifar10", "labkit data prepare"]),
        ("--dataset cifar100", ["cifar100", "cifar10"]),
        ("--data-dir {tmp}/nothing", ["labkit data prepare --data-dir"]),
        ("--num-layers 8 --freeze stage9", ["'stage9'", "stem, stage1, stage2, stage3, logits"]),
        ("--unfreeze-every-steps 5", ["--unfreeze-every-steps", "without --freeze"]),
        ("--start-from nowhere", ["--start-from", "no run at 'nowhere'", ".keras"]),
        ("--start-from imagenet", ["--model resnet", "--model keras_application"]),
        ("--job-dir /proc/nowhere/job", ["--job-dir"]),
        ("--job-dir {tmp}/file/job", ["--job-dir"]),
        ("--job-dir {tmp} --overwrite", ["is neither empty nor a run; name another directory"]),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(shapes_dir, tmp_path, arguments, words):
    (tmp_path / "file").write_text("mine")
    before = tree(shapes_dir), tree(tmp_path)
    place = ["--data-dir", shapes_dir, "--job-dir", tmp_path / "job", "--train-steps", "1"]
    code, out, err = answer("train", *place, *arguments.format(tmp=tmp_path).split())
    *said, line = err.splitlines()
    assert code == 2 and line.startswith("labkit: error: ")
    assert "--freeze" in arguments or (out, said) == ("", []), (
        "a stage is looked up in a network that is built"
    )
    for word in words:
        assert word in line
    assert (tree(shapes_dir), tree(tmp_path)) == before


def test_what_tensorflow_says_at_its_start_is_left_out_where_it_finds_too_few_devices(shapes_dir, tmp_path):
    words = ["--data-dir", str(shapes_dir), "--job-dir", str(tmp_path / "job"), "--num-gpus", "64"]
    command = [sys.executable, "-m", "labkit", "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("labkit: error: --num-gpus") and "64" in line and "finds 0" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "train --job-dir gs://bucket/x",
        "train --data-dir file:///x",
        "train --start-from s3://bucket/x",
        "cluster local -- train --job-dir gs://bucket/x",
        "cluster slurm --nodes 2 -- train --data-dir gs://bucket/x",
        "cluster slurm-task --exit-status gs://bucket/x",
        "compare --models resnet8 --output gs://bucket/x",
        "data prepare --archive file:///x",
        "evaluate run --data-dir gs://bucket/x",
        "export run --output gs://bucket/x",
        "profile --output gs://bucket/x",
        "runs --runs-dir file:///x",
    ],
)
def test_an_address_is_no_path(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(words.split())
    except SystemExit as end:
        code = end.code
    assert code == 2
    [line] = capsys.readouterr().err.splitlines()
    *_, flag, address = words.split()
    assert flag in line and f"{address!r}; allowed: a path on this machine" in line
    monkeypatch.setenv("LABKIT_HOME", address)
    assert cli.main(["runs"]) == 2
    assert f"LABKIT_HOME is {address!r}; allowed: a path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        ("compare --models resnet8 --dataset shapes --output new", "matplotlib", "notebook"),
        ("replicas --output new", "matplotlib", "notebook"),
        ("demo", "papermill", "notebook"),
        ("dashboard", "streamlit", "app"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it_before_anything_is_done(
    words, package, extra, shapes, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(words.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    command = words.split()[0]
    assert line.startswith(f"labkit: error: labkit {command} needs {package}, not installed here; ")
    assert f"pip install '.[{extra}]'" in line
    assert not list(tmp_path.iterdir())


def test_a_part_of_a_data_set_wants_a_folder_of_its_own():
    line = refused("data", "prepare", "--dataset", "shapes", "--classes", "0,1")
    assert "--classes is '0,1' without --data-dir" in line


def test_a_full_disk(shapes_dir, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10 * 2**20))
    assert "10 MiB free" in refused("train", "--data-dir", shapes_dir, "--job-dir", tmp_path / "job")
    assert not list(tmp_path.iterdir())


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


COMMAND_OF_2017 = """
    --num-gpus 0 --num-layers 8 --train-steps 6 --train-batch-size 32 --eval-batch-size 20 --learning-rate 0.1
    --momentum 0.9 --weight-decay 2e-4 --variable-strategy CPU --use-distortion-for-training True --sync False
    --log-device-placement False
"""


@pytest.mark.slow
def test_the_2017_command_line_trains_and_then_has_nothing_left_to_do(tmp_path):
    prepare_tiny(tmp_path / "data")
    job_dir = tmp_path / "job"
    command = ["train", "--data-dir", tmp_path / "data", "--job-dir", job_dir, *COMMAND_OF_2017.split()]
    command += ["--checkpoint-every-steps", "3"]
    first = answer(*command)
    assert first.code == 0, first.err
    assert "step 6/6" in first.out
    before = tree(job_dir)

    again = answer(*command)
    assert again.code == 0 and "nothing left to do" in again.out
    assert tree(job_dir) == before

    assert "--learning-rate is 0.1 there, 0.2 here" in refused(*command, "--learning-rate", "0.2")
    assert tree(job_dir) == before

    assert answer(*command, "--learning-rate", "0.2", "--overwrite").code == 0
    assert json.loads((job_dir / "config.json").read_text())["optimizer"]["learning_rate"] == 0.2

    evaluated = answer("evaluate", job_dir)
    assert evaluated.code == 0, evaluated.err
    figures = json.loads((job_dir / "predictions" / "test.json").read_text())
    assert figures["examples"] == 40 == sum(map(sum, figures["confusion"]))
    assert f"accuracy {figures['accuracy']:.4f}  top5_accuracy" in evaluated.out
    wrong = answer("evaluate", job_dir, "--checkpoint", "999")
    assert wrong.code == 2 and "best, last, or one of the steps 3, 6" in wrong.err

    other = answer("evaluate", job_dir, "--checkpoint", "3", "--by", "class")
    assert other.code == 0 and "stays that of step 6; in Python, run.predictions" in other.out
    assert json.loads((job_dir / "predictions" / "test.json").read_text()) == figures
    run = labkit.load_run(job_dir)
    assert run.predictions("test").summary["checkpoint_step"] == 6
    assert run.predictions("test", 3).summary["checkpoint_step"] == 3
    with pytest.raises(labkit.InputError, match="of step 5 .*labkit evaluate .* --split test --checkpoint 5"):
        run.predictions("test", 5)

    shutil.rmtree(job_dir / "checkpoints")
    assert "no checkpoint any more; restore it from a copy" in refused("evaluate", job_dir)
    (job_dir / "pulled.json").write_text('{"from": "gpu7:runs/first"}')
    assert "was pulled; copy the folder of this name from 'gpu7:runs/first'" in refused("evaluate", job_dir)


def test_a_pipe_gets_each_line_at_once():
    code = "from labkit.commands.main import main; main(['--version']); input()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        shown, _, _ = select.select([process.stdout], [], [], 30)
        process.communicate(b"\n")
    assert shown
