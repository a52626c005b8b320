"""The batch behind a point of a training curve, on the live page."""

import html
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.charts import picked
from app.charts.metric_charts import Options, board_of, metric_chart
from app.charts.store import CurveStore
from app.images import answers
from app.images.batch import highest_share
from app.images.cards import data_uri
from app.images.subject import checkpoint_to_ask
from labkit.experiments.replay.batch import NeedsReplay, batch_without_tensorflow, checkpoint_for
from labkit.experiments.replay.recorded import batch_of_run
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics
from tests.app.boards import boards, decoded
from tests.app.conftest import change_environment, configure, train
from tests.app.pages import checked, commands_of, finished, html_of, open_page, press, words
from tests.app.rows import append, train_row
from tests.tiny import prepare_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    prepare_tiny(folder)
    return folder


@pytest.fixture
def made(make_run, tiny, runs_folder):
    """Return a function that makes a run with a whole configuration and the tiny data set."""
    shutil.copytree(tiny, runs_folder.parent / "data", dirs_exist_ok=True)

    def make(name: str = "first", *, loss: float = 1.0, state: str = "finished", **changed: object):
        run = make_run(name, state, loss=loss)
        usual = {"train_batch_size": 16, "train_steps": 200, "input_path": "memory"}
        configure(run, **usual | changed)
        return run

    return make


def open_batch(run: RunDirectory, step: object) -> AppTest:
    return open_page("live", run, batch=str(step))


# ---- the page ----------------------------------------------------------------------------------------------


def test_the_images_of_the_step_are_shown_as_the_network_saw_them(made):
    run = made(loss=9.0)
    at = open_batch(run, 120)
    batch = batch_of_run(run, 120)
    shown = html_of(at)
    for place, image in enumerate(batch.images):
        assert data_uri(image) in shown
        assert f"split=train&amp;index={batch.index[place]}" in shown
        assert html.escape(batch.names(place)) in shown
    text = words(at)
    assert "Loss 9" in text and "Accuracy 99.2 %" in text and "Learning rate 0.1" in text
    assert "kept no checkpoint" in text
    assert f"labkit replay {run.path} --step 120" in commands_of(at)
    assert boards(at)[0].seams == {"batch of step 120": 120}


def test_previous_next_and_close_of_each_run_by_itself(made):
    run, other = made(), made("other")
    at = open_batch(run, 199)
    assert "hasn't made this step yet" in words(at)
    press(at, "Next")
    assert at.query_params["batch"] == "200" and at.button(key="batch-Next").disabled
    press(at, "Previous")
    assert "Batch of step 199" in words(at)
    at.session_state["run"] = str(other.path)
    assert "Batch of step" not in words(checked(at.run()))
    assert "batch" not in at.query_params
    at.session_state["run"] = str(run.path)
    assert "Batch of step 199" in words(checked(at.run()))
    press(at, "Close")
    assert "batch" not in at.query_params
    assert "Batch of step" not in words(at)


@pytest.mark.parametrize("step", ["0", "201", "-3", "x", "1e3", "9" * 40, "²"])
def test_a_step_outside_of_the_run_gives_a_sentence(made, step):
    assert "this run's steps are 1 to 200" in words(open_batch(made(), step))


def test_what_is_missing_gives_a_sentence(made):
    run = made(input_path="streaming")
    at = open_batch(run, 3)
    assert "shuffle buffer" in words(at)
    assert commands_of(at)[-1] == f"labkit replay {run.path} --step 3 --batch-only"
    run = made("changed")
    change_environment(run, data={"dataset": "shapes", "checksum": "0" * 64})
    assert "was trained on other data" in words(open_batch(run, 3))
    run = made("gone")
    shutil.rmtree(run.path.parents[1] / "data")
    assert "no prepared 'shapes' data set" in words(open_batch(run, 3))
    run.config_path.write_text("{")
    assert "restore the file" in words(open_batch(run, 3))


def test_replicas_and_asynchronous_workers_are_explained(made):
    run = made()
    change_environment(run, replicas=2)
    assert "each of the 2 replicas took 8 of it" in words(open_batch(run, 3))
    change_environment(run, description="2 asynchronous workers")
    assert "may be that of another batch" in words(open_batch(run, 3))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 4])
def test_the_losses_right_before_a_step_are_those_of_the_step(tmp_path, tiny, monkeypatch, parts):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    shutil.copytree(tiny, tmp_path / "data")
    # With batch normalization, whose statistics are those of a part.
    trained = train(tmp_path, "first", model="resnet", num_layers=8, ghost_batches=parts)
    at = finished(open_batch(trained, 5))
    text = words(at)
    assert "Highest loss first, by the weights of step 4 (right before this step)" in text
    mean, recorded = re.search(r"Their mean is ([\d.]+); the step recorded ([\d.]+)\.", text).groups()
    reader = read_metrics(trained)
    [row] = [row for row in reader.split("train") if row["step"] == 5]
    assert mean == recorded == f"{row['loss']:.4g}"
    losses = [float(loss) for loss in re.findall(r"<div>loss ([\d.]+)", html_of(at))]
    assert len(losses) == 16 and losses == sorted(losses, reverse=True)

    network = answers.networks().of(trained.path, checkpoint_to_ask(trained))
    batch = batch_of_run(trained, 1)
    before = network.predict(batch.images, step=4).probabilities
    in_training = network.predict(batch.images, batch.labels, step=4, as_in_training=True).probabilities
    assert np.abs(in_training - before).max() > 1e-3
    np.testing.assert_array_equal(network.predict(batch.images, step=4).probabilities, before)


