"""What a person does with the charts, in a real browser: mouse, keyboard, finger, links, pictures."""

import math
import re
import struct
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from labkit.callbacks.media import MediaWriter
from labkit.run_directory import RunDirectory
from tests.app.browser import BOARD, CHECKOUT, IDLE, Visit, becomes, dashboard, still, until, visiting
from tests.app.conftest import change_environment, configure, write_run
from tests.app.rows import append, evaluation_row, train_row
from tests.tiny import prepare_tiny

pytestmark = [pytest.mark.slow, pytest.mark.browser]

STEPS = 20_000
SPIKE = 12_345  # a step whose loss is 50

# The x axis of each chart of the first board.
AXIS = "({ plot }) => [plot.scales.x.min, plot.scales.x.max]"
SHOWN = f"() => [...({BOARD}?.charts.values() ?? [])].map({AXIS})"
# The part that the server knows of: null is the whole run.
WINDOW = f"{BOARD}?.data?.window"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """One server for all tests: its address, and its folder of runs. A run of 20,000 steps is there."""
    home = tmp_path_factory.mktemp("home")
    run = write_run(home / "runs", "long", steps=1)
    run.metrics_path.unlink()
    rows = [train_row(step, loss=2 + math.sin(step / 500)) for step in range(1, STEPS + 1)]
    rows[SPIKE - 1]["loss"] = 50.0
    append(run.metrics_path, *rows, evaluation_row(STEPS, **{"<b>x</b>": 1.0}))
    prepare_tiny(home / "data")
    spiky = write_run(home / "runs", "spiky", steps=1)
    spiky.metrics_path.write_text("")
    rows = [train_row(step, loss={60: 9.0, 100: 3.0}.get(step, 1.0)) for step in range(1, 121)]
    append(spiky.metrics_path, *rows, evaluation_row(120))
    configure(spiky, train_batch_size=16, train_steps=200, input_path="memory")
    data = {"dataset": "shapes", "asked_for": "auto", "chosen_because": "CIFAR-10 can't be reached"}
    change_environment(spiky, banner="SIMULATED: 2 GPUs asked for, 0 found", data=data)
    diverged = write_run(home / "runs", "diverged", state="failed", steps=30, loss=math.nan)
    configure(diverged, train_batch_size=16, train_steps=200, input_path="memory")
    with dashboard(home) as (address, _):
        yield address, home / "runs"


@pytest.fixture(autouse=True)
def well(visit: Visit, server: tuple[str, Path]) -> Iterator[None]:
    yield
    (server[1] / ".charts.json").unlink(missing_ok=True)  # of a test that failed before it pressed Reset
    visit.went_well()


def open_live(page: Any, address: str, run: str = "long", **url: str) -> None:
    more = "".join(f"&{name}={value}" for name, value in url.items())
    page.goto(f"{address}/live?run={run}{more}")
    page.locator(".lk-chart canvas").first.wait_for()
    page.wait_for_function(f"() => {BOARD}?.charts.size >= 4")


def open_panel(page: Any) -> dict[str, float]:
    """Open the panel beside the charts, once the page is computed. Returns its place."""
    button = page.locator(".st-key-charts-button")
    still(button)
    button.get_by_role("button").click()
    return still(page.locator(".st-key-live-panel"))


def drag(page: Any, chart: int, start: float, end: float) -> None:
    """Drag over a chart, from and to a share of its width."""
    box = still(page.locator(".lk-chart .u-over").nth(chart))
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, middle, steps=4)
    page.mouse.up()


def points(page: Any, chart: int = 0) -> tuple[int, int]:
    """Return how many points of a chart are drawn, and of how many."""
    text = page.locator(".lk-points").nth(chart).inner_text()
    drawn, of = re.findall(r"[\d,]+", text)
    return int(drawn.replace(",", "")), int(of.replace(",", ""))


def wait_for_all_points(page: Any) -> int:
    page.wait_for_function(
        "() => /^([\\d,]+) of \\1 points$/.test(document.querySelector('.lk-points')?.textContent ?? '')"
    )
    return points(page)[0]


