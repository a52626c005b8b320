"""Every page, with runs in every state: no traceback, and the right text and numbers."""

import json
import math
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import streamlit as st
from streamlit import config
from streamlit.testing.v1 import AppTest

from app import state
from app.markup import duration, plain
from app.views.configuration import flatten
from labkit.config.presets import PRESETS
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.lineage import Lineage, write_lineage
from labkit.run_directory.metrics import MetricsWriter
from tests.app.boards import boards, charts
from tests.app.conftest import CLASSES, evaluation_row, train_row, write_predictions

NAVIGATION = Path(__file__).resolve().parents[2] / "app" / "navigation.py"
# That show the selected run.
PAGES = ("live", "layers", "predictions", "image", "data", "image_map", "compare", "configuration")
ADDRESSES = {"image_map": "map"}  # of a page whose module has another name


def open_main(page: str = "", **url: str) -> AppTest:
    """Open the first page, or another one with the sidebar: AppTest opens no other page of a navigation."""
    script = f"from app import state\nfrom app.views import {page}\nstate.choose_run()\n{page}.page()"
    at = AppTest.from_string(script) if page else AppTest.from_file(str(NAVIGATION))
    at.default_timeout = 30
    for name, value in url.items():
        at.query_params[name] = value
    return checked(at.run())


def open_page(name: str, run: RunDirectory | str) -> AppTest:
    at = AppTest.from_string(f"from app.views import {name}\n{name}.page()", default_timeout=30)
    at.session_state["run"] = run if isinstance(run, str) else str(run.path)
    return checked(at.run())


@pytest.mark.parametrize("page", ["live", "layers", "configuration", "predictions", "image", "data"])
def test_a_heading_names_the_run_as_it_is(make_run, page):
    name = "*a* _b_ $c$ :smile: [d](e)"
    make_run(name)
    at = open_page(page, name)
    assert any(plain(name) in heading.value for heading in (*at.title, *at.subheader))


def checked(at: AppTest) -> AppTest:
    assert not at.exception, at.exception[0].message
    return at


def words(at: AppTest) -> str:
    kinds = ("title", "subheader", "caption", "markdown", "info", "warning", "error", "code", "metric")
    parts = [element for kind in kinds for element in at.get(kind)]
    # Markdown shows a character after a backslash as it is.
    texts = [re.sub(r"\\([^\w\s]|_)", r"\1", f"{getattr(part, 'label', '')} {part.value}") for part in parts]
    texts += [unescape(re.sub("<[^>]*>", " ", element.proto.body)) for element in at.get("html")]
    return "\n".join(" ".join(text.split()) for text in texts)


def test_every_page_has_an_address_and_the_runs_are_also_the_root(runs_folder, monkeypatch):
    pages = []
    navigation = st.navigation
    monkeypatch.setattr(st, "navigation", lambda made: pages.extend(made) or navigation(made))
    open_main()
    addresses = ["start", *(ADDRESSES.get(name, name) for name in PAGES)]
    assert {page.url_path for page in pages} == {"", "runs", *addresses}
    shown = [page.title for page in pages if page.visibility == "visible"]
    assert shown == [name.capitalize() for name in ("runs", *addresses)]  # once each


def test_without_runs_the_page_says_how_to_make_one(runs_folder):
    for page in (open_main(), open_main("live")):
        preset = re.search(r"labkit train --preset (\w+)", words(page))
        assert preset is not None
        assert preset[1] in PRESETS


def test_the_most_recently_active_run_is_selected_and_stays_selected(make_run):
    for place, name in enumerate(["older", "newest"]):
        os.utime(make_run(name).status_path, (place, place))
    at = open_main()
    assert at.selectbox(key="run").value == "newest"
    assert list(at.selectbox(key="run").options) == ["newest", "older"]
    os.utime(RunDirectory(state.runs_home() / "older").status_path, (9, 9))
    assert checked(at.run()).selectbox(key="run").value == "newest", (
        "progress of another run doesn't change the selection"
    )


def test_the_url_selects_a_run_by_name_or_path(make_run, tmp_path):
    make_run("first")
    other = make_run("second").path.rename(tmp_path / "elsewhere")
    assert "first" in words(open_main("live", run="first"))
    at = open_main("live", run=str(other))
    assert "elsewhere" in words(at)
    assert at.selectbox(key="run").value == str(other)


@pytest.mark.parametrize("name", ["nosuch", "/nosuch/run", "../..", "\0", "x" * 5000, "~nosuch/run"])
def test_a_missing_run_is_named(make_run, name):
    make_run()
    assert "There is no run in" in words(open_main("live", run=name))


