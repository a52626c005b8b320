"""``labkit runs``: the runs of a folder, one a line. ``labkit show``: one run, from its directory alone."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from labkit import home
from labkit.commands.flags import Flag, LocalPath, RunName
from labkit.config import field_aliases, fields_by_name
from labkit.config.config import describe
from labkit.errors import InputError, unknown_name_error
from labkit.plurals import counted, printable
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.find import (
    NEXT_CONDITION,
    chosen_runs,
    known_runs,
    lost_runs,
    missing_config,
    run_to_read,
)
from labkit.run_directory.metrics import VIEWS, metrics_in_words
from labkit.run_directory.rows import NOT_FINITE, result_name, valid
from labkit.run_directory.summary import RunSummary, Summaries
from labkit.tables import print_table

# The fields to sort by: the columns of the table.
FIELDS = ("name", "state", "step", "accuracy", "dataset", "model", "age")
DESCENDING = ("step", "accuracy")  # largest first
HEADER = ("name", "state", "step", "accuracy", "data set", "model", "age")


def runs(
    *,
    runs_dir: Annotated[LocalPath | None, Flag(metavar="DIR", alias="--runs")] = None,
    sort: Annotated[str, Flag(metavar="FIELD")] = "age",
    filter: Annotated[tuple[str, ...], Flag(metavar="TEXT")] = (),
    archived: bool = False,
    json: bool = False,
) -> int:
    """Print the runs. Returns 0. Raises InputError for an unknown field or a folder that isn't there.

    Args:
        runs_dir: Folder of runs. Default: <home>/runs, and the runs that labkit made elsewhere.
        sort: Field to sort by: name, state, step, accuracy, dataset, model, age. Default: age, newest first.
        filter: Shows only runs with this text in their name, state, data set, model, tags or note;
            FIELD=VALUE, such as state=running, tag=paper or accuracy>0.8, looks at one field or setting
            alone. May be repeated.
        archived: Shows archived runs, too.
        json: Prints JSON, for programs.
    """
    if sort not in FIELDS:
        raise unknown_name_error("field of --sort", sort, FIELDS)
    folder = Path(runs_dir) if runs_dir else home.runs_home()
    if runs_dir and not folder.is_dir():
        raise InputError(f"--runs-dir {folder} is not a directory; name one that holds runs")
    found = Summaries(describe).of(list_runs(folder) if runs_dir else known_runs())
    listed = [summary for summary in found if archived or not summary.notes.archived]
    words = [word for text in filter for word in NEXT_CONDITION.split(text)]
    chosen = _sorted(chosen_runs(listed, words, field_aliases()), sort)
    if json:
        print(dumps([summary.to_json() for summary in chosen], indent=2))
        return 0
    if chosen:
        print_table(HEADER, [_row(summary, folder) for summary in chosen], right=("step", "accuracy", "age"))
    elif listed:
        print(f"none of the {len(listed)} runs in {folder} matches --filter {' '.join(filter)}")
    elif not found:
        print(f"no runs in {folder}; start one with: labkit train --preset smoke")
    print_damage(chosen)
    for run in lost_runs(folder):
        print(f"not shown: {printable(str(run.path))}, {missing_config(run)}", file=sys.stderr)
    if hidden := len(found) - len(listed):
        print(
            f"not shown: {counted(hidden, 'archived run')}; labkit runs --archived shows all", file=sys.stderr
        )
    return 0


def print_damage(summaries: Iterable[RunSummary]) -> None:
    """Print a line to stderr for each run with files that can't be read, or not whole."""
    for summary in summaries:
        if summary.damage:
            print(f"note: {printable(summary.name)}: {printable('; '.join(summary.damage))}", file=sys.stderr)


def _sorted(summaries: Iterable[RunSummary], field: str) -> list[RunSummary]:
    """Return ``summaries`` by one field; those that lack it come last."""
    summaries = list(summaries)
    known = [summary for summary in summaries if getattr(summary, field) is not None]
    known.sort(key=lambda summary: getattr(summary, field), reverse=field in DESCENDING)
    return [*known, *(summary for summary in summaries if getattr(summary, field) is None)]


