"""Training of one run as a task of a cluster: join the cluster, then train like a single process."""

import hashlib
import json
import time

from labkit.distributed.devices import choose_data_format
from labkit.distributed.membership import Membership
from labkit.distributed.peers import PeerLost
from labkit.distributed.signals import stop_on_signals
from labkit.distributed.task import ClusterTask
from labkit.plurals import counted
from labkit.run_directory import RunDirectory, RunLock
from labkit.training.plan import TrainingPlan, TrainResult
from labkit.training.session import prepare, train_session

__all__ = ["train_as_task"]


def train_as_task(plan: TrainingPlan, task: ClusterTask) -> TrainResult:
    """Train the run of ``plan`` as one task of its cluster.

    Raises InputError, before the run is changed, if another worker has a different configuration or the
    network can't be trained with it. Raises PeerLost if another task doesn't appear, or is lost so that the
    cluster has to restart from the last checkpoint.
    """
    run = plan.run
    run.create()
    lock = RunLock(run)
    if task.is_chief:
        _acquire_in_time(lock, run, plan.config.distribution.rendezvous_seconds)
    membership = Membership(task, plan.config, run, _agreement(plan))
    try:
        with stop_on_signals() as stop:
            strategy = membership.join(plan.devices, stop)
            if strategy is None:
                message = f"{stop.name} before the first step"
                result = TrainResult("interrupted", run, 0, message, signal_number=stop.signal_number)
            else:
                choose_data_format(plan.config.model, plan.devices)  # probed after the strategy is made
                network, transfer = prepare(plan, strategy)
                result = train_session(plan, network, transfer, stop, membership)
    except Exception as error:
        # Without ``leave``, so that the other tasks detect the loss of this one.
        lost = membership.explain(error)
        if lost:
            raise PeerLost(lost) from None
        raise
    finally:
        lock.release()
    membership.leave()
    return result


def _acquire_in_time(lock: RunLock, run: RunDirectory, seconds: float) -> None:
    """Lock the run for the chief. Raises PeerLost if another process holds the lock for ``seconds``.

    After a host is lost, a file server or an ending process may still hold its lock for a while.
    """
    end = time.monotonic() + seconds
    while not lock.acquire():
        if time.monotonic() >= end:
            raise PeerLost(
                f"{run.path} has been written by another process for {seconds:g} s; end that first"
            )
        time.sleep(0.5)


def _agreement(plan: TrainingPlan) -> str:
    """Return what all synchronous workers must have in common, so that their collectives match."""
    config = plan.config
    order = {
        "eval_batch_size": config.data.eval_batch_size,
        "checkpoint_every_steps": config.run.checkpoint_every_steps,
        "evaluate_test": config.run.evaluate_test,
        "inspect_every_steps": config.run.inspect_every_steps,
    }
    words = json.dumps(config.identity() | order, sort_keys=True)
    return (
        f"configuration {hashlib.sha256(words.encode()).hexdigest()[:8]}, data {plan.manifest.checksum[:8]}, "
        f"{counted(plan.devices.num_local_replicas, 'replica')} per worker"
    )