def wait_for_the_whole_run(page: Any, last: int = STEPS) -> None:
    page.wait_for_function(f"() => {WINDOW} === null")
    becomes(page, lambda: page.evaluate(SHOWN)[:1], [[1, last]])


@pytest.mark.long
def test_back_and_forward_show_what_was_shown_before(server, visit):
    page = visit.page

    def seen() -> list[int] | None:
        return page.evaluate(f"() => {WINDOW}?.map(Math.round) ?? null")

    open_live(page, server[0])
    wait_for_the_whole_run(page)
    drag(page, 1, 0.5, 0.55)
    page.wait_for_function(f"() => {WINDOW}")
    expect(page).to_have_url(re.compile("zoom="))
    zoom = seen()
    point = still(page.locator(".lk-chart .u-over").nth(0))
    page.mouse.click(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    expect(page).to_have_url(re.compile("batch="))
    expect(page.get_by_role("button", name="Close")).to_be_visible()
    page.wait_for_timeout(1_500)  # see app/address.py
    page.go_back()
    expect(page.get_by_role("button", name="Close"), "the batch is closed").to_have_count(0)
    page.wait_for_function(IDLE)
    assert "batch=" not in page.url
    assert seen() == zoom
    page.go_back()
    wait_for_the_whole_run(page)
    assert "zoom=" not in page.url
    page.go_forward()
    becomes(page, seen, zoom)
    page.go_forward()
    expect(page.get_by_role("button", name="Close")).to_be_visible()
    page.get_by_test_id("stSidebarNav").get_by_role("link", name="Layers").click()
    page.wait_for_url("**/layers?**run=**")
    page.wait_for_function(IDLE)
    page.go_back()  # once: see app/views/assets/history.js
    expect(page.get_by_role("button", name="Close")).to_be_visible()
    assert seen() == zoom


@pytest.mark.long
def test_a_zoom_shows_all_points_in_all_charts_and_outlives_pages_and_links(server, visit):
    page = visit.page
    open_live(page, server[0])
    becomes(page, lambda: points(page)[1], STEPS + 1)  # with the one of the validation
    assert points(page)[0] < STEPS
    expect(page.get_by_text("<b>x</b>", exact=True).first, "names are no HTML").to_be_visible()
    drag(page, 1, 0.5, 0.55)
    page.wait_for_function(f"() => {WINDOW}")
    shown = page.evaluate(SHOWN)
    assert len({tuple(one) for one in shown}) == 1, "all charts show the same part"
    low, high = shown[0]
    assert STEPS * 0.4 < low < high < STEPS * 0.7
    assert wait_for_all_points(page) == pytest.approx(high - low, abs=2)
    expect(page.locator(".lk-bar").first).to_contain_text("Zoom: step")
    page.wait_for_url("**zoom=**")
    link = page.url
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("heading", name="Configuration").or_(page.get_by_text("Environment")).first.wait_for()
    for go in (page.get_by_role("link", name="Live").first.click, lambda: page.goto(link)):
        go()
        page.locator(".lk-chart canvas").first.wait_for()
        page.wait_for_function(f"() => {WINDOW}")
        becomes(page, lambda: page.evaluate(SHOWN)[0], pytest.approx([low, high]))

    page.locator(".lk-chart .u-over").first.dblclick()
    page.wait_for_function("() => !location.search.includes('zoom')")
    wait_for_the_whole_run(page)
    drag(page, 0, 0.2, 0.25)
    wait_for_all_points(page)
    page.get_by_role("button", name="Show the whole run").first.click()
    wait_for_the_whole_run(page)
    expect(page.locator(".lk-bar").first).to_be_hidden()
    assert "batch" not in page.url, "a double click or a drag opens no batch"

    page.locator(".lk-chart .u-over").first.click()
    page.wait_for_url("**batch=**")


@pytest.mark.long
def test_the_keyboard_alone_reads_values_zooms_and_opens_the_batch(server, visit):
    page = visit.page
    open_live(page, server[0], zoom=f"{SPIKE - 5},{SPIKE + 5}")
    wait_for_all_points(page)
    chart, said = page.locator(".lk-chart").first, page.locator(".lk-said").first
    still(chart)  # a part that is drawn anew loses the focus
    for _ in range(40):
        page.keyboard.press("Tab")
        if chart.evaluate("chart => chart === document.activeElement"):
            break
    assert chart.evaluate("chart => chart === document.activeElement"), "Tab leads to the charts"
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    expect(said).to_contain_text(f"step {SPIKE:,}")
    expect(said).to_contain_text("train, raw 50")
    page.keyboard.press("ArrowLeft")
    expect(said).to_contain_text(f"step {SPIKE - 1:,}")
    page.keyboard.press("+")
    page.wait_for_function(f"() => {WINDOW} && {WINDOW}[1] - {WINDOW}[0] === 5")
    page.keyboard.press("-")
    page.wait_for_function(f"() => {WINDOW} && {WINDOW}[1] - {WINDOW}[0] === 10")
    page.keyboard.press("0")
    page.wait_for_function(f"() => {WINDOW} === null")
    assert chart.evaluate("chart => chart === document.activeElement"), "and stays where it was"
    page.keyboard.press("Enter")
    page.wait_for_url("**batch=**")
    page.get_by_role("heading", name="Batch of step").wait_for()
    assert chart.evaluate("chart => chart === document.activeElement"), "arrow keys can go on"
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.getAttribute('aria-label')?.startsWith('Batch of step')")


def places(page: Any) -> list[dict[str, float]]:
    still(page.locator(".lk-chart").first)
    return [chart.bounding_box() for chart in page.locator(".lk-chart").all()]


@pytest.mark.long
def test_a_slim_head_and_the_batch_beside_charts_that_stay_in_their_places(server, browser):
    with visiting(browser, viewport={"width": 1280, "height": 720}) as visit:
        page = visit.page
        open_live(page, server[0], "spiky")
        closed = places(page)
        assert closed[0]["y"] < 170
        top = page.locator(".st-key-run-head").bounding_box()["y"]
        figures = page.locator(".lk-live").bounding_box()
        assert figures["y"] + figures["height"] - top <= 110

        page.get_by_role("button", name="Largest jump of the loss: step 60").click()
        image = page.locator(".st-key-live-drawer .lk-card img").first
        seen = still(image)
        assert seen["y"] + seen["height"] <= 720 and page.evaluate("scrollY") == 0
        opened = places(page)
        assert max(one["x"] + one["width"] for one in opened) < seen["x"]
        kept = [(one["y"], one["height"]) for one in closed]
        assert [(one["y"], one["height"]) for one in opened] == kept, "charts change only their width"
        assert max(one["width"] for one in opened) < closed[0]["width"]

        over = page.locator(".lk-chart .u-over").first.bounding_box()
        page.mouse.move(over["x"] + over["width"] * 0.6, over["y"] + 40)
        tip = page.locator(".lk-tip").first
        tip.get_by_text("Click or Enter: the images of this batch").wait_for()
        assert tip.bounding_box()["x"] >= opened[0]["x"], "it isn't cut off by the sidebar"
        page.locator(".st-key-largest-jump button").first.focus()
        page.keyboard.press("ArrowRight")
        page.get_by_role("heading", name="Batch of step 61").wait_for()
        page.keyboard.press("ArrowLeft")
        page.get_by_role("heading", name="Batch of step 60").wait_for()
        chart = page.locator(".lk-chart").first
        chart.focus()
        for key, step in (("ArrowRight", 61), ("ArrowLeft", 60), ("ArrowLeft", 59)):
            page.keyboard.press(key)
            page.get_by_role("heading", name=f"Batch of step {step}").wait_for()
            expect(page).to_have_url(re.compile(f"batch={step}"))
            assert chart.evaluate("chart => chart === document.activeElement")
        page.keyboard.press("Enter")
        page.wait_for_function("document.activeElement.getAttribute('aria-label') === 'Batch of step 59'")
        page.keyboard.press("ArrowRight")
        page.get_by_role("heading", name="Batch of step 60").wait_for()
        page.keyboard.press("Escape")
        expect(page.locator(".st-key-live-drawer")).to_have_count(0)
        assert places(page) == closed
        assert chart.evaluate("chart => chart === document.activeElement")

        open_live(page, server[0], "diverged")
        page.get_by_role("button", name="The batch of that step").click()
        head = page.get_by_role("heading", name="Batch of step 30")
        head.wait_for()
        becomes(page, lambda: still(head)["y"] < 500, True)  # though the log stands above the charts

        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"{server[0]}/live?run=spiky&batch=60")
        below = still(image)["y"]
        assert below > max(one["y"] + one["height"] for one in places(page))
        visit.went_well()


