"""The live page: a run's state, its curves with axis and zoom, metrics of any name, and what it fetches."""

import asyncio
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import feed
from app.charts.metric_charts import Options, standard
from app.charts.store import MAX_METRICS, CurveStore
from app.feed import Update, answer
from app.live_panel import MAX_ADDED
from app.live_update import Drawn, frame_of
from app.state import curves
from labkit.config.run import METRICS
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.notes import Lineage, change_notes, write_lineage
from tests.app.boards import Board, DrawnChart, boards, charts, decoded
from tests.app.conftest import change_environment, configure
from tests.app.pages import PAGES, checked, open_main, open_page, unfold, words
from tests.app.rows import append, evaluation_row, train_row


def board(at: AppTest) -> Board:
    (found,) = boards(at)
    return found


def added(at: AppTest) -> dict[str, DrawnChart]:
    """Return the charts below the standard ones, by title."""
    return {chart.title: chart for chart in charts(at)[len(standard(())) :]}


def test_what_a_training_says_moves_no_chart(make_run):
    run = make_run(state="running")
    silent = len(open_page("live", run).main.children)
    status = json.loads(run.status_path.read_text())
    run.status_path.write_text(json.dumps(status | {"message": "saving a checkpoint"}))
    at = open_page("live", run)
    assert "saving a checkpoint" in [caption.value for caption in at.caption]
    assert len(at.main.children) == silent


def test_tags_and_the_note_stand_beside_the_name_on_all_pages(make_run):
    run = make_run()
    change_notes(run, add=["paper"], note="two\nlines")
    for page in ("live", "layers", "configuration"):
        badges = [one.value for one in open_page(page, run).markdown if "-badge[" in one.value]
        assert [word in "".join(badges) for word in ("finished", "paper", "note")] == [True] * 3, page


# ---- the state -----------------------------------------------------------------------------------------

STATES = [
    ("starting", {}, "starting"),
    ("running", {}, "running"),
    ("running", {"heartbeat": 1.0}, "stalled"),
    ("running", {"pid": "ended"}, "lost"),
    ("interrupted", {"message": "SIGTERM: saved at step 120"}, "SIGTERM: saved at step 120"),
    ("failed", {"message": "loss is nan at step 7"}, "loss is nan at step 7"),
    ("failed", {}, "gave no reason"),
]


@pytest.mark.parametrize(("written", "status", "shown"), STATES)
def test_every_state_is_shown_with_step_and_curves(make_run, written, status, shown):
    if status.get("pid") == "ended":
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait(30)
        status = {"pid": ended.pid}
    at = open_page("live", make_run(state=written, status=status))
    assert shown in words(at)
    assert "Step 120 of 200" in words(at)
    drawn = charts(at)
    assert [chart.title for chart in drawn] == ["Loss", "Accuracy", "Learning rate", "Examples per second"]
    assert list(drawn[0].lines) == ["train, raw", "train", "validation"]


def test_new_rows_appear_at_the_next_refresh_and_damaged_lines_are_counted(make_run):
    run = make_run(state="running")
    at = open_page("live", run)
    append(run.metrics_path, train_row(121, loss=math.nan))
    with open(run.metrics_path, "a") as file:
        file.write('{"split": "train", "step": 122, "lo')
    text = words(checked(at.run()))
    assert "Step 121 of 200" in text and "Training loss NaN" in text
    assert charts(at)[0].lines["train"].marks == {"NaN": (1, [121.0])}
    assert "damaged" not in text, "the last line may still be written"
    with open(run.metrics_path, "a") as file:
        file.write("\n")
    assert "1 damaged line." in words(checked(at.run()))


def test_a_resume_point_is_drawn_in_every_chart(make_run):
    run = make_run()
    writer = MetricsWriter(run.metrics_path)
    writer.mark_resume_point(100)
    writer.append([train_row(step) for step in range(101, 130)])
    at = open_page("live", run)
    assert [board.seams for board in boards(at)] == [{"resumed at 100": 100.0}]
    assert ("Step 129 of" in words(at)) is (run.read_status().step < 129)


