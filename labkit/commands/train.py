"""``labkit train``: a run, alone or as a task of a cluster."""

import functools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from labkit.commands.flags import Flag, Preset, parsed
from labkit.config import Config, by_field
from labkit.data.recipe import requested_config
from labkit.distributed.peers import EXIT_LOST_PEER, PeerLost
from labkit.errors import DiskFailure, InputError
from labkit.plurals import counted
from labkit.startup.child import record_failure, record_stop
from labkit.startup.quiet_import import quieten_tensorflow


def train(
    *,
    preset: Preset = None,
    overwrite: bool = False,
    accept_changed_code: Annotated[bool, Flag(group="run")] = False,
    list_presets: Annotated[bool, Flag(group="run")] = False,
    find_learning_rate: Annotated[bool, Flag(group="optimizer")] = False,
    **flags: Annotated[Any, Flag(shown=True)],
) -> int:
    """Train, or show the named runs. A task of a cluster ends the process with the exit code.

    Args:
        preset: Starts from a named run (labkit train --list-presets), or from a file NAME.json of labkit
            search. Without it, data sets other than CIFAR-10 get auto instead of the flags' defaults, unless
            --train-steps or --batch-norm-decay is given.
        overwrite: Deletes the run in the job directory and starts anew.
        accept_changed_code: Continues the run in the job directory though a file of your own code has
            changed since. The run keeps the old file, too.
        list_presets: Shows the named runs and ends.
        find_learning_rate: Raises the learning rate over 100 steps until the loss explodes, suggests one and
            ends. It writes no run.
    """
    from labkit.config.presets import AUTO, PRESETS, preset_summary

    if list_presets:
        for name in (AUTO, *PRESETS):
            print(f"{name}: {preset_summary(name)}")
        return 0
    from labkit.experiments.batch_size import with_measured

    request = functools.partial(requested_config, preset)
    config = with_measured(request, flags, overwrite=overwrite)
    if find_learning_rate:
        if overwrite:
            raise InputError("--find-learning-rate writes no run; leave --overwrite out")
        from labkit.experiments.range_test import range_test

        print(range_test(config))
        return 0
    from labkit.distributed.task import bypass_proxy, find_task

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
        return train_as(None, config, overwrite, accept_changed_code=accept_changed_code)
    if task.job_name == "evaluator":
        return _evaluate_as(task, config, overwrite, accept_changed_code)
    try:
        code = train_as(task, config, overwrite, accept_changed_code=accept_changed_code)
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


def _evaluate_as(task: Any, config: Config, overwrite: bool, accept_changed_code: bool) -> int:
    """Evaluate each checkpoint of the run that the other tasks of the cluster train, until it ends.

    Returns 0 if the run is finished, 1 if it failed, 128 + signal if it or this task was stopped, 75 if the
    cluster is lost.
    """
    from labkit.training.follow import follow
    from labkit.training.plan import plan_run

    plan = plan_run(config, task=task, overwrite=overwrite, accept_changed_code=accept_changed_code)
    try:
        result = follow(
            str(plan.run.path),
            data_dir=plan.config.data.data_dir,
            eval_batch_size=config.data.eval_batch_size,
            num_intra_threads=config.distribution.num_intra_threads,
            wait_seconds=config.distribution.rendezvous_seconds,
            wait_flag="--rendezvous-seconds",
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


def train_as(task: Any, config: Config, overwrite: bool, **settings: Any) -> int:
    """Train as a task of a cluster, or alone where ``task`` is None. Returns the exit code.

    ``settings``: ``approved`` and ``accept_changed_code`` of ``plan_run``.
    """
    from labkit.distributed.servers import is_server, serve
    from labkit.training import train as training
    from labkit.training.plan import plan_run, plan_training

    serves = task is not None and is_server(task, config)
    decide = plan_run if serves else plan_training
    plan = decide(config, task=task, overwrite=overwrite, **settings)
    is_chief = task is None or task.is_chief
    if plan.run_state != "finished":
        if serves:
            return serve(task, plan.config, plan.run)
        if is_chief:
            print(plan.data_note)
    result = training.train(plan)
    if not result.did_work:
        print(result.message)
    if result.test and is_chief:
        from labkit.run_directory.metrics import result_in_words

        print(f"test {result_in_words(result.test)} (step {result.test['step']})")
    if result.state == "interrupted":
        record_stop(result.step)
        # A worker that was not asked itself stopped because another one was, by a scheduler.
        return 128 + (result.signal_number or (signal.SIGTERM if task else signal.SIGINT))
    return 0 if result.state == "finished" else 1


def training_of(
    words: Sequence[str], program: str, *, asynchronous: bool = False, announce: Callable[[str], None] = print
) -> tuple[Config, bool]:
    """Return the configuration of a training that stands behind ``--``, and whether to overwrite the run.

    Args:
        words: those behind ``--``.
        program: the command before it.
        asynchronous: whether the training is for a cluster with parameter servers.
        announce: takes a line.
    """
    if words[:1] != ["train"]:
        given = repr(words[0]) if words else "nothing"
        raise InputError(f"{given} follows --; write a training command there: {program} -- train --sync")
    flags = parsed("labkit train", train, words[1:]).keywords
    for name in ("list_presets", "find_learning_rate"):
        if flags.pop(name):
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} trains no run; use it without {program}: labkit train {flag}")
    if flags.pop("accept_changed_code"):
        raise InputError(
            "--accept-changed-code is for one process; continue the run with labkit train alone for some "
            "steps, then as before"
        )
    preset, overwrite = flags.pop("preset"), flags.pop("overwrite")
    return requested_config(preset, flags, asynchronous=asynchronous, announce=announce), overwrite


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the fields that words such as ``learning_rate=0.01`` give. Raises InputError, as for flags."""
    flags = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name.startswith("-"):
            raise InputError(f"--set {word}: write a setting and its value, such as learning_rate=0.01")
        flags.append(f"--{name.replace('_', '-')}={value}")
    given = parsed("labkit train", train, flags).keywords
    own = ("preset", "overwrite", "accept_changed_code", "list_presets", "find_learning_rate")
    return by_field({name: value for name, value in given.items() if name not in own})
