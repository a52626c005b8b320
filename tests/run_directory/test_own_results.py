"""A run's own test result is what the training reported; other evaluations stand beside it."""

import json
import math

import pytest

import labkit
from labkit.analysis.predictions import load_predictions, of_another_checkpoint
from labkit.commands import main as cli
from labkit.config.config import describe
from labkit.run_directory.metrics import (
    VIEWS,
    Selection,
    append_evaluation,
    chosen_step,
    own_test,
    own_test_step,
)
from labkit.run_directory.reader import read_metrics
from labkit.run_directory.summary import Summaries
from labkit.training.checkpoints import CheckpointStore
from tests.commands.made_runs import evaluation, make_run

VALIDATIONS = [evaluation("validation", 10, 0.9), evaluation("validation", 20, 0.7)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that reported 0.667 for step 10, its best on validation."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    return make_run(tmp_path / "runs", "a", rows=[*VALIDATIONS, evaluation("test", 10, 0.667)])


def evaluate(run, step, accuracy, **more):
    """Record an evaluation as ``labkit evaluate`` does."""
    reader = read_metrics(run)
    row = evaluation("test", step, accuracy) | {"examples": 3, "wall_time": 1.0} | more
    return append_evaluation(run.metrics_path, row, reader.resume_points)


def test_a_better_checkpoint_does_not_replace_what_the_run_reported(run, capsys):
    assert evaluate(run, 20, 0.875)
    [summary] = Summaries(describe).of([run])
    assert (summary.test_accuracy, summary.accuracy) == (0.667, 0.667)
    assert summary.results["test"]["step"] == 10
    assert [row["accuracy"] for row in summary.other_tests] == [0.875]
    assert cli.main(["runs"]) == 0
    assert "0.6670" in (shown := capsys.readouterr().out) and "0.8750" not in shown
    assert cli.main(["show", "a"]) == 0
    lines = {line[:13].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert "0.6670  (step 10)" in lines["test"] and "0.8750  (step 20)" in lines["other tests"]
    found = labkit.load_run(run.path)
    assert found.metrics("test")["accuracy"].tolist() == [0.667]
    both = found.evaluations("test")
    assert (both["accuracy"].tolist(), both["own"].tolist()) == ([0.667, 0.875], [1, 0])


def test_other_views_of_the_same_checkpoint_stand_beside(run, capsys):
    assert evaluate(run, 20, 0.875)
    assert evaluate(run, 20, 0.875, tta_accuracy=0.9, **{VIEWS: "mirror"})
    assert not evaluate(run, 20, 0.875, tta_accuracy=0.9, **{VIEWS: "mirror"}), "once each"
    assert cli.main(["show", "a"]) == 0
    assert "step 20, mirror: accuracy 0.9000" in capsys.readouterr().out
    assert labkit.load_run(run.path).evaluations("test")["step"].tolist() == [10, 20], "each step once"


def test_evaluations_of_the_training_split_stand_apart_from_its_steps(tmp_path):
    step = {"split": "train", "step": 20, "loss": 0.5, "accuracy": 0.8}
    run = make_run(tmp_path, "a", rows=[step, *VALIDATIONS])
    assert evaluate(run, 20, 0.875, split="train")
    found = labkit.load_run(run.path)
    assert found.evaluations("train")["accuracy"].tolist() == [0.875]
    assert found.metrics("train")["accuracy"].tolist() == [0.8]


def test_a_run_that_reported_none_stands_for_its_best_on_validation(tmp_path):
    run = make_run(tmp_path, "a", rows=VALIDATIONS)
    assert evaluate(run, 20, 0.875)
    [summary] = Summaries(describe).of([run])
    assert (summary.accuracy, summary.accuracy_split, summary.test_accuracy) == (0.7, "validation", None)
    assert evaluate(run, 10, 0.6)
    [summary] = Summaries(describe).of([run])
    assert summary.test_accuracy == 0.6


@pytest.mark.parametrize(
    ("accuracies", "examples", "chosen"),
    [
        ((0.70, 0.65, 0.60), 20, 30),  # within 0.10, the standard error of 0.7 on 20 images
        ((0.70, 0.65, 0.59), 20, 20),
        ((0.70, 0.65, 0.60), 2_000, 10),  # the standard error is 0.01
        ((0.70, 0.695, 0.691), 2_000, 30),  # compared with the best, so that it can't drift down
        ((0.70, 0.691, 0.685), 2_000, 20),
        ((1.0, 1.0, 0.99), 100, 20),  # no error is left at 1
        ((0.0, 0.0, 0.0), 100, 30),
        ((math.nan, 0.2, math.nan), 100, 20),
        ((0.5, 0.6, 0.6), None, 30),  # of a damaged row: as without a margin
    ],
)
def test_the_newest_checkpoint_that_is_not_clearly_worse_than_the_best_is_chosen(
    accuracies, examples, chosen
):
    rows = [
        evaluation("validation", 10 * number, accuracy) | {"examples": examples}
        for number, accuracy in enumerate(accuracies, 1)
    ]
    assert chosen_step(rows) == own_test_step(rows) == chosen
    first, *rest = rows
    before = Selection()
    before.add(first)
    after = Selection(before.step, before.best)  # as a checkpoint keeps it
    for row in rest:
        after.add(row)
    assert after.step == chosen


def test_a_checkpoint_of_an_earlier_labkit_is_read(tmp_path):
    folder = tmp_path / "step-00000005"
    folder.mkdir()
    state = {"step": 5, "seed": 0, "data_checksum": "x", "num_replicas": 1, "best_step": 3}
    (folder / "state.json").write_text(json.dumps(state | {"best_accuracy": 0.5, "best_loss": 0.1}))
    assert CheckpointStore(tmp_path).state(5).best_accuracy == 0.5


def test_without_validation_it_is_the_newest_checkpoint():
    beside = [evaluation("test", 5, 0.9), evaluation("test", 7, 0.8)]
    assert own_test([], None, beside) == beside[1]
    assert own_test([evaluation("test", 3, 0.1)], None, beside)["step"] == 3
    assert own_test([], 5, beside) == beside[0]
    assert own_test_step([]) is None
    assert own_test([], None, []) is None
    assert own_test_step([*VALIDATIONS, {"split": "validation", "step": "x"}, {"split": "test"}]) == 10


def test_predictions_of_another_checkpoint_are_told_from_the_runs_own(run):
    from tests.app.conftest import write_predictions

    write_predictions(run)
    assert of_another_checkpoint(run, load_predictions(run)) == ""
    shown = labkit.load_run(run.path)
    assert shown.predictions() is shown.predictions(), "read once"
    path = run.predictions_path / "test.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"checkpoint_step": 20}))
    said = of_another_checkpoint(run, load_predictions(run))
    with pytest.warns(UserWarning, match="are of step 20"):
        shown.predictions()
    assert "are of step 20" in said and "of a is that of step 10" in said and "--checkpoint 10" in said
    kept = run.metrics_path.rename(run.path / "kept.jsonl")
    run.metrics_path.symlink_to(kept)
    assert "the metrics of a can't be read" in of_another_checkpoint(run, load_predictions(run))
