"""The table of runs in a browser: links, order, groups, ticks, keys, and names that may hold anything."""

import math
import os
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect

from app.alerts import LOOK_SECONDS
from labkit.run_directory.notes import change_notes, read_notes
from tests.app.browser import BOARD, IDLE, becomes, still
from tests.app.conftest import configure
from tests.app.rows import append, evaluation_row, train_row

pytestmark = [pytest.mark.slow, pytest.mark.browser]

ROWS = ".lk-runs tbody tr:not([hidden])"


@pytest.fixture
def six(make_run):
    """Two rates with three seeds each. The first one is worse, and of its third seed no result is known."""
    made = []
    for place, (rate, seed) in enumerate((rate, seed) for rate in (0.1, 0.2) for seed in (1, 2, 3)):
        run = make_run(f"rate-{rate}-seed-{seed}")
        configure(run, learning_rate=rate, seed=seed, train_steps=120)
        if (rate, seed) != (0.1, 3):
            append(run.metrics_path, evaluation_row(120, "test", accuracy=rate + seed / 100))
        os.utime(run.status_path, (time.time() - 60 * place,) * 2)
        made.append(run)
    return made


def opened(page: Any, served: str, folder: Any, query: str = "") -> None:
    page.goto(f"{served}?folder={folder}{query}")
    still(page.locator(ROWS).first)


def names(page: Any) -> list[str]:
    return [" ".join(name.split()) for name in page.locator(f"{ROWS} th").all_inner_texts()]


def short_name(name: str) -> str:
    return re.sub(r"rate-(.*)-seed-(.)", r"\1 \2", name)


def short(page: Any) -> list[str]:
    return [short_name(name) for name in names(page)]


def header(page: Any, name: str) -> Any:
    return page.get_by_role("columnheader", name=name)


def box(page: Any, name: str) -> Any:
    return page.get_by_role("checkbox", name=f"Tick {name}", exact=True)


def chart(page: Any, what: str) -> Any:
    """Return what JavaScript says of the ``chart`` beside the table, and of its ``lines``."""
    found = f"const [chart] = {BOARD}?.charts.values() ?? []; const lines = chart?.data.lines ?? [];"
    return page.evaluate(f"() => {{ {found} return {what}; }}")


def curves(page: Any) -> list[str]:
    """Return the curves that stand out, of those beside the table."""
    strong = "lines.filter((line, at) => line.style === 'row' && chart.plot.series[at + 1].alpha !== 0.2)"
    return [short_name(name) for name in chart(page, f"{strong}.map((line) => line.name)")]


def levels(six: list[Any], steps: int = 20) -> None:
    """Record a metric of one value for each run but the last, the lowest for the first."""
    for place, run in enumerate(six[:-1]):
        append(run.metrics_path, *(train_row(121 + step, level=float(place)) for step in range(steps)))


NEWEST = ["0.1 1", "0.1 2", "0.1 3", "0.2 1", "0.2 2", "0.2 3"]
BEST = ["0.2 3", "0.2 2", "0.2 1", "0.1 2", "0.1 1", "0.1 3"]


@pytest.mark.long
def test_a_name_opens_its_run_and_back_finds_the_table_as_it_was(six, runs_folder, served, visit):
    page = visit.page
    opened(page, served, runs_folder, "&columns=Test+accuracy&columns=learning_rate")
    page.get_by_role("textbox", name="Filter").fill("seed")
    page.keyboard.press("Enter")
    page.wait_for_url("**filter=seed**")
    header(page, "Test accuracy").get_by_role("button").click()
    expect(header(page, "Test accuracy")).to_have_attribute("aria-sort", "descending")  # the best first
    becomes(page, lambda: short(page), BEST)
    page.wait_for_url("**sort=-test**")
    page.evaluate("window.mark = 1")
    page.get_by_role("link", name="rate-0.2-seed-1").click()
    page.wait_for_url("**/live?run=rate-0.2-seed-1**")
    page.locator(".lk-chart").first.wait_for()
    page.go_back()
    becomes(page, lambda: short(page), BEST)
    expect(page.get_by_role("textbox", name="Filter")).to_have_value("seed")
    expect(header(page, "Test accuracy")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("columnheader")).to_have_text(["Run", "Test accuracy", "learning_rate"])
    page.get_by_role("link", name="rate-0.2-seed-2").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?run=rate-0.2-seed-2**")
    assert page.evaluate("window.mark") == 1, "the page was loaded again"
    page.go_back()
    becomes(page, lambda: short(page), BEST)
    for click in ({"modifiers": ["Control"]}, {"button": "middle"}):
        with page.context.expect_page() as another:
            page.get_by_role("link", name="rate-0.1-seed-3").click(**click)
        another.value.wait_for_url("**/live?run=rate-0.1-seed-3**")
        another.value.close()
    assert short(page) == BEST
    visit.went_well()


