"""``labkit compare``: finished runs, or several models trained with one budget, side by side."""

import argparse
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, add_hidden_fields, local_path, typed, whole_number
from labkit.commands.terminal.text_tables import print_table
from labkit.config import fields_by_name
from labkit.config.architectures import parse_model_name
from labkit.errors import InputError, require_extra
from labkit.experiments.comparison.budget import shared_fields
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import run_to_read

if TYPE_CHECKING:
    from labkit.experiments.comparison.read import Comparison

__all__ = ["declare_compare"]

# Flags of labkit train that a comparison decides for each training.
INSTEAD = {
    "model": "name the models with --models",
    "num_layers": "a model's name holds its depth: --models resnet20,resnet56",
    "width_factor": "a model's name holds its width: --models wide_resnet16_4",
    "resnet_version": "a model's name holds it: --models resnet20,resnet20-v2",
    "block": "a model's name holds it: --models resnet29-bottleneck",
    "seed": "the seeds are those from 0; say how many with --seeds",
    "job_dir": "each training has a directory of its own; name the one for all with --output",
}


def declare_compare(parser: Parser) -> Run:
    """Declare the flags of ``labkit compare``: its own, and those of ``labkit train`` that models share."""
    parser.epilog = (
        "The other flags are those of labkit train that don't choose a network, a seed, a directory or a "
        "cluster: see labkit train --help-all."
    )
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="Two or more runs to compare as they are: directories, or names. Nothing is trained.",
    )
    parser.add_argument(
        "--models",
        metavar="NAMES",
        help="Models to train, separated by commas, such as resnet20,se_resnet20,vgg11; see labkit models.",
    )
    parser.add_argument(
        "--seeds", type=whole_number(), default=3, metavar="N", help="Trainings of each model. Default: 3."
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="Takes the settings of a named run, except for its model; see labkit train --list-presets.",
    )
    parser.add_argument(
        "--output",
        type=local_path,
        metavar="DIR",
        help="Folder for runs and results. Default: <home>/comparisons/<name made from the settings>.",
    )
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="Continues failed trainings from their last checkpoint.",
    )
    fields = fields_by_name()
    add_hidden_fields(parser, (fields[name] for name in shared_fields()))
    for name in INSTEAD:
        parser.add_argument(fields[name].flag, dest=f"instead_{name}", metavar="TEXT", help=argparse.SUPPRESS)
    return _run


def _run(options: argparse.Namespace) -> int:
    """Train, measure, print and write what is compared. Returns the exit code. Raises InputError."""
    if options.runs:
        return _compare_runs(options)
    require_extra("notebook", ("matplotlib",), "labkit compare")
    models, values, recipe = _asked(options)
    from labkit.cluster.supervisor import stop_signals
    from labkit.experiments.comparison.execute import Execution, check_new, prepare_data_set
    from labkit.experiments.comparison.read import read_comparison
    from labkit.experiments.comparison.trials import plan_comparison

    say = functools.partial(print, flush=True)
    with stop_signals() as signals:
        try:
            plan = plan_comparison(
                models,
                options.seeds,
                values,
                options.output,
                prepare=functools.partial(prepare_data_set, signals=signals),
            )
            refused = check_new(plan, signals)
            if refused:
                return refused
            if recipe:
                say(recipe)
            code = Execution(plan, signals, say, retry_failed=options.retry_failed).run()
        except KeyboardInterrupt:
            return 128 + signals[0]
        if not plan.output.is_dir():
            return code  # the first training refused what was asked for
        comparison = read_comparison(plan.output)
        _write(comparison)
    _show(comparison)
    if any(run.state == "failed" for run in comparison.runs):
        say("what failed is left as it is; --retry-failed continues it")
    if code not in (0, 1):
        say("stopped; the same command continues" if signals else "stopped by what is said above")
    return code


