"""What people type for a setting: it works, or the answer says what to write."""

import re

import pytest

from labkit.commands.flags import declared
from labkit.commands.train import settings_of, train
from labkit.config import Config, by_field, fields_by_name
from labkit.config.spellings import ALIASES, ANSWERS, INSTEAD
from labkit.errors import InputError, nearest
from labkit.notebook.parameters import parameters_from_values
from labkit.plurals import counted, without_secrets

FIELDS = fields_by_name()


def refused(**values):
    with pytest.raises(InputError) as error:
        Config.from_flat(values)
    return str(error.value)


def parser_of_train():
    return declared("labkit train", train)


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("lr", "learning_rate", 0.5),
        ("batch_size", "train_batch_size", 64),
        ("bs", "train_batch_size", 64),
        ("wd", "weight_decay", 0.5),
        ("gpus", "num_gpus", 1),
        ("steps", "train_steps", 7),
        ("random_state", "seed", 3),
        ("num_epochs", "epochs", 2.0),
        ("arch", "model", "vgg"),
        ("augmentation", "use_distortion_for_training", False),
    ],
)
def test_a_name_of_the_same_meaning_works_wherever_settings_are_given(typed, name, value):
    assert Config.from_flat({typed: value}).flat()[name] == value
    assert by_field({typed: value}) == {name: value}
    assert settings_of([f"{typed}={value}"]) == {name: value}
    assert parameters_from_values({}, {typed: value}).config.flat()[name] == value
    flag = "--" + typed.replace("_", "-")
    options = parser_of_train().parse_all([f"--no-{typed}"] if value is False else [flag, str(value)])
    assert str(getattr(options, name)) == str(value)


def test_arguments_of_parts_may_be_called_in_the_singular():
    typed = {"model_argument": "width=64", "callback_argument": "every=4"}
    assert by_field(typed) == {f"{name}s": value for name, value in typed.items()}


def test_every_alias_names_one_field_and_no_answer_or_field_is_called_alike():
    aliases = [alias for names in ALIASES.values() for alias in names.split()]
    assert set(ALIASES) <= set(FIELDS)
    assert len(aliases) == len(set(aliases))
    old = {flag[2:].replace("-", "_") for flag in INSTEAD}
    assert not set(aliases) & (ANSWERS.keys() | old | FIELDS.keys())
    assert not ANSWERS.keys() & (old | FIELDS.keys())


@pytest.mark.parametrize("name", ANSWERS)
def test_what_labkit_calls_otherwise_is_answered_from_python_and_the_command_line(name):
    assert refused(**{name: 1}) == f"unknown parameter {name!r}; {ANSWERS[name]}"
    flag = "--" + name.replace("_", "-")
    with pytest.raises(InputError, match=re.escape(f"unknown argument {flag!r}; {ANSWERS[name]}")):
        parser_of_train().parse_all([flag, "1"])


def test_the_flags_in_the_answers_exist():
    known = parser_of_train()._option_string_actions
    for answer in ANSWERS.values():
        own = re.sub(r"labkit (data|cluster) [^;]*", "", answer)
        assert not [flag for flag in re.findall(r"--[a-z-]+\w", own) if flag not in known], answer


@pytest.mark.parametrize(
    "name",
    ["xyz", "lr_", "top_k", "hidden_size", "checkpoint_every_epochs", "beta3", "eval", "x" * 500, "ß", ""],
)
def test_an_unknown_name_is_refused_in_a_line_without_the_names_of_all_settings(name):
    said = refused(**{name: 1})
    assert len(said) < 200 + len(name) and said.count(", ") < 3


def test_a_setting_that_is_given_by_two_names_is_refused():
    assert refused(lr=0.1, learning_rate=0.2) == "lr and learning_rate are one setting; leave one of them out"


def test_a_batch_size_for_each_gpu_is_not_taken_for_that_of_all_in_python_and_notebooks():
    two = Config.from_flat({"num_gpus": 2, "simulate_missing_gpus": True})
    for give in (
        lambda: Config.from_flat({"batch_size": 64, "num_gpus": 2}),
        lambda: two.replace({"batch_size": 64}),
        lambda: parameters_from_values({"num_gpus": 2}, {"batch_size": 64}),
    ):
        with pytest.raises(InputError, match="batch_size is 64.*write --train-batch-size 128"):
            give()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learning_rat", "learning_rate"),
        ("lerning_rate", "learning_rate"),
        ("trainsteps", "train_steps"),
        ("num_layer", "num_layers"),
        ("decay_weight", "weight_decay"),
        ("batch_size", None),
        ("epochs", None),
        ("class_weight", "class_weights"),
        ("lr", None),
        ("eps", None),
        ("patience", None),
        ("validate_every_epochs", None),
        ("num_workers", None),
    ],
)
def test_only_a_misspelling_of_a_name_is_taken_for_it(name, meant):
    names = [name for name in FIELDS if name != "epochs"]
    assert nearest(name, names) == meant


def test_numbers_in_a_name_are_not_misspelled():
    assert nearest("cifar100", ["cifar10", "shapes"]) is None
    assert nearest("cifar-10", ["cifar10", "shapes"]) == "cifar10"


@pytest.mark.parametrize(
    ("word", "said"),
    [("-lr", "write --learning-rate"), ("-b", "write --train-batch-size"), ("-x", "see labkit")],
)
def test_a_flag_with_one_dash_is_answered(word, said):
    with pytest.raises(InputError, match=said):
        parser_of_train().parse_all([word, "1"])


# ---- what is shown of it, and of numbers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "checkpoint", "0 checkpoints"),
        (1, "checkpoint", "1 checkpoint"),
        (2, "asynchronous worker", "2 asynchronous workers"),
        (12345, "damaged line", "12,345 damaged lines"),
    ],
)
def test_number_and_noun_agree(number, noun, expected):
    assert counted(number, noun) == expected


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://ada:hidden@host/x?token=hidden&b=1", "https://***@host/x?***"),
        ("git+https://hidden@host/a", "git+https://***@host/a"),
        ("https://ada:hid@den@host:80/x", "https://***@host:80/x"),
        ("https://host/x#access_token=hidden", "https://host/x#***"),
        ("https://host/a/b", "https://host/a/b"),
        ("see file:///data/x;v=1", "see file:///data/x;***"),
        ("--api-key=hidden", "--api-key=***"),
        ("WANDB_API_KEY=hidden", "WANDB_API_KEY=***"),
        ("--keep-checkpoints=3", "--keep-checkpoints=3"),
        ("monkey=3", "monkey=3"),
        ("/data/a@b/train_steps=3", "/data/a@b/train_steps=3"),
    ],
)
def test_passwords_and_tokens_are_blanked(word, shown):
    assert without_secrets([word]) == [shown]


def test_the_value_after_a_flag_is_blanked_too():
    words = ["train", "--password", "hidden", "--pass", "-h", "--tokens", "--train-steps", "7"]
    shown = ["train", "--password", "***", "--pass", "***", "--tokens", "--train-steps", "7"]
    assert without_secrets(words) == shown