@pytest.mark.long
def test_one_step_back_leaves_the_first_page(six, runs_folder, served, visit):
    page = visit.page
    page.goto("about:blank")
    opened(page, served, runs_folder)
    page.wait_for_url("**run=**")  # it completed its address
    page.wait_for_function("globalThis.labkitHistory")
    page.evaluate("history.back()")
    page.wait_for_url("about:blank")


@pytest.mark.long
def test_the_order_is_in_the_address_and_stays_until_another_is_chosen(six, runs_folder, served, visit):
    page = visit.page
    opened(page, served, runs_folder)
    assert short(page) == NEWEST
    accuracy = header(page, "Test accuracy")
    wanted = [("descending", BEST), ("ascending", [*BEST[-2::-1], BEST[-1]]), ("none", NEWEST)]
    for way, order in (*wanted, wanted[0]):
        accuracy.get_by_role("button").focus()
        page.keyboard.press("Enter")
        expect(accuracy).to_have_attribute("aria-sort", way)
        becomes(page, lambda: short(page), order)
    append(six[0].metrics_path, evaluation_row(130, "test", accuracy=0.9))
    becomes(page, lambda: short(page), ["0.1 1", *(name for name in BEST if name != "0.1 1")])
    page.reload()
    becomes(page, lambda: short(page)[:2], ["0.1 1", "0.2 3"])
    menu = page.get_by_test_id("stSidebarNav")
    menu.get_by_role("link", name="Configuration").click()
    page.wait_for_url("**/configuration**")
    menu.get_by_role("link", name="Runs").click()
    becomes(page, lambda: short(page)[:2], ["0.1 1", "0.2 3"])
    visit.went_well()


@pytest.mark.long
def test_a_row_and_its_curve_mark_each_other_and_its_eye_hides_it(six, runs_folder, served, visit):
    levels(six)
    page = visit.page
    opened(page, served, runs_folder, "&metric=train%2Flevel")
    becomes(page, lambda: curves(page), NEWEST[:-1])
    page.get_by_text("level (train) isn't recorded by rate-0.2-seed-3.").wait_for()
    page.get_by_role("row", name="rate-0.2-seed-1").hover()
    becomes(page, lambda: curves(page), ["0.2 1"])
    lit = page.locator(".lk-runs .lk-lit th")
    top = chart(page, "chart.plot.valToPos(1, 'y')")
    page.locator(".u-over").hover(position={"x": 90, "y": top + 2})
    expect(lit).to_have_text("rate-0.1-seed-2")
    becomes(page, lambda: curves(page), ["0.1 2"])
    page.mouse.move(0, 0)
    becomes(page, lambda: curves(page), NEWEST[:-1])
    page.locator(".lk-chart").focus()
    for key, name in (("ArrowRight", "0.2-seed-2"), ("ArrowDown", "0.2-seed-1"), ("ArrowDown", "0.1-seed-3")):
        page.keyboard.press(key)
        expect(lit).to_have_text(f"rate-{name}")
    expect(page.locator(".lk-chart .lk-said")).to_contain_text("rate-0.1-seed-3 2")
    eye = page.get_by_role("button", name="Curve of rate-0.1-seed-1")
    expect(eye).to_have_attribute("aria-pressed", "true")
    eye.focus()
    page.keyboard.press("Enter")
    expect(eye).to_have_attribute("aria-pressed", "false")
    page.wait_for_url("**eyes=-rate-0.1-seed-1")
    page.mouse.move(0, 0)
    page.reload()
    expect(eye).to_have_attribute("aria-pressed", "false")
    becomes(page, lambda: curves(page), NEWEST[1:-1])
    page.get_by_role("button", name="All curves").click()
    becomes(page, lambda: curves(page), [])
    eye.click()
    becomes(page, lambda: curves(page), ["0.1 1"])
    becomes(page, lambda: page.url.rpartition("eyes=")[2], "-+%2Brate-0.1-seed-1")
    page.get_by_role("combobox", name="Curves").click()
    page.get_by_role("option", name="None").click()
    expect(eye).to_have_count(0)
    expect(page.locator(".lk-chart")).to_have_count(0)
    visit.went_well()


