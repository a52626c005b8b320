"""A step that is made again is the recorded step, and nothing in the run changes."""

import csv
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import labkit
from labkit.errors import InputError
from labkit.experiments.replay import recorded
from labkit.experiments.replay.step import _on_devices
from labkit.experiments.verify import verify_steps
from labkit.run_directory import RunDirectory
from tests.experiments.conftest import arguments as training
from tests.properties.harness import labkit as command


@pytest.fixture
def run(trained) -> Path:
    return trained


def _content(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "start", "steps_before"),
    [(2, "the initial weights", 1), (8, "checkpoints/step-00000006", 1)],
)
def test_a_replayed_step_has_the_loss_of_its_row_and_its_gradient(
    run, monkeypatch, step, start, steps_before
):
    states = {}

    def diagnose_step(network, *arguments, **named):
        names = variable_names(network.model, network.optimizer)
        states.update(names=names, before=named["before"], after=named["after"])
        return diagnosis_of_step(network, *arguments, **named)

    from labkit.inspection import diagnosis
    from labkit.optim.network import variable_names

    diagnosis_of_step = diagnosis.diagnose_step
    monkeypatch.setattr(diagnosis, "diagnose_step", diagnose_step)
    before = _content(run)
    made = labkit.load_run(run).replay(step)
    assert (made.step, made.start, made.steps_before) == (step, start, steps_before)
    assert made.loss_is_equal
    assert made.metrics["loss"] == labkit.load_run(run).metrics()["loss"][step - 1]
    assert {name: made.row[name] for name in made.metrics} == made.metrics
    np.testing.assert_allclose(made.losses.mean(), made.metrics["loss"], rtol=1e-5)
    np.testing.assert_allclose(made.probabilities.sum(axis=1), 1.0, rtol=1e-5)
    accuracy = (made.probabilities.argmax(axis=1) == made.labels).mean()
    np.testing.assert_allclose(accuracy, made.metrics["accuracy"], rtol=1e-6)
    assert made.first_non_finite is None
    assert not made.notes
    batch = labkit.load_run(run).batch(step)
    for name in ("images", "standardized", "labels", "index"):
        np.testing.assert_array_equal(getattr(made, name), getattr(batch, name))
    assert _content(run) == before
    norms = _gradient_norms_by_the_velocities(run, states)
    assert list(made.gradient_norms) == list(norms)
    for layer, norm in norms.items():
        np.testing.assert_allclose(made.gradient_norms[layer], norm, rtol=1e-3)


def _gradient_norms_by_the_velocities(run: Path, states: dict) -> dict[str, float]:
    """Return the norms of g in v = m v + g + d w, from velocities and weights before and after the step."""
    optimizer, norms = labkit.load_run(run).config.optimizer, {}
    before, after = (dict(zip(states["names"], states[when], strict=True)) for when in ("before", "after"))
    for layer, name in before:
        if not name.startswith("velocity of "):
            continue
        decayed = optimizer.weight_decay * before[layer, name.removeprefix("velocity of ")]
        gradient = after[layer, name] - optimizer.momentum * before[layer, name]
        without_decay = np.square(gradient - (decayed if name.endswith("kernel") else 0.0)).sum()
        norms[layer] = norms.get(layer, 0.0) + float(without_decay)
    return {layer: float(np.sqrt(square)) for layer, square in norms.items()}


