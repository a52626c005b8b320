"""Pages of a run of somebody else, in which anything may be in the place of a file."""

import time

import pytest
from streamlit.testing.v1 import AppTest

from app.pages import PAGES
from labkit.run_directory import RunDirectory
from tests.app.conftest import write_predictions
from tests.run_directory.test_foreign_files import FILES, KINDS, SECONDS, replace

PAGES_OF_A_RUN = [name for name, *_ in PAGES if name not in ("start",)]
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
