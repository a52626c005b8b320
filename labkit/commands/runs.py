"""``labkit runs``: the runs of a folder, one a line. ``labkit show``: one run, from its directory alone."""

import argparse
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path
from labkit.commands.terminal.text_tables import age_in_words, print_table
from labkit.config import Config, fields_by_name
from labkit.config.architectures import model_name
from labkit.config.fields import unknown_name_error
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import find_run
from labkit.run_directory.metrics import last_evaluations, metrics_in_words

__all__ = ["declare_runs", "declare_show"]

# What a summary holds, apart from path and message; the columns of the table.
FIELDS = ("name", "state", "step", "accuracy", "dataset", "model", "age")
DESCENDING = ("step", "accuracy")  # largest first
HEADER = ("name", "state", "step", "accuracy", "data set", "model", "age")


def declare_runs(parser: Parser) -> Run:
    """Declare the flags of ``labkit runs``."""
    parser.aliases["--runs"] = "--runs-dir"
    parser.add_argument(
        "--runs-dir", type=local_path, metavar="DIR", help="Folder of runs. Default: <home>/runs."
    )
    parser.add_argument(
        "--sort",
        metavar="FIELD",
        default="age",
        help=f"Field to sort by: {', '.join(FIELDS)}. Default: age, newest first.",
    )
    parser.add_argument(
        "--filter",
        metavar="TEXT",
        action="append",
        default=[],
        help="Shows only runs with this text in one of their fields; FIELD=VALUE, such as state=running, "
        "looks at one field alone. May be repeated.",
    )
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs.")
    return _run


def _run(options: argparse.Namespace) -> int:
    """Print the runs. Returns 0. Raises InputError for an unknown field or a folder that isn't there."""
    from labkit import home
    from labkit.run_directory import list_runs

    if options.sort not in FIELDS:
        raise unknown_name_error("field of --sort", options.sort, FIELDS)
    folder = Path(options.runs_dir) if options.runs_dir else home.runs_home()
    if options.runs_dir and not folder.is_dir():
        raise InputError(f"--runs-dir {folder} is not a directory; name one that holds runs")
    found = [_summary(run) for run in list_runs(folder)]
    wanted = [summary for summary in found if all(_matches(summary, text) for text in options.filter)]
    chosen = _sorted(wanted, options.sort)
    if options.json:
        print(json.dumps(chosen, indent=2))
    elif not found:
        print(f"no runs in {folder}; start one with: labkit train --preset smoke")
    elif not chosen:
        print(f"none of the {len(found)} runs in {folder} matches --filter {' '.join(options.filter)}")
    else:
        print_table(HEADER, [_row(summary) for summary in chosen], right=("step", "accuracy", "age"))
    return 0


def _summary(run: RunDirectory) -> dict[str, Any]:
    """Return what is known of a run, ready for JSON; None where something is missing or damaged.

    ``accuracy`` is that of the test set, or before its evaluation the latest on validation;
    ``accuracy_split`` says which. ``age`` is in seconds since the run was last active.
    """
    status = run.read_status()
    try:
        config = Config.from_json(run.read_config())
        dataset, model, damage = config.data.dataset, model_name(config.model), None
    except InputError as error:
        dataset, model, damage = None, None, str(error)
    split, row = _best_evaluation(run)
    return {
        "name": run.name,
        "state": status.liveness() if status else "unknown",
        "step": status.step if status else None,
        "total_steps": status.total_steps if status else None,
        "accuracy": _finite(row.get("accuracy")),
        "accuracy_split": split,
        "dataset": dataset,
        "model": model,
        "age": max(0.0, time.time() - run.last_active()),
        "path": str(run.path),
        "message": damage or (status.message if status else ""),
    }


def _best_evaluation(run: RunDirectory) -> tuple[str | None, dict[str, Any]]:
    try:
        found = last_evaluations(run.metrics_path)
    except OSError:
        return None, {}
    return next(((split, found[split]) for split in ("test", "validation") if split in found), (None, {}))


