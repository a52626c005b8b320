"""``labkit evaluate``: the metrics of a run's checkpoints."""

import math
from typing import Annotated, Any, Literal

from labkit import api
from labkit.commands.flags import Flag, RunName, Seconds, takes
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import run_to_read
from labkit.run_directory.metrics import metrics_in_words
from labkit.run_directory.reader import own_test_step_of
from labkit.run_directory.rows import result_name
from labkit.tables import print_table

SHOWN_CLASSES = 50  # predictions/<split>.json has all
LONGEST_NAME = 48  # characters of a class's name


@takes(
    api.evaluate,
    data_dir=Flag(metavar="DIR"),
    eval_batch_size=Flag(alias="--batch-size"),
)
def evaluate(
    run: RunName,
    *,
    split: Literal["test", "validation", "train"] | None = None,
    checkpoint: Annotated[str | None, Flag(metavar="best|last|STEP")] = None,
    by: Annotated[str | None, Flag(metavar="COLUMN")] = None,
    watch: bool = False,
    wait_seconds: Seconds | None = None,
    **given: Any,
) -> int:
    """Evaluate a checkpoint, print its metrics, or follow a run. Returns the exit code.

    Args:
        split: Examples to evaluate. Default: test; with --watch validation, because choosing a checkpoint by
            its test accuracy would make that accuracy too high.
        checkpoint: Checkpoint to evaluate. Default: best, on validation; the newest where nothing was
            validated.
        by: Prints the accuracy of parts of the images (of numbers, the mean absolute error) with its interval
            of 95 %, the worst part first: by class, brightness, or a column that came with the images, from a
            CSV file or beside arrays.
        watch: Follows the run on the CPU while it trains; evaluates each checkpoint once until the run is
            finished. The same command continues after an interruption.
        wait_seconds: With --watch: if the run stalls, stops or isn't there yet, waits this long before giving
            up. Default: 60.
    """
    if watch:
        if checkpoint is not None:
            raise InputError(
                f"--checkpoint is {checkpoint!r} with --watch, which evaluates every checkpoint; "
                "leave one of them out"
            )
        if by is not None:
            raise InputError(f"--by is {by!r} with --watch, which prints no parts; leave one of them out")
        return _watch(run, split or "validation", 60.0 if wait_seconds is None else wait_seconds, **given)
    if wait_seconds is not None:
        raise InputError("--wait-seconds is for --watch; leave it out, or add --watch")
    split, found = split or "test", run_to_read(run)
    manifest = None if by is None else _manifest_for(found, split, by, given.get("data_dir"))
    metrics = api.evaluate(found.path, split=split, checkpoint=checkpoint or "best", **given)
    _print_metrics(metrics)
    if by is not None and manifest is not None:
        _print_slices(found, manifest, split, metrics["checkpoint_step"], by)
    own = own_test_step_of(found)
    if split == "test" and own is not None and own != metrics["checkpoint_step"]:
        print(
            f"note: the test result of {found.name} stays that of step {own}; in Python, "
            f"run.predictions('test', {metrics['checkpoint_step']}) gives the predictions of this step"
        )
    return 0


def _print_metrics(metrics: dict[str, Any]) -> None:
    print(
        f"{metrics['split']} of {counted(metrics['examples'], 'example')}, "
        f"step {metrics['checkpoint_step']}: "
        f"{metrics_in_words(metrics)}"
    )
    name = result_name(metrics)
    if f"tta_{name}" in metrics:
        print(f"with test-time augmentation: {name} {metrics[f'tta_{name}']:.4f}")
    _print_classes(metrics["per_class"])


def _manifest_for(run: RunDirectory, split: str, by: str, data_dir: str | None) -> Manifest:
    """Return the data set of a run. Raises InputError where its images can't be told apart by ``by``."""
    from labkit.analysis.slices import check_by
    from labkit.config.config import recorded_config
    from labkit.data.of_run import data_of_run
    from labkit.data.shards import find_split

    manifest, _ = data_of_run(run, recorded_config(run), data_dir)
    find_split(manifest, split)
    check_by(manifest, split, by)
    return manifest


def _print_slices(run: RunDirectory, manifest: Manifest, split: str, step: int, by: str) -> None:
    """Print the accuracy of each part, or its error where labels are numbers, with its interval of 95 %."""
    from labkit.analysis.predictions import load_predictions
    from labkit.analysis.slices import slices_by

    predictions = load_predictions(run, split, step=step)
    found = slices_by(predictions, manifest, split, by)
    what, form = ("mean absolute error", ".4g") if predictions.are_numbers else ("accuracy", ".1%")
    rows = [
        (
            one.name[:LONGEST_NAME],
            f"{one.count:,}",
            f"{one.value:{form}}",
            "–" if math.isnan(one.low) else f"{one.low:{form}} to {one.high:{form}}",
        )
        for one in found
    ]
    print_table((by, "images", what, "95 % interval"), rows, right=("images", what, "95 % interval"))


def _print_classes(rows: list[dict[str, Any]]) -> None:
    """Print the metrics of each class, or number; of very many, those of the worst ones."""
    columns = [key for key in rows[0] if key not in ("name", "count")]
    what, worst = ("number", "highest") if columns[0] == "mean_absolute_error" else ("class", "lowest")
    shown = [row for row in rows if row["count"]] if len(rows) > SHOWN_CLASSES else rows
    if shown is not rows:
        shown.sort(key=lambda row: row[columns[0]], reverse=what == "number")
        del shown[SHOWN_CLASSES:]
        print(f"the {len(shown)} of {len(rows):,} with the {worst} {columns[0]}:")
    print_table(
        (what, "count", *columns),
        [
            (
                str(row["name"])[:LONGEST_NAME],
                str(row["count"]),
                *("-" if row[key] is None else f"{row[key]:.4f}" for key in columns),
            )
            for row in shown
        ],
        right=("count", *columns),
    )


def _watch(
    run: str,
    split: str,
    wait_seconds: float,
    *,
    test_time_augmentation: str | None,
    **given: Any,
) -> int:
    """Follow a run. Returns 0 where it is finished, 1 where it stood still before that, 128 + signal."""
    if test_time_augmentation not in (None, "none"):
        raise InputError(
            f"--test-time-augmentation is {test_time_augmentation!r} with --watch, which takes each image as "
            "it is; leave one of them out"
        )
    from labkit.training.follow import follow

    result = follow(run, split=split, wait_seconds=wait_seconds, **given)
    print(f"{counted(result.evaluated, 'checkpoint')} evaluated; {result.message}")
    if result.signal_number:
        return 128 + result.signal_number
    return 0 if result.state == "finished" else 1