@pytest.mark.long
@pytest.mark.slow
def test_the_command_writes_pictures_tables_and_arrays(run, tmp_path, capsys):
    assert command("replay", str(run), "--step", "7", "--output", str(tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert "starting from checkpoints/step-00000006, directly before step 7" in printed
    assert "the very loss of its row" in printed
    assert "every tensor of the step is finite" in printed
    with np.load(tmp_path / "out" / "arrays.npz") as arrays:
        images, index, losses = arrays["images"], arrays["index"], arrays["losses"]
    with open(tmp_path / "out" / "examples.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == index.tolist()
    np.testing.assert_allclose([float(row["loss"]) for row in rows], losses)
    for row, image in zip(rows, images, strict=True):
        np.testing.assert_array_equal(Image.open(tmp_path / "out" / row["file"]), image)
        assert row["label"] in row["file"]
        assert f"index-{row['index']}-" in row["file"]
    sheet = Image.open(tmp_path / "out" / "contact-sheet.png")
    assert sheet.size == (12 * 68 + 4, 72)
    np.testing.assert_array_equal(np.asarray(sheet)[4:68:2, 72:136:2], images[1])
    summary = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert summary["loss_is_equal"]
    assert summary["metrics"]["loss"] == summary["row"]["loss"]


@pytest.mark.long
@pytest.mark.slow
def test_two_simulated_replicas_give_the_very_loss_again(tmp_path, data_dir):
    """In a process of its own, because TensorFlow splits the CPU only once."""
    replicas = ["--num-gpus", "2", "--simulate-missing-gpus", "--train-steps", "2"]
    arguments = training(tmp_path / "run", data_dir, *replicas)
    replay = ["replay", str(tmp_path / "run"), "--step", "2", "--output", str(tmp_path / "out")]
    program = f"from labkit.commands.main import main; assert main({arguments!r}) == 0; main({replay!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "the very loss of its row" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    summary = json.loads((tmp_path / "out" / "replay.json").read_text())
    with np.load(tmp_path / "out" / "arrays.npz") as arrays:
        # Each replica's half normalized by its own statistics: the mean is that of the step to rounding.
        np.testing.assert_allclose(arrays["losses"].mean(), summary["metrics"]["loss"], rtol=1e-5)


# ---- the batch alone -----------------------------------------------------------------------------------


def test_the_batch_alone_needs_no_checkpoint_and_no_tensorflow_and_replaces_an_earlier_one(run, tmp_path):
    words = ["replay", str(run), "--batch-only", "--output", str(tmp_path / "out"), "--step"]
    assert command(*words, "6") == 0
    program = (
        f"import sys; from labkit.commands.main import main; code = main({[*words, '5']!r}); "
        "print(code, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
    assert len(list((tmp_path / "out" / "images").glob("*.png"))) == 12
    assert json.loads((tmp_path / "out" / "replay.json").read_text())["step"] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ---- bad input -----------------------------------------------------------------------------------------


def _error(capsys, *arguments: str) -> str:
    assert command("replay", *arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--step", "9"], "--step is 9; allowed: 1 to 8, the last step of"),
        (["--step", "0"], "--step is 0; allowed: a whole number from 1"),
        (["--step", "soon"], "'soon'; allowed: a whole number"),
        (["--step", "9", "--batch-only"], "ends at step 8"),
        (["--step", "5", "--max-steps", "2"], "needs 4 steps from the initial weights"),
        (["--step", "5", "--max-steps", "-1"], "--max-steps is -1; allowed"),
    ],
)
def test_a_step_that_cant_be_made_again(run, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in _error(capsys, str(run), *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_step_whose_row_is_damaged(run, tmp_path, capsys):
    path = shutil.copytree(run, tmp_path / "run")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[2])["step"] == 3
    for row in ([], {}, {"step": "3", "loss": 1.0}, {"step": 3, "loss": "x"}):
        lines[2] = json.dumps({"split": "train", **row} if isinstance(row, dict) else row)
        (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        assert "the row of step 3" in _error(capsys, str(path), "--step", "3")
        with pytest.raises(InputError, match="has no readable row of step 3"):
            verify_steps(RunDirectory(path), start=0, steps=3)
    assert command("fork", str(path), "--at", "2", "--job-dir", str(tmp_path / "fork")) == 0
    assert not verify_steps(RunDirectory(path), start=0, steps=2).differences


def test_places_and_runs_that_cant_be_used(run, data_dir, tmp_path, capsys):
    (tmp_path / "mine.txt").touch()
    place = ["--step", "5", "--batch-only", "--output"]
    assert "neither empty nor an earlier replay" in _error(capsys, str(run), *place, str(tmp_path))
    assert "in the run directory" in _error(capsys, str(run), *place, str(run / "replay"))
    place = ["--step", "5", "--output", str(tmp_path / "out"), "--data-dir"]
    assert "no prepared 'shapes' data set" in _error(capsys, str(run), *place, str(tmp_path))
    path = shutil.copytree(run, tmp_path / "run")
    environment = json.loads((path / "environment.json").read_text())
    environment["data"]["checksum"] = "0" * 64
    (path / "environment.json").write_text(json.dumps(environment))
    assert "was trained on other data" in _error(capsys, str(path), *place, str(data_dir))
    (tmp_path / "comparison.json").write_text("{}")
    assert "is a comparison" in _error(capsys, str(tmp_path), "--step", "1")
    assert "no run at" in _error(capsys, str(tmp_path / "none"), "--step", "1")


def test_which_state_a_step_is_made_from(run, tmp_path, monkeypatch):
    """A resumed run went on from a checkpoint, so later steps don't follow from a failed step's state."""
    path = shutil.copytree(run, tmp_path / "run")
    shutil.copytree(path / "checkpoints" / "step-00000006", path / "numerics" / "step-00000003")
    directory = labkit.load_run(path)._directory
    assert recorded.recorded_step(directory, 4).start.describe() == "numerics/step-00000003"
    assert recorded.recorded_step(directory, 5).start.describe() == "the initial weights"
    config = labkit.load_run(run).config.replace({"start_from": "elsewhere"})
    monkeypatch.setattr(recorded, "recorded_config", lambda _: config)
    with pytest.raises(labkit.InputError, match=r"no checkpoint before that step \(its checkpoints: 6, 8\)"):
        recorded.recorded_step(directory, 5)
    assert recorded.recorded_step(directory, 7).start.step == 6


def test_a_cluster_is_said_to_be_equal_to_rounding_and_what_was_beside_steps_is_left_out(run, tmp_path):
    """A slow worker's wait above all: the replay is a ``worker:0`` too."""
    path = shutil.copytree(run, tmp_path / "run")
    (path / "cluster").mkdir()
    for description, replicas, num_gpus, words in (
        ("2 synchronous workers, each CPU", 2, 2, "equal to rounding"),
        ("2 asynchronous workers with 1 parameter server", 1, 0, "not the recorded one"),
    ):
        _change(path / "environment.json", description=description, replicas=replicas)
        for state in path.glob("checkpoints/*/state.json"):
            _change(state, num_replicas=replicas)
        config, notes = _on_devices(recorded.recorded_step(RunDirectory(path), 7), 0)
        assert config.distribution.num_gpus == num_gpus
        assert config.distribution.simulate_missing_gpus == (replicas > 1)
        assert words in notes[0]
    found = recorded.recorded_step(RunDirectory(run), 7)
    beside = {"slow_worker": "0:3", "callbacks": "mine.py", "inspect_every_steps": 1, "check_numerics": True}
    beside |= {"profile_steps": "2:3", "debugger_dump": True}
    config, _ = _on_devices(dataclasses.replace(found, config=found.config.replace(beside)), 0)
    assert config.distribution.slowness_of("worker:0") == 1
    assert config == _on_devices(found, 0)[0]


def _change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_step_of_an_earlier_session_has_that_sessions_replicas(run, tmp_path):
    """Here the last session, on two replicas, has written the newest checkpoint or hasn't written one."""
    path = shutil.copytree(run, tmp_path / "run")
    directory = labkit.load_run(path)._directory
    assert _on_devices(recorded.recorded_step(directory, 7), 0)[1] == ()
    _change(path / "environment.json", replicas=2)
    _change(path / "checkpoints" / "step-00000008" / "state.json", num_replicas=2)
    for step, replicas in ((5, 1), (7, 2)):
        found = recorded.recorded_step(directory, step)
        assert found.num_replicas == replicas
        assert f"sessions of this run had 1 and 2 replicas; {replicas} share" in _on_devices(found, 0)[1][-1]
    shutil.rmtree(path / "checkpoints" / "step-00000008")
    assert recorded.recorded_step(directory, 7).num_replicas == 2
    shutil.copytree(path / "checkpoints" / "step-00000006", path / "numerics" / "step-00000007")
    assert recorded.recorded_step(directory, 8).num_replicas == 1
    for text, reason in (("{}", "it is missing"), ("[]", "it isn't a JSON object")):
        (path / "checkpoints" / "step-00000006" / "state.json").write_text(text)
        with pytest.raises(labkit.InputError, match=f"number of replicas in .*step-00000006.*: {reason};"):
            recorded.recorded_step(directory, 7)


def test_the_batch_of_an_asynchronous_run_may_not_be_its_rows(run, tmp_path, capsys):
    path = shutil.copytree(run, tmp_path / "run")
    arguments = ["replay", str(path), "--step", "5", "--batch-only", "--output", str(tmp_path / "out")]
    assert command(*arguments) == 0
    assert "note" not in capsys.readouterr().out
    _change(path / "environment.json", description="2 asynchronous workers with 1 parameter server")
    assert command(*arguments) == 0
    assert "row 5 of the metrics may be that of another batch" in capsys.readouterr().out
