"""A comparison as files: CSV and JSON for programs, Markdown for people."""

import csv
import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

from labkit.analysis.comparison.read import Comparison, ModelMetrics

__all__ = ["as_csv", "as_json", "as_markdown", "results_path", "write_if_changed"]

# With mean and deviation over the seeds in JSON and CSV.
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
    """Return the file of a comparison's results; ``kind`` is csv, json, md or png."""
    return folder / f"results.{kind}"


def write_if_changed(path: Path, content: bytes) -> bool:
    """Replace ``path`` as a whole, unless it holds ``content``. Returns whether it was written."""
    if path.is_file() and path.read_bytes() == content:
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return True


def as_json(comparison: Comparison) -> str:
    """Return everything as JSON: shares from 0 to 1, bytes, seconds; null is unknown."""
    value = {
        "command": comparison.command,
        **dataclasses.asdict(comparison.request),
        "models": [_model(model) for model in comparison.models],
    }
    return json.dumps(value, indent=2) + "\n"


def _model(model: ModelMetrics) -> dict[str, Any]:
    spreads = {figure: model.spread(figure) for figure in SPREADS}
    return {
        "model": model.name,
        **{figure: model.largest(figure) for figure in COUNTS},
        **{figure: found and dataclasses.asdict(found) for figure, found in spreads.items()},
        "runs": [dataclasses.asdict(run) for run in model.runs],
    }


def as_csv(comparison: Comparison) -> str:
    """Return a line for each model, with ``_mean`` and ``_std`` over its finished runs; empty is unknown."""
    names = [f"{figure}_{part}" for figure in SPREADS for part in ("mean", "std")]
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["model", "runs", "finished_runs", *COUNTS, *names])
    for model in comparison.models:
        cells: list[Any] = [model.name, len(model.runs), len(model.finished)]
        cells += [model.largest(figure) for figure in COUNTS]
        for figure in SPREADS:
            found = model.spread(figure)
            cells += [None, None] if found is None else [found.mean, found.std]
        writer.writerow(cells)
    return target.getvalue()


def as_markdown(comparison: Comparison) -> str:
    """Return the table, what to know of it, and the command."""
    header, *rows = comparison.table()
    lines = [header, ("---", *("---:" for _ in header[1:])), *rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    notes = "\n".join(f"- {note}" for note in comparison.notes())
    return f"{table}\n\n{notes}\n\n```\n{comparison.command}\n```\n"
