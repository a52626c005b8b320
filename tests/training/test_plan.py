"""Which run directories are taken and which are refused; nothing here writes."""

import json

import pytest

from labkit.config import Config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, RunLock, Status
from labkit.run_directory.disk import discard
from labkit.training.plan import place_run
from tests.tiny import prepare_tiny


def config(job_dir, **fields) -> Config:
    return Config.from_flat({"job_dir": str(job_dir), "train_steps": 10, "dataset": "shapes"} | fields)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """A prepared data set, as small as can be."""
    return prepare_tiny(tmp_path_factory.mktemp("data"))


def found(config: Config, manifest, **options) -> str:
    return place_run(config, manifest, **options)[2]


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """A run that was interrupted at step 4."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    run.config_path.write_text(json.dumps(config(run.path, input_path="memory").to_json()))
    run.write_status(Status("interrupted", step=4, total_steps=10))
    return run


def test_the_same_configuration_finds_its_run_without_a_name(manifest):
    first, same, other = (
        place_run(Config.from_flat(fields | {"train_steps": 10}), manifest)[1].path
        for fields in ({}, {"log_every_steps": 3}, {"seed": 1})
    )
    assert first == same != other


def test_a_run_is_resumable_until_it_is_finished(run, manifest):
    assert found(config(run.path), manifest) == "resumable"
    run.write_status(Status("finished", step=10, total_steps=10))
    assert found(config(run.path), manifest) == "finished"
    assert found(config(run.path), manifest, overwrite=True) == "new"


def test_another_configuration_is_refused_with_the_difference(run, manifest):
    with pytest.raises(InputError, match="--seed is 0 there, 5 here.*--overwrite"):
        place_run(config(run.path, seed=5), manifest)
    assert found(config(run.path, seed=5), manifest, overwrite=True) == "new"


def test_devices_threads_and_logging_may_change(run, manifest):
    changed = {"num_intra_threads": 1, "log_every_steps": 1, "keep_checkpoints": 9, "eval_batch_size": 7}
    assert found(config(run.path, **changed), manifest) == "resumable"


def test_what_a_run_killed_in_its_first_moments_left_is_no_obstacle(tmp_path, manifest):
    run = RunDirectory(tmp_path / "run")
    run.create()
    RunLock(run).acquire()
    (run.path / ".config.json.12.34.tmp").write_text("{")
    run.log_path.write_text("")
    assert found(config(run.path), manifest) == "new"


def test_overwriting_leaves_what_is_not_the_runs(run):
    """A folder whose config.json is not a run's is somebody's work, and so is a note beside a run."""
    (run.path / "notes.md").write_text("mine")
    (run.path / "figures").mkdir()
    run.metrics_path.write_text("")
    discard(run)
    assert {path.name for path in run.path.iterdir()} == {"notes.md", "figures", "events", "checkpoints"}


@pytest.mark.parametrize("content", ["{}", '{"auths": {}}', '{"data": {}, "model": {}}'])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_config_of_something_else_is_no_run(tmp_path, content, overwrite, manifest):
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="config.json is damaged"):
        place_run(config(tmp_path), manifest, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_name_that_is_too_long_is_one_line(tmp_path, manifest):
    with pytest.raises(InputError, match="File name too long"):
        place_run(config(tmp_path / ("x" * 300)), manifest)


def test_a_directory_with_other_things_is_left_alone(tmp_path, manifest):
    (tmp_path / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="neither empty nor a run"):
            place_run(config(tmp_path), manifest, overwrite=overwrite)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"data": {"train_batch": 1}}', '{"data": 3}', '{"run": {"seed": -1}}']
)
def test_a_damaged_configuration_is_one_line(run, content, manifest):
    run.config_path.write_text(content)
    with pytest.raises(InputError) as refusal:
        place_run(config(run.path), manifest)
    assert "\n" not in str(refusal.value)
    assert str(run.config_path) in str(refusal.value)
