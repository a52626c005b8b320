"""The table of runs: its rows and selection, what is done with runs, the sidebar's choice of one."""

import json
import math
import os
import subprocess
import sys
import time

import pandas
import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from app import state
from app.run_table.table import FLAG, NUMBER, TEXT, TIME, arranged, column, rows_of
from labkit.config.recorded import describe
from labkit.run_directory import RunLock, list_runs
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.notes import change_notes, read_notes
from labkit.run_directory.summary import Summaries
from labkit.run_directory.trash import list_trash
from tests.app.conftest import evaluation_row, train_row
from tests.app.test_pages import checked, open_main, open_page, words


def table(at: AppTest):
    return at.dataframe[0].value


def names(at: AppTest) -> list[str]:
    return list(table(at)["name"])


def select(at: AppTest, *chosen: str) -> AppTest:
    rows = [names(at).index(name) for name in chosen]
    at.session_state["runs-table"] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return checked(at.run())


def button(at: AppTest, label: str):
    return next(one for one in at.button if one.label == label)


def press(at: AppTest, label: str) -> AppTest:
    button(at, label).click()
    return checked(at.run())


def open_note(at: AppTest) -> str:
    at.session_state["runs-note"] = True
    return checked(at.run()).text_area[0].value


def save_note(at: AppTest, text: str) -> AppTest:
    at.text_area[0].set_value(text)
    next(one for one in at.button if one.label == "Save" and "runs-note" in one.form_id).click()
    return checked(at.run())


def said(at: AppTest) -> str:
    return "\n".join(
        element.value for kind in ("text", "caption", "error", "info", "toast") for element in at.get(kind)
    )


@pytest.fixture
def three(make_run):
    """Three runs; the last one made was active first."""
    runs = [make_run(name) for name in ("first", "second", "third")]
    for age, run in enumerate(reversed(runs)):
        os.utime(run.status_path, (time.time() - 60 * age,) * 2)
    return runs


def test_each_run_has_a_row_with_what_is_known(three):
    at = open_main()
    assert names(at) == ["third", "second", "first"]
    row = table(at).iloc[0]
    assert (row["state"], row["progress"], row["best_validation"]) == ("finished", 0.6, 90.0)
    assert len(row["loss_curve"]) == 40
    assert math.isclose(row["training_loss"], 2 / 120)
    assert pandas.isna(row["test"]), "there was no test"


def test_an_unknown_number_and_nan_are_two_things(make_run):
    make_run("nan", state="failed", loss=math.nan)
    bare = make_run("bare")
    bare.metrics_path.unlink()
    found = Summaries(describe).of(list_runs(bare.path.parent))
    shown = rows_of(found, ["training_loss"])
    unknown = dict(zip(shown["name"].to_pylist(), shown["training_loss"].is_null().to_pylist(), strict=True))
    assert unknown == {"nan": False, "bare": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sec", ["second"]),
        ("state=finished", ["third", "second", "first"]),
        ("test_accuracy>0.5 third", ["third"]),
    ],
)
def test_the_filter(three, text, expected):
    writer = MetricsWriter(three[2].metrics_path)
    writer.append([evaluation_row(120, "test")])
    writer.close()
    assert names(open_main(filter=text)) == expected


@pytest.mark.parametrize(
    ("text", "words"), [("sate=x", "did you mean 'state'"), ('"a', "quotation"), ("zzz", "fits")]
)
def test_a_filter_that_fits_nothing_says_so(three, text, words):
    at = open_main(filter=text)
    assert words in said(at)
    assert not at.dataframe


def test_columns_are_kept_in_the_address_and_may_be_settings(three):
    at = open_main(columns=["State", "seed"])
    assert list(table(at)) == ["name", "state", "seed"]
    at = open_main()
    at.multiselect(key="columns").set_value(["path", "learning_rate"])
    assert list(table(checked(at.run()))) == ["name", "path", "learning_rate"]


def test_a_refresh_keeps_the_selection_on_its_runs(three, make_run):
    at = select(open_main(), "first", "third")
    make_run("newest")
    assert "2 selected: third, first" in said(checked(at.run()))
    assert names(at)[-1] == "newest", "below the others while something is selected"
    three[1].path.rename(three[1].path.with_name(".gone"))
    assert "2 selected: third, first" in said(checked(at.run()))
    three[0].path.rename(three[0].path.with_name(".gone-too"))
    assert "1 selected: third" in said(checked(at.run()))


