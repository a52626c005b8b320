"""Rows of a run's files, as a training writes them."""

import json
from pathlib import Path
from typing import Any

from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter

LAYERS = ["stem_conv1", "stem_norm1", "stem_relu1", "stage1_block1_conv1", "logits"]


def train_row(step: int, **values: float) -> dict[str, object]:
    """Return a row as training writes it after ``step``."""
    row = {"split": "train", "step": step, "epoch": step / 50, "loss": 2.0 / step, "accuracy": 1 - 1 / step}
    row |= {"learning_rate": 0.1, "examples_per_second": 400.0 + step % 3, "seconds_per_step": 0.3}
    return {**row, "input_wait_fraction": 0.01, "wall_time": 1_700_000_000.0 + step, **values}


def evaluation_row(step: int, split: str = "validation", **values: float) -> dict[str, object]:
    """Return a row as an evaluation after ``step`` writes it."""
    row = {"split": split, "step": step, "epoch": step / 50, "loss": 3.0 / step, "accuracy": 0.9}
    row |= {"top5_accuracy": 1.0, "examples": 5000, "seconds": 4.0, "wall_time": 1_700_000_000.0 + step}
    return {**row, **values}


def layer_row(step: int, layers: list[str] = LAYERS, **values) -> dict[str, object]:
    """Return a line as a run with --inspect-every-steps writes it."""
    weights = ["relu" not in name for name in layers]
    row = {
        "step": step,
        "wall_time": 1_700_000_000.0 + step,
        "layers": layers,
        "activation_mean": [0.1 * number for number in range(len(layers))],
        "activation_std": [1.0 + step / 1000] * len(layers),
        "zero_fraction": [0.0 if weight else 0.5 for weight in weights],
        "gradient_norm": [0.1 if weight else None for weight in weights],
        "update_ratio": [0.002 if weight else None for weight in weights],
    }
    return {**row, **values}


def append(path: Path, *rows: dict[str, Any]) -> None:
    """Add rows to a file of metrics, as a training does."""
    path.parent.mkdir(exist_ok=True)
    writer = MetricsWriter(path)
    writer.append(list(rows))
    writer.close()


def machine_row(second: float, **changed: Any) -> dict[str, object]:
    """Return what a process takes of its machine at a second."""
    values = {"process": "", "wall_time": 1_700_000_000.0 + second, "cores": 4, "cpu_cores": 2.0}
    values |= {"machine_cpu_fraction": 0.75, "machine_memory_fraction": 0.5}
    values |= {"memory_bytes": 2**30, "machine_memory_bytes": 2**34}
    values |= {"read_bytes_per_second": 0.0, "written_bytes_per_second": 1e6}
    return {**values, **changed}


def append_machine(run: RunDirectory, *rows: dict[str, object], task: str = "") -> None:
    path = run.cluster_path / "machine" / f"{task}.jsonl" if task else run.machine_path
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


def append_worker(run: RunDirectory, name: str, *rates: float, step: int = 10, **changed: Any) -> None:
    """Add a row for each of a worker's speeds, in examples per second."""
    shares = {"compute_fraction": 0.7, "communication_fraction": 0.2, "input_wait_fraction": 0.1}
    rows = [
        {
            "worker": name,
            "step": at,
            "examples_per_second": rate,
            "wall_time": 1.7e9 + at,
            **shares,
            **changed,
        }
        for at, rate in enumerate(rates, step)
    ]
    append(run.cluster_path / f"{name.replace(':', '-')}.jsonl", *rows)
