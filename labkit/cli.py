"""The ``labkit`` command: flags, and one call each.

Nothing heavy is imported before a command runs.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.allocator import keep_memory
from labkit.arguments import Parser, add_field, config_of, seconds, whole_number
from labkit.cluster.endings import note_failure, note_step
from labkit.config import Config, fields_by_name
from labkit.errors import InputError
from labkit.peers import EXIT_LOST_PEER, PeerLost

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 done, 1 a run failed, 2 bad input, 128 + signal."""
    try:
        code = _main(sys.argv[1:] if arguments is None else list(arguments), is_process=arguments is None)
    except SystemExit as end:
        note_failure(end.code)
        raise
    except BaseException:
        note_failure(1)  # what Python ends with
        raise
    note_failure(code)
    return code


def _main(arguments: list[str], *, is_process: bool) -> int:
    try:
        options = _parser().parse_all(arguments)
        if is_process and options.computes:
            keep_memory()
        return options.command(options)
    except InputError as error:
        print(f"labkit: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has gone, as in `labkit runs | head -1`: nothing left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None:
            raise
        print(f"labkit: error: {str(error.filename)[:200]}: {error.strerror}", file=sys.stderr)
        return 2


# ---- parsers -------------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(prog="labkit", description="Understand, run and trust distributed training.")
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    parser.set_defaults(parser=parser, command=_help, computes=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_data(commands)
    _add_train(commands)
    _add_evaluate(commands)
    _add_runs(commands)
    _add_actions(commands)
    _add_cluster(commands)
    _add_doctor(commands)
    _add_demo(commands)
    return parser


def _add(commands: Any, name: str, help: str, command: Any, *, computes: bool = False) -> Parser:
    parser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.set_defaults(parser=parser, command=command, computes=computes)
    return parser


def _add_train(commands: Any) -> None:
    parser = _add(commands, "train", "Train a run, or go on with it.", _train, computes=True)
    parser.add_argument("--preset", help="start from a named run (see --list-presets)")
    parser.add_argument("--list-presets", action="store_true", help="show the named runs and end")
    parser.add_argument(
        "--overwrite", action="store_true", help="discard the run that is in the job directory"
    )
    for info in fields_by_name().values():
        add_field(parser, info)


def _add_data(commands: Any) -> None:
    data = _add(commands, "data", "Prepare data sets.", _help)
    actions = data.add_subparsers(title="actions", metavar="ACTION")
    prepare = _add(
        actions, "prepare", "Download or read a data set, and write it as sharded TFRecords.", _prepare
    )
    prepare.add_argument(
        "--dataset",
        choices=("cifar10", "shapes", "shapes_multilabel"),
        default="cifar10",
        help="cifar10, or what labkit draws itself, with one label per image or several (default: cifar10)",
    )
    prepare.add_argument(
        "--data-dir", metavar="DIR", help="folder of prepared data sets (default: <home>/data)"
    )
    prepare.add_argument(
        "--archive",
        metavar="PATH",
        help="cifar-10-python.tar.gz, cifar-10-binary.tar.gz, or an extracted folder (default: download)",
    )
    prepare.add_argument(
        "--validation-size",
        type=whole_number(),
        metavar="N",
        help="examples held out of training (default: as prepared, else a tenth: 5000 of CIFAR-10)",
    )
    prepare.add_argument(
        "--classes",
        metavar="NAMES",
        help="only these, by name or number, comma-separated, in this order; with --data-dir (default: as "
        "prepared, else all)",
    )
    prepare.add_argument(
        "--train-examples",
        type=whole_number(),
        metavar="N",
        help="only so many for training, of each class in proportion; with --data-dir (default: as prepared, "
        "else all)",
    )
    prepare.add_argument("--url", help="download from here instead of the published place")


def _add_evaluate(commands: Any) -> None:
    parser = _add(
        commands,
        "evaluate",
        "Evaluate a checkpoint and write its predictions; with --watch each checkpoint as it appears.",
        _evaluate,
        computes=True,
    )
    parser.add_argument("run", metavar="RUN", help="a run directory, or its name under <home>/runs")
    parser.add_argument(
        "--split",
        choices=("test", "validation", "train"),
        help="(default: test; with --watch validation, since choosing by test figures would spoil them)",
    )
    parser.add_argument("--checkpoint", help="best, last, or a step (default: best on validation)")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where the data set is (default: where the run had it)"
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


def _add_runs(commands: Any) -> None:
    parser = _add(commands, "runs", "List runs and where they stand.", _runs)
    parser.add_argument("--runs-dir", metavar="DIR", help="folder of runs (default: <home>/runs)")


def _add_actions(commands: Any) -> None:
    from labkit.commands import ACTIONS

    for action in ACTIONS:
        added = _add(commands, action.name, action.help, _run_action(action), computes=action.computes)
        action.add_arguments(added)


def _add_cluster(commands: Any) -> None:
    from labkit.cluster import commands as cluster

    parser = _add(commands, "cluster", "Train with several processes, here or under a scheduler.", _help)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    for action in cluster.ACTIONS:
        added = _add(actions, action.name, action.help, _run_action(action))
        action.add_arguments(added)
        if action.takes_training:
            added.usage = f"{added.prog} [flags] -- train [flags of labkit train]"
            added.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _run_action(action: Any) -> Any:
    def run(options: argparse.Namespace) -> int:
        given = _training(options.rest, options.parser.prog) if action.takes_training else ()
        return action.run(options, *given)

    return run


def _training(rest: Sequence[str], program: str) -> tuple[Config, bool]:
    """Return the configuration of the training behind ``--``, and whether to overwrite the run."""
    rest = list(rest[1:] if rest[:1] == ["--"] else rest)
    if rest[:1] != ["train"]:
        given = repr(rest[0]) if rest else "nothing"
        raise InputError(f"behind -- stands {given}; allowed: train, such as: {program} -- train --sync")
    options = _parser().parse_all(rest)
    if options.list_presets:
        raise InputError("--list-presets trains nothing; use it alone: labkit train --list-presets")
    return config_of(options), options.overwrite


def _add_doctor(commands: Any) -> None:
    _add(commands, "doctor", "Say what this machine has, and what to do about each problem.", _doctor)


def _add_demo(commands: Any) -> None:
    _add(commands, "demo", "Run the notebook and say where to look.", _demo)


def _help(options: argparse.Namespace) -> int:
    options.parser.print_help()
    return 0


# ---- commands ------------------------------------------------------------------------------------------


def _train(options: argparse.Namespace) -> int:
    from labkit.presets import PRESETS, preset_summary

    if options.list_presets:
        for name in PRESETS:
            print(f"{name}: {preset_summary(name)}")
        return 0
    config = config_of(options)
    from labkit.cluster.tf_config import find_task

    task = find_task(config.distribution, os.environ)
    if task is not None and task.job_name == "ps" and config.distribution.sync:
        print(f"note: synchronous training needs no parameter servers; {task.name} has nothing to do")
        return 0
    if task is None:
        if config.distribution.sync:
            print("note: --sync without a cluster (no TF_CONFIG, no --worker-hosts): training in one process")
        return _train_as(None, config, options.overwrite)
    try:
        code = _train_as(task, config, options.overwrite)
    except PeerLost as error:
        print(f"labkit: lost peer: {error}", file=sys.stderr)
        code = EXIT_LOST_PEER
    note_failure(code)
    # TensorFlow's servers take seconds to end, and its threads may still wait for a task that has gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train_as(task: Any, config: Config, overwrite: bool) -> int:
    """Train as a task of a cluster, or alone where ``task`` is None. Returns the exit code."""
    from labkit.cluster.servers import is_server, serve
    from labkit.training.api import train

    if task is not None and is_server(task, config):
        return serve(task, config)
    result = train(config, overwrite=overwrite, task=task)
    if not result.did_work:
        print(result.message)
    if result.test and (task is None or task.is_chief):
        print(f"test accuracy {result.test['accuracy']:.4f} (step {result.test['step']})")
    if result.state == "interrupted":
        note_step(result.step)
        # A worker that was not asked itself stopped because another one was, by a scheduler.
        return 128 + (result.signal_number or (signal.SIGTERM if task else signal.SIGINT))
    return 0 if result.state == "finished" else 1


def _evaluate(options: argparse.Namespace) -> int:
    if options.watch:
        return _watch(options)
    if options.wait_seconds is not None:
        raise InputError("--wait-seconds is for --watch; leave it out, or add --watch")
    from labkit.metrics import figures_in_words
    from labkit.training.api import evaluate
    from labkit.training.find_run import find_run

    figures = evaluate(
        str(find_run(options.run)),
        split=options.split or "test",
        checkpoint=options.checkpoint or "best",
        data_dir=options.data_dir,
        eval_batch_size=options.eval_batch_size,
        num_intra_threads=options.num_intra_threads,
        test_time_augmentation=options.test_time_augmentation,
    )
    names = {"accuracy": "top-1", "top5_accuracy": "top-5"} if "top5_accuracy" in figures else {}
    print(
        f"{figures['split']} of {figures['examples']:,} examples, step {figures['checkpoint_step']}: "
        f"{figures_in_words(figures, names)}"
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
    return 0


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
    print(f"{result.evaluated} checkpoints evaluated; {result.message}")
    if result.signal_number:
        return 128 + result.signal_number
    return 0 if result.state == "finished" else 1


def _prepare(options: argparse.Namespace) -> int:
    from labkit import home
    from labkit.data.prepare import prepare

    if options.data_dir is None:
        for flag, value in (("--classes", options.classes), ("--train-examples", options.train_examples)):
            if value is not None:
                raise InputError(
                    f"{flag} is {value!r} without --data-dir: a part of a data set would take the place of "
                    "the whole one; name a folder for it"
                )
    shown: list[str] = []

    def show(line: str) -> None:
        if line not in shown:
            shown.append(line)
            print(line, flush=True)

    result = prepare(
        options.dataset,
        options.data_dir or home.data_home(),
        archive=options.archive,
        validation_size=options.validation_size,
        url=options.url,
        progress=show,
        classes=None if options.classes is None else [name.strip() for name in options.classes.split(",")],
        train_examples=options.train_examples,
    )
    for message in result.messages:
        show(message)
    if not result.did_work:
        show("every shard verified; nothing left to do")
    return 0


def _runs(options: argparse.Namespace) -> int:
    from labkit import home
    from labkit.runs import list_runs

    folder = Path(options.runs_dir) if options.runs_dir else home.runs_home()
    if options.runs_dir and not folder.is_dir():
        raise InputError(f"--runs-dir {folder} is not a directory; name one that holds runs")
    runs = list_runs(folder)
    if not runs:
        print(f"no runs in {folder}")
    for run in runs:
        status = run.read_status()
        state = status.liveness() if status else "unknown"
        step = f"{status.step}/{status.total_steps}" if status else "-"
        print(f"{run.name:<40} {state:<12} {step:>15}  {run.path}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from labkit.doctor import examine

    return examine()


def _demo(options: argparse.Namespace) -> int:
    from labkit.demo import run_demo

    return run_demo()


if __name__ == "__main__":
    sys.exit(main())
