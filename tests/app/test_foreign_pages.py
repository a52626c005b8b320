"""Pages of a run of somebody else, in which anything may be in the place of a file."""

import os
import time
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from app import address, state
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.trash import move_to_trash, restore
from tests.app.conftest import write_predictions
from tests.app.test_layers import layer_row
from tests.app.test_pages import PAGES, checked, open_main, words
from tests.run_directory.test_foreign_files import FILES, KINDS, SECONDS, replace

PAGES_OF_A_RUN = [name for name, *_ in address.PAGES if name not in ("start",)]
OWN = ("config.json",)  # without it there is no run


def answers(page: str, run: RunDirectory) -> None:
    """Draw a page of a run; check that it does so in time, without an exception."""
    at = AppTest.from_string(f"from app.views import {page}\n{page}.page()", default_timeout=60)
    at.session_state["run"] = str(run.path)
    began = time.monotonic()
    at.run()
    assert not at.exception, at.exception[0].message
    assert time.monotonic() - began < SECONDS, page


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import what the pages import once: that takes longer than they do."""
    from importlib import import_module

    for page in PAGES_OF_A_RUN:
        import_module(f"app.views.{page}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page", PAGES_OF_A_RUN)
def test_every_page_answers_whatever_all_files_of_a_run_are(page, kind, make_run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    run = make_run("bad")
    write_predictions(run)
    for name in FILES:
        if (
            name not in OWN
            and (run.path / name).parent.is_dir()
            and not (run.path / name).parent.is_symlink()
        ):
            replace(run.path / name, kind)
    answers(page, run)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_the_pages_that_are_open_all_day_answer_whatever_a_file_is(name, kind, make_run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    run = make_run("bad")
    write_predictions(run)
    replace(run.path / name, kind)
    for page in ("runs", *(("live",) if run.exists() else ())):
        answers(page, run)


@pytest.mark.parametrize("page", PAGES)
def test_a_name_of_any_characters_breaks_no_page(make_run, page):
    for name in ("a__b", "bad-\udcff", "~nosuch", "x" * 200, "a%20&c=d#e?"):
        run = make_run(name)
        write_predictions(run)
        MetricsWriter(run.layers_path).append([layer_row(50)])
        text = words(open_main(page, run=state.clean(name)))
        assert ("Rename the folder" in text) is (name == "bad-\udcff" and page != "compare")


@pytest.mark.parametrize("page", ["live", "image", "configuration"])
def test_a_run_that_goes_away_while_its_page_is_open_is_named_with_the_way_back(make_run, page, monkeypatch):
    run = make_run()
    at = open_main(page, run="first")
    trashed = move_to_trash(run, [run.path.parent])
    text = words(checked(at.run()))
    assert "moved to the trash. *Restore*, below the table of the page *Runs*, brings it back" in text
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    assert f"`labkit restore {run.path}` brings it back" in words(checked(at.run()))
    restore(trashed)
    assert "brings it back" not in words(checked(at.run()))
    run.path.rename(run.path.with_name("second"))
    assert "any more: it was deleted, moved or renamed" in words(checked(at.run()))


def test_every_page_is_drawn_again_when_its_run_is_started_over_or_goes_away(make_run, tmp_path, monkeypatch):
    looks: dict[str, Callable[[], object]] = {}
    monkeypatch.setattr(state, "watch", lambda name, look, *times, **seen: looks.update({name: look}))
    elsewhere = make_run().path.rename(tmp_path / "elsewhere")  # in no listed folder
    open_main("configuration", run=str(elsewhere))
    seen = [looks["runs"]()]
    os.utime(elsewhere / "config.json", (1, 1))
    seen.append(looks["runs"]())
    elsewhere.rename(tmp_path / "moved")
    seen.append(looks["runs"]())
    assert len(set(seen)) == 3
