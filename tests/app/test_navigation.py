"""The sidebar and the addresses, which choose a run; the page Configuration; what pages import."""

import math
import os
import subprocess
import sys
from pathlib import Path

import streamlit as st
from streamlit import config
from streamlit.testing.v1 import AppTest

from app import state
from app.markup import duration
from app.views.configuration import flatten
from labkit.run_directory import RunDirectory
from tests.app.pages import NAVIGATION, PAGES, checked, html_of, open_main, open_page, rows_of, words


def test_every_page_has_an_address_and_the_runs_are_also_the_root(runs_folder, monkeypatch):
    pages, navigation = [], st.navigation
    monkeypatch.setattr(st, "navigation", lambda made: pages.extend(made) or navigation(made))
    open_main()
    names = ["start", *PAGES[:-1], "search", PAGES[-1]]
    addresses = ["map" if name == "image_map" else name for name in names]
    assert {page.url_path for page in pages} == {"", "runs", *addresses}
    shown = [page.title for page in pages if page.visibility == "visible"]
    assert shown == [name.capitalize() for name in ("runs", *addresses)]  # once each


def test_the_most_recently_active_run_is_selected_and_stays_selected(make_run):
    for place, name in enumerate(["older", "newest"]):
        os.utime(make_run(name).status_path, (place, place))
    at = open_main()
    box = at.selectbox(key="run")
    assert box.value == "newest" and list(box.options) == ["newest", "older"]
    assert not box.proto.HasField("default") or box.proto.default == 0, "it has no button that does nothing"
    os.utime(RunDirectory(state.runs_home() / "older").status_path, (9, 9))
    assert checked(at.run()).selectbox(key="run").value == "newest", "another run's progress changes nothing"


def test_the_address_selects_a_run_by_name_or_path_and_a_missing_one_is_named(make_run, tmp_path):
    make_run("first")
    other = make_run("second").path.rename(tmp_path / "elsewhere")
    assert "first" in words(open_main("live", run="first"))
    at = open_main("live", run=str(other))
    assert "elsewhere" in words(at)
    assert at.selectbox(key="run").value == str(other)
    for name in ("nosuch", "/nosuch/run", "../..", "\0", "x" * 5000, "~nosuch/run"):
        assert "There is no run in" in words(open_main("live", run=name)), name


def test_a_part_of_a_name_that_one_run_has_chooses_it(make_run):
    first, *_ = (make_run(name) for name in ("first", "second", "third"))
    for text, run in {"SECO": "second", "": "", "nosuch": "nosuch", "third": "third"}.items():
        assert state.completed(text) == run
    assert state.completed(str(first.path)) == str(first.path)
    make_run("secondary")
    assert state.completed("seco") == "seco", "two have it"
    assert state.completed("second") == "second", "a whole name is no part of another"


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


def test_folders_that_are_not_there_are_said_and_not_counted(make_run, tmp_path, monkeypatch):
    make_run()
    monkeypatch.setenv("LABKIT_RUNS", str(tmp_path / "absent"))
    at = open_main(folder=str(tmp_path / "typed"))
    said = [f"There is no folder `{tmp_path / name}`." for name in ("typed", "absent")]
    assert [one.value for one in at.sidebar.warning] == said
    assert [one.value for one in at.sidebar.caption] == [f"1 run in `{tmp_path / 'runs'}`"]
    for typed in ("~nosuch", "/a\0b"):
        assert "There is no folder" in open_main(folder=typed).sidebar.warning[0].value


def test_folders_and_files_that_are_no_runs_are_not_listed_and_a_bad_name_breaks_nothing(
    make_run, runs_folder
):
    (runs_folder / "junk").mkdir()
    (runs_folder / "file").write_text("x")
    os.rename(make_run("plain").path, os.fsencode(runs_folder) + b"/bad-\xff")
    assert [row["name"] for row in rows_of(open_main())] == ["bad-?"]


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
    assert len(state.listed_runs()) == 2000
    assert read == []


def test_no_page_imports_tensorflow_and_the_first_one_not_even_pandas(make_run):
    """Pandas takes a quarter of a second to import, while somebody waits for the first page.

    What shows the images of a batch takes 0.15 s, and a run that is opened by its address shows none.
    """
    make_run()
    code = (
        "import sys\n"
        "import app.views.live\n"
        "assert 'app.images.batch' not in sys.modules\n"
        "from streamlit import config\n"
        "from streamlit.testing.v1 import AppTest\n"
        "config.set_option('server.address', '127.0.0.1')\n"
        f"at = AppTest.from_file({str(NAVIGATION)!r}, default_timeout=60).run()\n"
        "assert any('labkit_table' in part.proto.component_name for part in at.get('bidi_component'))\n"
        "assert 'pandas' not in sys.modules\n"
        f"from app.views import {', '.join(PAGES)}\n"
        "sys.exit(bool({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], timeout=120, cwd=NAVIGATION.parents[1]).returncode == 0
    )


# ---- the page Configuration ----------------------------------------------------------------------------


def test_configuration_shows_settings_and_environment(make_run):
    at = open_page("configuration", make_run())
    for setting, value in (("num_layers", "20"), ("python", "3.11.2")):
        assert f'<th scope="row"><bdi>{setting}</bdi></th><td><bdi>{value}</bdi></td>' in html_of(at)


def test_settings_have_their_whole_path_and_ten_thousand_classes_are_not_ten_thousand_rows():
    assert dict(flatten({"a": {"b": {"c": None}}, "d": {}})) == {"a.b.c": "null", "d": "{}"}
    names = [f"class{number}" for number in range(10_000)]
    rows = list(flatten({"classes": names, "counts": {name: {"train": 1} for name in names}}))
    assert len(rows) < 200 and sum(len(text) for _, text in rows) < 5000
    assert rows[0][1].endswith(" more characters") and rows[-1] == ("counts", "… and 9,970 more")


SPANS = {None: "–", math.nan: "–", -1: "–", 59.4: "59 s", 59.6: "1 min 00 s", 3599: "59 min 59 s"}
SPANS |= {86399: "23 h 59 min", 1_000_000: "11 d 13 h"}


def test_time_spans_as_text():
    assert {seconds: duration(seconds) for seconds in SPANS} == SPANS


def test_a_link_wins_over_what_the_browser_still_has_in_the_sidebar(make_run, monkeypatch):
    """A timer may send the widgets between a click on a name and the answer of the server."""
    make_run("old"), make_run("new")
    script = "import streamlit as st\nfrom app import state\nstate.choose_run()\n"
    script += "st.button('go', on_click=state.select_run, args=('new',))"
    at = AppTest.from_string(script, default_timeout=60)
    at.session_state["run"] = "old"
    at.run()
    at.button[0].click().run()
    at.selectbox(key="run").set_value("old").run()  # late
    assert at.session_state["run"] == "new"
    monkeypatch.setattr(state, "SETTLES", 0.0)
    at.selectbox(key="run").set_value("old").run()  # by the reader
    assert at.session_state["run"] == "old"