def test_simulated_replicas_another_data_set_and_the_last_test_are_announced(make_run):
    run = make_run()
    data = {"dataset": "shapes", "asked_for": "auto", "chosen_because": "CIFAR-10 can't be reached"}
    change_environment(run, banner="2 replicas simulated on logical CPU devices", data=data)
    tests = [evaluation_row(step, "test", accuracy=share) for step, share in ((100, 0.8), (50, 0.5))]
    append(run.metrics_path, *tests)
    text = words(open_page("live", run))
    assert "2 replicas simulated" in text and "Devices: CPU" in text
    assert "The data set is the built-in **shapes**, not CIFAR-10. CIFAR-10 can't be reached" in text
    assert "Test accuracy (step 100) 80.00 %" in text


def test_a_forked_run_shows_its_family_with_links(make_run):
    parent, fork = make_run("parent"), make_run("fo<b>rk")
    make_run("other")
    write_lineage(fork, Lineage(str(parent.path), 40, {"learning_rate": (0.1, "<i>0.2</i>")}))

    def family(name: str) -> str:
        drawn = [element.proto.body for element in open_main("live", run=name).get("html")]
        return "".join(body for body in drawn if "lk-family" in body)

    for name, relative in (("parent", "fo%3Cb%3Erk"), ("fo<b>rk", "parent")):
        assert f'href="live?run={relative}' in family(name)
        assert "fo&lt;b&gt;rk" in family(name)
        assert "from step 40: learning_rate 0.1 → &lt;i&gt;0.2&lt;/i&gt;" in family(name)
    assert not family("other")


def test_the_live_page_and_the_comparison_offer_the_files(make_run):
    run = make_run("a <b>b</b> $x$")
    for page in ("live", "compare"):
        labels = [button.proto.label for button in open_page(page, run).get("download_button")]
        assert labels == ["Report as HTML", "Metrics as CSV", "Metrics as Parquet"], page


def test_every_run_has_its_log_and_its_checkpoints(make_run):
    run = make_run()
    lines = [f"step {number} <b>" for number in range(9_999)]
    run.log_path.write_text("\n".join(lines))
    for step, best in ((50, 50), (100, 50), (110, 100)):
        folder = run.checkpoints_path / f"step-{step:08}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"best_step": best}))
        (folder / "weights").write_bytes(bytes(3 << 20))
    at = open_page("live", run)
    assert lines[-1] not in words(at), "folded: nothing is read"
    unfold(at, "Log", run)
    assert lines[-1] in words(at) and lines[0] not in words(at)
    at.text_input(key=f"log-search-{run.path}").set_value("STEP 77 <").run()
    assert "1 line with this text" in words(at) and lines[77] in words(at) and lines[-1] not in words(at)
    assert "Download" in [one.proto.label for one in at.get("download_button")]
    text = words(unfold(at, "Checkpoints", run))
    for row in ("110, last 3.0 MiB", "100, best 3.0 MiB", "50 3.0 MiB"):
        assert row in text
    shutil.rmtree(run.checkpoints_path)
    assert "kept no checkpoint" in words(checked(at.run()))


# ---- axis and zoom, which the address keeps --------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "axis", "ends"),
    [
        ("EPOCH", "epoch", [0.02, 2.4]),
        ("Training time", "seconds", [0, 119]),
        ("training", "seconds", [0, 119]),
        ("Wall clock", "clock", [1_700_000_001, 1_700_000_120]),
        ("time", "seconds", [0, 119]),  # of an older version
        ("<b>", "step", [1, 120]),
        ("", "step", [1, 120]),
    ],
)
def test_the_address_names_the_axis_in_any_case(make_run, given, axis, ends):
    shown = board(open_page("live", make_run(), x=given))
    assert shown.axis == axis
    assert shown.extent == pytest.approx(ends)
    assert shown.charts[0].lines["train"].x[[0, -1]].tolist() == pytest.approx(ends)