@pytest.mark.long
def test_the_curve_of_a_group_is_the_mean_of_its_runs_in_their_range(six, runs_folder, served, visit):
    levels(six)
    page = visit.page
    opened(page, served, runs_folder, "&group=All+but+the+seed&metric=train%2Flevel")
    kinds = (", highest", ", lowest", "")
    wanted = {f"learning_rate 0.1{kind}": value for kind, value in zip(kinds, (2, 0, 1), strict=True)}
    wanted |= {f"learning_rate 0.2{kind}": value for kind, value in zip(kinds, (4, 3, 3.5), strict=True)}
    first = "Object.fromEntries(lines.map((line) => [line.name, line.y[0]]))"
    becomes(page, lambda: chart(page, first), wanted)
    expect(page.locator(".lk-points")).to_have_text("40 of 40 points")  # of two means, without ranges
    page.get_by_role("button", name="learning_rate 0.2", exact=True).click()
    page.get_by_role("row", name="rate-0.2-seed-1").hover()  # has no curve of its own
    becomes(page, lambda: curves(page), ["learning_rate 0.2"])
    page.get_by_role("button", name="Curve of learning_rate 0.2").click()
    page.mouse.move(0, 0)
    becomes(page, lambda: curves(page), ["learning_rate 0.1"])
    visit.went_well()


@pytest.mark.long
def test_the_curves_stand_beside_the_table_or_below_it_and_grow_with_their_runs(
    six, runs_folder, served, visit
):
    page = visit.page
    opened(page, served, runs_folder)
    for width in (1280, 1279, 390):
        page.set_viewport_size({"width": width, "height": 844})
        drawn, runs = still(page.locator(".lk-chart")), still(page.locator(".lk-runs"))
        assert (drawn["x"] > runs["x"] + runs["width"]) is (width >= 1280)
        assert (drawn["y"] > runs["y"] + runs["height"]) is (width < 1280)
        assert page.evaluate("document.querySelector('.stMain').scrollWidth") <= width
    append(six[0].metrics_path, train_row(500))
    becomes(page, lambda: chart(page, "lines[0].x.at(-1)"), 500)
    visit.went_well()


@pytest.mark.long
def test_groups_have_mean_and_spread_and_their_runs_and_one_box_for_all(six, runs_folder, served, visit):
    page = visit.page
    opened(page, served, runs_folder, "&group=All+but+the+seed&sort=-test")
    assert names(page) == ["learning_rate 0.2 3 runs", "learning_rate 0.1 3 runs"]
    expect(page.locator(f"{ROWS} .lk-of-number").first).to_have_text("22.00 ± 1.00 % (3)")
    page.get_by_role("button", name="learning_rate 0.2", exact=True).click()
    assert short(page)[1:4] == BEST[:3]
    box(page, "learning_rate 0.2").check()
    page.get_by_text("3 selected: rate-0.2-seed-1").wait_for()
    box(page, "rate-0.2-seed-2").uncheck()
    page.get_by_text("2 selected").wait_for()
    expect(box(page, "learning_rate 0.2")).to_have_js_property("indeterminate", True)
    page.get_by_role("link", name="rate-0.2-seed-2").click()
    page.wait_for_url("**/live?**")
    page.go_back()
    becomes(page, lambda: short(page)[1:4], BEST[:3])
    page.get_by_role("combobox", name="Group by").fill("seed")
    page.get_by_role("option", name="seed", exact=True).click()
    becomes(page, lambda: len(names(page)), 6)
    expect(page).to_have_url(re.compile("group=All.but.the.seed&group=seed"))
    visit.went_well()