def test_runs_of_other_folders_are_listed_and_equal_names_shown_as_paths(make_run, tmp_path, monkeypatch):
    make_run("same")
    for folder in ("more", "typed"):
        (tmp_path / folder).mkdir()
    make_run("same2").path.rename(tmp_path / "more" / "same")
    make_run("unique").path.rename(tmp_path / "typed" / "unique")
    monkeypatch.setenv("LABKIT_RUNS", str(tmp_path / "more"))
    at = open_main("live", folder=str(tmp_path / "typed"))
    expected = {"unique", str(tmp_path / "runs" / "same"), str(tmp_path / "more" / "same")}
    assert set(at.selectbox(key="run").options) == expected
    at.selectbox(key="run").set_value(str(tmp_path / "more" / "same"))
    assert "same" in words(checked(at.run()))


def test_incomplete_runs_and_other_files_break_no_page(make_run, runs_folder):
    (runs_folder / "junk").mkdir()
    (runs_folder / "file").write_text("x")
    half = runs_folder / "half"
    half.mkdir()
    (half / "config.json").write_text("{")
    for page in PAGES:
        open_page(page, str(half))
    assert open_main(run="half").selectbox(key="run").options == ["half"]


STATES = [
    ("starting", {}, "starting"),
    ("running", {}, "running"),
    ("running", {"heartbeat": 1.0}, "stalled"),
    ("running", {"pid": "ended"}, "lost"),
    ("finished", {}, "finished"),
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
    run = make_run(state=written, status=status)
    at = open_page("live", run)
    assert shown in words(at)
    assert "Step 120 of 200" in words(at)
    drawn = charts(at)
    assert [chart.title for chart in drawn] == ["Loss", "Accuracy", "Learning rate", "Examples per second"]
    assert list(drawn[0].lines) == ["train, raw", "train", "validation"]


def test_an_unknown_state_and_invalid_fields_break_no_page(make_run):
    run = make_run()
    run.status_path.write_text('{"state": "dreaming", "step": "x", "total_steps": null, "started": NaN}')
    assert "no status yet" in words(open_page("live", run))


@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "status.json", "environment.json", "config.json", "out.log", "notes.json",
     "evaluations.jsonl"],
)  # fmt: skip
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"\xff\x00",  # not text
        b'{"data": 3, "state": "finished", "step": NaN}\n',  # other types than expected
        *(pytest.param(text, marks=pytest.mark.long) for text in (b"", b"{", b"[]\n")),
    ],
)
def test_a_damaged_or_missing_file_breaks_no_page(make_run, name, content):
    make_run("whole")
    run = make_run()
    (run.path / name).unlink(missing_ok=True)
    if content is not None:
        (run.path / name).write_bytes(content)
    for page in PAGES:
        open_page(page, run)
    assert "whole" in list(open_main().dataframe[0].value["name"])


def test_new_rows_appear_at_the_next_refresh_and_a_partial_line_is_ignored(make_run):
    run = make_run(state="running")
    at = open_page("live", run)
    writer = MetricsWriter(run.metrics_path)
    writer.append([train_row(121, loss=77.0)])
    writer.close()
    with open(run.metrics_path, "a") as file:
        file.write('{"split": "train", "step": 122, "lo')
    checked(at.run())
    assert "Step 121 of 200" in words(at)
    assert "Training loss 77" in words(at)
    assert "damaged" not in words(at)


def test_nan_is_shown_and_marked(make_run):
    at = open_page("live", make_run(state="failed", loss=math.nan))
    assert "Training loss NaN" in words(at)
    assert charts(at)[0].lines["train"].marks == {"NaN": (1, [120.0])}


def test_a_resume_point_is_drawn_in_every_chart(make_run):
    run = make_run()
    writer = MetricsWriter(run.metrics_path)
    writer.mark_resume_point(100)
    writer.append([train_row(step) for step in range(101, 130)])
    at = open_page("live", run)
    assert [board.seams for board in boards(at)] == [{"resumed at 100": 100.0}]
    assert ("Step 129 of" in words(at)) is (run.read_status().step < 129)


def test_damaged_lines_are_counted_on_the_page(make_run):
    run = make_run()
    with open(run.metrics_path, "a") as file:
        file.write("oops\n")
    assert "1 damaged line." in words(open_page("live", run))