def test_the_zoom_shows_the_same_steps_on_another_axis_and_in_the_comparison(make_run):
    run = make_run()
    make_run("second")
    at = open_page("live", run, zoom="20,60.5")
    assert board(at).window == [20, 60.5]
    assert board(at).charts[0].lines["train"].of == 41
    for axis, window in {"epoch": [0.4, 1.21], "training": [19, 59.5], "step": [20, 60.5]}.items():
        at.get("button_group")[0].set_value(axis)
        assert board(checked(at.run())).window == pytest.approx(window)
        given = at.query_params["zoom"]
        given = given if isinstance(given, str) else given[0]
        assert [float(part) for part in given.split(",")] == pytest.approx(window)
    compared = board(open_page("compare", run, zoom="20,60"))
    assert compared.window == [20, 60]
    assert {line.of for line in compared.charts[0].lines.values()} == {41}
    assert board(open_page("live", run, zoom="5000,6000")).charts[0].lines["train"].of == 0
    run.metrics_path.write_bytes(b"")
    assert not boards(open_page("live", run, zoom="20,60", x="Wall clock"))


def test_any_metric_and_the_number_of_examples_are_axes(make_run):
    run = make_run()
    rates = [0.1 / step for step in range(1, 121)]
    run.metrics_path.write_text("")
    append(run.metrics_path, *(train_row(s, learning_rate=r, loss=s % 7) for s, r in enumerate(rates, 1)))
    append(run.metrics_path, evaluation_row(120))
    configure(run, train_batch_size=16, accumulate_steps=2)
    shown = board(open_page("live", run, x="examples", smoothing="0"))
    assert shown.axis == "count" and shown.charts[0].lines["train"].x[[0, -1]].tolist() == [32, 120 * 32]
    at = open_page("live", run, x="Metric", over="train/learning_rate", smoothing="0", zoom="0.01,0.05")
    shown = board(at)
    assert at.selectbox(key="over").options[:1] == ["train/loss"]
    assert shown.axis == "value" and shown.extent == pytest.approx([rates[-1], rates[0]])
    line = shown.charts[0].lines["train"]
    assert line.of == sum(0.01 <= rate <= 0.05 for rate in rates)
    assert dict(zip(line.x.tolist(), line.y.tolist(), strict=True))[rates[4]] == 5, "the loss of step 5"
    assert shown.charts[0].lines["validation"].x.tolist() == [rates[-1]], "the rate that it was made with"
    loss = board(open_page("live", run, x="metric", over="train/loss", smoothing="0")).charts[2]
    assert loss.lines["train"].of == 120, "steps of one loss are all there"
    assert (np.diff(loss.lines["train"].x) > 0).all()
    accuracy = board(open_page("live", run, x="metric", over="validation/accuracy"))
    assert accuracy.axis == "percent" and accuracy.charts[1].lines["validation"].of == 1
    compared = board(open_page("compare", run, x="metric", over="train/learning_rate"))
    assert compared.extent == pytest.approx([rates[-1], rates[0]])
    run.config_path.write_text('{"recorded_by": "a program"}')
    append(run.metrics_path, train_row(121))
    assert board(open_page("live", run, x="examples")).extent is None, "how many is not known"


def test_nonsense_in_the_address_is_no_zoom(make_run):
    run = make_run()
    for zoom in ("", "1", "a,b", "1,2,3", "nan,3", "1,inf", "9,3", "5,5", "<b>,1"):
        assert board(open_page("live", run, zoom=zoom)).window is None, zoom


def test_the_last_steps_are_followed_if_wanted(make_run):
    run = make_run(state="running")
    at = open_page("live", run)
    at.selectbox(key="steps").set_value("Last 100")
    assert board(checked(at.run())).window == [20, 120]
    append(run.metrics_path, train_row(121))
    assert board(checked(at.run())).window == [21, 121]


# ---- metrics of any name -------------------------------------------------------------------------------