@pytest.mark.long
def test_no_chart_is_alone_in_a_part_of_its_row(server, visit):
    page = visit.page
    open_live(page, server[0])
    page.wait_for_function(f"() => {BOARD}.charts.size === 5")
    for width, columns in ((1280, 2), (1920, 2), (2400, 4), (390, 1)):
        page.set_viewport_size({"width": width, "height": 900})
        board = still(page.locator(".lk-board").first)
        rows = Counter(one["y"] for one in places(page))
        assert max(rows.values()) == columns
        becomes(page, lambda: round(places(page)[-1]["width"]), round(board["width"]))
        assert len({one["width"] for one in places(page)[:4]}) == 1


def titles(page: Any) -> list[str]:
    return page.locator(".lk-title").all_inner_texts()


def choose(page: Any, label: str, *names: str) -> None:
    """Choose some of a selection of the panel."""
    box = page.get_by_role("combobox", name=label)
    for name in names:
        still(box).get("y")
        box.scroll_into_view_if_needed()
        box.click()
        page.get_by_role("option", name=name, exact=True).click()
        page.keyboard.press("Escape")
        page.wait_for_function(IDLE)


@pytest.mark.long
def test_a_panel_beside_the_charts_lays_a_run_over_draws_formulas_and_arranges_the_charts(server, browser):
    gap, best = "train/loss - validation/loss", "max(validation/accuracy)"
    with visiting(browser, viewport={"width": 1280, "height": 720}) as visit:
        page = visit.page
        open_live(page, server[0], "spiky")
        closed = places(page)
        panel = open_panel(page)
        opened = places(page)
        assert max(one["x"] + one["width"] for one in opened) < panel["x"], "it covers no chart"
        assert [one["y"] for one in opened] == [one["y"] for one in closed]

        choose(page, "Other runs in the same charts", "long")
        legend = page.locator(".lk-legend").first
        expect(legend.get_by_role("button")).to_have_text(
            ["train", "validation", "long, train", "long, validation"]
        )
        lines = f"() => {BOARD}.charts.get('loss').data.lines.map((line) => [line.name, line.of])"
        becomes(page, lambda: page.evaluate(lines)[0], ["long, train", STEPS])

        field = page.get_by_role("textbox", name="Formulas")
        field.fill(f"{gap}\n{best}\ntrain/los")
        field.blur()
        usual = ["Loss", "Accuracy", "Learning rate", "Examples per second"]
        expect(page.locator(".lk-title")).to_have_text([*usual, gap, best, "train/los"])
        expect(page.get_by_text("did you mean train/loss?")).to_be_visible()
        field.fill(f"{gap}\n{best}")
        field.blur()
        choose(page, "First, in this order", best, gap)
        choose(page, "Hidden", "Learning rate")
        arranged = [best, gap, "Loss", "Accuracy", "Examples per second"]
        expect(page.locator(".lk-title")).to_have_text(arranged)
        expect(page.get_by_role("button", name="Charts (5 of 6)")).to_be_visible()
        page.get_by_role("radiogroup", name="Size").get_by_text("large").click()
        page.wait_for_function(f"() => {BOARD}.charts.get('loss').plot.height === 440")
        page.wait_for_url("**size=large**")

        with visiting(browser, viewport={"width": 1280, "height": 720}) as other:  # who was sent the link
            other.page.goto(page.url)
            expect(other.page.locator(".lk-title")).to_have_text(arranged)
            becomes(other.page, lambda: other.page.evaluate(lines)[0], ["long, train", STEPS])
            other.page.wait_for_function(f"() => {BOARD}.charts.get('loss').plot.height === 440")
            assert still(other.page.locator(".lk-chart").first)["y"] < 170
            open_panel(other.page)
            other.page.get_by_role("button", name="Keep for all runs").click()
            becomes(other.page, (server[1] / ".charts.json").is_file, True)
            other.went_well()
        with visiting(browser) as third:
            open_live(third.page, server[0], "long", hidden="")
            expect(third.page.locator(".lk-title")).to_contain_text([best, gap, "Learning rate"])
            open_panel(third.page)
            third.page.get_by_role("button", name="Reset").click()
            expect(third.page.locator(".lk-title")).to_have_text([*usual, "<b>x</b>"])
            third.went_well()
        visit.went_well()