@pytest.mark.parametrize(
    ("before", "selected", "wanted", "order", "rows", "moved"),
    [
        ("", [], "abc", "abc", (), False),
        ("abc", [1], "bca", "abc", (1,), False),  # an older run became active
        ("abc", [], "dabc", "dabc", (), False),
        ("abc", [2], "dabc", "abcd", (2,), False),
        ("abcd", [1, 3], "acd", "acd", (2,), True),
        ("abcd", [3, 2], "cdab", "abcd", (2, 3), False),
        ("abcd", [0], "xyz", "xyz", (), True),
        ("abc", [9], "abc", "abc", (), True),
    ],
)
def test_rows_stay_where_they_are(before, selected, wanted, order, rows, moved):
    found = arranged(list(before), selected, list(wanted))
    assert ("".join(found.order), found.selected, found.moved) == (order, rows, moved)


def test_to_the_trash_and_back_and_for_good(three):
    at = press(select(open_main(), "second"), "Move to trash")
    assert names(at) == ["third", "first"]
    assert "Moved to the trash: 1 run." in said(at)
    assert sorted(names(press(at, "Undo"))) == ["first", "second", "third"]
    at = press(select(at, "second", "first"), "Move to trash")
    at.session_state[at.dataframe[1].key] = {"selection": {"rows": [0, 1], "columns": [], "cells": []}}
    at = press(checked(at.run()), "Delete for good")
    assert len(list_trash(three[0].path.parent)) == 2, "it asks"
    assert "can't be undone" in at.warning[0].value
    at = press(at, "Yes, delete 2 runs")
    assert list_trash(three[0].path.parent) == []
    assert names(at) == ["third"]


def test_a_run_that_is_trained_is_not_moved(three):
    lock = RunLock(three[0])
    assert lock.acquire()
    at = press(select(open_main(), "first", "second"), "Move to trash")
    assert "first is running; labkit stop first stops it" in at.error[0].value
    assert names(at) == ["third", "first"]
    lock.release()


def test_archived_runs_are_shown_on_request(three):
    at = press(select(open_main(), "second"), "Archive")
    assert names(at) == ["third", "first"]
    assert read_notes(three[1]).archived
    assert "1 archived, not shown" in said(at)
    at.toggle(key="archived").set_value(True)
    assert "second" in names(checked(at.run()))
    press(select(at, "second"), "Unarchive")
    assert not read_notes(three[1]).archived


def test_tags_and_notes(three):
    at = select(open_main(), "first", "second")
    at.text_input(key="runs-add-tag").set_value("<b>paper</b>")
    press(at, "Save")
    assert read_notes(three[0]).tags == read_notes(three[1]).tags == ("<b>paper</b>",)
    at = select(at, "third")
    open_note(at)
    save_note(at, "a\nb")
    assert read_notes(three[2]).note == "a\nb"
    change_notes(three[2], note="by another process")
    at.text_input(key="runs-add-tag").set_value("x" * 41)
    assert read_notes(three[2]).note == "by another process"


def test_a_note_that_another_session_wrote_is_shown_and_not_overwritten(three):
    one, other = (select(open_main(), "first") for _ in range(2))
    assert open_note(one) == open_note(other) == ""
    save_note(one, "from here")
    save_note(one, "from here too")
    save_note(other, "from *there*")
    assert "was changed meanwhile. Save again to replace what is there now: from here too" in words(other)
    assert read_notes(three[0]).note == "from here too"
    save_note(other, "both")
    assert not other.error
    assert read_notes(three[0]).note == "both"
    one.session_state["runs-note"] = False
    one.run()
    assert open_note(one) == "both"


def test_read_only_shows_nothing_that_acts(three, monkeypatch):
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    at = select(open_main(), "first", "second")
    assert {one.label for one in at.button} == {"Compare", "Open live"}


def test_selected_runs_are_compared_and_one_is_opened(three):
    at = press(select(open_main(), "first", "second"), "Compare")
    assert sorted(at.multiselect(key="runs").value) == ["first", "second"]
    at = press(select(open_main(), "first"), "Open live")
    assert "Step 120 of 200" in words(at)
    assert at.selectbox(key="run").value == "first"


def test_names_of_any_kind_are_shown_as_text(make_run):
    for name in ("<b>x<b>", "\u202egnirts", "`a` $b$ *c*", "x" * 200, "tab\tnew\nline"):
        make_run(name)
    at = select(open_main(), "<b>x<b>", "`a` $b$ *c*")
    assert len(names(at)) == 5
    assert "<b>x<b>" in said(at)