def test_a_metric_that_a_callback_adds_is_drawn_by_itself_with_all_its_splits(make_run):
    run = make_run(state="running")
    at = open_page("live", run)
    assert not added(at)
    append(run.metrics_path, train_row(121, noise=0.3), evaluation_row(122, noise=0.4))
    for number in range(4):  # what is drawn stays while more names appear
        append(run.metrics_path, train_row(123 + number, noise=0.2, **{f"name{number}": 1.0}))
        shown = added(checked(at.run()))
        assert sorted(shown) == [*(f"name{n}" for n in range(number + 1)), "noise"]
    assert set(shown["noise"].lines) >= {"train", "validation"}
    at.multiselect(key="hidden").set_value(list(shown))
    checked(at.run())
    append(run.metrics_path, train_row(130, noise=0.1, other=1))
    assert list(added(checked(at.run()))) == ["other"], "what was put away stays away; what is new is drawn"


def test_each_metric_that_metrics_adds_has_a_chart(make_run):
    run = make_run()
    append(run.metrics_path, evaluation_row(120, **dict.fromkeys(METRICS, 0.5)))
    assert len(added(open_page("live", run))) == len(METRICS)


def test_of_very_many_added_metrics_the_first_are_drawn_and_their_number_is_limited(make_run):
    run = make_run()
    append(run.metrics_path, train_row(121, **{f"metric{n:02}": n for n in range(MAX_ADDED + 8)}))
    at = open_page("live", run)
    assert list(added(at)) == [f"metric{number:02}" for number in range(MAX_ADDED)]
    assert f"metric{MAX_ADDED + 7}" in at.multiselect(key="more").options
    append(run.metrics_path, *(train_row(step, **{f"name{step}": 1.0}) for step in range(122, 400)))
    assert f"The first {MAX_METRICS} of a split" in words(checked(at.run()))
    snapshot = CurveStore(run.metrics_path).poll()
    assert len(snapshot.metrics()) == MAX_METRICS
    assert snapshot.curve("train", "loss").step[-1] == 399


def test_the_controls_apply_to_all_charts_and_names_are_no_html(make_run):
    run = make_run()
    append(run.metrics_path, *(train_row(step, **{"<b>x</b>": step - 150.0}) for step in range(121, 200)))
    at = open_page("live", run)
    assert list(added(at)) == ["<b>x</b>"], "the page writes it as text, see test_browser_charts.py"
    at.slider(key="smoothing").set_value(0.0)
    at.get("button_group")[1].set_value("on")
    loss, accuracy, *_ = charts(checked(at.run()))
    assert list(loss.lines) == ["train", "validation"] and loss.logarithmic
    assert not accuracy.logarithmic
    (chart,) = added(at).values()
    assert chart.logarithmic
    assert {kind: count for kind, (count, _) in chart.lines["train"].marks.items()} == {"≤ 0": 30}


def test_any_metric_can_be_compared(make_run):
    for name in ("first", "second"):
        append(make_run(name).metrics_path, train_row(121, noise=0.3), evaluation_row(121, noise=0.4))
    chosen = ["noise (train)", "noise (validation)", "Input wait (train)"]
    at = open_page("compare", "first", single="true")
    at.multiselect(key="more").set_value(chosen)
    drawn = {chart.title: list(chart.lines) for chart in charts(checked(at.run()))}
    assert all(drawn[name] == ["first", "second"] for name in chosen)


# ---- what is fetched every second, instead of being drawn again -------------------------------------------


def unpacked(body: bytes) -> tuple[dict, dict[str, bytes]]:
    (length,) = struct.unpack_from("<I", body)
    header, rest, sent = json.loads(body[4 : 4 + length]), body[4 + length :], {}
    for ident, _, size in header["boards"]:
        sent[ident], rest = rest[:size], rest[size:]
    assert rest == b""
    return header, sent


def asked(token: str, have: str = ""):
    return asyncio.run(answer(SimpleNamespace(path_params={"token": token}, query_params={"have": have})))


@pytest.fixture
def no_offers(monkeypatch):
    monkeypatch.setattr(feed, "_offers", feed._Offers())


