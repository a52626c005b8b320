"""``labkit compare RUN RUN``: what is said of runs that are there, and that nothing is changed."""

import json

import pytest

from labkit.commands import main as cli
from tests.commands.in_process import tree
from tests.commands.made_runs import evaluation, make_run


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """Two finished runs in labkit's home that differ in their learning rate; they have no predictions."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    for name, rate, accuracy in (("first", 0.1, 0.5), ("second", 0.2, 0.75)):
        rows = [evaluation("validation", 20, accuracy), evaluation("test", 20, accuracy)]
        make_run(tmp_path / "runs", name, rows=rows, learning_rate=rate)
    return tmp_path / "runs"


def test_two_single_runs_are_compared_without_naming_a_better_recipe(two_runs, capsys):
    before = tree(two_runs)
    assert cli.main(["compare", "first", str(two_runs / "second")]) == 0
    said = capsys.readouterr().out
    assert "B's test accuracy is 25.00 points higher. How sure that is, isn't known." in said
    assert "another seed may reverse the order" in said
    assert "is better" not in said
    header, *rows = said.splitlines()[:3]
    assert header.endswith("learning_rate")
    assert [row.split()[-1] for row in rows] == ["0.1", "0.2"]
    assert tree(two_runs) == before


def test_runs_that_differ_in_their_seed_alone_are_one_configuration(two_runs, capsys):
    make_run(two_runs, "third", rows=[evaluation("test", 20, 0.6)], learning_rate=0.1, seed=1)
    assert cli.main(["compare", "first", "third"]) == 0
    said = capsys.readouterr().out
    assert "55.00 ± 7.07 % (2)" in said
    assert "differ in nothing but their seed" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["first"], "1 run to compare; allowed: 2 to 26"),
        (["first", "runs/first"], "first is named twice"),
        (["first", "secnd"], "did you mean second?"),
        (["resnet20", "vgg11"], "to train models, write --models resnet20,vgg11"),
        (["first", "second", "--models", "resnet20"], "--models belongs to trainings"),
        (["first", "second", "--lr", "0.1"], "--learning-rate belongs to trainings"),
        ([], "nothing to compare; name runs, or models to train"),
    ],
    ids=" ".join,
)
def test_what_is_no_two_runs_is_refused(words, said, two_runs, monkeypatch, capsys):
    monkeypatch.chdir(two_runs.parent)
    assert cli.main(["compare", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_configuration_that_cannot_be_read_is_not_called_other_data(two_runs, capsys):
    config = json.loads((two_runs / "second" / "config.json").read_text())
    config["run"]["seed"] = []
    for text in (json.dumps(config), "{"):
        (two_runs / "second" / "config.json").write_text(text)
        assert cli.main(["compare", "first", "second"]) == 0
        said = capsys.readouterr().out
    assert "Not every configuration can be read" in said
    assert "different data" not in said