@pytest.mark.long
def test_a_note_on_a_step_is_written_beside_its_batch_and_stands_on_the_charts(server, visit):
    page = visit.page
    open_live(page, server[0], "spiky", batch="60")
    field = page.get_by_placeholder("Note on this step")
    field.fill("rate halved")
    field.press("Enter")
    labels = f"() => {BOARD}.data.seams.map((seam) => seam.label)"
    becomes(page, lambda: page.evaluate(labels), ["rate halved", "batch of step 60"])
    over = page.locator(".lk-chart .u-over").first
    box = still(over)
    low, high = page.evaluate(SHOWN)[0]
    page.mouse.move(box["x"] + box["width"] * (60 - low) / (high - low), box["y"] + 40)
    expect(page.locator(".lk-tip").first).to_contain_text("rate halved")
    field.fill("")
    field.press("Enter")
    becomes(page, lambda: page.evaluate(labels), ["batch of step 60"])


@pytest.mark.long
def test_a_key_leads_from_jump_to_jump(server, visit):
    page = visit.page
    open_live(page, server[0], "spiky")
    page.locator(".st-key-largest-jump button").first.wait_for()
    page.locator(".lk-chart").first.focus()
    page.keyboard.press("j")
    page.get_by_role("heading", name="Batch of step 60").wait_for()
    jumps = page.locator(".st-key-batch-jumps button")
    steps = [text.split(" ")[0] for text in jumps.all_inner_texts()]
    assert len(steps) > 1
    page.keyboard.press("j")
    page.get_by_role("heading", name=f"Batch of step {steps[1]}").wait_for()
    expect(jumps.nth(1)).to_be_disabled()


