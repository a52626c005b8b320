"""Runs that differ in their seed alone, as one configuration with a mean and a spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.analysis.inference import Spread, spread
from labkit.analysis.run_results.results import MEASURES, Result, differing, value_text
from labkit.plurals import counted

NO_VALUE = "–"
MAX_SETTINGS = 4  # in the name of a group


@dataclass(frozen=True)
class Group:
    """A configuration and its runs. ``name``: unique among the groups."""

    name: str
    results: tuple[Result, ...]

    @property
    def title(self) -> str:
        """The name, with the number of runs where there are several."""
        return f"{self.name} ({counted(len(self.results), 'run')})" if len(self.results) > 1 else self.name

    @property
    def counted(self) -> tuple[Result, ...]:
        """The runs whose results count: the finished ones, or all where none is finished."""
        return tuple(result for result in self.results if result.finished) or self.results

    def values(self, measure: str) -> list[float]:
        """Return a result of the runs that count and have it."""
        return [result.values[measure] for result in self.counted if measure in result.values]

    def spread(self, measure: str) -> Spread | None:
        """Return mean and standard deviation over the runs that count; None if no run has this result."""
        return spread(self.values(measure))

    @property
    def seeds(self) -> str:
        """The seeds as text."""
        known = [result.seed for result in self.results if result.seed is not None]
        numbers = all(isinstance(seed, int) for seed in known)
        return ", ".join(map(str, sorted(known) if numbers else known)) or NO_VALUE

    @property
    def state(self) -> str:
        """The state of its runs, counted where they aren't in the same one."""
        states = [result.summary.state for result in self.results]
        if len(set(states)) == 1:
            return states[0]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def grouped(results: Sequence[Result], *, seeds_together: bool = True) -> list[Group]:
    """Return the configurations in the order of their first runs.

    Args:
        results: of the runs.
        seeds_together: whether runs that differ only in their seed are one configuration. Otherwise each run
            is on its own. A run whose configuration can't be read always is.
    """
    columns = differing(results)
    by_key: dict[Any, list[int]] = {}
    for place, result in enumerate(results):
        key = tuple(repr(values[place]) for values in columns.values())
        alone = not seeds_together or not result.settings
        by_key.setdefault(place if alone else key, []).append(place)
    groups: list[Group] = []
    for places in by_key.values():
        chosen = tuple(results[place] for place in places)
        name = chosen[0].label if len(places) == 1 else _name(chosen[0], places[0], columns)
        taken = [group.name for group in groups]
        unique, again = name, 2
        while unique in taken:
            unique, again = f"{name} #{again}", again + 1
        groups.append(Group(unique, chosen))
    return groups


def _name(result: Result, place: int, columns: dict[str, list[Any]]) -> str:
    parts = [
        value_text(values[place]) if name == "model" else f"{name} {value_text(values[place])}"
        for name, values in columns.items()
    ]
    if not parts:
        return " on ".join(filter(None, (result.summary.model, result.summary.dataset))) or "all"
    more = len(parts) - MAX_SETTINGS
    return ", ".join(parts[:MAX_SETTINGS]) + (f", {more} more" if more > 0 else "")


def known_measures(groups: Sequence[Group]) -> list[str]:
    """Return the names of the measures that any of the groups has."""
    return [name for name in MEASURES if any(group.values(name) for group in groups)]


def runs_for_images(first: Group, second: Group) -> tuple[Result, Result]:
    """Return a run of each to compare on single images: of one seed if both have it, else the first ones.

    Runs with a test accuracy come before the others.
    """
    known = [
        [result for result in group.counted if "test_accuracy" in result.values] or group.counted
        for group in (first, second)
    ]
    pairs = [(a, b) for a in known[0] for b in known[1]]
    return next(
        (pair for pair in pairs if pair[0].seed is not None and pair[0].seed == pair[1].seed), pairs[0]
    )


def title_of(measure: str, groups: Sequence[Group]) -> str:
    """Return the title of a measure: exact match where every image may have several labels."""
    found = MEASURES[measure]
    several = all(result.several_labels for group in groups for result in group.results)
    return found.exact if several and groups and found.exact else found.title


# ---- as text ---------------------------------------------------------------------------------------------


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
    titles = [title_of(name, groups) for name in measures]
    titles = [title[0].lower() + title[1:] for title in titles]
    header = ["configuration", "state", "seed", *titles, *settings]
    rows, first = [], 0
    for group in groups:
        cells = [spread_text(name, group.spread(name)) for name in measures]
        own = [value_text(values[first]) for values in settings.values()]
        rows.append([group.name, group.state, group.seeds, *cells, *own])
        first += len(group.results)
    return header, rows
