"""Pieces of a report as HTML, and the state and results of a run made of them.

Every text that comes from a run passes through ``app.markup.escaped``.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.charts.metric_charts import look_of
from app.markup import escaped, facts_html, number_text, table_html
from app.run_table import table
from labkit.run_directory.metrics import VIEWS
from labkit.run_directory.summary import RunSummary


def section(title: str, body: str, level: int = 2) -> str:
    """Return a heading with what follows it; nothing if the body is empty."""
    return f"<section><h{level}>{escaped(title)}</h{level}>{body}</section>" if body else ""


def folded(title: str, body: str) -> str:
    """Return a part that opens with a click, and is open on paper."""
    return f"<details><summary>{escaped(title)}</summary>{body}</details>" if body else ""


def note(text: str) -> str:
    """Return a sentence in a box."""
    return f'<p class="note">{escaped(text)}</p>'


def moment(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text in UTC; – if there is no such time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "–"


NAMES = ("steps", "best_validation", "test", "error", "training_loss", "duration", "model", "dataset")
SHOWN = [table.COLUMNS[name] for name in NAMES]
COLUMNS = ("Run", "State", *(column.title for column in SHOWN))
NO_RESULTS = ("split", "step", "epoch", "wall_time")


def head(summary: RunSummary) -> str:
    """Return the state and the main numbers of a run, its tags and its note."""
    facts = zip(COLUMNS[1:], overview_row(summary.name, summary)[1:], strict=True)
    known = [fact for fact in facts if fact[1] != "–"]
    message = ""
    if summary.message:
        failed = summary.state not in ("finished", "running", "starting")
        message = note(summary.message) if failed else f'<p class="said">{escaped(summary.message)}</p>'
    tags = "".join(f'<span class="tag">{escaped(tag)}</span>' for tag in summary.notes.tags)
    written = f'<p class="written">{escaped(summary.notes.note)}</p>' if summary.notes.note else ""
    return (
        facts_html([*known, ("Last active", moment(summary.last_active))])
        + message
        + (f"<p>{tags}</p>" if tags else "")
        + written
    )


def overview_row(name: str, summary: RunSummary) -> tuple[str, ...]:
    """Return what ``COLUMNS`` names."""
    values = ((column, column.value(summary)) for column in SHOWN)
    return name, summary.state, *("–" if value is None else column.shown(value) for column, value in values)


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
    header += [
        f"other test, step {row.get('step', '–')}" + (f", {row[VIEWS]}" if VIEWS in row else "")
        for row in summary.other_tests
    ]
    return table_html(("Metric", *header), rows)


def _metric(name: str, row: Mapping[str, Any]) -> str:
    if type(row.get(name)) not in (int, float):
        return "–"
    if look_of(name).unit == "percent":
        return number_text(row[name], ".2%")
    return number_text(row[name], ".6g" if isinstance(row[name], float) else ",")
