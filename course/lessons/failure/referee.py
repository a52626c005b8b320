"""A run that is killed and resumed, the steps that it made twice, and a forged run."""

import json
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import labkit
from course.lessons.cluster import every_row, lines_of
from labkit.config import Config
from labkit.run import Run


def killed_and_resumed(config: Config, folder: Path, after: int) -> "Future[Run]":
    """Train in the background, kill the training ``after`` so many steps, and train on. Returns at once."""

    def train() -> Run:
        training = labkit.start(config, job_dir=folder, overwrite=True)
        while training.running and training.run.step < after:
            time.sleep(0.02)
        training.kill()
        while training.running:
            time.sleep(0.02)
        training = labkit.start(config, job_dir=folder)
        while training.running:
            time.sleep(0.02)
        return training.run

    return ThreadPoolExecutor(1).submit(train)


def made_twice(run: Run) -> dict[int, list[dict[str, Any]]]:
    """Return, by step, the rows of the steps that a process made and another one made again."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in every_row(run):
        found.setdefault(row["step"], []).append(row)
    return {step: rows for step, rows in found.items() if len(rows) == 2}


def forge(run: Run, folder: Path, step: int) -> Path:
    """Copy a run to ``folder``, with a loss that is a tenth lower at one step. Returns the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run.path, folder)
    rows = lines_of(run)
    row = next(row for row in rows if row.get("split") == "train" and row["step"] == step)
    row["loss"] *= 0.9
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