def test_a_name_that_is_not_unicode_breaks_no_page(make_run, runs_folder):
    run = make_run("plain")
    os.rename(run.path, os.fsencode(runs_folder) + b"/bad-\xff")
    assert names(open_main()) == ["bad-?"]


def test_folders_that_are_not_there_are_said_and_not_counted(three, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_RUNS", str(tmp_path / "absent"))
    at = open_main(folder=str(tmp_path / "typed"))
    assert [one.value for one in at.sidebar.warning] == [
        f"There is no folder `{tmp_path / 'typed'}`.",
        f"There is no folder `{tmp_path / 'absent'}`.",
    ]
    assert [one.value for one in at.sidebar.caption] == [f"3 runs in `{tmp_path / 'runs'}`"]


@pytest.mark.parametrize("typed", ["~nosuch", "/a\0b"])
def test_a_folder_that_cannot_be_is_said(three, typed):
    assert "There is no folder" in open_main(folder=typed).sidebar.warning[0].value


def test_a_part_of_a_name_that_one_run_has_chooses_it(three, make_run):
    assert [state.completed(text) for text in ("SECO", "", "nosuch", "third", str(three[0].path))] == [
        "second", "", "nosuch", "third", str(three[0].path)
    ]  # fmt: skip
    make_run("secondary")
    assert state.completed("seco") == "seco", "two have it"
    assert state.completed("second") == "second", "a whole name is no part of another"


def test_the_run_box_has_no_button_that_does_nothing(three):
    assert not open_main().selectbox(key="run").proto.HasField("default") or (
        open_main().selectbox(key="run").proto.default == 0
    )


def test_metrics_that_there_was_no_time_for_follow(three, monkeypatch):
    monkeypatch.setattr("app.views.runs.READ_SECONDS", 0.0)
    monkeypatch.setattr("labkit.run_directory.summary.BLOCK_BYTES", 1024)
    at = open_main()
    assert "the metrics of 3 are still being read" in said(at)
    monkeypatch.setattr("app.views.runs.READ_SECONDS", 60.0)
    assert "still being read" not in said(checked(at.run()))
    assert len(table(at).iloc[0]["loss_curve"]) == 40


def test_rows_of_a_training_move_the_table(three):
    at = open_main()
    writer = MetricsWriter(three[0].metrics_path)
    writer.append([train_row(121, loss=0.125)])
    writer.close()
    row = table(checked(at.run())).set_index("name").loc["first"]
    assert row["training_loss"] == 0.125
    status = json.loads(three[0].status_path.read_text())
    three[0].status_path.write_text(json.dumps({**status, "state": "running", "pid": 2**22 + 1}))
    assert table(checked(at.run())).set_index("name").loc["first"]["state"].startswith("lost: process")


def test_the_live_page_and_the_table_show_one_duration(make_run):
    """Both count all sessions of a resumed run, also the steps made twice, and leave out the pause."""
    run = make_run()
    run.metrics_path.unlink()
    writer = MetricsWriter(run.metrics_path)
    writer.append([train_row(step, wall_time=1000.0 + step, seconds_per_step=1.0) for step in range(1, 101)])
    writer.append([{"resumed_at_step": 50, "wall_time": 5000.0}])
    writer.append([train_row(step, wall_time=4950.0 + step) for step in range(51, 101)])
    writer.close()
    (summary,) = state.summaries([run], 60)
    assert summary.duration == 150
    shown = words(open_page("live", run))
    assert "Duration 2 min 30 s" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], TEXT),
        ([None], NUMBER),
        (["a", None, "", "€ 日本"], TEXT),
        ([1.5, None, -math.inf, 3], NUMBER),
        ([True, None, False] * 5, FLAG),
        ([0, None, 1_700_000_000_000_000], TIME),
        ([["x"], None, [], ["y", "", None]], pa.list_(TEXT)),
        ([None, []], pa.list_(NUMBER)),
        ([[1.0, None], [], [2.0]], pa.list_(NUMBER)),
    ],
)
def test_a_column_is_what_pyarrow_makes(values, kind):
    made = column(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


def test_nan_is_a_number():
    assert column([math.nan, None], NUMBER).is_null().to_pylist() == [False, True]


def test_the_table_of_runs_needs_no_pandas():
    """Pandas takes a quarter of a second to import, while somebody waits for the first page."""
    code = (
        "import sys, app.views.runs\n"
        "from app.run_table.table import DEFAULT, rows_of\n"
        "assert rows_of([], DEFAULT).num_rows == 0\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