@pytest.mark.long
def test_arrow_keys_go_through_the_media_of_all_steps(server, visit):
    media = MediaWriter(RunDirectory(server[1] / "spiky"), lambda summary, step: None)
    for step in (10, 20, 30):
        media.text("note", step, f"kept at {step}")
    page = visit.page
    page.goto(f"{server[0]}/media?run=spiky")
    expect(page.get_by_text("kept at 30", exact=True)).to_be_visible()
    page.get_by_role("slider", name="Step").focus()
    for key, step in (("ArrowLeft", 30), ("ArrowLeft", 20), ("ArrowLeft", 10), ("ArrowRight", 20)):
        page.keyboard.press(key)
        expect(page.get_by_role("slider", name="Step")).to_have_attribute("aria-valuetext", str(step))
        expect(page.get_by_text(f"kept at {step}", exact=True)).to_be_visible()


@pytest.mark.long
def test_the_axis_is_any_metric(server, visit):
    page = visit.page
    open_live(page, server[0], "spiky")
    page.get_by_role("radio", name="Metric").click()
    page.get_by_role("combobox", name="Metric of the axis").click()
    page.get_by_role("option", name="validation/loss").wait_for()
    page.get_by_role("option", name="train/accuracy").click()
    page.wait_for_function(f"() => {BOARD}.data.xTitle === 'train/accuracy'")
    expect(page).to_have_url(re.compile("over=train%2Faccuracy"))
    page.locator(".lk-chart").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".lk-chart .lk-tip b").first).to_contain_text("%")


