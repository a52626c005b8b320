"""``labkit evaluate``: the metrics of a run's checkpoints."""

import argparse
from typing import Any

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path, seconds, whole_number
from labkit.commands.terminal.text_tables import print_table
from labkit.errors import InputError
from labkit.plurals import counted

__all__ = ["declare_evaluate"]

SHOWN_CLASSES = 50  # predictions/<split>.json has all
LONGEST_NAME = 48  # characters of a class's name


def declare_evaluate(parser: Parser) -> Run:
    """Declare the flags of ``labkit evaluate``."""
    parser.aliases["--batch-size"] = "--eval-batch-size"
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument(
        "--split",
        choices=("test", "validation", "train"),
        help="Examples to evaluate. Default: test; with --watch validation, because choosing a checkpoint by "
        "its test accuracy would make that accuracy too high.",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="best|last|STEP",
        help="Checkpoint to evaluate. Default: best, on validation.",
    )
    parser.add_argument(
        "--data-dir", type=local_path, metavar="DIR", help="Folder of prepared data sets. Default: the run's."
    )
    parser.add_argument(
        "--eval-batch-size", type=whole_number(), metavar="N", help="Examples in a step. Default: the run's."
    )
    parser.add_argument(
        "--num-intra-threads",
        type=whole_number(),
        metavar="N",
        help="Threads within one operation. 0 lets TensorFlow choose. Default: the run's.",
    )
    parser.add_argument(
        "--test-time-augmentation",
        choices=("none", "mirror", "mirror_and_shift"),
        help="Averages the predictions for several views of each image, beside the plain result. "
        "Default: the run's.",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="Follows the run on the CPU while it trains; evaluates each checkpoint once until the run is "
        "finished. The same command continues after an interruption.",
    )
    parser.add_argument(
        "--wait-seconds",
        type=seconds,
        metavar="X",
        help="With --watch: if the run stalls, stops or isn't there yet, waits this long before giving up. "
        "Default: 60.",
    )
    return _run


def _run(options: argparse.Namespace) -> int:
    """Evaluate a checkpoint, print its metrics, or follow a run. Returns the exit code. Raises InputError."""
    if options.watch:
        return _watch(options)
    if options.wait_seconds is not None:
        raise InputError("--wait-seconds is for --watch; leave it out, or add --watch")
    from labkit.run_directory.find import run_to_read
    from labkit.run_directory.reader import own_test_step_of
    from labkit.training.plan import plan_evaluation
    from labkit.training.train import evaluate

    split, checkpoint = options.split or "test", options.checkpoint or "best"
    run = run_to_read(options.run)
    plan = plan_evaluation(
        run,
        split,
        data_dir=options.data_dir,
        eval_batch_size=options.eval_batch_size,
        num_intra_threads=options.num_intra_threads,
        test_time_augmentation=options.test_time_augmentation,
        checkpoint=checkpoint,
    )
    if plan.data_note:
        print(plan.data_note, flush=True)
    metrics = evaluate(plan, split, checkpoint)
    _print_metrics(metrics)
    own = own_test_step_of(run)
    if split == "test" and own is not None and own != metrics["checkpoint_step"]:
        print(
            f"note: the test result of {run.name} stays that of step {own}; its predictions are now those of "
            f"step {metrics['checkpoint_step']}, until labkit evaluate {options.run} --checkpoint {own}"
        )
    return 0


def _print_metrics(metrics: dict[str, Any]) -> None:
    from labkit.run_directory.metrics import metrics_in_words

    names = {"accuracy": "top-1", "top5_accuracy": "top-5"} if "top5_accuracy" in metrics else {}
    print(
        f"{metrics['split']} of {counted(metrics['examples'], 'example')}, "
        f"step {metrics['checkpoint_step']}: "
        f"{metrics_in_words(metrics, names)}"
    )
    if "tta_accuracy" in metrics:
        print(
            f"with test-time augmentation: {names.get('accuracy', 'accuracy')} {metrics['tta_accuracy']:.4f}"
        )
    _print_classes(metrics["per_class"])


def _print_classes(rows: list[dict[str, Any]]) -> None:
    """Print the metrics of each class; of very many, those of the classes with the lowest recall."""
    columns = [key for key in rows[0] if key not in ("name", "count")]
    shown = rows
    if len(rows) > SHOWN_CLASSES:
        shown = sorted((row for row in rows if row["count"]), key=lambda row: row[columns[0]])[:SHOWN_CLASSES]
        print(f"of {len(rows):,} classes the {len(shown)} with the lowest {columns[0]}:")
    print_table(
        ("class", "count", *columns),
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


def _watch(options: argparse.Namespace) -> int:
    """Follow a run. Returns 0 where it is finished, 1 where it stood still before that, 128 + signal."""
    if options.checkpoint is not None:
        raise InputError(
            f"--checkpoint is {options.checkpoint!r} with --watch, which evaluates every checkpoint; "
            "leave one of them out"
        )
    if options.test_time_augmentation not in (None, "none"):
        raise InputError(
            f"--test-time-augmentation is {options.test_time_augmentation!r} with --watch, which takes each "
            "image as it is; leave one of them out"
        )
    from labkit.training.follow import follow

    result = follow(
        options.run,
        split=options.split or "validation",
        data_dir=options.data_dir,
        eval_batch_size=options.eval_batch_size,
        num_intra_threads=options.num_intra_threads,
        wait_seconds=60.0 if options.wait_seconds is None else options.wait_seconds,
        announce=lambda line: print(line, flush=True),
    )
    print(f"{counted(result.evaluated, 'checkpoint')} evaluated; {result.message}")
    if result.signal_number:
        return 128 + result.signal_number
    return 0 if result.state == "finished" else 1