@pytest.mark.usefixtures("no_offers")
def test_an_address_that_nobody_offers_is_not_found_and_the_longest_unused_ones_are_forgotten(monkeypatch):
    assert asked("x").status_code == 404
    monkeypatch.setattr(feed, "MOST", 2)
    for token in "abc":
        feed._offers.put(token, Update, time.monotonic)
    assert [asked(token).status_code for token in "abc"] == [404, 200, 200]
    monkeypatch.setattr(feed, "KEPT_SECONDS", 0.0)
    feed._offers.put("d", Update, time.monotonic)
    assert [asked(token).status_code for token in "bc"] == [404, 404]


def test_a_failure_makes_streamlit_draw_the_page_and_is_logged(caplog, no_offers):
    feed._offers.put("a", lambda: 1 / 0, time.monotonic)
    header, _ = unpacked(asked("a").body)
    assert header["stale"] and "ZeroDivisionError" in caplog.text


def test_an_answer_waits_for_news_and_not_for_ever(no_offers, monkeypatch):
    looks: list[int] = []

    def look() -> int:
        looks.append(len(looks))
        return int(len(looks) >= 5)

    feed._offers.put("a", lambda: Update(str(len(looks))), look)
    assert unpacked(asked("a").body)[0]["html"] == "1", "the first answer comes at once"
    monkeypatch.setattr(feed, "LONGEST_SECONDS", 3600.0)
    assert unpacked(asked("a").body)[0]["html"] == "5", "as soon as there is news"
    monkeypatch.setattr(feed, "LONGEST_SECONDS", 0.2)
    assert int(unpacked(asked("a").body)[0]["html"]) > 5, "without news, after a while"


def test_a_page_asks_twice_as_often_only_where_a_whole_core_has_nothing_to_do(no_offers, monkeypatch):
    now, idle = [100.0], [5000.0]
    monkeypatch.setattr(feed.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(feed.psutil, "cpu_times", lambda: SimpleNamespace(idle=idle[0]))
    feed._offers.put("a", Update, lambda: now[0])

    def apart(cores: float) -> float:
        """Return what the page is told after two seconds in which so many cores were idle."""
        now[0], idle[0] = now[0] + 2.0, idle[0] + 2.0 * cores
        return unpacked(asked("a").body)[0]["seconds"]

    assert apart(8.0) == feed.APART_SECONDS, "nothing is known at the first question"
    assert [apart(cores) for cores in (1.1, 0.9, 0.0, 7.5)] == [0.5, 1.0, 1.0, 0.5]


def test_new_rows_are_fetched_and_the_page_is_drawn_again_for_what_is_not_fetched(make_run):
    run = make_run(state="running", steps=3)
    shown = frame_of(run, curves(run), "")
    drawn = Drawn(run, Options(), standard(()), None, None)
    os.utime(run.metrics_path, (0, 0))  # the clock of files is coarse
    written = drawn.written()
    append(run.metrics_path, train_row(500, loss=7.25))
    assert drawn.written() != written
    update = drawn.update(shown, "")
    assert not update.is_stale
    (fetched,) = map(decoded, update.boards.values())
    assert max(line.x[-1] for line in fetched.charts[0].lines.values()) == 500
    assert "7.25" in update.html and "Step 500" in update.html
    assert frame_of(run, curves(run), "it failed") != shown
    append(run.metrics_path, evaluation_row(500, perplexity=2.0))
    assert drawn.update(shown, "").is_stale, "a metric was added, which can be chosen"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("live", "compare")])
def test_the_head_of_each_page_follows_a_training_and_asks_nothing_of_one_that_has_ended(
    make_run, no_offers, page
):
    run = make_run(state="running", steps=3)
    open_page(page, run)
    [offer] = feed._offers._offers.values()
    append(run.metrics_path, train_row(77, loss=7.25))
    run.write_status(replace(run.read_status(), step=77))
    update = offer.make()
    assert "Step 77 of 200" in update.html and "7.25" in update.html
    assert not update.is_stale and not update.boards
    run.write_status(replace(run.read_status(), state="finished"))
    assert offer.make().is_stale, "its badge and buttons are others"
    feed._offers._offers.clear()
    open_page(page, run)
    assert not feed._offers._offers
