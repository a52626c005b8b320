"""The batch behind a point of a training curve, on the live page."""

import atexit
import functools
import html
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import labkit
from app.charts import picked
from app.charts.metric_charts import Options, board_of, metric_chart
from app.charts.store import CurveStore
from app.images import answers
from app.images.batch import highest_share
from app.images.cards import data_uri
from app.images.subject import checkpoint_to_ask
from labkit.config import Config
from labkit.experiments.replay.batch import NeedsReplay, batch_without_tensorflow, checkpoint_for
from labkit.experiments.replay.recorded import batch_of_run
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import read_metrics
from tests.app.boards import boards, decoded
from tests.app.conftest import train_row
from tests.app.test_pages import cards_of, checked, words
from tests.tiny import prepare_tiny

PATIENCE = 120


@functools.cache
def _tiny() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    prepare_tiny(folder)
    return folder


def configure(run: RunDirectory, **changed: object) -> None:
    """Give a made run a whole configuration, as a training writes it, and the tiny data set."""
    shutil.copytree(_tiny(), run.path.parents[1] / "data", dirs_exist_ok=True)
    fields = {
        "dataset": "shapes",
        "train_batch_size": 16,
        "train_steps": 200,
        "input_path": "memory",
    } | changed
    write_json_atomic(run.config_path, Config.from_flat(fields).to_json())


def open_batch(run: RunDirectory, step: object) -> AppTest:
    at = AppTest.from_string("from app.views import live\nlive.page()", default_timeout=PATIENCE)
    at.session_state["run"] = str(run.path)
    at.query_params["batch"] = str(step)
    return checked(at.run())


def text_of(at: AppTest) -> str:
    return words(at).replace("\\", "")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Iterator[RunDirectory]:
    folder = tmp_path_factory.mktemp("trained")
    prepare_tiny(folder / "data")
    fields = {"dataset": "shapes", "num_layers": 8, "train_batch_size": 16, "train_steps": 6}
    saved = {"checkpoint_every_steps": 2, "keep_checkpoints": 5, "num_gpus": 0}
    labkit.train(**fields, **saved, data_dir=folder / "data", job_dir=folder / "runs" / "first")
    yield RunDirectory(folder / "runs" / "first")
    answers.networks().close()


# ---- the page ----------------------------------------------------------------------------------------------


def test_the_images_of_the_step_are_shown_as_the_network_saw_them(make_run):
    run = make_run(loss=9.0)
    configure(run)
    at = open_batch(run, 120)
    batch = batch_of_run(run, 120)
    shown = cards_of(at)
    for place, image in enumerate(batch.images):
        assert data_uri(image) in shown
        assert f"split=train&amp;index={batch.index[place]}" in shown
        assert html.escape(batch.names(place)) in shown
    text = text_of(at)
    assert "Loss 9" in text and "Accuracy 99.2%" in text and "Learning rate 0.1" in text
    assert "kept no checkpoint" in text
    assert f"labkit replay {run.path} --step 120" in [code.value for code in at.code]
    assert boards(at)[0].seams == {"batch of step 120": 120}


def test_previous_next_and_close(make_run):
    run = make_run()
    configure(run)
    at = open_batch(run, 199)
    assert "hasn't made this step yet" in text_of(at)
    checked(at.button(key="batch-Next").click().run())
    assert at.query_params["batch"] == "200" and at.button(key="batch-Next").disabled
    checked(at.button(key="batch-Previous").click().run())
    assert "Batch of step 199" in text_of(at)
    checked(at.button(key="batch-close").click().run())
    assert "batch" not in at.query_params
    assert "Batch of step" not in text_of(at)


def test_another_run_does_not_show_the_batch_of_the_last_one(make_run):
    run, other = make_run(), make_run("other")
    configure(run)
    at = open_batch(run, 7)
    at.session_state["run"] = str(other.path)
    assert "Batch of step" not in text_of(checked(at.run()))
    assert "batch" not in at.query_params
    at.session_state["run"] = str(run.path)
    assert "Batch of step 7" in text_of(checked(at.run()))
    assert at.query_params["batch"] == "7"


@pytest.mark.parametrize("step", ["0", "201", "-3", "x", "1e3", "9" * 40, "²"])
def test_a_step_outside_of_the_run_gives_a_sentence(make_run, step):
    run = make_run()
    configure(run)
    assert "this run's steps are 1 to 200" in text_of(open_batch(run, step))


def test_what_is_missing_gives_a_sentence(make_run):
    streamed = make_run("streamed")
    configure(streamed, input_path="streaming")
    at = open_batch(streamed, 3)
    assert "shuffle buffer" in text_of(at)
    assert at.code[-1].value == f"labkit replay {streamed.path} --step 3 --batch-only"

    changed = make_run("changed")
    configure(changed)
    environment = changed.read_environment()
    environment["data"] = {"dataset": "shapes", "checksum": "0" * 64}
    write_json_atomic(changed.environment_path, environment)
    assert "was trained on other data" in text_of(open_batch(changed, 3))

    gone = make_run("gone")
    configure(gone)
    shutil.rmtree(gone.path.parents[1] / "data")
    assert "no prepared 'shapes' data set" in text_of(open_batch(gone, 3))
    gone.config_path.write_text("{")
    assert "restore the file" in text_of(open_batch(gone, 3))