def _asked(options: argparse.Namespace) -> tuple[list[str], dict[str, Any], str]:
    """Return the models' names, the values of the fields that they share, and a line on the recipe, or ""."""
    from labkit.data.recipe import requested_values

    fields = fields_by_name()
    for name, instead in INSTEAD.items():
        given = getattr(options, f"instead_{name}")
        if given is not None:
            raise InputError(f"{fields[name].flag} is {given!r}; {instead}")
    if options.models is None:
        raise InputError(
            "nothing to compare; name runs, or models to train (see labkit models): --models resnet20,vgg11"
        )
    models = [name.strip() for name in options.models.split(",")]
    given = {name: typed(fields[name], value) for name, value in vars(options).items() if name in fields}
    values, recipe = requested_values(options.preset, given)
    values = {name: value for name, value in values.items() if name in given or name not in INSTEAD}
    return models, values, recipe


def _compare_runs(options: argparse.Namespace) -> int:
    """Print the results of runs that are there, and what is known of their difference. Returns 0."""
    from labkit.analysis.run_results.groups import grouped, known_measures, result_rows
    from labkit.analysis.run_results.results import MEASURES, read_results
    from labkit.analysis.run_results.versus import told_of_two

    groups = grouped(read_results(_named_runs(options)))
    header, rows = result_rows(groups)
    print_table(header, rows)
    measure = next((name for name in known_measures(groups) if MEASURES[name].better), None)
    if measure is None:
        print("\nNone of these runs has a result yet.")
    elif len(groups) == 1:
        print("\nThese runs differ in nothing but their seed, if in anything: they are one configuration.")
    else:
        letters = [chr(ord("A") + place) for place in range(len(groups))]
        for letter, other in zip(letters[1:], groups[1:], strict=True):
            told = told_of_two(groups[0], other, measure, names=(letters[0], letter), candidates=len(groups))
            print("", *told, sep="\n")
    return 0


MAX_RUNS = 26  # each has a letter


def _named_runs(options: argparse.Namespace) -> dict[str, RunDirectory]:
    """Return the runs that are named, by their labels. Raises InputError."""
    given = [name for name in fields_by_name() if name in vars(options)]
    given += [name for name in ("models", "preset", "output") if getattr(options, name) is not None]
    if given or options.retry_failed:
        flag = "--" + (given or ["retry_failed"])[0].replace("_", "-")
        raise InputError(f"{flag} belongs to trainings, but runs are compared as they are; leave it out")
    runs = [_named_run(name, options.runs) for name in options.runs]
    paths = [run.path.resolve() for run in runs]
    if twice := next((run for run, path in zip(runs, paths, strict=True) if paths.count(path) > 1), None):
        raise InputError(f"{twice.name} is named twice; name two different runs")
    if not 2 <= len(runs) <= MAX_RUNS:
        raise InputError(f"{counted(len(runs), 'run')} to compare; allowed: 2 to {MAX_RUNS}")
    names = [run.name for run in runs]
    return {str(run.path) if names.count(run.name) > 1 else run.name: run for run in runs}


def _named_run(name: str, names: Sequence[str]) -> RunDirectory:
    """Return the run of that name. Raises InputError, with the flag for models where it is a model's name."""
    try:
        return run_to_read(name)
    except InputError as missing:
        try:
            parse_model_name(name.split(",")[0])
        except InputError:
            raise missing from None
        raise InputError(f"{missing}; to train models, write --models {','.join(names)}") from None


def _write(comparison: "Comparison") -> None:
    """Write the result files that aren't there, or hold something else."""
    from labkit.experiments.comparison.tables import (
        as_csv,
        as_json,
        as_markdown,
        results_path,
        write_if_changed,
    )

    changed = False
    for kind, text in (("csv", as_csv), ("md", as_markdown), ("json", as_json)):
        changed |= write_if_changed(results_path(comparison.path, kind), text(comparison).encode())
    picture = results_path(comparison.path, "png")
    if changed or not picture.is_file():
        from labkit import figures as plots

        write_if_changed(picture, plots.png(plots.comparison(comparison)))


def _show(comparison: "Comparison") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    header, *rows = comparison.table()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(header[0], no_wrap=True)
    for title in header[1:]:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200  # a file has room; 80 columns would break the figures
    console.print(table)
    for note in comparison.notes():
        console.print(note, soft_wrap=True)
    console.print(f"results.csv, .json, .md and .png are in {comparison.path}", soft_wrap=True)