def test_simulated_replicas_and_another_data_set_are_announced(make_run):
    run = make_run()
    environment = run.read_environment()
    environment["banner"] = "2 replicas simulated on logical CPU devices"
    environment["data"] = {
        "dataset": "shapes",
        "asked_for": "auto",
        "chosen_because": "CIFAR-10 can't be reached",
    }
    write_json_atomic(run.environment_path, environment)
    at = open_page("live", run)
    text = words(at)
    assert "2 replicas simulated" in text
    assert "The data set is the built-in **shapes**, not CIFAR-10. CIFAR-10 can't be reached" in text
    assert "Devices: CPU" in text


@pytest.mark.parametrize(
    ("axis", "kind", "ends"),
    [
        ("step", "step", [1, 120]),
        ("epoch", "epoch", [0.02, 2.4]),
        ("training", "seconds", [0, 119]),
        ("clock", "clock", [1_700_000_001, 1_700_000_120]),
    ],
)
def test_every_axis_can_be_chosen(make_run, axis, kind, ends):
    at = open_page("live", make_run())
    at.get("button_group")[0].set_value(axis)
    (board,) = boards(checked(at.run()))
    assert board.axis == kind
    assert board.extent == pytest.approx(ends)
    assert board.charts[0].lines["train"].x[[0, -1]].tolist() == pytest.approx(ends)


def test_the_last_steps_are_followed_if_wanted(make_run):
    run = make_run(state="running")
    at = open_page("live", run)
    at.selectbox(key="steps").set_value("Last 100")
    (board,) = boards(checked(at.run()))
    assert board.window == [20, 120]
    writer = MetricsWriter(run.metrics_path)
    writer.append([train_row(121)])
    writer.close()
    (board,) = boards(checked(at.run()))
    assert board.window == [21, 121]


def test_smoothing_and_logarithmic_scale_change_the_figure(make_run):
    at = open_page("live", make_run())
    at.slider(key="smoothing").set_value(0.0)
    at.toggle(key="log").set_value(True)
    checked(at.run())
    loss, accuracy = charts(at)[:2]
    assert list(loss.lines) == ["train", "validation"]
    assert loss.logarithmic
    assert not accuracy.logarithmic


def cards_of(at: AppTest) -> str:
    return "".join(element.proto.body for element in at.get("html"))


def test_predictions_start_with_mistakes_and_pages_dont_overlap(make_run):
    run = make_run()
    arrays = write_predictions(run)
    at = open_page("predictions", run)
    wrong = int((arrays["probabilities"].argmax(1) != arrays["labels"]).sum())
    assert f"Wrong {wrong}" in words(at)
    first = cards_of(at)
    shown = 24
    assert first.count('lk-card wrong"') == min(wrong, shown)
    at.session_state["page"] = 2
    second = cards_of(checked(at.run()))
    numbers = [
        {part.split(":")[0] for part in text.split('alt="Test image ')[1:]} for text in (first, second)
    ]
    assert len(numbers[0]) == len(numbers[1]) == shown
    assert not numbers[0] & numbers[1]


def test_predictions_that_are_replaced_while_the_page_is_open_are_read_again(make_run):
    run = make_run()
    at = open_page("predictions", run)
    assert f"labkit evaluate {run.path}" in words(at)
    write_predictions(run, examples=30)
    assert "Test images 30" in words(checked(at.run()))
    write_predictions(run, examples=31, seed=1)
    assert "Test images 31" in words(checked(at.run()))
    (run.predictions_path / "test.npz").write_bytes(b"PK\x03\x04 damaged")
    checked(at.run())
    assert "is damaged" in at.error[0].value
    assert f"labkit evaluate {run.path}" in words(at)


def test_a_filter_by_a_class_that_another_run_lacks_is_dropped(make_run):
    first, second = make_run("first"), make_run("second")
    write_predictions(first)
    arrays = write_predictions(second)
    summary = json.loads((second.predictions_path / "test.json").read_text())
    summary["classes"] = ["a", "b", "c"]
    write_json_atomic(second.predictions_path / "test.json", summary)
    at = open_page("predictions", first)
    at.selectbox(key="true").set_value(CLASSES[0])
    checked(at.run())
    at.session_state["run"] = str(second.path)
    checked(at.run())
    assert at.selectbox(key="true").value == "any"
    assert f"of {len(arrays['labels'])}," in words(at)


