"""The results of runs: one by one with the settings that may have made them, and runs that differ in their
seed alone as one configuration with a mean and a spread.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.analysis.inference import Spread, spread
from labkit.config import fields_by_name
from labkit.config.architectures import NAMED_FIELDS
from labkit.config.config import describe
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import read_lineage
from labkit.run_directory.rows import number
from labkit.run_directory.summary import RunSummary, Summaries


@dataclass(frozen=True)
class Measure:
    """One kind of result. ``unit``: ``percent`` for fractions, ``loss``, ``seconds``, ``count``, or "" for
    that of the labels.

    ``better``: 1 if higher is better, -1 if lower is, 0 if neither. ``exact``: the title where an image has
    several labels; None: the same. ``depends_on``: the settings that say what is measured; results can only
    be compared where they are the same.
    """

    title: str
    unit: str
    better: int = 1
    exact: str | None = None
    depends_on: tuple[str, ...] = ()


_LOSS = ("loss", "loss_arguments")
_TRAINING_LOSS = (*_LOSS, "label_smoothing", "class_weights", "mixup_alpha", "cutmix_alpha")

MEASURES = {
    "test_accuracy": Measure("Test accuracy", "percent", exact="Test exact match"),
    "test_f1_micro": Measure("Test micro F1", "percent"),
    "test_f1_macro": Measure("Test macro F1", "percent"),
    "best_validation": Measure("Best validation", "percent", exact="Best validation exact match"),
    "final_validation": Measure("Final validation", "percent", exact="Final validation exact match"),
    "test_mean_absolute_error": Measure("Test mean absolute error", "", -1),
    "validation_mean_absolute_error": Measure("Validation mean absolute error", "", -1),
    "test_loss": Measure("Test loss", "loss", -1, depends_on=_LOSS),
    "validation_loss": Measure("Validation loss", "loss", -1, depends_on=_LOSS),
    "training_loss": Measure("Training loss", "loss", -1, depends_on=_TRAINING_LOSS),
    "seconds": Measure("Duration", "seconds", -1),
    "parameters": Measure("Parameters", "count", 0),
    "steps": Measure("Steps", "count", 0),
}

# These fields identify a run but say nothing of its results, or are shown apart.
_LEFT_OUT = ("seed", "input_path", *NAMED_FIELDS)
# These don't identify a run and may change its results all the same, such as its duration.
_ADDED = (
    "num_gpus", "sync", "max_staleness", "callbacks", "callback_arguments", "test_time_augmentation", "xla",
    "data_format", "num_intra_threads", "num_inter_threads",
)  # fmt: skip
# In a configuration that isn't labkit's: names that tell where a run was made, not what it is.
_PLACES = re.compile(
    r"(^|_)(path|paths|dir|directory|folder|host|hosts|port|ports|name|output|id|address|bind)$"
)


@dataclass(frozen=True)
class Result:
    """One run, with what it has reached.

    Attributes:
        label: what it is called; unique among the results.
        run: its directory.
        summary: what else is known of it.
        settings: the settings that may change results, by their names, without the seed.
        seed: of the run; None: unknown.
        data: the checksum of its data set; None: unknown.
        values: the results that are known, by the names of ``MEASURES``; accuracies are fractions.
    """

    label: str
    run: RunDirectory
    summary: RunSummary
    settings: Mapping[str, Any]
    seed: Any
    data: str | None
    values: Mapping[str, float]

    @property
    def finished(self) -> bool:
        return self.summary.state == "finished"


def read_results(runs: Mapping[str, RunDirectory]) -> list[Result]:
    """Return the results of the runs, given by their labels, in their order."""
    summaries = Summaries(describe).of(runs.values())
    return [result_of(label, summary) for label, summary in zip(runs, summaries, strict=True)]


def result_of(label: str, summary: RunSummary) -> Result:
    """Return the results of one run, whatever is missing or damaged."""
    run = RunDirectory(summary.path)
    environment = run.read_environment()
    data = environment.get("data")
    checksum = data.get("checksum") if isinstance(data, dict) else None
    settings, seed = _settings(run, summary)
    return Result(
        label,
        run,
        summary,
        settings,
        seed,
        checksum if isinstance(checksum, str) else None,
        _values(summary, environment.get("parameters")),
    )


def _values(summary: RunSummary, parameters: Any) -> dict[str, float]:
    test, validation = (summary.results.get(split, {}) for split in ("test", "validation"))
    found = {
        "test_accuracy": test.get("accuracy"),
        "test_f1_micro": test.get("f1_micro"),
        "test_f1_macro": test.get("f1_macro"),
        "best_validation": summary.best_validation_accuracy,
        "final_validation": validation.get("accuracy"),
        "test_mean_absolute_error": test.get("mean_absolute_error"),
        "validation_mean_absolute_error": validation.get("mean_absolute_error"),
        "test_loss": test.get("loss"),
        "validation_loss": validation.get("loss"),
        "training_loss": summary.training_loss,
        "seconds": summary.duration,
        "parameters": parameters,
        "steps": summary.step,
    }
    return {name: value for name, given in found.items() if (value := number(given)) is not None}


# ---- settings ------------------------------------------------------------------------------------------


def _settings(run: RunDirectory, summary: RunSummary) -> tuple[dict[str, Any], Any]:
    """Return the settings that matter, and the seed.

    Of another program's run all matter. Where it recorded none, nothing tells that it repeats another run.
    """
    if summary.recorded_by:
        kept = {
            name: int(value) if type(value) is float and value % 1 == 0 else value  # 1.0 is written 1, too
            for name, value in summary.values.items()
            if name != "seed"
        }
        named = {"recorded_by": summary.recorded_by} if summary.values else {}
        return {**kept, **named}, summary.values.get("seed")
    if summary.settings is not None:
        known = fields_by_name()
        matter = [name for name, field in known.items() if field.identity and name not in _LEFT_OUT]
        values = {name: summary.values.get(name) for name in (*matter, *_ADDED)}
        past = read_lineage(run)  # without the parent's name, so that forks of several seeds are one group
        fork = past and f"at step {past.step}, {past.describe() or 'the same settings'}"
        return {"model": summary.model, "fork": fork, **values}, summary.values.get("seed")
    try:
        flat = dict(_leaves(run.read_config()))
    except (InputError, RecursionError):
        return {}, None
    kept = {name: value for name, value in flat.items() if not _PLACES.search(name) and name != "seed"}
    return kept, flat.get("seed")


def _leaves(values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value)
        else:
            yield str(name), value


def differing(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Return the settings in which the results differ, each with the value of every result.

    Data sets of one name whose contents differ count as a setting, ``data``, the start of their checksum.
    What the program of a run never records, such as the batch size of an imported log, is no difference.
    """
    names = dict.fromkeys(name for result in results for name in result.settings)
    columns = {name: [result.settings.get(name) for result in results] for name in names}
    contents: dict[str, set[str]] = {}
    for result in results:
        if result.data:
            contents.setdefault(str(result.settings.get("dataset")), set()).add(result.data)
    if any(len(checksums) > 1 for checksums in contents.values()):
        columns["data"] = [result.data and result.data[:8] for result in results]
    programs = [result.settings.get("recorded_by", "labkit") if result.settings else "" for result in results]
    pairs = list(zip(programs, results, strict=True))
    if "recorded_by" in columns:
        columns["recorded_by"] = [program or result.summary.recorded_by or None for program, result in pairs]
    recorded = {(program, name) for program, result in pairs for name in result.settings}
    recorded |= {(program, name) for program in programs for name in ("recorded_by", "data")}

    def differ(name: str, values: Sequence[Any]) -> bool:
        known = zip(programs, values, strict=True)
        return len({repr(value) for program, value in known if (program, name) in recorded}) > 1

    return {name: values for name, values in columns.items() if differ(name, values)}