def _row(summary: RunSummary, folder: Path) -> tuple[str, ...]:
    step = "-" if summary.step is None else f"{summary.step}/{_or_dash(summary.total_steps)}"
    accuracy = "-"
    if summary.accuracy_split is not None:
        recorded = summary.results[summary.accuracy_split].get("accuracy")
        accuracy = (
            f"{summary.accuracy:.4f}" if summary.accuracy is not None else "-" if recorded is None else "nan"
        )
        if summary.mean_absolute_error is not None:
            accuracy = f"error {summary.mean_absolute_error:.4g}"
        accuracy += " val" if accuracy != "-" and summary.accuracy_split == "validation" else "    "
    unknown = "damaged" if summary.settings is None else "-"
    dataset, model = (name or unknown for name in (summary.dataset, summary.model))
    is_here = Path(summary.path).parent == folder.absolute()
    return (
        summary.name if is_here else summary.path,
        summary.state,
        step,
        accuracy,
        dataset,
        model,
        _age_in_words(summary.age),
    )


def _evaluation(row: dict[str, Any]) -> str:
    """Return the metrics of an evaluation with its step, and with its views if they aren't the run's."""
    metrics = {key: float("nan") if value is None else value for key, value in row.items()}
    views = ""
    if VIEWS in row:
        name = result_name(row)
        views = f", {row[VIEWS]}: {name} {metrics.get(f'tta_{name}', float('nan')):.4f}"
    return f"{metrics_in_words(metrics)}  (step {row.get('step')}{views})"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _age_in_words(seconds: float) -> str:
    """Return an age in its largest unit: ``42 s``, ``3 min``, ``5 h``, ``12 d``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


# ---- show ----------------------------------------------------------------------------------------------


def show(run: RunName, *, json: bool = False) -> int:
    """Print a run. Returns 0. Raises InputError where there is none.

    Args:
        json: Prints JSON, for programs.
    """
    shown = _details(run_to_read(run))
    if json:
        print(dumps(shown, indent=2))
    else:
        _print(shown)
    return 0


def _details(run: RunDirectory) -> dict[str, Any]:
    """Return the run's summary with its results, settings, checkpoints and devices, ready for JSON."""
    [summary] = Summaries(describe).of([run])
    environment = run.read_environment()
    status = run.read_status()
    return {
        **summary.to_json(),
        "host": status.host if status else None,
        "devices": environment.get("description"),
        "damage": [*summary.damage, *_unread(run, environment)],
        "results": {split: _without_nan(row) for split, row in summary.results.items()},
        "other_tests": [*map(_without_nan, summary.other_tests)],
        "checkpoints": run.checkpoint_steps(),
    }


def _unread(run: RunDirectory, environment: dict[str, Any]) -> Iterator[str]:
    if not environment and run.environment_path.exists():
        yield "environment.json is damaged"
    elif not environment and run.metrics_path.exists():
        yield "environment.json is missing"


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in valid(row).items() if name != NOT_FINITE}


def _print(shown: dict[str, Any]) -> None:
    total = "" if shown["total_steps"] is None else f" of {shown['total_steps']}"
    # What is wrong with the files has lines of its own.
    said = [text for text in shown["message"].split("; ") if text not in "; ".join(shown["damage"])]
    message = f" ({'; '.join(said)})" if said else ""
    lines = [
        ("run", shown["name"]),
        ("state", f"{shown['state']}{message}, last active {_age_in_words(shown['age'])} ago"),
        ("step", f"{_or_dash(shown['step'])}{total}"),
        ("model", shown["model"] or "unknown"),
        ("data set", shown["dataset"] or "unknown"),
    ]
    lines += [("damage", text) for text in shown["damage"]]
    lines += [(split, _evaluation(row)) for split, row in shown["results"].items()]
    lines += [("other tests", _evaluation(row)) for row in shown["other_tests"]]
    if shown["settings"] is None:
        lines.append(("settings", "config.json is damaged"))
    elif shown["settings"]:
        fields = fields_by_name()
        flags = [
            f"{fields[name].flag if name in fields else name} {value}"  # another program's have no flag
            for name, value in shown["settings"].items()
        ]
        lines += [("settings", flag) for flag in flags]
    else:
        lines.append(("settings", "none" if shown["model"] is None else "all defaults"))
    steps = ", ".join(map(str, shown["checkpoints"]))
    lines.append(("checkpoints", f"at step {steps}" if steps else "none"))
    devices = shown["devices"] or "unknown devices"
    lines.append(("trained on", f"{devices}, host {shown['host'] or 'unknown'}"))
    if shown["forked_from"]:
        lines.append(("forked from", shown["forked_from"]))
    if shown["tags"]:
        lines.append(("tags", ", ".join(shown["tags"])))
    lines += [("note", line) for line in shown["note"].splitlines()]
    if shown["archived"]:
        lines.append(("archived", "yes"))
    lines.append(("directory", shown["path"]))
    for (before, _), (name, text) in itertools.pairwise([("", ""), *lines]):
        print(f"{'' if name == before else name:<13}{printable(text)}")
