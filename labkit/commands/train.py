"""``labkit train``: a run, alone or as a task of a cluster."""

import argparse
import os
import signal
import sys
from typing import Any

from labkit.cluster.exit_status import record_failure, record_stop
from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, add_training_flags, config_of
from labkit.config import Config
from labkit.distributed.peers import EXIT_LOST_PEER, PeerLost
from labkit.errors import DiskFailure, InputError
from labkit.plurals import counted
from labkit.startup.quiet_import import quieten_tensorflow

__all__ = ["declare_train", "train_as"]


def declare_train(parser: Parser) -> Run:
    """Declare the flags of ``labkit train``."""
    add_training_flags(parser)
    return _train


def _train(options: argparse.Namespace) -> int:
    """Train, or show the named runs. Returns the exit code; a task of a cluster ends the process with it."""
    from labkit.config.presets import AUTO, PRESETS, preset_summary

    if options.list_presets:
        for name in (AUTO, *PRESETS):
            print(f"{name}: {preset_summary(name)}")
        return 0
    config = config_of(options)
    from labkit.distributed.tf_config import bypass_proxy, find_task

    task = find_task(config.distribution, os.environ)
    if task is not None:
        bypass_proxy(task, os.environ)
        quieten_tensorflow(os.environ)
    if task is not None and task.job_name == "ps" and config.distribution.sync:
        print(f"note: synchronous training needs no parameter servers; {task.name} has nothing to do")
        return 0
    if task is None:
        if config.distribution.sync:
            print("note: --sync without a cluster (no TF_CONFIG, no --worker-hosts): training in one process")
        return train_as(None, config, options.overwrite)
    if task.job_name == "evaluator":
        return _evaluate_as(task, config, options.overwrite)
    try:
        code = train_as(task, config, options.overwrite)
    except PeerLost as error:
        print(f"labkit: lost peer: {error}", file=sys.stderr)
        code = EXIT_LOST_PEER
    except DiskFailure as error:
        print(f"labkit: failed: {error}", file=sys.stderr)
        code = 1
    record_failure(code)
    # TensorFlow's servers take seconds to end, and its threads may still wait for a task that has gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _evaluate_as(task: Any, config: Config, overwrite: bool) -> int:
    """Evaluate each checkpoint of the run that the other tasks of the cluster train, until it ends.

    Returns 0 if the run is finished, 1 if it failed, 128 + signal if it or this task was stopped, 75 if the
    cluster is lost.
    """
    from labkit.training.follow import follow
    from labkit.training.plan import plan_run

    plan = plan_run(config, task=task, overwrite=overwrite)
    try:
        result = follow(
            str(plan.run.path),
            data_dir=plan.config.data.data_dir,
            eval_batch_size=config.data.eval_batch_size,
            num_intra_threads=config.distribution.num_intra_threads,
            wait_seconds=config.distribution.rendezvous_seconds,
            wait_flag="--rendezvous-seconds",
            announce=lambda line: print(line, flush=True),
        )
    except InputError as error:
        if plan.run.exists():
            raise
        print(f"labkit: lost peer: {error}", file=sys.stderr)
        return EXIT_LOST_PEER
    print(f"{counted(result.evaluated, 'checkpoint')} evaluated; {result.message}")
    if result.signal_number:
        return 128 + result.signal_number
    codes = {"finished": 0, "failed": 1, "interrupted": 128 + signal.SIGTERM}
    return codes.get(result.state, EXIT_LOST_PEER)


def train_as(task: Any, config: Config, overwrite: bool, *, approved: str | None = None) -> int:
    """Train as a task of a cluster, or alone where ``task`` is None. Returns the exit code.

    ``approved``: see ``plan_run``.
    """
    from labkit.distributed.servers import is_server, serve
    from labkit.training.plan import plan_run, plan_training
    from labkit.training.train import train

    serves = task is not None and is_server(task, config)
    decide = plan_run if serves else plan_training
    plan = decide(config, task=task, overwrite=overwrite, approved=approved)
    is_chief = task is None or task.is_chief
    if plan.found != "finished":
        if serves:
            return serve(task, plan.config, plan.run)
        if is_chief:
            print(plan.data_note, flush=True)
    result = train(plan)
    if not result.did_work:
        print(result.message)
    if result.test and is_chief:
        print(f"test accuracy {result.test['accuracy']:.4f} (step {result.test['step']})")
    if result.state == "interrupted":
        record_stop(result.step)
        # A worker that was not asked itself stopped because another one was, by a scheduler.
        return 128 + (result.signal_number or (signal.SIGTERM if task else signal.SIGINT))
    return 0 if result.state == "finished" else 1
