"""The pages in a real browser, on a server that the documented command started."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import expect

from app.acting.buttons import ENDED_EARLY
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.stop import training_process
from tests.app.browser import (
    BOARD,
    CHECKOUT,
    PATIENCE,
    START_PATIENCE,
    dashboard,
    listening,
    process,
    still,
    until,
    wait_for,
)
from tests.app.conftest import CLASSES, change_environment, rewrite_predictions, write_predictions
from tests.app.rows import append, layer_row, train_row

pytestmark = pytest.mark.slow
BACKGROUND = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"


def is_running(run: RunDirectory) -> bool:
    status = run.read_status()
    return status is not None and status.state == "running" and run.metrics_path.is_file()


@contextmanager
def training(run: RunDirectory, *flags: str) -> Iterator[subprocess.Popen]:
    """Train or resume ``run`` with the real command, for longer than the test takes. It runs in the block."""
    fields = "--dataset shapes --num-layers 8 --train-batch-size 16 --train-steps 1000000"
    train = [sys.executable, "-m", "labkit", "train", "--job-dir", str(run.path), *fields.split(), *flags]
    command = ["nice", "-n", "10", *train]  # it trains without end, beside other tests
    log = run.path.with_suffix(".log")
    with open(log, "ab") as output, process(command, cwd=CHECKOUT, stdout=output, stderr=output) as trainer:
        wait_for(lambda: is_running(run), trainer, log, START_PATIENCE)
        yield trainer


@pytest.mark.parametrize("where", ["checkout", "elsewhere"])
def test_the_server_listens_on_loopback_only_whatever_folder_it_starts_in(tmp_path, where):
    place = ("app/main.py", CHECKOUT) if where == "checkout" else (f"{CHECKOUT}/app/main.py", tmp_path)
    with dashboard(tmp_path, *place) as (address, pid):
        assert listening(pid, int(address.rpartition(":")[2])) == ["127.0.0.1"]


@pytest.mark.long
@pytest.mark.browser
def test_a_server_that_has_ended_is_no_question_about_the_internet(tmp_path, visit):
    with dashboard(tmp_path) as (address, _):
        visit.page.goto(address)
        visit.page.get_by_text("No runs yet.").wait_for()
        visit.page.wait_for_function("globalThis.labkitHistory")
    dialog = visit.page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"labkit dashboard --port {address.rpartition(':')[2]}")
    expect(dialog).to_contain_text("Trainings go on without it.")
    expect(dialog).not_to_contain_text("internet")


POINTS = f"({BOARD}?.data.charts[0].lines.find((line) => line.name === 'train')?.of || 0)"


def more_points_than(page, count: int) -> int:
    return page.wait_for_function(f"{POINTS} > {count} && {POINTS}").json_value()


def shown_step(page) -> int:
    text = page.get_by_text(re.compile(r"^Step [\d,]+ of")).inner_text()
    return int(text.split()[1].replace(",", ""))


def badge(page, state: str):
    return page.locator(".stMarkdownBadge", has_text=state)


@pytest.mark.browser
@pytest.mark.timeout(900)  # two trainings start
def test_the_page_follows_a_training_to_its_end_and_after_it_is_resumed(shapes, tmp_path, served, visit):
    run, page = RunDirectory(tmp_path / "runs" / "watched"), visit.page
    run.path.parent.mkdir()
    with training(run) as trainer:
        page.goto(f"{served}/live?folder={run.path.parent}")
        badge(page, "running").wait_for()
        first = more_points_than(page, 1)
        second = more_points_than(page, first)
        until(page, lambda: shown_step(page) > first, "the step follows the curves")
        until(page, lambda: re.match(r"\d+ % · watched", page.title()), "the tab says how far it is")
        expect(page.locator(".lk-board").first.locator(".lk-chart")).to_have_count(4)
        page.get_by_text("Machine", exact=True).wait_for()
        expect(page).to_have_url(re.compile("run=watched"))
        third = more_points_than(page, second + 20)
        trainer.terminate()
        trainer.wait(PATIENCE)
    badge(page, "interrupted").wait_for()
    with training(run):
        badge(page, "running").wait_for()
        more_points_than(page, third)
    visit.went_well()


OTHERS_STAY = "[...document.querySelectorAll('.stMain *:not(.lk-live *)')].every((part) => part.isKnown)"
# Pages that draw parts of their own every two seconds stand for the others, too.
HEADS = ("layers", "media", "predictions", "data", "configuration")


@pytest.mark.long
@pytest.mark.browser
def test_the_head_of_each_page_moves_and_nothing_else(make_run, served, visit):
    run, page = make_run(state="running", steps=3), visit.page
    write_predictions(run)
    append(run.layers_path, layer_row(50), layer_row(100))
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/labkit/feed/" in request.url else None)
    place = "() => document.querySelector('.lk-command').getBoundingClientRect().top"

    def train(step: int) -> None:
        append(run.metrics_path, train_row(step))
        run.write_status(replace(run.read_status(), step=step, heartbeat=time.time()))
        page.locator(".lk-live", has_text=f"Step {step:,} of 1,000").wait_for()

    run.write_status(replace(run.read_status(), total_steps=1000))
    for number, name in enumerate(HEADS):
        page.goto(f"{served}/{name}?run=first&folder={run.path.parent}")
        page.locator(".lk-live").wait_for()
        page.get_by_role("button", name="Command", exact=True).click()
        still(page.locator(".lk-command").first)
        page.wait_for_timeout(3000)  # parts that are computed have come
        page.evaluate("document.querySelectorAll('.stMain *').forEach((part) => { part.isKnown = true; })")
        top, focus = page.evaluate(place), page.evaluate_handle("document.activeElement")
        for step in (90 + number, 999):
            train(step)
        assert page.evaluate(OTHERS_STAY), f"{name}: a part of the page was drawn again"
        assert page.evaluate(place) == top and page.evaluate("one => one === document.activeElement", focus)
        until(page, lambda name=name: page.title() == f"99 % · first · {name.capitalize()} · labkit")

    page.keyboard.press("Escape")
    page.get_by_label("Find").press_sequentially("deca")
    train(500)
    expect(page.get_by_label("Find")).to_have_value("deca")
    expect(page.get_by_label("Find")).to_be_focused()
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
    hide += "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    page.wait_for_timeout(1500)
    asked.clear()
    page.wait_for_timeout(3000)
    assert not asked, "nobody sees the page"
    page.evaluate(hide, False)
    train(600)
    run.write_status(replace(run.read_status(), state="finished"))
    badge(page, "finished").wait_for()
    visit.went_well()


@pytest.mark.long
@pytest.mark.browser
def test_a_command_wraps_between_its_arguments_and_is_copied_as_it_is_typed(make_run, served, visit):
    run, page = make_run(), visit.page
    flags = "--train-batch-size 128 --checkpoint-every-steps 50 --learning-rate 0.1 --keep-checkpoints 3"
    words = ["labkit", "train", *flags.split(), "--job-dir", "a b", "--experiment-name", "it's <b>-<i>"]
    change_environment(run, command=words)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(f"{served}/configuration?run=first&folder={run.path.parent}")
        command = page.locator(".lk-command").first
        height = still(command.locator("code"))["height"]
        heights = command.evaluate(
            "one => [...one.querySelectorAll('span')].map((part) => part.offsetHeight)"
        )
        assert len(set(heights)) == 1 and height > 3 * heights[0], "it has lines, and no argument has two"
        page.evaluate("navigator.clipboard.writeText('')")
        command.get_by_role("button", name="Copy").click()
        command.get_by_role("button", name="Copied").wait_for()
        assert shlex.split(page.evaluate("navigator.clipboard.readText()")) == words
    visit.went_well()


@pytest.mark.long
@pytest.mark.browser
def test_cells_of_the_matrix_open_by_mouse_and_by_keyboard_and_links_keep_the_run(make_run, served, visit):
    run, page = make_run(), visit.page
    arrays = write_predictions(run)
    append(run.layers_path, layer_row(50), layer_row(100))
    predicted = arrays["probabilities"].argmax(1)
    counts = Counter(zip(arrays["labels"].tolist(), predicted.tolist(), strict=True))
    page.goto(f"{served}?folder={run.path.parent}")
    page.get_by_role("link", name="first").wait_for()
    page.get_by_role("link", name="Predictions").click()
    expect(page.locator(".lk-card").first).to_have_class("lk-card wrong")
    image = page.locator(".lk-card img").first
    expect(image).to_have_css("image-rendering", "pixelated")
    expect(image).to_have_js_property("naturalWidth", 32)
    page.locator('.lk-matrix [data-row="0"][data-column="1"]').click()
    page.get_by_text(f"of {counts[0, 1]}, the most confident mistakes first").wait_for()
    expect(page.locator(".lk-card")).to_have_count(min(counts[0, 1], 24))
    expect(page).to_have_url(re.compile("true="))
    page.get_by_role("link", name="Layers").click()
    page.locator(".lk-heat canvas").wait_for()
    for name in ("Compare", "Configuration", "Live"):
        page.get_by_role("link", name=name).click()
        page.locator(".stMain").get_by_text(run.name).first.wait_for()
        page.wait_for_url("**run=first**")
    page.goto(f"{served}/runs?folder={run.path.parent}")  # typed, since the link leads to the root
    page.get_by_role("link", name="first").wait_for()
    assert page.get_by_text("Page not found").count() == 0

    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served}/predictions?run=first&folder={run.path.parent}")
    cell = page.locator('.lk-matrix [data-row="0"][data-column="0"]')
    still(cell)  # a part that is drawn anew loses the focus
    cell.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    label = re.compile("^" + re.escape(f"{CLASSES[1]} predicted as {CLASSES[2]}: "))
    expect(page.locator(":focus")).to_have_attribute("aria-label", label)
    expect(page.locator(":focus")).to_have_css("outline-style", "solid")
    page.keyboard.press("Enter")
    chosen = page.get_by_text(f"of {counts[1, 2]}, the most confident mistakes first")
    chosen.wait_for()
    page.locator('.lk-matrix [aria-pressed="true"]').wait_for()  # refused where there are two
    page.wait_for_function("document.querySelector('.lk-grid').getBoundingClientRect().top < 300")
    page.reload()
    chosen.wait_for()
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    visit.went_well()


@pytest.mark.long
@pytest.mark.browser
def test_from_two_runs_to_the_answer_and_to_an_image_that_one_fixed(make_run, runs_folder, served, visit):
    for name, turn in (("first", 1), ("second", -1)):
        run = make_run(name, loss=2.0 + turn)
        arrays = write_predictions(run, 200)
        rewrite_predictions(run, probabilities=arrays["probabilities"][::turn])
        change_environment(run, data={**run.read_environment()["data"], "checksum": "a" * 64})
        config = json.loads(run.config_path.read_text())
        config["model"]["num_layers"] += 6 * (turn < 0)
        write_json_atomic(run.config_path, config)
    page = visit.page
    page.goto(f"{served}/compare?runs=first&runs=second&folder={runs_folder}")
    page.get_by_text("McNemar's exact test").wait_for()
    page.locator(".lk-wide svg circle").first.wait_for()
    expect(page.locator(".lk-narrow svg").first).to_be_hidden()
    more = still(page.get_by_text("More curves"))["y"]
    assert still(page.locator(".lk-chart").first)["y"] < more, "curves come first"
    expect(page.locator(".lk-runs .lk-mark path")).to_have_count(2)
    dashes = page.locator(".lk-runs .lk-mark path").evaluate_all(
        "all => all.map((one) => one.style.strokeDasharray)"
    )
    assert dashes[0] != dashes[1]
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".lk-narrow svg circle").first.wait_for()
    page.wait_for_function("document.querySelector('.stMain')?.scrollWidth <= 390")
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.get_by_text("fixed by B").first.click()
    link = page.locator(".lk-card a").first
    link.wait_for()
    expect(page.locator(".js-plotly-plot")).to_have_count(0)
    page.get_by_text("Parallel coordinates").click()
    page.locator(".js-plotly-plot").first.wait_for()
    link.click()
    page.wait_for_url("**/image?run=second*")
    visit.went_well()


def download(page: Any, label: str, folder: Path) -> bytes:
    with page.expect_download() as coming:
        page.get_by_role("button", name=label).click()
    coming.value.save_as(folder / coming.value.suggested_filename)
    return (folder / coming.value.suggested_filename).read_bytes()


@pytest.mark.long
@pytest.mark.browser
def test_files_are_downloaded_and_the_theme_is_kept_on_all_pages(
    make_run, tmp_path, runs_folder, served, visit
):
    make_run("first")
    page = visit.page
    page.goto(f"{served}/live?run=first&folder={runs_folder}")
    page.locator(".lk-chart canvas").first.wait_for()
    page.get_by_role("button", name="Share").first.click()
    assert b"<!doctype html>" in download(page, "Report as HTML", tmp_path)
    assert download(page, "Metrics as CSV", tmp_path).count(b"\n") == 122
    assert download(page, "Metrics as Parquet", tmp_path).startswith(b"PAR1")
    light = page.evaluate(BACKGROUND)
    page.get_by_role("radio", name="Dark").check()
    page.wait_for_function(f"light => {BACKGROUND} !== light", arg=light)
    expect(page).to_have_url(re.compile("run=first"))
    for place in ("compare", ""):
        page.goto(f"{served}/{place}")
        page.wait_for_function("document.querySelector('.lk-theme input:checked')?.value === 'Dark'")
        page.wait_for_function(f"light => {BACKGROUND} !== light", arg=light)
    page.get_by_role("radio", name="System").check()
    page.wait_for_function(f"light => {BACKGROUND} === light", arg=light)
    visit.went_well()


@pytest.mark.long
@pytest.mark.browser
def test_what_is_drawn_around_on_the_map_is_listed(trained, served, visit):
    page = visit.page
    page.goto(f"{served}/map?run=first&folder={trained.path.parent}")
    canvas = page.locator(".lk-map > canvas")
    canvas.wait_for(timeout=START_PATIENCE * 1000)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    left, top = box["x"] + 2, box["y"] + 2
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((box["width"] - 4, 0), (box["width"] - 4, box["height"] - 4), (0, box["height"] - 4)):
        page.mouse.move(left + x, top + y, steps=3)
    page.mouse.up()
    page.get_by_text("40 images").wait_for()
    page.wait_for_function("""() => document.querySelectorAll('a[href*="split=test"]').length === 36""")
    visit.went_well()


@pytest.fixture
def started(shapes, tmp_path):
    """The run that the test starts; ends its process."""
    (tmp_path / "data").symlink_to(shapes.directory.parent)
    mine = RunDirectory(tmp_path / "runs" / "mine")
    yield mine
    process = training_process(mine) if mine.path.is_dir() else None
    if process is not None:
        psutil.Process(process).kill()


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.timeout(900)  # two trainings start
def test_a_run_is_started_watched_stopped_and_resumed_and_outlives_the_server(started, tmp_path, visit):
    run, page = started, visit.page
    with dashboard(tmp_path) as (address, server):
        page.goto(f"{address}/start")
        for label, text, command in (
            ("--train-steps", "1000000", "--train-steps 1000000"),
            ("Name", "mine", str(run.path)),
        ):
            page.get_by_role("textbox", name=label, exact=True).fill(text)
            page.keyboard.press("Enter")
            page.get_by_text(command).wait_for()
        page.get_by_role("button", name="Start", exact=True).dblclick()
        page.wait_for_url("**/live?run=mine")
        badge(page, "running").wait_for(timeout=START_PATIENCE * 1000)
        first = training_process(run)

        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Save and stop").click()
        badge(page, "interrupted").wait_for()
        page.get_by_text(re.compile("The last checkpoint is of step")).wait_for()
        stopped = run.read_status().step
        assert run.checkpoint_steps()[-1] == stopped

        page.get_by_role("button", name="Resume").click()
        badge(page, "running").wait_for(timeout=START_PATIENCE * 1000)
        visit.went_well()
        os.killpg(server, signal.SIGKILL)
    for _ in range(2):  # it goes on
        before = run.read_status().step
        until(page, lambda before=before: run.read_status().step > before)
    assert before >= stopped
    assert training_process(run) not in (None, first)
    assert run.read_status().liveness() not in ENDED_EARLY