def value_text(value: Any) -> str:
    """Return a setting's value as people read it. Of a whole path, or one to code, the last part is shown."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return Path(text).name or text if text.startswith("/") or ".py:" in text else text


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


def grouped(
    results: Sequence[Result],
    *,
    seeds_together: bool = True,
    settings: Mapping[str, Sequence[Any]] | None = None,
) -> list[Group]:
    """Return the configurations in the order of their first runs.

    Args:
        results: of the runs.
        seeds_together: whether runs that differ only in their seed are one configuration. Otherwise each run
            is on its own. A run whose configuration can't be read always is.
        settings: in which the runs of a configuration agree, each with the value of every run; None: all that
            differ, without the seed.
    """
    columns = differing(results) if settings is None else settings
    by_key: dict[Any, list[int]] = {}
    for place, result in enumerate(results):
        key = tuple(repr(values[place]) for values in columns.values())
        alone = not seeds_together or not result.settings
        by_key.setdefault(place if alone else key, []).append(place)
    # A name has room for a few settings: those in which the named configurations differ from each other.
    named = [
        places[0]
        for places in by_key.values()
        if len(places) > 1 or (settings is not None and results[places[0]].settings)
    ]
    telling = {
        name: values for name, values in columns.items() if len({repr(values[place]) for place in named}) > 1
    }
    shorter = {name: values for name, values in telling.items() if name != "recorded_by"}
    if len({tuple(repr(values[place]) for values in shorter.values()) for place in named}) == len(named):
        telling = shorter  # it tells nothing more
    groups: list[Group] = []
    for places in by_key.values():
        chosen = tuple(results[place] for place in places)
        alone = len(places) == 1 and (settings is None or not chosen[0].settings)
        name = chosen[0].label if alone else _name(chosen[0], places[0], telling or columns)
        taken = [group.name for group in groups]
        unique, again = name, 2
        while unique in taken:
            unique, again = f"{name} #{again}", again + 1
        groups.append(Group(unique, chosen))
    return groups


def _name(result: Result, place: int, columns: Mapping[str, Sequence[Any]]) -> str:
    values = {name: column[place] for name, column in columns.items()}
    # What a program never records, such as the framework of labkit's own runs, tells nothing.
    known = {name: value for name, value in values.items() if value is not None or name in result.settings}
    parts = [
        value_text(value) if name == "model" else f"{name} {value_text(value)}"
        for name, value in (known or dict(list(values.items())[:1])).items()
    ]
    if not parts:
        return " on ".join(filter(None, (result.summary.model, result.summary.dataset))) or "all"
    more = len(parts) - MAX_SETTINGS
    return ", ".join(parts[:MAX_SETTINGS]) + (f", {more} more" if more > 0 else "")


def known_measures(groups: Sequence[Group]) -> list[str]:
    """Return the names of the measures that any of the groups has."""
    return [name for name in MEASURES if any(group.values(name) for group in groups)]


def told_apart(groups: Iterable[Group], measure: str) -> list[str]:
    """Return the settings by which a measure is another one in some of the groups, such as ``loss``."""
    settings = [result.settings for group in groups for result in group.results]
    return [
        name
        for name in MEASURES[measure].depends_on
        if len({repr(known[name]) for known in settings if name in known}) > 1
    ]


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
    several = all(result.settings.get("loss") == "sigmoid" for group in groups for result in group.results)
    return found.exact if several and groups and found.exact else found.title


# ---- as text ---------------------------------------------------------------------------------------------


def spread_text(measure: str, found: Spread | None) -> str:
    """Return a result as text: its mean, and standard deviation and number where there are several."""
    if found is None:
        return NO_VALUE
    unit = MEASURES[measure].unit
    factor, form, sign = _FORMS[unit]
    text = f"{factor * found.mean:{form}}"
    if found.std or (found.std is not None and unit != "count"):  # equal counts need no spread
        return f"{text} ± {factor * found.std:{form}}{sign} ({found.count})"
    return text + sign


# Factor, format and sign of a result, by its unit.
_FORMS = {
    "percent": (100, ".2f", " %"),
    "loss": (1, ".4g", ""),
    "seconds": (1, ",.1f", " s"),
    "count": (1, ",.0f", ""),
    "": (1, ".4g", ""),
}


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
