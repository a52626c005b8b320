"""A fork is its parent up to a step, bit by bit, and goes on with what was changed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.experiments.fork import _rows
from labkit.experiments.replay.batch import batch_without_tensorflow
from labkit.experiments.replay.recorded import batch_of_run
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.checkpoints import state_path
from labkit.run_directory.files import read_object
from labkit.run_directory.notes import Lineage, family_of, read_lineage, write_lineage
from labkit.run_directory.reader import read_metrics
from labkit.run_directory.summary import Summaries
from tests.experiments.conftest import KEPT, STEPS, arguments
from tests.properties.harness import assert_bit_equal, checkpoint_values, labkit


@pytest.fixture(scope="module")
def parent(tmp_path_factory, data_dir) -> RunDirectory:
    """A run with checkpoints of the steps 4 (best on validation), 6 and 8."""
    path = tmp_path_factory.mktemp("runs") / "first"
    assert labkit(*arguments(path, data_dir, "--validate-every-steps", "4", "--evaluate-test")) == 0
    return RunDirectory(path)


def training_rows(run: RunDirectory) -> dict[int, tuple[float, float]]:
    reader = read_metrics(run)
    rows = reader.split("train")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    return {row["step"]: (row["loss"], row["learning_rate"]) for row in rows}


def fork(parent: RunDirectory, path: Path, *flags: str) -> tuple[int, RunDirectory]:
    return labkit("fork", str(parent.path), *flags, "--job-dir", str(path)), RunDirectory(path)


@pytest.mark.long
@pytest.mark.parametrize("step", [KEPT, 5])  # there is no checkpoint of step 5: it is made again
def test_a_fork_that_changes_nothing_ends_as_its_parent(parent, tmp_path, step):
    before = {path: path.read_bytes() for path in parent.path.rglob("*") if path.is_file()}
    code, made = fork(parent, tmp_path / "same", "--at", str(step))
    assert code == 0
    assert made.read_status().state == "interrupted"
    assert {path: path.read_bytes() for path in parent.path.rglob("*") if path.is_file()} == before
    assert labkit("resume", str(made.path)) == 0
    assert training_rows(made) == training_rows(parent)
    assert_bit_equal(checkpoint_values(parent.path, STEPS), checkpoint_values(made.path, STEPS))


@pytest.mark.long
def test_a_fork_of_a_step_without_a_checkpoint_knows_which_one_validation_chose(parent, tmp_path):
    code, made = fork(parent, tmp_path / "made", "--at", "5")
    assert code == 0
    [validated] = read_metrics(made).split("validation")
    state = read_object(state_path(made.checkpoints_path, 5))
    assert (state["best_step"], state["best_accuracy"]) == (4, validated["accuracy"])


def test_a_fork_says_that_the_checkpoint_which_validation_chose_is_gone(parent, tmp_path, capsys):
    copy = RunDirectory(shutil.copytree(parent.path, tmp_path / "copy"))
    shutil.rmtree(state_path(copy.checkpoints_path, 4).parent, ignore_errors=True)  # perhaps 8 is the best
    assert fork(copy, tmp_path / "made", "--at", str(KEPT))[0] == 0
    assert "note: copy keeps no checkpoint of step 4, which validation chose" in capsys.readouterr().out


@pytest.mark.long
def test_a_fork_goes_on_with_what_was_changed(parent, tmp_path, capsys):
    code, made = fork(
        parent, tmp_path / "slow", "--at", str(KEPT), "--set", "learning_rate=0.01", "train_steps=10"
    )
    assert code == 0
    assert labkit("resume", str(made.path)) == 0
    rows, its = training_rows(made), training_rows(parent)
    assert all(rows[step] == its[step] for step in range(1, KEPT + 1))
    assert {rows[step][1] for step in range(KEPT + 1, 11)} == {0.01}
    lineage = read_lineage(made)
    assert lineage == Lineage(
        str(parent.path), KEPT, {"learning_rate": (0.05, 0.01), "train_steps": (STEPS, 10)}
    )
    capsys.readouterr()
    assert labkit("show", str(made.path)) == 0
    assert f"forked from  first, step {KEPT}" in capsys.readouterr().out
    assert labkit("verify", str(made.path)) == 0
    assert labkit("verify", str(made.path), "--from", "0") == 2
    assert f"was forked from: {parent.path}" in capsys.readouterr().err


def test_a_batch_before_a_fork_is_that_of_its_settings_or_refused(parent, tmp_path):
    changed = {"slow": "learning_rate=0.01", "cut": "cutout_size=8"}
    forks = {
        name: fork(parent, tmp_path / name, "--at", str(KEPT), "--set", change)[1]
        for name, change in changed.items()
    }
    forks["again"] = fork(forks["cut"], tmp_path / "again", "--at", str(KEPT))[1]
    whole = batch_without_tensorflow(parent, KEPT).pixels
    assert np.array_equal(batch_without_tensorflow(forks["slow"], KEPT).pixels, whole)
    for name in ("cut", "again"):
        for ask in (batch_without_tensorflow, batch_of_run):
            with pytest.raises(InputError, match=f"step {KEPT} of .*{name} was made with other settings"):
                ask(forks[name], KEPT)
        batch_without_tensorflow(forks[name], KEPT + 1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--at", "9"], "--at is 9; allowed: 1 to 8"),
        (["--at", "0"], "--at is 0; allowed: 1 to 8"),
        (["--at", "8"], "add --set train_steps=16"),
        (["--at", "6", "--set", "dataset=cifar10"], "--set dataset=cifar10: a fork can't change it"),
        (["--at", "6", "--set", "num_layers=14"], "weights of the parent's network"),
        (["--at", "6", "--set", "optimizer=adamw"], "state of the parent's optimizer"),
        (["--at", "6", "--set", "train_batch_size=6"], "the order of the images"),
        (["--at", "6", "--set", "best_by=loss"], "were chosen by the parent's metric"),
        (["--at", "6", "--set", "precision=float64"], "the checkpoint holds weights for float32"),
        (["--at", "6", "--set", "train_steps=12", "task_index=1"], "the command that continues the fork"),
        (["--at", "6", "--set", "learning_rat=1"], "did you mean '--learning-rate'"),
        (["--at", "6", "--set", "learning_rate=fast"], "--learning-rate is 'fast'; allowed: a number"),
        (["--at", "6", "--set", "nesterov=perhaps"], "--nesterov is 'perhaps'"),
        (["--at", "6", "--set", "nesterov"], "--set nesterov: write a setting and its value"),
    ],
)
def test_what_a_fork_can_not_do_is_refused_and_nothing_is_written(parent, tmp_path, capsys, flags, words):
    capsys.readouterr()
    assert fork(parent, tmp_path / "no", *flags)[0] == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert fork(parent, tmp_path, "--at", str(KEPT))[0] == 2
    assert "is there already" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_pause_of_the_parent_is_no_time_of_the_fork(tmp_path):
    run = RunDirectory(tmp_path / "paused")
    run.create()
    lines = [
        *({"split": "train", "step": step, "loss": 1.0, "wall_time": 10.0 + step} for step in (1, 2, 3)),
        {"resumed_at_step": 2, "wall_time": 1000.0},
        *({"split": "train", "step": step, "loss": 1.0, "wall_time": 1000.0 + step} for step in (3, 4, 5)),
    ]
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _rows(run, 4) == [*lines[:2], *lines[3:6]]


def test_a_family_is_a_tree_and_survives_a_lost_parent_and_a_circle(tmp_path):
    def run(name: str, parent: str | None = None, step: int = 1) -> RunDirectory:
        made = RunDirectory(tmp_path / name)
        made.create()
        made.config_path.write_text("{}")
        if parent:
            write_lineage(made, Lineage(str(tmp_path / parent), step, {"learning_rate": (0.1, 0.2)}))
        return made

    runs = [run("a"), run("b", "a"), run("c", "b", 7), run("d", "a"), run("alone")]

    def tree(of: RunDirectory) -> list[tuple[str, int]]:
        return [(one.run.name, one.depth) for one in family_of(of, list_runs(tmp_path))]

    whole = [("a", 0), ("b", 1), ("c", 2), ("d", 1)]
    assert [tree(one) for one in runs] == [whole, whole, whole, whole, [("alone", 0)]]
    assert Summaries(lambda config: None).of([runs[2]])[0].forked_from == "b, step 7"
    shutil.rmtree(runs[0].path)
    assert tree(runs[2]) == [("b", 0), ("c", 1)]
    write_lineage(runs[1], Lineage(str(runs[2].path), 1, {}))  # b from c, c from b
    assert tree(runs[1]) == [("b", 0), ("c", 1)]
    (runs[2].path / "lineage.json").write_text('{"parent": 3')
    assert read_lineage(runs[2]) is None
