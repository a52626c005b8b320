"""Reports: what is in the file, that nothing else is needed, and that no text of a run becomes markup."""

import base64
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

import labkit
from app.charts.board import COLORS, Chart, Line, encode
from app.report import charts
from app.report.document import report, write_report
from labkit import __version__
from labkit.config import Config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.boards import Board, decoded
from tests.app.browser import Visit, becomes, until, visiting
from tests.app.conftest import change_environment, write_predictions
from tests.app.rows import append, append_machine, evaluation_row, machine_row, train_row

EVIL = '<script>alert("x")</script>'


class Parsed(HTMLParser):
    """The attributes that load something, the text outside of scripts, and the number of each element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._within = tag
        found = dict(attributes)
        names = ("src", "srcset", "data", "poster", "action") + (() if tag == "a" else ("href",))
        self.loads += [found[name] or "" for name in names if name in found]

    def handle_endtag(self, tag):
        self._within = ""

    def handle_data(self, data):
        if self._within not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def boards_of(text: str) -> list[Board]:
    packed = re.findall(r'<script type="text/plain" class="points">([^<]*)</script>', text)
    return [decoded(gzip.decompress(base64.b64decode(one))) for one in packed]


def test_a_report_holds_everything_and_loads_nothing(make_run):
    run = make_run(loss=float("nan"))
    arrays = write_predictions(run)
    append_machine(run, machine_row(1), machine_row(2, gpu0_use_fraction=0.5))
    append(run.metrics_path, train_row(121, perplexity=7.0))
    text = report([run])
    page = Parsed(text)
    assert all(one.startswith("data:image/png;base64,") for one in page.loads), "nothing is loaded"
    assert not re.search(r"@import|url\(", text.partition("</style>")[0])
    assert "default-src 'none'" in text
    mistakes = (arrays["probabilities"].argmax(1) != arrays["labels"]).sum()
    for words in (
        "State finished", "Steps 121 of 200", "Best validation 90.00 %", "3.11.2",
        "labkit train --preset smoke --job-dir 'a b'", f"Made by labkit {__version__} on 20",
        f"The {min(mistakes, 24)} most confident mistakes", "Confusion matrix", "run.train_steps 200",
    ):  # fmt: skip
        assert words in page.text, words
    first, second = boards_of(text)
    assert [chart.title for chart in first.charts][:4] == [
        "Loss", "Accuracy", "Learning rate", "Examples per second",
    ]  # fmt: skip
    assert first.charts[0].lines["train"].of == 121
    assert first.charts[0].lines["train"].marks["NaN"][0] == 1
    assert "perplexity" in [chart.title for chart in first.charts]
    assert "GPU use" in [chart.title for chart in second.charts]


NOT_DEFAULT = {"dataset": "shapes", "num_layers": 14, "train_steps": 77}


def test_what_differs_from_the_defaults_comes_before_all_settings(make_run):
    run = make_run()
    write_json_atomic(run.config_path, Config.from_flat(NOT_DEFAULT).to_json())
    text = Parsed(report([run])).text
    assert "Settings that differ from the defaults: Setting Value dataset shapes num_layers 14" in text
    assert text.index("train_steps 77") < text.index("All settings") < text.index("run.train_steps 77")


def test_a_run_of_another_program_has_no_defaults(runs_folder):
    labkit.start_run("mine", config={"width": 7}).finish()
    labkit.start_run("bare").finish()
    for name in ("mine", "bare"):
        text = Parsed(report([RunDirectory(runs_folder / name)])).text
        assert "default" not in text
        assert "recorded_by labkit.start_run" in text and ("settings.width 7" in text) == (name == "mine")


def test_a_test_with_other_views_says_so(make_run):
    run = make_run()
    append(run.metrics_path, evaluation_row(120, "test"))
    append(run.evaluations_path, evaluation_row(120, "test", test_time_augmentation="mirror"))
    assert "test, step 120 validation, step 120 other test, step 120, mirror" in Parsed(report([run])).text


def test_the_command_is_the_one_that_makes_the_run_also_after_a_resume(make_run):
    run = make_run()
    write_json_atomic(run.config_path, Config.from_flat(NOT_DEFAULT).to_json())
    change_environment(run, command=["/usr/bin/labkit", "resume", "first"])
    text = Parsed(report([run])).text
    assert "labkit train " in text and "--train-steps 77" in text and "labkit resume" not in text


def test_no_text_of_a_run_becomes_markup(make_run, runs_folder):
    run = make_run(f"a {EVIL.replace('/', '∕')}", status={"message": EVIL})
    write_predictions(run)  # with a class named <b>star</b>
    run.environment_path.write_text(json.dumps({"command": [EVIL], "versions": {EVIL: EVIL}}))
    (run.path / "notes.json").write_text(json.dumps({"tags": [EVIL], "note": EVIL}))
    append(run.metrics_path, train_row(121, **{EVIL: 1.0}))
    text = report([run])
    parsed = Parsed(text)
    assert 'alert("x")' not in re.sub(r"&quot;", "'", "".join(re.findall(r"<script.*?</script>", text, re.S)))
    assert parsed.tags.count("script") == 2, "the points of one board, and our own script"
    assert "b" not in parsed.tags
    assert parsed.text.count(EVIL) >= 5, "it is shown as it is"


def test_runs_are_compared_with_a_line_for_each_and_their_differences(make_run):
    one, other = make_run("one"), make_run("other", steps=50)
    config = json.loads(other.config_path.read_text())
    other.config_path.write_text(json.dumps({**config, "data": {**config["data"], "train_batch_size": 64}}))
    text = report([one, other])
    [board] = boards_of(text)
    assert board.charts[0].title == "Loss, train"
    assert {name: line.of for name, line in board.charts[0].lines.items()} == {"one": 120, "other": 50}
    page = Parsed(text).text
    assert "Comparison of 2 runs" in page
    assert "Curves of the training are smoothed (weight of the past: 0.6)." in page
    assert re.search(r"train_batch_size.* one finished.* 128 .*other finished.* 64 ", page)


def test_points_are_kept_up_to_the_limit_and_peaks_beyond_it(make_run, monkeypatch):
    run = make_run()
    run.metrics_path.unlink()
    append(run.metrics_path, *(train_row(n, loss=50.0 if n == 777 else 1.0) for n in range(1, 2001)))
    whole = report([run])
    assert all(
        len(line.y) == line.of == 2000 for c in boards_of(whole)[0].charts for line in c.lines.values()
    )
    assert "at most" not in Parsed(whole).text
    monkeypatch.setattr(charts, "MAX_POINTS", 3000)
    less = report([run])
    lines = [line for chart in boards_of(less)[0].charts for line in chart.lines.values()]
    assert sum(len(line.y) for line in lines) <= 3000 + 2 * len(lines)
    assert boards_of(less)[0].charts[0].lines["train, raw"].y.max() == 50
    assert "The charts hold at most 3,000 points" in Parsed(less).text


DAMAGED = (
    ("config.json", b"{", "config.json is damaged"),
    ("config.json", b"[" * 100_000, "config.json is damaged"),
    ("environment.json", b"\x00", "first"),
    ("metrics.jsonl", b"\xff\n{", "no metrics yet"),
    ("metrics.jsonl", b"", "no metrics yet"),
    ("status.json", b"{}", "unknown"),
    ("predictions/test.npz", b"PK", "is damaged"),
    ("machine.jsonl", b"\x00\xff\n", "first"),
)


@pytest.mark.parametrize(("file", "content", "words"), DAMAGED)
def test_a_damaged_file_is_named_and_the_rest_is_there(make_run, tmp_path, file, content, words):
    with pytest.raises(InputError, match="there is no run in"):
        report([RunDirectory(tmp_path)])
    run = make_run()
    (run.path / file).parent.mkdir(exist_ok=True)
    (run.path / file).write_bytes(content)
    assert words in Parsed(report([run])).text


def test_large_images_and_many_classes_stay_small(make_run):
    run = make_run()
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(60), 80).astype(np.float32)
    run.predictions_path.mkdir()
    images = np.broadcast_to(rng.integers(0, 256, (1, 300, 400, 3), dtype=np.uint8), (80, 300, 400, 3))
    labels = rng.integers(0, 60, 80)
    np.savez(run.predictions_path / "test.npz", images=images, labels=labels, probabilities=probabilities)
    text = report([run])
    assert "The most frequent confusions" in text
    assert Parsed(text).tags.count("img") == 24
    assert len(text) < 6_000_000


# ---- in a browser without a network -------------------------------------------------------------------

STEPS = 20_000
INK = """canvas => {  // how many pixels are drawn
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, i) => i % 4 === 3 && value > 0).length;
}"""
SHOWN = "() => { const { x } = document.querySelector('.board').labkitBoard.charts.get('loss').plot.scales;"
SHOWN += " return [x.min, x.max]; }"
DRAW = """async text => {  // the seconds until the board is drawn, and the ends of its axes
  const parent = document.createElement('div'), start = performance.now();
  document.querySelector('main').replaceChildren(parent);
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  labkitBoard.render(parent, bytes, () => {}, () => {});
  await new Promise((done) => setTimeout(done, 50));
  const scales = [...parent.labkitBoard.charts.values()].map((chart) => chart.plot.scales);
  const ends = scales.flatMap(({ x, y }) => [[x.min, x.max], [y.min, y.max]]);
  return [(performance.now() - start) / 1000, ends];
}"""


@pytest.fixture
def offline(browser: Any) -> Iterator[Visit]:
    """A page whose network is off."""
    with visiting(browser, offline=True, color_scheme="dark") as seen:
        yield seen


@pytest.fixture
def opened(offline: Visit, tmp_path: Path) -> Callable[[RunDirectory], Any]:
    """Return a function that opens a run's report, and returns the page."""

    def open_report(run: RunDirectory) -> Any:
        write_report([run], tmp_path / "a report.html")
        offline.page.goto((tmp_path / "a report.html").as_uri())
        offline.page.locator("html[data-drawn]").wait_for(state="attached")
        return offline.page

    return open_report


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.browser
def test_a_report_opens_from_its_file_without_a_network_and_its_charts_zoom(
    make_run, opened, tmp_path, offline
):
    run = make_run("long", steps=STEPS)
    write_predictions(run)
    page = opened(run)
    canvases = page.locator(".lk-chart canvas")
    canvases.nth(3).wait_for()
    for number in range(4):
        curve = canvases.nth(number)
        until(page, lambda curve=curve: curve.evaluate(INK) > 500, "curves are drawn")
    expect(page.locator(".lk-card img").first).to_have_js_property("naturalWidth", 32)
    points = page.locator(".lk-points").first
    expect(points, "all are in the file").to_have_text(f"{STEPS + 1:,} of {STEPS + 1:,} points")
    assert page.evaluate(SHOWN) == [1, STEPS]
    over = page.locator(".lk-chart .u-over").first
    over.hover()  # waits until it no longer moves
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=4)
    page.mouse.up()
    until(page, lambda: page.evaluate(SHOWN) != [1, STEPS], "a drag zooms")
    low, high = page.evaluate(SHOWN)
    assert STEPS * 0.4 < low < high < STEPS * 0.7
    count = pytest.approx(high - low, abs=2)
    becomes(page, lambda: int(points.inner_text().split()[0].replace(",", "")), count)
    page.locator(".lk-chart").nth(1).focus()
    page.keyboard.press("0")
    becomes(page, lambda: page.evaluate(SHOWN), [1, STEPS])  # the keyboard shows all, in all charts
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    page.emulate_media(color_scheme="light")
    until(page, lambda: page.evaluate(color) != dark, "the report follows the system's theme")
    page.set_viewport_size({"width": 390, "height": 844})
    # The policy of the file forbids what wait_for_function does.
    until(page, lambda: page.evaluate("document.documentElement.scrollWidth") <= 390, "it is too wide")
    assert len(page.pdf(path=tmp_path / "printed.pdf")) > 20_000
    expect(page.locator(".paper-chart"), "the page is as before").to_have_count(0)
    assert offline.complaints == []
    assert set(offline.elsewhere) == {(tmp_path / "a report.html").as_uri()}, (
        "no other file and no host was asked for"
    )


