"""Help, spellings and mistakes: what a person meets who types a command."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

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
from labkit.training import plan
from labkit.training import train as training

FIELDS = fields_by_name().values()


@pytest.fixture
def captured(monkeypatch):
    """The configurations that ``labkit train`` would train."""
    seen = []

    def plan_training(config, **settings):
        seen.append(config)
        return SimpleNamespace(run_state="new", data_note="")

    result = plan.TrainResult("finished", None, 0, "", did_work=True)
    monkeypatch.setattr(plan, "plan_training", plan_training)
    monkeypatch.setattr(training, "train", lambda planned: result)
    return seen


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0
    return capsys.readouterr().out


def shown_flags(text):
    """The flags that have an entry in a help, as often as they have one."""
    return [line.split()[0].rstrip(",") for line in text.splitlines() if line.startswith("  --")]


def refused(capsys, *arguments):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    return line


# ---- help ----------------------------------------------------------------------------------------------


def test_the_overview_names_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert any(name in line and command.help in line for line in shown.splitlines())


def test_the_overview_has_a_few_headings_and_a_line_of_80_columns_for_each_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    headings = [line for line in shown if line.endswith(":") and not line.startswith(" ")]
    assert headings == [f"{heading}:" for heading in GROUPS_OF_COMMANDS]
    assert 4 <= len(headings) <= 8
    lines = [line for line in shown if line.startswith("  ")]
    assert sorted(line.split("  ")[1].strip() for line in lines) == sorted(COMMANDS)
    assert max(map(len, lines)) <= 80


def test_a_group_shows_its_members(capsys):
    assert cli.main(["cluster"]) == 0
    shown = capsys.readouterr().out
    assert "cluster local" in shown
    assert "doctor" not in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    shown = help_of(capsys, *name.split(), "--help")
    assert f"usage: labkit {name}" in shown
    assert COMMANDS[name].help in shown
    module = importlib.import_module(COMMANDS[name].module, "labkit.commands")
    command = getattr(module, name.replace(" ", "_").replace("-", "_"))
    undocumented = [action.dest for action in declared("labkit", command)._actions if not action.help]
    assert not undocumented, "an argument without a text in the docstring"


def test_the_help_of_train_shows_eleven_flags_and_the_names_of_the_groups(capsys):
    shown = help_of(capsys, "train", "--help")
    flags = set(shown_flags(shown)) - {"--help-all"}
    assert flags == {"--preset", "--overwrite"} | {info.flag for info in FIELDS if info.common}
    assert len(flags) == 11
    for group in GROUPS:
        assert f"\n  {group} " in shown
    assert "--help-all" in shown


def test_the_whole_help_of_train_shows_each_flag_and_each_default_once(capsys):
    shown = help_of(capsys, "train", "--help-all")
    flags = shown_flags(shown)
    assert sorted(flags) == sorted(
        ["--help-all", "--preset", "--overwrite", "--list-presets", *(info.flag for info in FIELDS)]
    )
    assert shown.count("Default:") == len(FIELDS)
    for group in GROUPS:
        assert f"\n{group}: " in shown


def test_flags_are_told_in_sentences_that_leave_the_default_to_the_end():
    for info in FIELDS:
        assert info.help[0].isupper() or info.help.split()[0].rstrip(":") in (info.choices or ("host:port",))
        assert info.help.endswith("."), info.flag
        assert "default" not in info.help.lower(), info.flag
        assert info.group in GROUPS, info.flag


def test_a_flag_is_not_broken_at_its_dashes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    words = help_of(capsys, "train", "--help-all").split()
    assert "--learning-rate-schedule" in words
    assert not [word for word in words if word.startswith("--") and word.endswith("-")]


@pytest.mark.parametrize("command", ["profile", "compare", "replicas"])
def test_commands_that_take_flags_of_train_refer_to_its_help(command, capsys):
    shown = help_of(capsys, command, "--help")
    assert "labkit train --help-all" in shown
    assert len(shown_flags(shown)) < 8


def test_a_command_may_say_of_a_common_flag_what_it_does_there(capsys):
    assert "except for its model" in " ".join(help_of(capsys, "compare", "--help").split())


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


def test_underscores_stand_for_dashes(captured):
    assert cli.main(["train", "--train_steps", "7", "--no_nesterov", "--learning_rate=0.5"]) == 0
    assert (captured[0].run.train_steps, captured[0].optimizer.learning_rate) == (7, 0.5)


def test_underscores_in_values_stay(captured):
    assert cli.main(["train", "--learning_rate_schedule", "one_cycle", "--job_dir=a_b"]) == 0
    assert captured[0].optimizer.learning_rate_schedule == "one_cycle"
    assert captured[0].run.job_dir == "a_b"


def test_underscores_in_other_commands_and_behind_dashes(tmp_path, capsys):
    assert cli.main(["runs", "--runs_dir", str(tmp_path)]) == 0
    assert str(tmp_path) in capsys.readouterr().out
    line = refused(capsys, "cluster", "local", "--max_restarts", "-1", "--", "train", "--train_steps", "3")
    assert "--max-restarts is -1" in line
    assert cli.main(["cluster", "tf_config", "--platform", "hosts", "--worker_hosts", "a:1"]) == 2


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


def test_a_batch_size_for_each_gpu_is_not_taken_for_that_of_all(captured, capsys):
    line = refused(capsys, "train", "--batch_size", "128", "--num_gpus", "2")
    assert "--train-batch-size 256" in line
    assert not captured


def test_other_words_for_commands_name_commands():
    assert set(OTHER_COMMANDS.values()) <= COMMANDS.keys()
    assert not OTHER_COMMANDS.keys() & COMMANDS.keys()


def test_an_alias_is_no_flag():
    taken = {info.flag for info in FIELDS}
    aliases = ["--" + alias.replace("_", "-") for info in FIELDS for alias in info.aliases]
    assert len(aliases) == len(set(aliases))
    assert not taken & set(aliases)
    assert not (taken | set(aliases)) & INSTEAD.keys()


@pytest.mark.parametrize("flag", INSTEAD)
def test_a_flag_of_2017_without_an_equal_is_answered(flag, capsys, captured):
    given = flag.replace("-", "_").replace("__", "--", 1)
    line = refused(capsys, "train", given, "1")
    assert line == f"labkit: error: {given} is a flag of older programs; {INSTEAD[flag]}"


def test_the_flags_that_the_answers_name_exist():
    parser = declared("labkit train", train)
    for answer in INSTEAD.values():
        if "labkit evaluate" in answer or "labkit data" in answer:
            continue
        for word in answer.replace(",", " ").split():
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


def test_evaluate_takes_a_batch_size(capsys):
    assert cli.parse(["evaluate", "run", "--batch_size", "10"]).keywords["eval_batch_size"] == 10


# ---- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "no command 'trian'; did you mean train?"),
        (["clustr", "local"], "no command 'clustr'; did you mean cluster?"),
        (["cluster", "locl"], "no command 'cluster locl'; did you mean cluster local?"),
        (["prepare"], "no command 'prepare'; did you mean data prepare?"),
        (["xyzzy"], "no command 'xyzzy'; see labkit --help"),
        (["predict"], "no command 'predict'; see labkit --help"),
        (["finetune"], "no command 'finetune'; see labkit --help"),
        (["rm"], "no command 'rm'; did you mean delete?"),
        (["ls"], "no command 'ls'; did you mean runs?"),
        (["test"], "no command 'test'; did you mean evaluate?"),
        (["--json", "runs"], "unknown argument '--json' before the command; see labkit --help"),
        (["train", "--num-layer", "20"], "unknown argument '--num-layer'; did you mean '--num-layers'?"),
        (["train", "--qqqqqqqqqq"], "unknown argument '--qqqqqqqqqq'; see labkit train --help-all"),
        (["runs", "--xyzzy"], "unknown argument '--xyzzy'; see labkit runs --help"),
        (["runs", "there"], "unexpected argument 'there' (see labkit runs --help)"),
        (
            ["train", "my pets"],
            "unexpected argument 'my pets'; write --dataset 'my pets' (see labkit train --help)",
        ),
        (
            ["data", "prepare", "pets"],
            "write --images pets or --dataset pets (see labkit data prepare --help)",
        ),
        (["show"], "the following arguments are required: RUN (see labkit show --help)"),
        (["evaluate", "--checkpoint_dir", "x"], "--checkpoint_dir is a flag of older programs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_with_what_to_write(arguments, words, capsys):
    assert words in refused(capsys, *arguments)


def test_the_help_is_shorter_than_all_of_it(capsys):
    brief, full = (help_of(capsys, "train", flag) for flag in ("--help", "--help-all"))
    assert 0 < len(brief.splitlines()) < len(full.splitlines()) / 2
