"""The figures at the head of a run's page, and the bar of its progress."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from app.charts.store import Snapshot
from labkit.run_directory import Status

__all__ = ["duration", "facts_html", "key_figures", "progress_html"]


def key_figures(
    status: Status | None, liveness: str, metrics: Snapshot, seconds: float | None
) -> list[tuple[str, str]]:
    """Return what the head of the page shows, each with its label. ``seconds``: the duration of the run."""
    best = metrics.curve("validation", "accuracy").y
    best = best[~_nan(best)]
    tests = metrics.curve("test", "accuracy")
    own = metrics.own_test_step
    places = range(len(tests)) if own is None else (tests.step == own).nonzero()[0]
    place = int(places[-1]) if len(places) else None
    test = None if place is None else float(tests.y[place])
    test_label = "Test accuracy"
    if place is not None and tests.step[place] != metrics.last_step():
        test_label += f" (step {tests.step[place]:,.0f})"
    return [
        ("Training loss", _number(metrics.curve("train", "loss").last(), ".4g")),
        ("Validation accuracy", _number(metrics.curve("validation", "accuracy").last(), ".2%")),
        ("Best validation", _number(float(best.max()) if len(best) else None, ".2%")),
        (test_label, _number(test, ".2%")),
        ("Examples per second", _number(status.examples_per_second if status else None, ",.0f")),
        ("Duration", duration(seconds)),
        ("Time left", duration(status.eta_seconds if status and liveness == "running" else None)),
    ]


def facts_html(facts: Sequence[tuple[str, str]]) -> str:
    """Return labels and values in one row, which wraps on a narrow screen."""
    cells = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in facts)
    return f'<dl class="lk-facts">{cells}</dl>'


def _nan(values: Any) -> Any:
    return values != values


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "–"
    return (
        format(value, form) if math.isfinite(value) else str(value).replace("inf", "∞").replace("nan", "NaN")
    )


def duration(seconds: float | None) -> str:
    """Return a time span as text: ``42 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 04 h``; – if unknown."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for large, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if large != "h" else 24) or large == "d":
            return f"{whole // size} {large} {whole % size // part:02d} {small}"
    raise AssertionError("the last unit has no limit")


def progress_html(step: int, total: int) -> str:
    """Return how many steps are done, with a bar where it is known of how many."""
    if total <= 0:
        return f'<div class="lk-progress">Step {step:,}</div>'
    share = min(max(step / total, 0.0), 1.0)
    return (
        f'<div class="lk-progress" role="progressbar" aria-label="Steps" aria-valuemin="0" '
        f'aria-valuemax="{total}" aria-valuenow="{step}">Step {step:,} of {total:,}'
        f'<div class="lk-track"><div style="width:{100 * share:.2f}%"></div></div></div>'
    )