NAN, INF = math.nan, math.inf
# The horizontal axis, x, and the values of some charts.
EXTREME = {
    "one step": ("step", [5], [[2.3], [0], [NAN], [INF], [1e38], [1e-30], [-3]]),
    "one moment": ("clock", [1.7e9], [[2.3]]),
    "two moments that are next to equal": ("clock", [1.7e9, 1.7e9 + 2e-7], [[2.3, 2.2]]),
    "no time": ("seconds", [0, 0, 0], [[3, 2, 1]]),
    "an unknown place": ("step", [NAN, NAN], [[3, 2]]),
    "next to equal values": ("step", [1, 2], [[1, 1 + 2.3e-16], [1e16, 1e16 + 2], [0, 5e-324]]),
    "small and large values": ("step", [1, 2], [[1e-40, 1e38], [1, 1e-30], [1e-300, 1e300]]),
    "a large distance": ("step", [1, 2], [[-1e308, 1e308], [0, 1]]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.long
def test_no_ends_of_an_axis_stop_the_browser(opened, offline, make_run):
    page = opened(make_run("usual", steps=3))
    for name, logarithmic in product(EXTREME, (False, True)):
        axis, x, values = EXTREME[name]
        lines = [Line("train", np.array(x, float), np.array(y, float), COLORS["train"]) for y in values]
        charts = [Chart(str(n), "", [line], logarithmic=logarithmic) for n, line in enumerate(lines)]
        for window in (None, (x[0], x[0]), (x[0], x[-1])):
            board = base64.b64encode(encode(charts, axis=axis, x_title="x", window=window)).decode()
            seconds, found = page.evaluate(DRAW, board)
            assert offline.complaints == [], (name, logarithmic, window)
            assert seconds < 3, (name, logarithmic, window)
            assert all(low < high for low, high in found), (name, logarithmic, window)


@pytest.mark.slow
@pytest.mark.browser
def test_a_run_with_one_row_is_drawn(opened, offline, make_run):
    page = opened(make_run("one", steps=1))
    chart = page.locator(".lk-chart canvas").first
    until(page, lambda: chart.evaluate(INK) > 500, "the axes and the point are drawn")
    expect(page.locator(".lk-points").first).to_have_text("2 of 2 points")
    page.locator(".lk-chart").first.focus()
    for key in ("ArrowRight", "+", "-", "0"):
        page.keyboard.press(key)
    expect(page.locator(".lk-tip").first).to_contain_text("step 1")
    assert offline.complaints == []
