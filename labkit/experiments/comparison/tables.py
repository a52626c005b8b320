"""Write a comparison as CSV, JSON and Markdown."""

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

from labkit.experiments.comparison.read import Comparison, ModelMetrics
from labkit.run_directory.directory import replacing
from labkit.tables import markdown_table

# Metrics that JSON and CSV give as mean and deviation over the seeds.
SPREADS = (
    "test_accuracy",
    "tta_accuracy",
    "validation_accuracy",
    "training_images_per_second",
    "inference_images_per_second",
    "training_seconds",
    "peak_memory_bytes",
)


COUNTS = ("parameters", "multiply_adds")


def results_path(folder: Path, kind: str) -> Path:
    """Return the path of a comparison's results; ``kind`` is csv, json, md or png."""
    return folder / f"results.{kind}"


def write_if_changed(path: Path, content: bytes) -> bool:
    """Replace ``path`` atomically unless it already holds ``content``. Returns whether it was written."""
    if path.is_file() and path.read_bytes() == content:
        return False
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return True


def as_json(comparison: Comparison) -> str:
    """Return everything as JSON. Accuracies are from 0 to 1; null means unknown."""
    value = {
        "command": comparison.command,
        **dataclasses.asdict(comparison.request),
        "models": [_model(model) for model in comparison.models],
    }
    return json.dumps(value, indent=2) + "\n"


def _model(model: ModelMetrics) -> dict[str, Any]:
    spreads = {metric: model.spread(metric) for metric in SPREADS}
    return {
        "model": model.name,
        **{metric: model.largest(metric) for metric in COUNTS},
        **{metric: found and dataclasses.asdict(found) for metric, found in spreads.items()},
        "runs": [dataclasses.asdict(run) for run in model.runs],
    }


def as_csv(comparison: Comparison) -> str:
    """Return a row for each model, with ``_mean`` and ``_std`` over finished runs; empty means unknown."""
    names = [f"{metric}_{part}" for metric in SPREADS for part in ("mean", "std")]
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["model", "runs", "finished_runs", *COUNTS, *names])
    for model in comparison.models:
        cells: list[Any] = [model.name, len(model.runs), len(model.finished)]
        cells += [model.largest(metric) for metric in COUNTS]
        for metric in SPREADS:
            found = model.spread(metric)
            cells += [None, None] if found is None else [found.mean, found.std]
        writer.writerow(cells)
    return target.getvalue()


def as_markdown(comparison: Comparison) -> str:
    """Return the table, its notes and the command as Markdown."""
    table = markdown_table(comparison.table())
    notes = "\n".join(f"- {note}" for note in comparison.notes())
    return f"{table}\n\n{notes}\n\n```\n{comparison.command}\n```\n"