def test_replicas_and_asynchronous_workers_are_explained(make_run):
    for description, expected in (
        ("CPU", "each of the 2 replicas took 8 of it"),
        ("2 asynchronous workers", "may be that of another batch"),
    ):
        run = make_run()
        configure(run)
        environment = {**run.read_environment(), "replicas": 2, "description": description}
        write_json_atomic(run.environment_path, environment)
        assert expected in text_of(open_batch(run, 3))


@pytest.mark.long
@pytest.mark.slow
def test_the_losses_right_before_a_step_are_those_of_the_step(trained, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(trained.path.parents[1]))
    at, end = open_batch(trained, 5), time.monotonic() + PATIENCE
    while "hourglass" in words(at):
        assert time.monotonic() < end, words(at)
        time.sleep(0.3)
        checked(at.run())
    text = text_of(at)
    assert "the weights of step 4, the nearest kept checkpoint (right before this step)" in text
    mean, recorded = re.search(r"Their mean is ([\d.]+); the step recorded ([\d.]+)\.", text).groups()
    reader = read_metrics(trained)
    [row] = [row for row in reader.split("train") if row["step"] == 5]
    assert mean == recorded == f"{row['loss']:.4g}"
    losses = [float(loss) for loss in re.findall(r"<div>loss ([\d.]+)", cards_of(at))]
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
    run = make_run(steps=2)
    MetricsWriter(run.metrics_path).append([train_row(step) for step in range(3, 5000)])
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


@pytest.mark.parametrize(
    "point", [None, {}, {"chart": "loss"}, {"chart": "x", "x": 1}, {"chart": "loss", "x": None}]
)
def test_a_point_of_nothing_is_no_step(make_run, point):
    metrics = CurveStore(make_run().metrics_path).poll()
    assert picked.step_of_point(metrics, Options(), point) is None


def test_the_batch_is_that_of_the_replay_and_smaller_while_images_grow(make_run):
    run = make_run()
    configure(run, progressive_resizing="16:0.5")
    for step in (3, 150):
        ours, replayed = batch_without_tensorflow(run, step), batch_of_run(run, step)
        np.testing.assert_array_equal(ours.seen.images, replayed.images)
        np.testing.assert_array_equal(ours.seen.labels, replayed.labels)
        assert ours.pixels.shape[1:] == (32, 32, 3)
    configure(run, train_batch_size=2**17)
    with pytest.raises(NeedsReplay, match="too large"):
        batch_without_tensorflow(run, 1)


def test_the_checkpoint_is_the_newest_before_the_step_or_else_the_first_later_one():
    assert checkpoint_for([10, 20, 30], 25) == 20
    assert checkpoint_for([10, 20, 30], 20) == 10, "20 was trained on the batch of step 20"
    assert checkpoint_for([20, 30], 20) == 20
    assert checkpoint_for([10, 20, 30], 3) == 10
    assert checkpoint_for([], 3) is None


def test_the_share_of_the_highest_losses():
    assert highest_share(np.array([1.0] * 19 + [81.0])) == (2, pytest.approx(0.82))
    assert highest_share(np.array([np.nan] * 30)) is None
    assert highest_share(np.ones(5)) is None


# ---- in a browser ------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.browser
def test_a_click_shows_the_batch_and_reload_page_switch_and_new_points_keep_it(make_run, served, visit):
    run, page = make_run(state="running"), visit.page
    configure(run, data_dir=str(run.path.parents[1] / "data"))  # the dashboard has another home
    writer = MetricsWriter(run.metrics_path)
    page.goto(f"{served}/live?run={run.name}&folder={run.path.parent}")
    over = page.locator(".lk-chart .u-over").first
    over.wait_for()
    box = over.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    heading = page.get_by_role("heading", name="Batch of step")
    heading.wait_for()
    step = int(heading.inner_text().split()[-1])
    assert 50 < step < 70 and f"batch={step}" in page.url
    page.wait_for_function("document.activeElement.getAttribute('aria-label')?.startsWith('Batch of step')")
    page.locator(".lk-card").nth(15).wait_for()
    page.evaluate("document.querySelector('.lk-grid').kept = true")

    writer.append([train_row(121, loss=float("nan"))])
    page.get_by_text("NaN").first.wait_for()
    assert page.evaluate("document.querySelector('.lk-grid').kept"), "a tick draws nothing anew"

    page.reload()
    page.get_by_role("heading", name=f"Batch of step {step}").wait_for()
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("heading", name="Batch of step").wait_for(state="detached")
    page.get_by_role("link", name="Live").click()
    page.get_by_role("heading", name=f"Batch of step {step}").wait_for()
    assert f"batch={step}" in page.url

    page.get_by_role("button", name="Close").click()
    page.get_by_role("heading", name="Batch of step").wait_for(state="detached")
    page.locator(".lk-chart").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Batch of step 1", exact=True).wait_for()
    visit.went_well()