def test_comparison_draws_every_run_and_shows_differences(make_run):
    first, second = make_run("first"), make_run("second")
    changed = {**second.read_config(), "model": {"model": "resnet", "num_layers": 32}}
    write_json_atomic(second.config_path, changed)
    at = open_page("compare", "first")
    drawn = charts(at)
    assert [chart.title for chart in drawn] == ["Training loss", "Validation accuracy"]
    for chart in drawn:
        assert list(chart.lines) == ["first", "second"]
        assert len({line.color for line in chart.lines.values()}) == 2
    table = at.dataframe[0].value
    assert table["Configuration"].tolist() == ["first", "second"]
    assert table["num_layers"].tolist() == ["20", "32"]
    assert first.exists()


def test_the_leaves_of_a_configuration_have_their_whole_path():
    assert dict(flatten({"a": {"b": {"c": None}}, "d": {}})) == {"a.b.c": "null", "d": "{}"}


def test_ten_thousand_classes_are_not_ten_thousand_rows():
    names = [f"class{number}" for number in range(10_000)]
    rows = list(flatten({"classes": names, "counts": {name: {"train": 1} for name in names}}))
    assert len(rows) < 200 and sum(len(text) for _, text in rows) < 5000
    assert rows[0][1].endswith(" more characters") and rows[-1] == ("counts", "… and 9,970 more")


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("page", PAGES)
def test_a_deeply_nested_configuration_is_named_and_breaks_no_page(make_run, page, depth):
    make_run("second")
    run = make_run("first")
    run.config_path.write_text('{"a":' * depth + "1" + "}" * depth)
    text = words(open_page(page, "first"))
    # 900 levels may fit the stack and be shown; 100,000 never do.
    if page in ("compare", "configuration") and depth == 100_000:
        assert re.search(rf"{re.escape(str(run.config_path))} .*(nested too deeply|recursion)", text)


def test_the_test_accuracy_is_of_the_highest_step(make_run):
    run = make_run()
    writer = MetricsWriter(run.metrics_path)
    writer.append([evaluation_row(step, "test", accuracy=share) for step, share in ((100, 0.8), (50, 0.5))])
    writer.close()
    assert "Test accuracy (step 100) 80.00%" in words(open_page("live", run))


def test_configuration_shows_settings_environment_and_the_end_of_the_log(make_run):
    run = make_run()
    run.log_path.write_text("start\n" + "line\n" * 50_000 + "the end\n")
    at = open_page("configuration", run)
    text = words(at)
    assert "labkit train --preset smoke --job-dir 'a b'" in text
    assert "the end" in text
    assert "start" not in text
    tables = " ".join(table.proto.body for table in at.get("html"))
    for setting, value in (("num_layers", "20"), ("python", "3.11.2")):
        assert f'<th scope="row">{setting}</th><td>{value}</td>' in tables


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (-1, "–"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 00 h"),
        (1_000_000, "11 d 13 h"),
    ],
)
def test_time_spans_as_text(seconds, text):
    assert duration(seconds) == text


def test_a_server_without_an_address_shows_no_run(make_run):
    make_run()
    config.set_option("server.address", None)
    at = open_main()
    assert "--server.address" in at.error[0].value
    assert not at.get("bidi_component")
    assert not at.selectbox


def test_thousands_of_runs_are_listed_without_reading_them(runs_folder, monkeypatch):
    for number in range(2000):
        folder = runs_folder / f"run-{number:04}"
        folder.mkdir()
        (folder / "config.json").touch()
    read = []
    monkeypatch.setattr(Path, "read_text", lambda path, *_, **__: read.append(path) or "{}")
    assert len(state.run_labels()) == 2000
    assert read == []


def test_the_pages_start_without_tensorflow(make_run):
    make_run()
    code = (
        "import sys\nfrom app.views import compare, configuration, image, live, predictions, runs\n"
        "print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=NAVIGATION.parents[1],
        check=True,
    )
    assert done.stdout.strip() == "[]"


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


def test_no_name_in_a_record_is_read_as_markdown(make_run):
    image = "![x](http://127.0.0.1:1/x)"
    run = make_run()
    environment = json.loads(run.environment_path.read_text()) | {image: {"a": 1}}
    run.environment_path.write_text(json.dumps(environment))
    at = open_page("configuration", run)
    labels = [one.label for one in at.expander]
    assert any("127" in label for label in labels) and not any(image in label for label in labels)
    run.config_path.write_text("{")
    bad = run.path.rename(run.path.with_name(f"bad {image.replace('/', ':')}"))
    assert not any("![x](" in one.value for one in open_page("configuration", RunDirectory(bad)).error)
