"""Runs outside of the home's folder are remembered, by any number of trainings at once."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import labkit
from labkit.commands import main as cli
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory import find as elsewhere
from labkit.run_directory.find import find_run, known_runs, remember, runs_elsewhere
from tests.commands.made_runs import make_run


@pytest.fixture(autouse=True)
def runs_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "runs"


def test_a_run_elsewhere_is_listed_with_its_path_and_found_by_its_name(runs_home, tmp_path, capsys):
    make_run(runs_home, "mine")
    other = make_run(tmp_path / "else where", "other")
    remember(other)
    remember(other)
    remember(RunDirectory(Path("/of-a-container")))  # in the root, and not there
    assert [run.path for run in runs_elsewhere()] == [other.path]
    assert cli.main(["runs"]) == 0
    assert capsys.readouterr().out.count(str(other.path)) == 1
    assert find_run("other") == other.path
    assert {run.name for run in labkit.runs()} == {"mine", "other"}
    (runs_home / "link").symlink_to(other.path)
    assert {run.name for run in known_runs()} == {"mine", "link"}, "the same run"
    (runs_home / "link").unlink()
    remember(make_run(tmp_path / "more", "other"))
    with pytest.raises(InputError, match="several runs are named 'other'"):
        find_run("other")
    shutil.rmtree(tmp_path / "more")
    shutil.rmtree(tmp_path / "else where")
    assert [run.name for run in known_runs()] == ["mine"]


def test_a_path_is_found_wherever_this_process_goes_then(tmp_path, monkeypatch):
    run = make_run(tmp_path, "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_run("mine") == find_run("~/mine") == run.path
    (tmp_path / "link").symlink_to(run.path)
    monkeypatch.chdir(run.checkpoints_path)
    assert find_run("..") == find_run("../../mine") == run.path and find_run("../../link").name == "link"


def test_runs_of_the_home_and_of_comparisons_are_not_remembered(runs_home, tmp_path):
    remember(make_run(runs_home, "mine"))
    remember(make_run(runs_home / "lesson-04", "replica"))
    for file in ("comparison.json", "replicas.json"):
        (tmp_path / file).mkdir()
        (tmp_path / file / file).write_text("{}")
        remember(make_run(tmp_path / file, "resnet8-seed0"))
        remember(make_run(tmp_path / file / "runs", "resnet8-seed1"))
    assert runs_elsewhere() == []


def test_trainings_that_begin_at_once_are_all_remembered(tmp_path):
    made = [make_run(tmp_path / "else", str(number)) for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(remember, made))
    assert {run.path for run in runs_elsewhere()} == {run.path for run in made}


def test_the_list_is_bounded_and_damage_in_it_is_passed_over(runs_home, tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere, "MOST_RUNS", 3)
    made = [make_run(tmp_path / "else", str(number)) for number in range(5)]
    for run in made:
        remember(run)
    assert runs_elsewhere() and [run.name for run in runs_elsewhere()] == ["2", "3", "4"]
    path = runs_home / ".elsewhere"
    path.write_bytes(b"\xff\xfe\x00\n/\0bad\n" + path.read_bytes() + b"/cut of")
    assert [run.name for run in runs_elsewhere()] == ["2", "3", "4"]


def test_a_home_that_cannot_be_written_fails_no_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    remember(make_run(tmp_path / "else", "other"))
    assert runs_elsewhere() == []
