"""Runs as objects: what is read from the files of a run directory."""

import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

import labkit
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.metrics import MetricsWriter, append_evaluation


def _run(folder: Path, **values: object) -> RunDirectory:
    run = RunDirectory(folder)
    run.create()
    run.config_path.write_text(json.dumps(labkit.Config.from_flat(values).to_json()))
    return run


def _row(step: int, loss: float, split: str = "train", **more: object) -> dict[str, object]:
    return {"split": split, "step": step, "loss": loss, "wall_time": 100.0 + step, **more}


def test_metrics_hold_each_step_once_as_arrays(tmp_path: Path) -> None:
    directory = _run(tmp_path / "a")
    writer = MetricsWriter(directory.metrics_path)
    writer.append([_row(1, 3.0, accuracy=0.1), _row(2, 2.5), _row(3, 9.0)])
    writer.mark_resume_point(2)
    writer.append([_row(3, math.nan), _row(3, 1.5, "validation")])
    writer.close()

    train = labkit.load_run(tmp_path / "a").metrics("train")
    assert train["loss"].dtype == np.float64
    np.testing.assert_array_equal(train["step"], [1, 2, 3])
    np.testing.assert_array_equal(train["loss"], [3.0, 2.5, np.nan])
    np.testing.assert_array_equal(train["accuracy"], [0.1, np.nan, np.nan])
    assert "split" not in train


def test_evaluations_made_beside_the_training_are_among_the_metrics(tmp_path: Path) -> None:
    directory = _run(tmp_path / "a")
    writer = MetricsWriter(directory.metrics_path)
    writer.append([_row(4, 1.5, "validation")])
    writer.close()
    append_evaluation(directory.metrics_path, _row(2, 2.0, "validation"), ())

    validation = labkit.load_run(tmp_path / "a").metrics("validation")
    np.testing.assert_array_equal(validation["step"], [2, 4])
    np.testing.assert_array_equal(validation["loss"], [2.0, 1.5])


def test_a_split_without_rows_is_an_error_that_names_those_with_some(tmp_path: Path) -> None:
    directory = _run(tmp_path / "a")
    with pytest.raises(labkit.InputError, match="no metrics of the split 'train'; it has: no metrics yet"):
        labkit.load_run(tmp_path / "a").metrics()
    writer = MetricsWriter(directory.metrics_path)
    writer.append([_row(1, 3.0)])
    writer.close()
    with pytest.raises(labkit.InputError, match="no metrics of the split 'test'; it has: train"):
        labkit.load_run(tmp_path / "a").metrics("test")


def test_configuration_status_and_checkpoints(tmp_path: Path) -> None:
    directory = _run(tmp_path / "a", num_layers=20)
    run = labkit.load_run(str(tmp_path / "a"))
    assert (run.state, run.step, run.status, run.environment) == ("unknown", 0, None, {})
    directory.write_status(Status("finished", step=7, total_steps=7))
    for name in ("step-00000007", "step-00000005", ".step-00000009.partial", "step-x"):
        (directory.checkpoints_path / name).mkdir()
    assert run.config.model.num_layers == 20
    assert run.config == labkit.Config.from_flat({"num_layers": 20})
    assert (run.state, run.step) == ("finished", 7)
    assert list(run.checkpoints) == [5, 7]
    assert run.checkpoints[5] == directory.checkpoints_path / "step-00000005"
    assert repr(run) == "<labkit run a: finished, step 7 of 7>"


def test_a_lost_run_is_told_from_a_running_one(tmp_path: Path) -> None:
    import os
    import socket

    directory = _run(tmp_path / "a")
    status = Status("running", heartbeat=time.time(), pid=os.getpid(), host=socket.gethostname())
    directory.write_status(status)
    assert labkit.load_run(tmp_path / "a").state == "running"
    directory.write_status(dataclasses.replace(status, pid=2**22 + 1))  # beyond what Linux gives
    assert labkit.load_run(tmp_path / "a").state == "lost"


def test_missing_predictions_name_the_command_that_makes_them(tmp_path: Path) -> None:
    _run(tmp_path / "a")
    with pytest.raises(labkit.InputError, match="labkit evaluate .*a --split validation"):
        labkit.load_run(tmp_path / "a").predictions("validation")


def test_runs_come_newest_first_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    assert labkit.runs() == []
    for age, name in ((20, "older"), (10, "newer")):
        run = _run(tmp_path / "runs" / name)
        os.utime(run.config_path, (time.time() - age,) * 2)
    assert [run.name for run in labkit.runs()] == ["newer", "older"]
    assert [run.name for run in labkit.runs(tmp_path / "runs")] == ["newer", "older"]
    assert labkit.load_run("older").path == tmp_path / "runs" / "older"


def test_a_run_with_a_link_is_left_out_and_named(tmp_path: Path) -> None:
    for name in "abc":
        (_run(tmp_path / name).path / "predictions").mkdir(exist_ok=True)
    (tmp_path / "b" / "predictions" / "x").symlink_to("/etc/hostname")
    with pytest.warns(UserWarning, match="left out: .*b/predictions/x is a link"):
        assert sorted(run.name for run in labkit.runs(tmp_path)) == ["a", "c"]