@pytest.mark.long
def test_a_refresh_moves_no_tick_and_no_row_that_is_read(six, runs_folder, served, visit, make_run):
    page = visit.page
    opened(page, served, runs_folder)
    table = page.locator(".lk-runs").first
    table.evaluate("(table) => { table.isTheFirst = true; }")
    six[5].write_status(six[5].read_status())  # it was active just now, like one of several that train
    make_run("newest")
    becomes(page, lambda: short(page), ["newest", *NEWEST])
    box(page, "rate-0.1-seed-2").check()
    page.get_by_text("1 selected: rate-0.1-seed-2", exact=True).wait_for()
    make_run("later")
    becomes(page, lambda: short(page), ["newest", *NEWEST, "later"])
    expect(box(page, "rate-0.1-seed-2")).to_be_checked()
    page.get_by_role("button", name="Move to trash").click()
    page.get_by_text("7 runs", exact=True).wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("8 runs", exact=True).wait_for()
    page.get_by_text("1 selected: rate-0.1-seed-2", exact=True).wait_for()
    still(page.locator(ROWS).first)  # "Moved to the trash" above the table goes once the page is drawn
    box(page, "rate-0.2-seed-1").check()
    box(page, "rate-0.2-seed-3").click(modifiers=["Shift"])
    page.get_by_text("4 selected").wait_for()
    assert table.evaluate("(table) => table.isTheFirst"), "the table was drawn anew: its order is another"
    page.get_by_role("checkbox", name="Tick all").check()
    page.get_by_text("8 selected").wait_for()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?runs=*&runs=*")
    page.locator(".lk-chart canvas").first.wait_for()
    visit.went_well()