def _finite(value: Any) -> Any:
    """Return ``value``, or None for what JSON has no number for: NaN and the infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _matches(summary: dict[str, Any], text: str) -> bool:
    field, equals, value = text.partition("=")
    if not equals:
        shown = (str(summary[name]) for name in FIELDS if isinstance(summary[name], str))
        return any(text.lower() in word.lower() for word in shown)
    if field not in FIELDS:
        raise unknown_name_error("field of --filter", field, FIELDS)
    return str(summary[field]).lower() == value.lower()


def _sorted(summaries: Iterable[dict[str, Any]], field: str) -> list[dict[str, Any]]:
    """Return ``summaries`` by one field; those that lack it come last."""
    summaries = list(summaries)
    known = [summary for summary in summaries if summary[field] is not None]
    known.sort(key=lambda summary: summary[field], reverse=field in DESCENDING)
    return [*known, *(summary for summary in summaries if summary[field] is None)]


def _row(summary: dict[str, Any]) -> tuple[str, ...]:
    step = "-" if summary["step"] is None else f"{summary['step']}/{summary['total_steps']}"
    accuracy = "-"
    if summary["accuracy_split"] is not None:
        value = summary["accuracy"]
        accuracy = "nan" if value is None else f"{value:.4f}"
        accuracy += " val" if summary["accuracy_split"] == "validation" else "    "
    dataset, model = (summary[name] or "damaged" for name in ("dataset", "model"))
    return (
        summary["name"],
        summary["state"],
        step,
        accuracy,
        dataset,
        model,
        age_in_words(summary["age"]),
    )


# ---- show ----------------------------------------------------------------------------------------------


def declare_show(parser: Parser) -> Run:
    """Declare the flags of ``labkit show``."""
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs.")
    return _show


def _show(options: argparse.Namespace) -> int:
    """Print a run. Returns 0. Raises InputError where there is none."""
    run = RunDirectory(find_run(options.run))
    shown = _details(run)
    if options.json:
        print(json.dumps(shown, indent=2))
    else:
        _print(shown)
    return 0


def _details(run: RunDirectory) -> dict[str, Any]:
    """Return the run's summary with its results, settings, checkpoints and devices, ready for JSON."""
    try:
        results = last_evaluations(run.metrics_path)
    except OSError:
        results = {}
    environment = run.read_environment()
    status = run.read_status()
    return {
        **_summary(run),
        "host": status.host if status else None,
        "devices": environment.get("description"),
        "results": {
            split: {key: _finite(value) for key, value in row.items()} for split, row in results.items()
        },
        "settings": _settings(run),
        "checkpoints": run.checkpoint_steps(),
    }


def _settings(run: RunDirectory) -> dict[str, Any] | None:
    """Return the fields that differ from the defaults; None where the configuration is damaged."""
    try:
        values = Config.from_json(run.read_config()).flat()
    except InputError:
        return None
    defaults = Config().flat()
    return {name: value for name, value in values.items() if value != defaults[name] and name != "job_dir"}


def _print(shown: dict[str, Any]) -> None:
    step = "-" if shown["step"] is None else f"{shown['step']} of {shown['total_steps']}"
    message = f" ({shown['message']})" if shown["message"] else ""
    lines = [
        ("run", shown["name"]),
        ("state", f"{shown['state']}{message}, last active {age_in_words(shown['age'])} ago"),
        ("step", step),
        ("model", shown["model"] or "unknown"),
        ("data set", shown["dataset"] or "unknown"),
    ]
    for split, row in shown["results"].items():
        metrics = {key: float("nan") if value is None else value for key, value in row.items()}
        lines.append((split, f"{metrics_in_words(metrics)}  (step {row.get('step')})"))
    if shown["settings"] is None:
        lines.append(("settings", "config.json is damaged"))
    elif shown["settings"]:
        fields = fields_by_name()
        flags = [f"{fields[name].flag} {value}" for name, value in shown["settings"].items()]
        lines += [("settings" if index == 0 else "", flag) for index, flag in enumerate(flags)]
    else:
        lines.append(("settings", "all defaults"))
    steps = ", ".join(map(str, shown["checkpoints"]))
    lines.append(("checkpoints", f"at step {steps}" if steps else "none"))
    devices = shown["devices"] or "unknown devices"
    lines.append(("trained on", f"{devices}, host {shown['host'] or 'unknown'}"))
    lines.append(("directory", shown["path"]))
    for name, text in lines:
        print(f"{name:<13}{text}")
