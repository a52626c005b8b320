"""The data set of a run is found again where it lies today, or refused by name."""

import shutil

import pytest

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.data.manifest import load_manifest
from labkit.data.of_run import NotPrepared, data_dir_of_run, data_of_run, folder_to_prepare, recorded_manifest
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.training.place import place_run
from tests.tiny import prepare_tiny


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Sets labkit's home to a folder of the given name."""

    def choose(name):
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path / name))
        return tmp_path / name

    return choose


def make_run(path, manifest, data_dir=None, checkpoint=False):
    """Write what a training records of its data."""
    run = RunDirectory(path)
    run.create()
    given = Config.from_flat({"dataset": "shapes", "data_dir": data_dir, "job_dir": str(path)})
    write_json_atomic(run.config_path, given.to_json())
    if checkpoint:
        (run.checkpoints_path / "step-00000001").mkdir()
        state = {"data_checksum": manifest.checksum}
        write_json_atomic(run.checkpoints_path / "step-00000001" / "state.json", state)
    else:
        data = {"directory": str(manifest.directory), "checksum": manifest.checksum}
        write_json_atomic(run.environment_path, {"data": data})
    return run


def found(run, data_dir=None):
    return data_of_run(run, recorded_config(run), data_dir)


def test_a_folder_that_nobody_chose_is_not_recorded(at):
    home = at("home")
    manifest = prepare_tiny(home / "data")
    config, _, _ = place_run(Config.from_flat({"dataset": "shapes"}), manifest)
    assert config.data.data_dir is None
    config, _, _ = place_run(
        Config.from_flat({"dataset": "shapes", "data_dir": str(home / "data")}), manifest
    )
    assert config.data.data_dir == str(home / "data")


# A run of an earlier labkit recorded labkit's own folder as if it had been chosen.
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_after_the_home_was_moved_the_same_data_are_taken_and_said(at, recorded, checkpoint):
    home = at("home")
    manifest = prepare_tiny(home / "data")
    run = make_run(home / "runs" / "a", manifest, str(home / "data") if recorded else None, checkpoint)
    assert found(run) == (manifest, "")
    moved = at("moved")
    home.rename(moved)
    run = RunDirectory(moved / "runs" / "a")
    now, note = found(run)
    assert now == load_manifest(moved / "data", "shapes")
    if recorded or not checkpoint:  # else nothing tells where the data lay
        assert f"shapes in {moved / 'data' / 'shapes'}" in note and str(home) in note and "same data" in note
    assert data_dir_of_run(run, recorded_config(run))[0] is None


def test_a_chosen_folder_that_is_there_is_taken_before_the_home(at, tmp_path):
    chosen = prepare_tiny(tmp_path / "chosen")
    shutil.copytree(tmp_path / "chosen", at("home") / "data")
    run = make_run(tmp_path / "a", chosen, str(tmp_path / "chosen"))
    assert found(run) == (chosen, "")
    assert data_dir_of_run(run, recorded_config(run)) == (str(tmp_path / "chosen"), "")


def test_data_that_stayed_where_they_were_are_found_from_another_home(at, tmp_path):
    manifest = prepare_tiny(at("home") / "data")
    run = make_run(tmp_path / "a", manifest)
    at("other")
    assert found(run) == (manifest, "")


def test_other_data_of_that_name_are_refused_with_both_checksums(at, tmp_path):
    manifest = prepare_tiny(tmp_path / "before")
    run = make_run(tmp_path / "a", manifest, str(tmp_path / "before"))
    shutil.rmtree(tmp_path / "before")
    other = prepare_tiny(at("home") / "data", seed=1)
    with pytest.raises(InputError, match=f"{manifest.checksum[:12]} there, {other.checksum[:12]} here"):
        found(run)
    with pytest.raises(InputError, match="trained on other data"):
        found(run, str(tmp_path / "home" / "data"))


def test_the_advice_is_never_to_prepare_data_in_a_folder_that_is_gone(at, tmp_path):
    manifest = prepare_tiny(tmp_path / "old" / "data")
    run = make_run(tmp_path / "a", manifest, str(tmp_path / "old" / "data"))
    shutil.rmtree(tmp_path / "old")
    home = at("home")
    with pytest.raises(NotPrepared) as raised:
        found(run)
    prepare, _, rest = str(raised.value).partition("--data-dir")[2].partition(";")
    assert prepare.strip() == str(home / "data")
    assert str(tmp_path / "old" / "data") in rest and "name its folder with --data-dir" in rest
    assert folder_to_prepare(run, recorded_config(run)) == home / "data"
    # What a training generates is no reason to refuse.
    assert data_dir_of_run(run, recorded_config(run)) == (None, "")


@pytest.mark.parametrize("environment", ["[1", '{"data": 5}', '{"data": {"checksum": 7}}', None])
def test_a_damaged_environment_leaves_the_data_findable(at, environment):
    home = at("home")
    manifest = prepare_tiny(home / "data")
    run = make_run(home / "runs" / "a", manifest)
    if environment is None:
        run.environment_path.unlink()
    else:
        run.environment_path.write_text(environment)
    assert found(run)[0] == manifest
    assert recorded_manifest(run) is None