@pytest.mark.long
def test_keys_move_between_rows_tick_and_open(six, runs_folder, served, visit):
    page = visit.page
    opened(page, served, runs_folder)
    for part, first in (
        (page.get_by_role("checkbox", name="Tick all"), box(page, "rate-0.1-seed-1")),
        (header(page, "State").get_by_role("button"), page.get_by_role("link", name="rate-0.1-seed-1")),
    ):
        part.focus()
        page.keyboard.press("ArrowDown")
        expect(first).to_be_focused()
    header(page, "Tags").get_by_role("button").focus()
    page.keyboard.press("Tab")
    for part in (box(page, "rate-0.1-seed-1"), page.get_by_role("button", name="Curve of rate-0.1-seed-1")):
        expect(part).to_be_focused()
        page.keyboard.press("Tab")
    for key, name in (("ArrowDown", "0.1-seed-2"), ("End", "0.2-seed-3"), ("ArrowUp", "0.2-seed-2")):
        page.keyboard.press(key)
        expect(page.get_by_role("link", name=f"rate-{name}")).to_be_focused()
        becomes(page, lambda: page.locator(".lk-runs .lk-lit th").all_inner_texts(), [f"rate-{name}"])
    for key, part in (("Shift+Tab", page.get_by_role("button", name="Curve of rate-0.2-seed-2")),
                      ("Tab", page.get_by_role("link", name="rate-0.2-seed-2"))):  # fmt: skip
        page.keyboard.press(key)
        expect(part, "the row that has the focus is the one that Tab goes through").to_be_focused()
    page.keyboard.press("Space")
    page.get_by_text("1 selected: rate-0.2-seed-2", exact=True).wait_for()
    append(six[0].metrics_path, evaluation_row(130, "test", accuracy=0.4375))
    page.get_by_text("43.75 %").wait_for()
    expect(page.get_by_role("link", name="rate-0.2-seed-2")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?run=rate-0.2-seed-2**")
    page.go_back()
    box(page, "rate-0.2-seed-2").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?run=rate-0.2-seed-2**")
    visit.went_well()


@pytest.mark.long
def test_name_tags_and_note_are_changed_in_the_row_while_others_change_them(
    six, make_run, runs_folder, served, visit
):
    page, run = visit.page, six[1]
    opened(page, served, runs_folder)
    tags, note = (page.get_by_role("form").get_by_role("textbox", name=name) for name in ("Tags", "Note"))
    link = page.get_by_role("link", name="rate-0.1-seed-2")
    change_notes(run, add=["a, b", "old"], note="first")
    becomes(page, lambda: page.locator(f"{ROWS} .lk-chip").all_inner_texts(), ["a, b", "old"])
    link.focus()
    page.keyboard.press("F2")
    expect(page.get_by_role("form", name="Change rate-0.1-seed-2")).to_be_visible()
    expect(page.get_by_role("textbox", name="Name")).to_be_focused()
    expect(tags).to_have_value('"a, b", old')
    page.keyboard.press("Tab")
    page.keyboard.type('"a, b", mine')
    change_notes(run, add=["theirs"])
    run.write_status(run.read_status())  # without the fields its row would move up, and lose the focus
    make_run("newest")
    becomes(page, lambda: short(page), [*NEWEST, "newest"])
    expect(tags).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second")
    page.keyboard.press("Enter")
    expect(link).to_be_focused()
    expect(page.get_by_role("form")).to_have_count(0)
    found = read_notes(run)
    assert (found.tags, found.note) == (("a, b", "theirs", "mine"), "first\nsecond")

    page.keyboard.press("F2")
    note.fill("from here")
    change_notes(run, note="from there")
    note.press("Enter")
    refusal = "rate-0.1-seed-2 was changed meanwhile; save again to replace what is there now: from there"
    expect(page.get_by_test_id("stAlert")).to_contain_text(refusal)
    expect(note).to_be_editable()
    expect(note).to_have_value("from here")
    assert read_notes(run).note == "from there"
    note.press("Enter")
    expect(page.get_by_role("form")).to_have_count(0)
    assert read_notes(run).note == "from here"
    expect(page.get_by_test_id("stAlert")).to_have_count(0)
    visit.went_well()


@pytest.mark.long
def test_a_name_is_changed_in_the_row_and_back(six, runs_folder, served, visit):
    page = visit.page
    opened(page, served, runs_folder)
    field = page.get_by_role("textbox", name="Name", exact=True)
    old, new = (page.get_by_role("link", name=name) for name in ("rate-0.1-seed-2", "ada's <i>run"))
    names = page.locator(f"{ROWS} a")
    before = names.all_inner_texts()
    old.focus()
    page.keyboard.press("F2")
    page.keyboard.type("ada's <i>run")
    page.keyboard.press("Enter")
    expect(new).to_be_focused()
    assert names.all_inner_texts() == [
        "ada's <i>run" if name == "rate-0.1-seed-2" else name for name in before
    ]
    assert (runs_folder / "ada's <i>run" / "config.json").is_file()
    page.get_by_role("button", name="Undo").click()
    expect(old).to_be_visible()
    row = page.get_by_role("row", name="rate-0.1-seed-2")
    row.hover()
    row.get_by_role("button", name="Change rate-0.1-seed-2").click()
    field.fill("a/b")
    row.get_by_role("button", name="Save").click()
    expect(page.get_by_test_id("stAlert")).to_contain_text("the new name is 'a/b'; allowed: another one")
    expect(field).to_have_value("a/b")
    field.press("Escape")
    expect(field).to_have_count(0)
    expect(old).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="rate-0.1-seed-3")).to_be_focused()
    assert sorted(path.name for path in runs_folder.iterdir() if path.is_dir()) == sorted(
        f"rate-{rate}-seed-{seed}" for rate in (0.1, 0.2) for seed in (1, 2, 3)
    )
    visit.went_well()


