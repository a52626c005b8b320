"""``labkit show``: one run, from its directory alone."""

import argparse
import json
from typing import Any

from labkit.commands import Run
from labkit.commands.runs import finite, run_summary
from labkit.commands.terminal.arguments import Parser
from labkit.commands.terminal.text_tables import age_in_words
from labkit.config import Config, fields_by_name
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import find_run
from labkit.run_directory.metrics import last_evaluations, metrics_in_words

__all__ = ["declare_show"]


def declare_show(parser: Parser) -> Run:
    """Declare the flags of ``labkit show``."""
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs.")
    return _run


def _run(options: argparse.Namespace) -> int:
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
        **run_summary(run),
        "host": status.host if status else None,
        "devices": environment.get("description"),
        "results": {
            split: {key: finite(value) for key, value in row.items()} for split, row in results.items()
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
