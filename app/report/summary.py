"""The state and the results of a run in a report."""

import math
from collections.abc import Mapping
from typing import Any

from app.charts.metric_charts import look_of
from app.report.markup import escaped, facts, moment, note, table
from app.run_facts import duration
from labkit.run_directory.summary import RunSummary

__all__ = ["COLUMNS", "all_results", "head", "overview_row"]

COLUMNS = ("Run", "State", "Steps", "Best validation", "Test accuracy", "Training loss", "Duration", "Model",
           "Data set")  # fmt: skip


NO_RESULTS = ("split", "step", "epoch", "wall_time")


def head(summary: RunSummary) -> str:
    """Return the state and the main numbers of a run, its tags and its note."""
    labels = ("State", "Steps", "Best validation", "Test accuracy", "Training loss", "Duration", "Model",
              "Data set")  # fmt: skip
    _, *values = overview_row(summary.name, summary)
    pairs = [*zip(labels, values, strict=True), ("Last active", moment(summary.last_active))]
    message = ""
    if summary.message:
        failed = summary.state not in ("finished", "running", "starting")
        message = note(summary.message) if failed else f'<p class="said">{escaped(summary.message)}</p>'
    tags = "".join(f'<span class="tag">{escaped(tag)}</span>' for tag in summary.notes.tags)
    written = f'<p class="written">{escaped(summary.notes.note)}</p>' if summary.notes.note else ""
    return facts(pairs) + message + (f"<p>{tags}</p>" if tags else "") + written


def overview_row(name: str, summary: RunSummary) -> tuple[str, ...]:
    """Return what ``COLUMNS`` names."""
    step = "–" if summary.step is None else f"{summary.step:,}"
    total = f" of {summary.total_steps:,}" if summary.total_steps else ""
    return (
        name,
        summary.state,
        step + total,
        _number(summary.best_validation_accuracy, ".2%"),
        _number(summary.test_accuracy, ".2%"),
        _number(summary.training_loss, ".4g"),
        duration(summary.duration),
        summary.model or "–",
        summary.dataset or "–",
    )


def all_results(summary: RunSummary) -> str:
    """Return the run's own test result, the last validation and other tests, with all their numbers."""
    shown = [*summary.results.values(), *summary.other_tests]
    names = dict.fromkeys(name for row in shown for name in row if name not in NO_RESULTS)
    rows = [
        (look_of(name).title, *(_metric(name, row) for row in shown))
        for name in names
        if any(type(row.get(name)) in (int, float) for row in shown)
    ]
    header = [f"{row['split']}, step {row.get('step', '–')}" for row in summary.results.values()]
    header += [f"other test, step {row.get('step', '–')}" for row in summary.other_tests]
    return table(("Metric", *header), rows)


def _metric(name: str, row: Mapping[str, Any]) -> str:
    if type(row.get(name)) not in (int, float):
        return "–"
    if look_of(name).unit == "percent":
        return _number(row[name], ".2%")
    return _number(row[name], ".6g" if isinstance(row[name], float) else ",")


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return format(value, form)
