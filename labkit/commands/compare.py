"""``labkit compare`` and ``labkit replicas``: finished runs, several models trained with one budget, or one
training on several layouts of replicas, side by side.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from labkit.commands.flags import Flag, LocalPath, Preset, converter, takes
from labkit.commands.runs import print_damage
from labkit.config import by_field, fields_by_name
from labkit.config.architectures import parse_model_name
from labkit.errors import InputError, require_extra
from labkit.experiments import replicas as experiment
from labkit.experiments.comparison.files import RESULTS, shared_fields
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing
from labkit.run_directory.find import run_to_read
from labkit.tables import print_table

if TYPE_CHECKING:
    from labkit.experiments.comparison.read import Comparison


MAX_RUNS = 26  # each has a letter
# Flags of labkit train that a comparison decides for each training.
INSTEAD = {
    "model": "name the models with --models",
    "model_arguments": "write a function for each in your file: --models nets.py:narrow,nets.py:wide",
    "num_layers": "a model's name holds its depth: --models resnet20,resnet56",
    "width_factor": "a model's name holds its width: --models wide_resnet16_4",
    "resnet_version": "a model's name holds it: --models resnet20,resnet20-v2",
    "bottleneck_stride": "a model's name holds it: --models imagenet_resnet50,imagenet_resnet50-v1.5",
    "block": "a model's name holds it: --models resnet29-bottleneck",
    "application": "a model's name holds it: --models mobilenetv2",
    "seed": "the seeds are those from 0; say how many with --seeds",
    "job_dir": "each training has a directory of its own; name the one for all with --output",
}
_ALONE = "a comparison trains in one process; leave it out"


def compare(
    *runs: Annotated[str, Flag(metavar="RUN")],
    models: Annotated[str | None, Flag(metavar="NAMES")] = None,
    seeds: int | None = None,
    folds: Annotated[int, Flag(metavar="COUNT")] = 0,
    preset: Preset = None,
    output: Annotated[LocalPath | None, Flag(metavar="DIR")] = None,
    retry_failed: bool = False,
    **flags: Any,
) -> int:
    """Compare runs, or train models; print and write the results. Returns the exit code.

    The other flags are those of labkit train that don't choose a network, a seed, a directory or a cluster:
    see labkit train --help-all.

    Args:
        runs: Two to 26 runs to compare as they are: directories, or names. Nothing is trained.
        models: Models to train, separated by commas, such as resnet20,se_resnet20,vgg11 (see labkit models);
            FILE.py:NAME is one of your own.
        seeds: Trainings of each model. Default: 3, or 1 with --folds.
        folds: Cross-validation: divides the training and validation images into so many folds, and trains
            each model once for each of them, which validates (see --fold of labkit train). 0 makes no folds.
        preset: Takes the settings of a named run, except for its model; see labkit train --list-presets.
        output: Folder for runs and results. Default: <home>/comparisons/<name made from the settings>.
        retry_failed: Continues failed trainings from their last checkpoint.
    """
    if runs:
        if seeds is not None and runs[0].isdecimal():
            raise InputError(f"--seeds is how many, and {runs[0]!r} follows it; write one number: --seeds 2")
        own = {"models": models, "seeds": seeds, "folds": folds or None, "preset": preset, "output": output}
        own |= {"retry_failed": retry_failed or None}
        given = [*flags, *(name for name, value in own.items() if value is not None)]
        if given:
            flag = "--" + given[0].replace("_", "-")
            raise InputError(f"{flag} belongs to trainings, but runs are compared as they are; leave it out")
        return _compare_runs(runs)
    require_extra("notebook", ("matplotlib",), "labkit compare")
    values, recipe = _shared_values(preset, by_field(flags), folds)
    if models is None:
        raise InputError(
            "nothing to compare; name runs, or models to train (see labkit models): --models resnet20,vgg11"
        )
    names = [name.strip() for name in models.split(",")]
    from labkit.experiments.comparison.plan import check_new, plan_comparison, run_comparison
    from labkit.experiments.comparison.read import read_comparison
    from labkit.startup.interruption import stop_signals

    with stop_signals() as signals:
        try:
            plan = plan_comparison(
                names,
                seeds if seeds is not None else 1 if folds else 3,
                values,
                output,
                folds=folds,
                signals=signals,
            )
            refused = check_new(plan, signals)
            if refused:
                return refused
            if recipe:
                print(recipe)
            code = run_comparison(plan, signals, print, retry_failed=retry_failed)
        except KeyboardInterrupt:
            return 128 + signals[0]
        if not plan.output.is_dir():
            return code  # the first training refused what was asked for
        comparison = read_comparison(plan.output)
        _write(
            comparison.path,
            RESULTS,
            lambda figures: figures.comparison(comparison),
            csv=comparison.as_csv(),
            md=comparison.as_markdown(),
            json=comparison.as_json(),
        )
    _show(comparison)
    if any(run.state == "failed" for run in comparison.runs):
        print("what failed is left as it is; --retry-failed continues it")
    if code not in (0, 1):
        print("stopped; the same command continues" if signals else "stopped by what is said above")
    return code


def _shared_values(preset: str | None, flags: Mapping[str, Any], folds: int) -> tuple[dict[str, Any], str]:
    """Return the values of the fields that the models share, and a line on the recipe, or ""."""
    from labkit.data.recipe import requested_values

    shared = shared_fields()
    for name, value in flags.items():
        if name not in shared:
            info = fields_by_name()[name]
            raise InputError(f"{info.flag} is {value!r}; {INSTEAD.get(name, _ALONE)}")
    asked = {"fold": f"1/{folds}", **flags} if folds else flags  # the recipe fits the images of a fold
    values, recipe = requested_values(preset, asked)
    left_out = {*INSTEAD, "fold"} - flags.keys()
    return {name: value for name, value in values.items() if name not in left_out}, recipe


def _compare_runs(names: Sequence[str]) -> int:
    """Print the results of runs that are there, and what is known of their difference. Returns 0."""
    from labkit.analysis.results import MEASURES, grouped, known_measures, read_results, result_rows
    from labkit.analysis.versus import told_of_two

    results = read_results(_named_runs(names))
    groups = grouped(results)
    header, rows = result_rows(groups)
    print_table(header, rows)
    print_damage(result.summary for result in results)
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


def _named_runs(given: Sequence[str]) -> dict[str, RunDirectory]:
    """Return the runs that are named, by their labels. Raises InputError."""
    runs = [_named_run(name, given) for name in given]
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


def _write(folder: Path, name: str, figure: Callable[[Any], Any], **texts: str) -> None:
    """Write the result files ``name`` that aren't there, or hold something else.

    ``figure``: draws with ``labkit.figures``. ``texts``: by the ending of their files.
    """
    changed = [_write_if_changed(folder / f"{name}.{kind}", text.encode()) for kind, text in texts.items()]
    picture = folder / f"{name}.png"
    if any(changed) or not picture.is_file():
        from labkit import figures

        _write_if_changed(picture, figures.png(figure(figures)))


def _write_if_changed(path: Path, content: bytes) -> bool:
    """Replace ``path`` atomically unless it already holds ``content``. Returns whether it was written."""
    if path.is_file() and path.read_bytes() == content:
        return False
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return True


def _show(comparison: "Comparison") -> None:
    header, *rows = comparison.table()
    print_table(header, rows, right=header[1:])
    for note in comparison.notes():
        print(note)
    print(f"results.csv, .json, .md and .png are in {comparison.path}")


@takes(
    experiment.compare_replicas,
    layouts=Flag(metavar="NAMES"),
    tolerance=Flag(type=converter(float, "a number above 0, in nats")),
)
def replicas(
    *, preset: Preset = None, output: Annotated[LocalPath | None, Flag(metavar="DIR")] = None, **given: Any
) -> int:
    """Train, print and write what is compared. Returns the exit code. Raises InputError.

    Without other flags, ResNet-8 is trained on the generated data set shapes, with batches of 128 at a
    constant learning rate of 2e-4, with and without synchronized batch normalization; --sync-batch-norm and
    --no-sync-batch-norm train one of the two. The ghost batches of a preset stay only with
    --no-sync-batch-norm. The other flags are those of labkit train that don't choose steps, a directory,
    devices or a cluster: see labkit train --help-all.

    Args:
        output: Folder for runs and results. Default: <home>/comparisons/<name made from the settings>.
    """
    require_extra("notebook", ("matplotlib",), "labkit replicas")
    try:
        comparison = experiment.compare_replicas(preset=preset, output=output, **given)
    except KeyboardInterrupt as stop:
        if not stop.args:
            raise
        print("stopped; the same command continues")
        return 128 + stop.args[0]
    except InputError:
        raise
    except RuntimeError as failure:
        print(f"labkit: error: {failure}", file=sys.stderr)
        return 1
    print(f"\n{comparison}")
    _write(
        comparison.folder,
        "replicas",
        lambda figures: figures.replica_curves(comparison),
        md=comparison.as_markdown(),
        json=comparison.as_json(),
    )
    print(f"\nreplicas.png, .md and .json are in {comparison.folder}")
    return 0
