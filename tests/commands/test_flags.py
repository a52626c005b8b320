"""Help, spellings and mistakes: what a person meets who types a command."""

import importlib
import os
import subprocess
import sys

import pytest

from labkit.commands import COMMANDS
from labkit.commands import GROUPS as GROUPS_OF_COMMANDS
from labkit.commands import INSTEAD as OTHER_COMMANDS
from labkit.commands import main as cli
from labkit.commands.flags import declared
from labkit.commands.train import train
from labkit.config import fields_by_name
from labkit.config.fields import GROUPS
from labkit.config.spellings import INSTEAD
from labkit.data.recipe import CHOICES_OF_2017, fits_the_data
from tests.commands.in_process import answer, refused

FIELDS = fields_by_name().values()


def shown_flags(text):
    """The flags that have an entry in a help, as often as they have one."""
    return [line.split()[0].rstrip(",") for line in text.splitlines() if line.startswith("  --")]


# ---- help ----------------------------------------------------------------------------------------------


def test_the_overview_has_a_few_headings_and_a_line_of_80_columns_for_each_command():
    shown = answer("--help").out.splitlines()
    headings = [line for line in shown if line.endswith(":") and not line.startswith(" ")]
    assert headings == [f"{heading}:" for heading in GROUPS_OF_COMMANDS]
    assert 4 <= len(headings) <= 8
    lines = {line.split("  ")[1].strip(): line for line in shown if line.startswith("  ")}
    assert sorted(lines) == sorted(COMMANDS)
    assert all(command.help in lines[name] for name, command in COMMANDS.items())
    assert max(map(len, lines.values())) <= 80
    members = answer("cluster").out
    assert "cluster local" in members and "doctor" not in members
    assert set(OTHER_COMMANDS.values()) <= COMMANDS.keys()
    assert not OTHER_COMMANDS.keys() & COMMANDS.keys()