@pytest.mark.long
def test_charts_begin_as_high_over_every_axis(server, browser):
    with visiting(browser, viewport={"width": 1280, "height": 720}) as visit:
        page = visit.page
        open_live(page, server[0], "spiky")
        for axis in page.get_by_role("radiogroup", name="Over").get_by_role("radio").all():
            axis.click()
            expect(axis).to_be_checked()
            assert still(page.locator(".lk-chart").first)["y"] < 170
        page.get_by_role("combobox", name="Metric of the axis").click()
        page.get_by_role("option", name="train/accuracy").click()
        page.wait_for_function(f"() => {BOARD}.data.xTitle === 'train/accuracy'")
        assert still(page.locator(".lk-chart").first)["y"] < 170
        jump = page.get_by_role("button", name="Largest jump of the loss: step 60")
        assert still(jump)["width"] < 60, "its icon is enough where a metric is chosen beside it"
        visit.went_well()


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
def test_a_tooltip_covers_no_curve(server, browser, width):
    boxes = "(all) => all.map((one) => one.getBoundingClientRect().toJSON())"
    with visiting(browser, viewport={"width": width, "height": 720}) as visit:
        page = visit.page
        open_live(page, server[0], "spiky")
        for chart, share in ((0, 0.02), (1, 0.5), (2, 0.98), (3, 0.5), (3, 0.02)):
            over = page.locator(".lk-chart .u-over").nth(chart)
            over.scroll_into_view_if_needed()
            if share == 0.02:  # there is no room above the plot
                over.evaluate("plot => plot.scrollIntoView({block: 'start'})")
            box = still(over)
            page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
            tip = page.locator(".lk-tip").nth(chart)
            tip.get_by_text("step", exact=False).first.wait_for()
            seen = tip.bounding_box()
            assert seen["x"] >= 0 and seen["x"] + seen["width"] <= width
            assert seen["y"] >= 0 and seen["y"] + seen["height"] <= 720
            for plot in page.locator(".lk-chart .u-over").evaluate_all(boxes):
                is_beside = seen["x"] >= plot["right"] or seen["x"] + seen["width"] <= plot["left"]
                is_above = seen["y"] + seen["height"] <= plot["top"] + 1
                assert is_beside or is_above or seen["y"] >= plot["bottom"] - 1


@pytest.mark.long
def test_tooltip_legend_full_screen_and_picture(server, visit, tmp_path):
    page = visit.page
    open_live(page, server[0], zoom=f"{SPIKE - 5},{SPIKE + 5}")
    wait_for_all_points(page)
    over, tip = page.locator(".lk-chart .u-over").first, page.locator(".lk-tip").first
    box = still(over)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(tip.locator("b")).to_have_text(f"step {SPIKE:,}")
    expect(tip).to_contain_text("train, raw 50", use_inner_text=True)
    expect(tip.locator(".lk-swatch path").last).to_have_css("stroke", "rgb(47, 127, 209)")
    tips = page.locator(".lk-tip:not([hidden])")
    until(page, lambda: tips.count() >= 4, "the cursor is in all charts")

    name = page.locator(".lk-legend button", has_text="train").first
    name.hover()
    alphas = f"() => {BOARD}.charts.get('loss').plot.series.slice(1).map((one) => one.alpha)"
    becomes(page, lambda: page.evaluate(alphas), [0.2, 1, 0.2])  # not by colour alone
    over.hover()
    becomes(page, lambda: page.evaluate(alphas), [1, 1, 1])
    name.click()
    expect(name).to_have_attribute("aria-pressed", "false")
    series = f"() => {BOARD}.charts.get('loss').plot.series.map((one) => one.show !== false)"
    becomes(page, lambda: page.evaluate(series), [True, False, False, True])  # the raw line goes with it
    name.click()
    becomes(page, lambda: page.evaluate(series), [True] * 4)

    with page.expect_download() as download:
        page.locator(".lk-tools button[title='save as picture']").first.click()
    assert download.value.suggested_filename == "long-Loss.png"
    download.value.save_as(tmp_path / "chart.png")
    width, height = struct.unpack(">II", (tmp_path / "chart.png").read_bytes()[16:24])
    drawn = page.evaluate(f"() => {BOARD}.charts.get('loss').plot.width")
    assert width == 2 * drawn
    assert height > 500

    page.locator(".lk-tools button[title='full screen']").first.click()
    page.wait_for_function(f"() => {BOARD}.charts.get('loss').plot.height > 700")
    page.keyboard.press("f")
    page.wait_for_function(f"() => {BOARD}.charts.get('loss').plot.height === 220")


