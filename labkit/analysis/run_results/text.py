"""Results as text: one cell, and a table for notebooks."""

from collections.abc import Sequence

from labkit.analysis.inference import Spread
from labkit.analysis.run_results.groups import Group, known_measures, title_of
from labkit.analysis.run_results.results import MEASURES, differing, value_text

__all__ = ["NO_VALUE", "result_rows", "spread_text"]

NO_VALUE = "–"


def spread_text(measure: str, found: Spread | None) -> str:
    """Return a result as text: its mean, and standard deviation and number where there are several."""
    if found is None:
        return NO_VALUE
    unit = MEASURES[measure].unit
    mean, std = found.mean, found.std
    if unit == "percent":
        text = f"{100 * mean:.2f}" + ("" if std is None else f" ± {100 * std:.2f}") + " %"
    elif unit == "nats":
        text = f"{mean:.4f}" + ("" if std is None else f" ± {std:.4f}")
    elif unit == "seconds":
        text = f"{mean:,.1f}" + ("" if std is None else f" ± {std:,.1f}") + " s"
    else:
        return f"{mean:,.0f}" + (f" ± {std:,.0f} ({found.count})" if std else "")
    return text + (f" ({found.count})" if found.count > 1 else "")


def result_rows(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table of results: states, seeds, results, differing settings."""
    measures = known_measures(groups)
    settings = differing([result for group in groups for result in group.results])
    header = [
        "configuration",
        "state",
        "seed",
        *(_small(title_of(name, groups)) for name in measures),
        *settings,
    ]
    rows, first = [], 0
    for group in groups:
        cells = [spread_text(name, group.spread(name)) for name in measures]
        own = [value_text(values[first]) for values in settings.values()]
        rows.append([group.name, group.state, group.seeds, *cells, *own])
        first += len(group.results)
    return header, rows


def _small(title: str) -> str:
    return title[0].lower() + title[1:]