def test_the_help_says_which_data_sets_get_a_recipe_in_place_of_the_defaults():
    shown = " ".join(answer("train", "--help").out.split())
    assert fits_the_data(None, {"dataset": "shapes"}) and not fits_the_data(None, {"dataset": "cifar10"})
    assert "data sets other than CIFAR-10 get auto instead of the flags' defaults" in shown
    for name in CHOICES_OF_2017:
        assert not fits_the_data(None, {"dataset": "shapes", name: 1})
        assert f"--{name.replace('_', '-')} is given" in shown.replace(" or ", " is given ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    code, shown, _ = answer(*name.split(), "--help")
    assert code == 0
    assert f"usage: labkit {name}" in shown
    assert COMMANDS[name].help in shown
    module = importlib.import_module(COMMANDS[name].module, "labkit.commands")
    command = getattr(module, name.replace(" ", "_").replace("-", "_"))
    undocumented = [action.dest for action in declared("labkit", command)._actions if not action.help]
    assert not undocumented, "an argument without a text in the docstring"
    if name in ("profile", "compare", "replicas"):  # which take flags of train
        assert "labkit train --help-all" in shown
        assert len(shown_flags(shown)) < 8
    if name == "compare":  # says of a common flag what it does there
        assert "except for its model" in " ".join(shown.split())


def test_the_help_of_train_shows_eleven_flags_and_the_names_of_the_groups():
    shown = answer("train", "--help").out
    flags = set(shown_flags(shown)) - {"--help-all"}
    assert flags == {"--preset", "--overwrite"} | {info.flag for info in FIELDS if info.common}
    assert len(flags) == 11
    for group in GROUPS:
        assert f"\n  {group} " in shown
    assert "--help-all" in shown


def test_the_whole_help_of_train_shows_each_flag_and_each_default_once(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = answer("train", "--help-all").out
    assert sorted(shown_flags(shown)) == sorted(
        [
            "--help-all",
            "--preset",
            "--overwrite",
            "--accept-changed-code",
            "--list-presets",
            "--find-learning-rate",
            *(info.flag for info in FIELDS),
        ]
    )
    assert shown.count("Default:") == len(FIELDS)
    for group in GROUPS:
        assert f"\n{group}: " in shown
    words = shown.split()
    assert "--learning-rate-schedule" in words
    assert not [word for word in words if word.startswith("--") and word.endswith("-")], "broken at a dash"


def test_flags_are_told_in_sentences_that_leave_the_default_to_the_end():
    for info in FIELDS:
        assert info.help[0].isupper() or info.help.split()[0].rstrip(":") in (info.choices or ("host:port",))
        assert info.help.endswith("."), info.flag
        assert "default" not in info.help.lower(), info.flag
        assert info.group in GROUPS, info.flag


@pytest.mark.parametrize("arguments", [["--help"], ["trian"], ["cluster"]])
def test_the_overview_loads_no_command(arguments):
    program = (
        "import sys\nfrom labkit.commands.main import main\n"
        f"main({arguments!r})\n"
        "loaded = {'labkit.config', 'labkit.commands.train', 'labkit.commands.flags'}\n"
        "loaded |= {'numpy', 'rich'}\n"
        "assert not loaded & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- spellings -----------------------------------------------------------------------------------------


def test_underscores_stand_for_dashes_in_flags_and_commands_but_not_in_values(captured, tmp_path):
    words = "train --train_steps 7 --no_nesterov --learning_rate=0.5 --job_dir=a_b"
    assert cli.main([*words.split(), "--learning_rate_schedule", "one_cycle"]) == 0
    [config] = captured
    assert (config.run.train_steps, config.optimizer.learning_rate) == (7, 0.5)
    assert (config.optimizer.learning_rate_schedule, config.run.job_dir) == ("one_cycle", "a_b")
    assert str(tmp_path) in answer("runs", "--runs_dir", tmp_path).out
    behind = ["--", "train", "--train_steps", "3"]
    assert "--max-restarts is -1" in refused("cluster", "local", "--max_restarts", "-1", *behind)
    assert "--job-name is missing" in refused(
        "cluster", "tf_config", "--platform", "hosts", "--worker_hosts", "a:1"
    )


def test_the_flags_of_the_2017_tutorial(captured):
    command = (
        "train --train_dir=run --max_steps 300 --log_frequency 5 --batch_size 64 --data_dir data "
        "--log_device_placement=True --num_gpus 1"
    )
    assert cli.main(command.split()) == 0
    flat = captured[0].flat()
    expected = {"job_dir": "run", "train_steps": 300, "log_every_steps": 5, "train_batch_size": 64,
                "data_dir": "data", "log_device_placement": True, "num_gpus": 1}  # fmt: skip
    assert {name: flat[name] for name in expected} == expected


def test_the_flags_of_a_2017_cluster(capsys):
    command = (
        "cluster tf-config --platform hosts --worker_hosts a:1,b:1 --ps_hosts c:1 --job_name ps --task_id 0"
    )
    options = declared("labkit train", train).parse_all(command.split()[4:])
    assert (options.worker_hosts, options.ps_hosts, options.job_name, options.task_index) == (
        "a:1,b:1", "c:1", "ps", "0",
    )  # fmt: skip


@pytest.mark.parametrize("flag", INSTEAD)
def test_a_flag_of_2017_without_an_equal_is_answered(flag):
    given = flag.replace("-", "_").replace("__", "--", 1)
    assert refused("train", given, "1") == f"{given} is a flag of older programs; {INSTEAD[flag]}"


def test_the_flags_that_the_answers_name_exist():
    parser = declared("labkit train", train)
    for text in INSTEAD.values():
        if "labkit evaluate" in text or "labkit data" in text:
            continue
        for word in text.replace(",", " ").split():
            if word.startswith("--"):
                assert word in parser._option_string_actions, word


@pytest.mark.parametrize(("given", "used"), [(None, "3"), ("2", "3"), ("0", "0"), ("1", "1")])
def test_a_task_of_a_cluster_leaves_out_what_grpc_says_before_labkit(given, used, captured, monkeypatch):
    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr(os, "environ", {**os.environ, "TF_CPP_MIN_LOG_LEVEL": given or "2"})
    if given is None:
        del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    with pytest.raises(SystemExit) as ended:
        cli.main(
            ["train", "--sync", "--worker-hosts", "a:1,b:1", "--job-name", "worker", "--task-index", "0"]
        )
    assert ended.value.code == 0
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == used


# ---- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trian", "no command 'trian'; did you mean train?"),
        ("clustr local", "no command 'clustr'; did you mean cluster?"),
        ("cluster locl", "no command 'cluster locl'; did you mean cluster local?"),
        ("prepare", "no command 'prepare'; did you mean data prepare?"),
        ("xyzzy", "no command 'xyzzy'; see labkit --help"),
        ("rm", "no command 'rm'; did you mean delete?"),
        ("test", "no command 'test'; did you mean evaluate?"),
        ("--json runs", "unknown argument '--json' before the command; see labkit --help"),
        ("train --num-layer 20", "unknown argument '--num-layer'; did you mean '--num-layers'?"),
        ("train --qqqqqqqqqq", "unknown argument '--qqqqqqqqqq'; see labkit train --help-all"),
        ("train --batch_size 128 --num_gpus 2", "--train-batch-size 256"),
        ("runs --xyzzy", "unknown argument '--xyzzy'; see labkit runs --help"),
        ("runs there", "unexpected argument 'there' (see labkit runs --help)"),
        ("train pets", "unexpected argument 'pets'; write --dataset pets (see labkit train --help)"),
        ("data prepare pets", "write --images pets or --dataset pets (see labkit data prepare --help)"),
        ("show", "the following arguments are required: RUN (see labkit show --help)"),
        ("evaluate --checkpoint_dir x", "--checkpoint_dir is a flag of older programs"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(arguments, words):
    assert words in refused(*arguments.split())