@pytest.mark.long
def test_the_browser_notifies_once_somebody_has_asked_for_it(six, runs_folder, served, visit):
    page = visit.page
    page.add_init_script(
        "window.said = []; window.Notification = class { constructor(title, { body }) { said.push(body); }"
        " static permission = 'default';"
        " static async requestPermission() { return (Notification.permission = 'granted'); } };"
    )
    opened(page, served, runs_folder, "&alert=accuracy%3E0.8")
    page.wait_for_timeout(2_000 * LOOK_SECONDS)  # what has ended before the first look is no news
    waiting = six[0].read_status()
    six[0].write_status(replace(waiting, state="failed", message="no space left"))
    first = page.get_by_role("link", name="rate-0.1-seed-1: failed: no space left")
    expect(first).to_be_visible()
    assert page.evaluate("said") == [], "nobody has asked for it"
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Notifications on")).to_have_attribute("aria-pressed", "true")
    append(six[1].metrics_path, evaluation_row(130, "test", accuracy=0.9))
    becomes(page, lambda: page.evaluate("said.map((text) => text.split(' at ')[0])"),
            ["rate-0.1-seed-2: accuracy>0.8"])  # fmt: skip
    expect(page.get_by_role("list", name="Alerts").get_by_role("listitem")).to_have_count(2)
    first.click()
    page.wait_for_url("**/live?run=rate-0.1-seed-1**")
    visit.went_well()


@pytest.mark.long
def test_names_and_values_are_text_whatever_they_hold(make_run, runs_folder, served, visit):
    page = visit.page
    image = "<img src=x onerror=document.title='hit'>"
    for name in (image, "\u202egnirts", "a\tb\x07", "bad-\udcff", "x" * 250, "__proto__"):
        run = make_run(name, loss=math.nan, state="failed", status={"message": image})
        change_notes(run, add=[image[:40]], note=image)
    opened(page, served, runs_folder, "&columns=State&columns=Tags&columns=Note&columns=Training+loss")
    assert sorted(names(page)) == sorted([image, "�gnirts", "a b�", "bad-?", "x" * 250, "__proto__"])
    expect(page.locator(f"{ROWS} .lk-of-number")).to_have_text(["NaN"] * 6)
    expect(page.locator(".lk-runs img")).to_have_count(0)
    box(page, "bad-?").check()
    page.get_by_text("1 selected: bad-?").wait_for()
    state = page.locator(f"{ROWS} .lk-of-state").first
    expect(state).to_contain_text(f"failed: {image}")
    expect(state).to_have_attribute("title", re.compile("^" + re.escape(image)))
    visit.went_well()


@pytest.mark.long
def test_the_longest_text_of_a_column_is_not_cut_where_its_letters_are_wide(
    make_run, runs_folder, served, visit
):
    for note in ("MMMMMMMMMM", "resnet", "finish"):
        change_notes(make_run(note), note=note)
    opened(visit.page, served, runs_folder, "&columns=Note&columns=Model&columns=Data+set")
    cut = "cells => cells.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
    assert visit.page.locator(f"{ROWS} :is(td, a)").evaluate_all(cut) == []
    visit.went_well()


@pytest.mark.long
def test_on_a_phone_the_name_stays_and_only_the_table_scrolls_sideways(six, runs_folder, served, visit):
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 844})
    opened(page, served, runs_folder)
    result = page.locator(f"{ROWS} .lk-of-number").first.bounding_box()
    assert result["x"] + result["width"] <= 390, "a result is in sight"
    state = page.locator(f"{ROWS} .lk-of-state").first
    expect(state).to_contain_text("finished")
    page.locator(".lk-runs > div").evaluate("part => { part.scrollLeft = 500; }")
    page.wait_for_function(IDLE)
    name = page.get_by_role("link", name="rate-0.1-seed-1").bounding_box()
    assert 0 < name["x"] < name["x"] + name["width"] < 250
    assert page.locator(".lk-runs > div").evaluate("part => part.scrollLeft") == 500
    assert page.evaluate("document.querySelector('.stMain').scrollWidth") <= 390
    visit.went_well()
