"""Whatever is typed: an answer, or one line and exit code 2; never a traceback, nothing written elsewhere."""

import importlib
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labkit.commands import COMMANDS, train
from labkit.commands.flags import declared
from labkit.config import fields_by_name
from labkit.distributed import task as cluster_task
from tests.commands.in_process import ends_well, tree
from tests.commands.made_runs import whole_run

# What a shell can pass: no NUL, and bytes that aren't UTF-8 as Python shows them.
_SHELL = st.characters(exclude_categories=("Cs",), exclude_characters="\0") | st.sampled_from("\udc80\udcff")
_PLAIN = ("1", "2", "0.5", "True", "x", "a:1,b:1", "worker", "64", "accuracy", "state=finished", "good")
_NUMBERS = ("-1", "0", "1e999", "nan", "-inf", "9" * 400, "9" * 5000, "1_0", "\N{ARABIC-INDIC DIGIT THREE}")
_TEXTS = ("", " ", "-", "--", "--=", "None", "a\nb", "\x1b[31m", "\udcff", "x" * 5000, "%s", "{}", "²")
_PATHS = ("/", "..", "~", "~no one", "~no one/x.csv", "gs://b", "/dev/null", "./x.csv")
_SETTINGS = ("=", "a=b", "learning_rate=fast", "learning_rate=", "%(prog)s", "accuracy>0.8")
values = st.one_of(
    *map(st.sampled_from, (_PLAIN, _NUMBERS, _TEXTS, _PATHS, _SETTINGS)),
    st.text(_SHELL, max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)

# What a command needs before it looks at anything else: arbitrary words stand behind it.
GOOD_BEGINNINGS = {
    "show": "good",
    "verify": "good --files-only",
    "metrics": "good",
    "fork": "good --at=5",
    "stop": "good",
    "restore": "",
    "runs": "",
    "data list": "",
    "models": "",
    "cluster tf-config": "--platform=hosts --worker-hosts=a:1,b:1 --job-name=worker --task-index=0",
    "cluster slurm": "--nodes=2",
    "cluster kubernetes": "--name=a --image=b --claim=c --workers=2",
    "train": "",
}
_TRAININGS = ("cluster slurm", "cluster kubernetes")


def words_of(command: str) -> st.SearchStrategy[list[str]]:
    """Arguments of a command: its flags with values that fit and that don't, and words of any kind."""
    module = importlib.import_module(COMMANDS[command].module, "labkit.commands")
    parser = declared(f"labkit {command}", getattr(module, command.replace(" ", "_").replace("-", "_")))
    flags = st.sampled_from(sorted({*parser._option_string_actions, *parser.aliases} - {"-h", "--help-all"}))
    any_word = st.one_of(
        values.map(lambda value: [value]),
        flags.map(lambda flag: [flag]),
        st.text(string.ascii_lowercase + "-_", max_size=8).map(lambda word: [f"--{word}"]),
    )
    given = st.tuples(flags, values)
    one = st.one_of(any_word, given.map(list), *[given.map("=".join).map(lambda word: [word])] * 4)
    behind = st.lists(one, max_size=3).map(lambda parts: [word for part in parts for word in part])
    good = GOOD_BEGINNINGS[command].split()
    beginning = st.sampled_from(([], good, good))
    words = st.tuples(beginning, behind).map(lambda parts: [*command.split(), *parts[0], *parts[1]])
    if command not in _TRAININGS:
        return words
    training = words_of("train") | st.just(["train", "--sync", "--job-dir=job", "--data-dir=data"])
    return st.tuples(words, training).map(lambda parts: [*parts[0], "--", *parts[1]])


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A folder with a home, in which there is a run, and the working directory; no training starts."""
    folder = tmp_path_factory.mktemp("words")
    whole_run(folder / "home" / "runs", "good")
    (folder / "here").mkdir()

    def end(code: int) -> None:
        raise SystemExit(code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder / "home"))
        patch.delenv("TF_CONFIG", raising=False)
        patch.chdir(folder / "here")
        patch.setattr(train, "train_as", lambda *given, **settings: 0)
        patch.setattr(cluster_task, "bypass_proxy", lambda *given: None)
        patch.setattr("os._exit", end)
        yield folder


@pytest.mark.long
@pytest.mark.parametrize("command", GOOD_BEGINNINGS)
def test_any_words_behind_a_command_are_answered_or_refused_in_one_line(place, command):
    @settings(max_examples=80, deadline=None)
    @given(words_of(command))
    def answered(words):
        assert ends_well(*words) in (0, 2)
        (place / "here" / "metrics.csv").unlink(missing_ok=True)  # of labkit metrics
        (place / "here" / "x.csv").unlink(missing_ok=True)
        assert tree(place) == before

    before = tree(place)
    answered()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([*COMMANDS, "cluster", "data", "--version"]) | values, min_size=1, max_size=2)
)
def test_any_first_word_is_a_command_or_refused_in_one_line(place, words):
    assume(" ".join(words).replace("_", "-") not in COMMANDS and words[0].replace("_", "-") not in COMMANDS)
    before = tree(place)
    assert ends_well(*words) in (0, 2)
    assert tree(place) == before


@settings(max_examples=400, deadline=None)
@given(given_values=st.dictionaries(st.sampled_from(sorted(fields_by_name())), values, max_size=2))
def test_any_value_of_a_flag_of_train_is_taken_or_refused_in_one_line(place, given_values):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given_values.items()]
    before = tree(place)
    assert ends_well("train", *flags) in (0, 2)
    assert tree(place) == before


ADDRESS_OF_2017 = "cluster tf-config --platform=hosts --task-index=0 --job-name=worker --worker-hosts=a:1,b:"


@pytest.mark.parametrize(
    "words",
    [
        ["data", "list", "--data-dir", "~no one/data"],
        ["metrics", "good", "--output", "~no one/x.csv"],
        ["cluster", "slurm", "--nodes=2", "--account=--", "--", "train"],
        ["fork", "good", "--at=--"],
        ["runs", "--runs-dir", "a\nb"],
        (ADDRESS_OF_2017 + "9" * 5000).split(),
    ],
    ids=lambda words: " ".join(words[:2]).replace("\n", " "),
)
def test_what_was_found_by_chance_is_refused_in_one_line(place, words):
    before = tree(place)
    assert ends_well(*words) == 2
    assert tree(place) == before


def test_a_name_that_is_not_utf8_is_shown(place):
    folder = place / "home" / "odd"
    whole_run(folder, "name\udcff")
    assert ends_well("runs", "--runs-dir", str(folder)) == 0
    assert ends_well("show", str(folder / "name\udcff")) == 0
