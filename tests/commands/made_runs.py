"""Run directories for the tests of commands that only read them."""

import json
import socket
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.certificate import write_certificate
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.notes import Lineage, change_notes, write_lineage


def make_run(folder, name, *, state="finished", step=20, rows=(), pid=0, host=None, heartbeat=0.0, **values):
    """Write the directory of a run of 20 steps as a training leaves it; ``values``: of the configuration."""
    run = RunDirectory(folder / name)
    run.create()
    config = Config.from_flat({"dataset": "shapes", "num_layers": 8, "train_steps": 20, **values})
    write_json_atomic(run.config_path, config.replace({"job_dir": str(run.path)}).to_json())
    host = socket.gethostname() if host is None else host
    run.write_status(Status(state, step=step, total_steps=20, pid=pid, host=host, heartbeat=heartbeat))
    writer = MetricsWriter(run.metrics_path)
    writer.append(list(rows))
    writer.close()
    return run


def evaluation(split, step, accuracy, loss=0.5):
    return {"split": split, "step": step, "loss": loss, "accuracy": accuracy}


def whole_run(folder: Path, name: str) -> RunDirectory:
    """Write a run that has each of the small files that a run can have."""
    rows: list[dict[str, Any]] = [
        {"split": "train", "step": step, "loss": 1 / step, "wall_time": 100.0 + step} for step in range(1, 21)
    ]
    rows[10:10] = [evaluation("validation", 10, 0.4), {"resumed_at_step": 10, "wall_time": 120.0}]
    run = make_run(folder, name, rows=[*rows, evaluation("test", 20, 0.5)], deterministic=True)
    (run.path / "evaluations.jsonl").write_text(json.dumps(evaluation("test", 10, 0.3)) + "\n")
    write_json_atomic(run.environment_path, {"description": "1 CPU", "python": "3.11", "devices": ["CPU"]})
    change_notes(run, add=["paper", "first"], note="two\nlines")
    write_lineage(run, Lineage(str(folder / "parent"), 5, {"learning_rate": (0.1, 0.01)}))
    write_certificate(run, step=20, settings={"learning_rate": 0.01}, data="0" * 64)
    return run
