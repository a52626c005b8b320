"""Which run directories are taken and which are refused; nothing here writes."""

import json
from types import SimpleNamespace

import pytest

from labkit.config import Config
from labkit.distributed.cpu import has_no_gpu
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, RunLock, Status
from labkit.run_directory.disk import discard
from labkit.training import place, plan
from labkit.training.place import place_run
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


def test_more_steps_for_a_run_name_the_command_that_makes_them(run, manifest):
    with pytest.raises(InputError, match=r"to go on .*: labkit fork .*run --at 4 --set train_steps=200$"):
        place_run(config(run.path, train_steps=200), manifest)
    for others in ({"train_steps": 3}, {"train_steps": 200, "seed": 5}):  # which a fork can't be
        with pytest.raises(InputError, match="discard that run with --overwrite$"):
            place_run(config(run.path, **others), manifest)


@pytest.mark.parametrize("asked", [3, 1])
def test_missing_gpus_are_refused_before_tensorflow_is_imported(asked, monkeypatch):
    monkeypatch.setattr(plan, "import_tensorflow", lambda: pytest.fail("TensorFlow was imported"))
    monkeypatch.setattr(plan, "has_no_gpu", lambda: True)
    said = f"--num-gpus is {asked}, but TensorFlow finds 0 here .* allowed: 0, or any number with"
    with pytest.raises(InputError, match=said):
        plan.decide_devices(Config.from_flat({"num_gpus": asked}))


@pytest.mark.parametrize(
    ("file", "sure"),
    [("nvme0", True), ("nvram", True), ("nvidia0", False), ("nvhost-gpu", False), ("kfd", False)],
)
def test_only_a_machine_without_device_files_of_gpus_surely_has_none(file, sure, tmp_path, monkeypatch):
    (tmp_path / file).touch()
    assert has_no_gpu(tmp_path) is sure
    monkeypatch.setattr("sys.platform", "darwin")
    assert not has_no_gpu(tmp_path)


def test_another_configuration_is_refused_with_the_difference(run, manifest):
    with pytest.raises(InputError, match="--seed is 0 there, 5 here.*--overwrite"):
        place_run(config(run.path, seed=5), manifest)
    assert found(config(run.path, seed=5), manifest, overwrite=True) == "new"
    changed = {"num_intra_threads": 1, "log_every_steps": 1, "keep_checkpoints": 9, "eval_batch_size": 7}
    assert found(config(run.path, **changed), manifest) == "resumable", "these may change"


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


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        *(("config.json", text, "config.json is damaged") for text in ("{}", '{"auths": {}}')),
        *(("config.json", text, "config.json can't be read") for text in ("[]", "{")),
        ("config.json", '{"data": {"train_batch": 1}}', "config.json"),
        ("config.json", '{"run": {"seed": -1}}', "config.json"),
        ("letter", "mine", "neither empty nor a run"),
        (None, None, "File name too long"),
    ],
)
def test_what_is_no_run_is_left_alone_in_one_line(tmp_path, name, content, said, overwrite, manifest):
    """A config.json of another program and a damaged one of a run's look alike."""
    (tmp_path / "thesis.tex").write_text("mine")
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said) as refusal:
        place_run(config(tmp_path if name else tmp_path / ("x" * 300)), manifest, overwrite=overwrite)
    assert "\n" not in str(refusal.value)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


# ---- the whole plan --------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch) -> list[str]:
    """The slow steps of a plan, in the order in which they are taken; none of them is real."""
    taken: list[str] = []
    devices = SimpleNamespace(banner="")
    for module in (plan, place):
        monkeypatch.setattr(module, "import_tensorflow", lambda: taken.append("tensorflow"))
    monkeypatch.setattr(
        plan, "decide_devices", lambda *_: taken.append("devices") or (devices, "channels_last")
    )
    return taken


def test_devices_and_place_are_looked_at_before_a_data_set_is_made(steps, tmp_path, manifest, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setattr(
        place, "resolve", lambda *_, **__: steps.append("data") or (manifest, "data set: shapes")
    )
    planned = plan.plan_training(Config.from_flat({"train_batch_size": 20}))
    assert steps == ["devices", "tensorflow", "data"], "and the devices are decided once"
    assert (planned.config.data.dataset, planned.asked_for, planned.run_state) == ("shapes", "auto", "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    steps.clear()
    with pytest.raises(InputError, match="neither empty nor a run"):
        plan.plan_training(config(tmp_path / "full", train_batch_size=20))
    assert steps == []


def test_a_finished_run_is_found_without_tensorflow(steps, run, manifest):
    run.write_status(Status("finished", step=10, total_steps=10))
    wanted = config(run.path, data_dir=str(manifest.directory.parent), train_batch_size=128)
    assert plan.plan_training(wanted).run_state == "finished"
    assert steps == []


def test_a_task_never_prepares_data(steps, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    task = ClusterTask({"worker": ("127.0.0.1:1", "127.0.0.1:2")}, "worker", 0)
    with pytest.raises(InputError, match="in a cluster prepare it first: labkit data prepare"):
        plan.plan_run(Config.from_flat({"sync": True}), task=task)
    assert steps == []


@pytest.mark.parametrize("by", ["flags", "TF_CONFIG"])
def test_whoever_trains_alone_refuses_to_be_a_task(by, steps, monkeypatch):
    values = {"sync": True}
    if by == "flags":
        values |= {"worker_hosts": "127.0.0.1:1,127.0.0.1:2", "job_name": "worker", "task_index": 0}
    else:
        cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
        task = {"type": "worker", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(InputError, match="this process is worker:0 of a cluster, but trains alone here"):
        plan.plan_run(Config.from_flat(values))
    assert steps == []


def test_a_finished_run_that_is_gone_by_now_is_planned_with_devices(steps, run, manifest):
    run.write_status(Status("finished", step=10, total_steps=10))
    planned = plan.plan_training(config(run.path, data_dir=str(manifest.directory.parent)))
    assert planned.run_state == "finished" and not isinstance(planned, plan.TrainingPlan)
    run.write_status(Status("interrupted", step=4, total_steps=10))
    again = plan.refreshed(planned)
    assert again.run_state == "resumable" and isinstance(again, plan.TrainingPlan)
    assert steps == ["devices"]


@pytest.mark.parametrize("checkpoint", ["foo", "5", "-1", "\u0664", "best "])
def test_a_checkpoint_that_is_not_kept_is_refused_before_tensorflow_is_loaded(
    run, manifest, monkeypatch, checkpoint
):
    monkeypatch.setattr(plan, "import_tensorflow", lambda: pytest.fail("TensorFlow is loaded"))
    (run.checkpoints_path / "step-00000004").mkdir()
    with pytest.raises(InputError, match="allowed: best, last, or one of the steps 4"):
        plan.plan_evaluation(run, "test", data_dir=str(manifest.directory.parent), checkpoint=checkpoint)


def test_a_notebooks_cluster_means_the_data_set_of_the_run_too(steps, tmp_path, manifest):
    recorded = config(tmp_path / "run", dataset="pets", data_dir=str(manifest.directory.parent))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(recorded.to_json()))
    wanted = recorded.replace({"dataset": "auto"})
    with pytest.raises(InputError, match="pets"):
        plan.plan_data(wanted)
    assert plan.plan_data(wanted, overwrite=True)[1].dataset == "shapes"