# ---- what stands behind it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["step", "epoch", "training", "clock"])
def test_a_picked_point_is_its_very_step_on_every_axis(make_run, axis):
    run = make_run(steps=4999)
    metrics = CurveStore(run.metrics_path).poll()
    options = Options(axis=axis)
    board = board_of(metrics, options, "name", "", lambda: [metric_chart(metrics, "loss", options)])
    [chart] = decoded(board).charts
    line = chart.lines["train"]
    assert len(line.x) < 4000
    for x in line.x[:: len(line.x) // 7]:
        step = picked.step_of_point(metrics, options, {"chart": "loss", "line": "train", "x": float(x)})
        assert line.x[0] <= x <= line.x[-1]
        assert picked.mark(metrics, options, step)[0].x == pytest.approx(x, abs=1e-9)
    for point in (None, {}, {"chart": "loss"}, {"chart": "x", "x": 1}, {"chart": "loss", "x": None}):
        assert picked.step_of_point(metrics, options, point) is None


def test_the_batch_is_that_of_the_replay_and_smaller_while_images_grow(made):
    run = made(progressive_resizing="16:0.5")
    for step in (3, 150):
        ours, replayed = batch_without_tensorflow(run, step), batch_of_run(run, step)
        np.testing.assert_array_equal(ours.seen.images, replayed.images)
        np.testing.assert_array_equal(ours.seen.labels, replayed.labels)
        assert ours.pixels.shape[1:] == (32, 32, 3)
    run = made("large", train_batch_size=2**17)
    with pytest.raises(NeedsReplay, match="too large"):
        batch_without_tensorflow(run, 1)


def test_the_checkpoint_is_the_newest_before_the_step_or_else_the_first_later_one():
    for kept, step, nearest in (([10, 20, 30], 25, 20), ([20, 30], 20, 20), ([10, 20, 30], 3, 10)):
        assert checkpoint_for(kept, step) == nearest
    assert checkpoint_for([10, 20, 30], 20) == 10, "20 was trained on the batch of step 20"
    assert checkpoint_for([], 3) is None


def test_the_share_of_the_highest_losses():
    assert highest_share(np.array([1.0] * 19 + [81.0])) == (2, pytest.approx(0.82))
    assert highest_share(np.array([np.nan] * 30)) is highest_share(np.ones(5)) is None


def test_the_largest_jumps_are_single_steps_above_both_sides_and_apart(make_run):
    generator = np.random.default_rng(0)
    loss = 2 * np.exp(-np.arange(5000) / 800) * (1 + 0.05 * generator.random(5000))
    jumped = {700: 6.0, 2500: 3.0, 2510: 2.0, 2526: 4.0, 4999: 2.0, 3000: 5.0, 3200: 2.5}
    for step, ratio in jumped.items():
        loss[step - 1] *= ratio
    loss[3999] = np.nan
    run = make_run(steps=1)
    run.metrics_path.unlink()
    append(run.metrics_path, *(train_row(step + 1, loss=value) for step, value in enumerate(loss.tolist())))
    metrics = CurveStore(run.metrics_path).poll()
    found = picked.jumps(metrics)
    assert [step for step, _ in found] == [700, 3000, 2526, 2500, 3200]
    for step, ratio in found:
        near = loss[max(0, step - 26) : step + 25]
        around = np.median(np.delete(near, step - 1 - max(0, step - 26)))
        assert ratio == pytest.approx(loss[step - 1] / around) == pytest.approx(jumped[step], rel=0.1)
    assert picked.jumps(CurveStore(run.metrics_path.with_name("none")).poll()) == []


def test_a_loss_that_only_falls_has_no_jump(make_run):
    run = make_run(steps=1)
    run.metrics_path.unlink()
    append(run.metrics_path, *(train_row(step, loss=10 / step) for step in range(1, 300)))
    assert picked.jumps(CurveStore(run.metrics_path).poll()) == []


def test_the_page_offers_the_largest_jump_and_lists_it_beside_the_batch(made):
    run = made()
    rows = [train_row(step, loss=9.0 if step == 60 else 1.0) for step in range(1, 121)]
    run.metrics_path.unlink()
    append(run.metrics_path, *rows)
    at = open_page("live", run)
    press(at, "Largest jump of the loss: step 60 (9 ×)")
    assert at.query_params["batch"] == "60"
    assert "Loss / median 9" in words(at) and at.button(key="jump-60").disabled
