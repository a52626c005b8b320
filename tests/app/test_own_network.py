"""The pages of a run whose network is the user's own code."""

import shutil
from pathlib import Path

import pytest

import labkit
from app.acting.draft import check, draft_of
from labkit.run_directory import RunDirectory
from tests.app.test_data import finished
from tests.app.test_pages import open_page, words
from tests.tiny import prepare_tiny

OWN = Path(__file__).parents[1] / "own_nets.py"

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("own-network")
    prepare_tiny(home / "data")
    for name in ("functional", "subclassed"):
        labkit.train(
            model=f"{OWN}:{name}", dataset="shapes", data_dir=home / "data", job_dir=home / "runs" / name,
            train_batch_size=16, train_steps=4, checkpoint_every_steps=2, inspect_every_steps=2, num_gpus=0,
        )  # fmt: skip
    return home


@pytest.mark.parametrize("page", ["live", "layers", "configuration", "predictions", "image", "data"])
@pytest.mark.parametrize("name", ["functional", "subclassed"])
def test_every_page_is_there(home, name, page, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(home))
    at = finished(open_page(page, RunDirectory(home / "runs" / name)))
    assert not at.error, words(at)


def test_code_of_somebody_else_is_named_and_not_run(home, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    foreign = shutil.copytree(home / "runs" / "functional", tmp_path / "foreign")
    code = foreign / "code" / "own_nets.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + code.read_text())
    at = finished(open_page("image", RunDirectory(foreign)))
    assert "labkit trust" in words(at) and not (tmp_path / "ran").exists()


def test_the_form_starts_code_only_where_the_server_allows_it(home, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(home))
    draft = draft_of(RunDirectory(home / "runs" / "functional"))
    assert "LABKIT_ALLOW_CODE=1" in check(draft).errors["model"]
    monkeypatch.setenv("LABKIT_ALLOW_CODE", "1")
    checked = check(draft_of(RunDirectory(home / "runs" / "functional")))
    assert not checked.errors and checked.command.count("own_nets.py:functional") == 1