@pytest.mark.long
def test_new_points_are_fetched_and_leave_zoom_canvas_and_another_window_alone(server, visit):
    lasting = {"total_steps": 1_000_000, "stalled_after_seconds": 1e6}  # its state stays as it is
    run = write_run(server[1], "followed", "running", 399, status=lasting)
    page, other, frames = visit.page, visit.page.context.new_page(), []
    visit(other)
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(len(frame))))
    for one in (page, other):
        open_live(one, server[0], "followed")
    drag(page, 0, 0.2, 0.4)
    canvas = page.query_selector(".lk-chart canvas")
    page.wait_for_function(f"() => {WINDOW}")
    shown = page.evaluate(SHOWN)[0]
    page.wait_for_timeout(3000)
    frames.clear()
    for step in range(401, 406):
        append(run.metrics_path, train_row(step, loss=step / 100))
        for one in (page, other):
            one.wait_for_function(f"() => {BOARD}?.data?.extent[1] === {step}")
        page.locator(".lk-live", has_text=f"Step {step}").get_by_text(f"{step / 100:.4g}").wait_for()
    assert page.evaluate(SHOWN)[0] == shown
    wait_for_the_whole_run(other, 405)  # a zoom is of one window
    assert sum(frames) < 10_000, "only the list of runs is looked at, every five seconds"
    append(run.metrics_path, train_row(406, added=1.0))
    titles = ["Loss", "Accuracy", "Learning rate", "Examples per second", "added"]
    expect(page.locator(".lk-title")).to_have_text(titles)
    assert sum(frames) > 10_000, "Streamlit draws a chart that is added"
    assert canvas.evaluate("canvas => canvas.isConnected"), "nothing flickers"


@pytest.mark.long
def test_a_finger_scrolls_the_page_and_moves_the_cursor(server, browser):
    with visiting(browser, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True) as visit:
        page = visit.page
        open_live(page, server[0])
        page.locator(".lk-chart").first.scroll_into_view_if_needed()
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
        touch = page.context.new_cdp_session(page)

        def swipe(x: float, y: float, dx: float, dy: float) -> None:
            places = [{"x": x + dx * part / 8, "y": y + dy * part / 8} for part in range(9)]
            touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": places[:1]})
            for place in places[1:]:
                touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [place]})
            touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

        over = page.locator(".lk-chart .u-over").first
        top = still(over)["y"]
        swipe(200, top + 100, 0, -150)
        until(page, lambda: over.bounding_box()["y"] < top - 50, "the page is scrolled")
        box = still(over)
        assert page.evaluate(f"() => {WINDOW}") is None
        swipe(box["x"] + 60, box["y"] + 60, 120, 0)
        page.locator(".lk-tip:not([hidden])").first.wait_for()
        visit.went_well()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_colours_the_charts(server, browser, scheme):
    theme = tomllib.loads((CHECKOUT / "app/.streamlit/config.toml").read_text())["theme"][scheme]
    with visiting(browser, color_scheme=scheme) as visit:
        open_live(visit.page, server[0])
        chart = visit.page.locator(".lk-chart").first
        for style, name in (("background-color", "backgroundColor"), ("color", "textColor")):
            red, green, blue = bytes.fromhex(theme[name].removeprefix("#"))
            expect(chart).to_have_css(style, f"rgb({red}, {green}, {blue})")
        visit.went_well()
