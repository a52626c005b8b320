"""Homes with runs, and stand-ins for trainings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.config import Config
from labkit.experiments.comparison import plan as comparison_plan
from labkit.training import plan
from labkit.training import train as training
from tests.commands import fake_training


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs in labkit's home, which is ``tmp_path``."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where a comparison shall be; not made."""
    return tmp_path / "comparison"


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``labkit compare`` train and measure without TensorFlow."""
    monkeypatch.setattr(comparison_plan, "train_command", fake_training.train_command)
    monkeypatch.setattr(comparison_plan, "measure_command", fake_training.stand_in_measure_command)
    monkeypatch.setattr(comparison_plan, "check_command", fake_training.stand_in_check_command)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that ``labkit train`` would train."""
    seen: list[Config] = []

    def plan_training(config: Config, **options: Any) -> Any:
        seen.append(config)
        return SimpleNamespace(run_state="new", data_note="")

    result = plan.TrainResult("finished", None, 0, "", did_work=True)
    monkeypatch.setattr(plan, "plan_training", plan_training)
    monkeypatch.setattr(training, "train", lambda planned: result)
    return seen
