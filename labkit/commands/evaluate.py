"""``labkit evaluate``: the figures of a run's checkpoints."""

import argparse
from typing import Any

from labkit.commands.arguments import local_path, seconds, whole_number
from labkit.commands.command import Command
from labkit.errors import InputError
from labkit.plurals import counted

__all__ = ["COMMAND"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit evaluate``."""
    parser.add_argument("run", metavar="RUN", help="a run directory, or its name under <home>/runs")
    parser.add_argument(
        "--split",
        choices=("test", "validation", "train"),
        help="(default: test; with --watch validation, since choosing by test figures would spoil them)",
    )
    parser.add_argument("--checkpoint", help="best, last, or a step (default: best on validation)")
    parser.add_argument(
        "--data-dir",
        type=local_path,
        metavar="DIR",
        help="where the data set is (default: where the run had it)",
    )
    parser.add_argument("--eval-batch-size", type=whole_number(), metavar="N", help="(default: the run's)")
    parser.add_argument(
        "--num-intra-threads",
        type=whole_number(),
        metavar="N",
        help="threads inside one operation, 0: TensorFlow's choice (default: the run's)",
    )
    parser.add_argument(
        "--test-time-augmentation",
        choices=("none", "mirror", "mirror_and_shift"),
        help="views of each image that are averaged, beside the plain result (default: the run's)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="follow the run on the CPU, beside its training: figures of each checkpoint, once, until the "
        "run is finished; the same command goes on where it was ended",
    )
    parser.add_argument(
        "--wait-seconds",
        type=seconds,
        metavar="X",
        help="with --watch: how long to wait for a run that isn't there yet, or that was interrupted, "
        "failed, died or went silent, to go on (default: 60)",
    )


def _run(options: argparse.Namespace) -> int:
    """Evaluate a checkpoint, print its figures, or follow a run. Returns the exit code. Raises InputError."""
    if options.watch:
        return _watch(options)
    if options.wait_seconds is not None:
        raise InputError("--wait-seconds is for --watch; leave it out, or add --watch")
    from labkit.run_directory import RunDirectory
    from labkit.run_directory.find import find_run
    from labkit.training.plan import plan_evaluation

    split = options.split or "test"
    plan = plan_evaluation(
        RunDirectory(find_run(options.run)),
        split,
        data_dir=options.data_dir,
        eval_batch_size=options.eval_batch_size,
        num_intra_threads=options.num_intra_threads,
        test_time_augmentation=options.test_time_augmentation,
    )
    _print_metrics(plan.evaluate(split, options.checkpoint or "best"))
    return 0


def _print_metrics(figures: dict[str, Any]) -> None:
    from labkit.run_directory.metrics import metrics_in_words

    names = {"accuracy": "top-1", "top5_accuracy": "top-5"} if "top5_accuracy" in figures else {}
    print(
        f"{figures['split']} of {counted(figures['examples'], 'example')}, "
        f"step {figures['checkpoint_step']}: "
        f"{metrics_in_words(figures, names)}"
    )
    if "tta_accuracy" in figures:
        print(
            f"with test-time augmentation: {names.get('accuracy', 'accuracy')} {figures['tta_accuracy']:.4f}"
        )
    columns = [key for key in figures["per_class"][0] if key not in ("name", "count")]
    print(f"{'class':<12} {'count':>6}" + "".join(f" {key:>9}" for key in columns))
    for row in figures["per_class"]:
        shown = ["-" if row[key] is None else f"{row[key]:.4f}" for key in columns]
        print(f"{row['name']:<12} {row['count']:>6}" + "".join(f" {text:>9}" for text in shown))


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


COMMAND = Command(
    "evaluate",
    "Evaluate a checkpoint and write its predictions; with --watch each checkpoint as it appears.",
    _add_arguments,
    _run,
    computes=True,
)
