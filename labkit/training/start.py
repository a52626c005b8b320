"""The run directory of a training: taken, checked, restored, written to, in this order."""

import hashlib
import json
import re
import time
from typing import Any

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.distributed.devices import DevicePlan, check_precision, configure_tensorflow
from labkit.distributed.membership import Membership
from labkit.distributed.peers import PeerLost
from labkit.distributed.signals import StopRequest, stop_on_signals
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, RunLock, process_alive, write_json_atomic
from labkit.training.admission import check_disk_space, discard
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.console import Console
from labkit.training.environment import describe_environment
from labkit.training.initial_weights import prepare_transfer
from labkit.training.loop import TrainLoop
from labkit.training.result import TrainResult
from labkit.training.session import Session, make_session
from labkit.transfer.load import Transfer

__all__ = ["train_in_cluster", "train_run"]


def train_run(
    config: Config,
    manifest: Manifest,
    plan: DevicePlan,
    run: RunDirectory,
    *,
    overwrite: bool = False,
    data_note: str = "",
    asked_for: str = "",
) -> TrainResult:
    """Train the run in ``run`` from where it stands to its last step.

    Args:
        config: resolved: its data set is the manifest's.
        manifest: of the prepared data set.
        plan: devices, on which TensorFlow is configured already.
        run: admitted by ``labkit.training.admission.admit``.
        overwrite: discard what is there.
        data_note: the line that said which data set was chosen.
        asked_for: the data set as the user named it, ``auto`` perhaps.

    Raises InputError, before the run is changed, where another process writes it, its checkpoints belong to
    other data, or the newest can't be restored; and before anything is written, where the network has not
    what is to be frozen, or nothing of what it is to start from.
    """
    session, transfer = _make(config, manifest, plan, run, overwrite=overwrite)
    run.create()
    lock, launcher = RunLock(run), RunLock(run, ".launcher")
    if not (launcher.acquire() and lock.acquire()):
        launcher.release()
        raise InputError(
            f"{run.path} is being written by another process; wait for it or name another --job-dir"
        )
    try:
        if overwrite:
            discard(run)
        with stop_on_signals() as stop:
            return _train(session, transfer, run, stop, data_note=data_note, asked_for=asked_for)
    finally:
        lock.release()
        launcher.release()


def train_in_cluster(
    config: Config,
    manifest: Manifest,
    task: ClusterTask,
    run: RunDirectory,
    *,
    data_note: str = "",
    asked_for: str = "",
) -> TrainResult:
    """Take part in training the run in ``run``, as ``task``; the arguments are those of ``train_run``.

    Raises InputError before the run is changed, where what is asked for can't be trained here or another
    worker was asked for something else; and PeerLost where another task doesn't appear, or is lost so that
    the cluster has to start again from the last checkpoint.
    """
    run.create()
    lock = RunLock(run)
    if task.is_chief:
        _acquire_in_time(lock, run, config.distribution.rendezvous_seconds)
    plan = configure_tensorflow(config.distribution, deterministic=config.run.deterministic, task=task)
    config.check_replicas(plan.num_replicas)
    check_precision(config.model, plan)
    membership = Membership(task, config, run, _agreement(config, manifest, plan))
    try:
        with stop_on_signals() as stop:
            strategy = membership.join(plan, stop)
            if strategy is None:
                message = f"{stop.name} before the first step"
                result = TrainResult("interrupted", run, 0, message, signal_number=stop.signal_number)
            else:
                notes = {"data_note": data_note, "asked_for": asked_for}
                session, transfer = _make(config, manifest, plan, run, strategy)
                result = _train(session, transfer, run, stop, membership, **notes)
    except Exception as error:
        # Without a goodbye: the others are to notice that this task is gone.
        lost = membership.explain(error)
        if lost:
            raise PeerLost(lost) from None
        raise
    finally:
        lock.release()
    membership.leave()
    return result


def _acquire_in_time(lock: RunLock, run: RunDirectory, seconds: float) -> None:
    """Take the run for the chief. Raises PeerLost where another process keeps it.

    After the loss of a host its lock may be held for a while, by a file server or a process that is ending.
    """
    end = time.monotonic() + seconds
    while not lock.acquire():
        if time.monotonic() >= end:
            raise PeerLost(
                f"{run.path} has been written by another process for {seconds:g} s; end that first"
            )
        time.sleep(0.5)


def _agreement(config: Config, manifest: Manifest, plan: DevicePlan) -> str:
    """Return what all workers in step must have in common: it decides which collectives come when."""
    order = {name: getattr(config.data, name) for name in ("eval_batch_size",)}
    order |= {name: getattr(config.run, name) for name in ("checkpoint_every_steps", "evaluate_test")}
    words = json.dumps(config.identity() | order, sort_keys=True)
    return (
        f"configuration {hashlib.sha256(words.encode()).hexdigest()[:8]}, data {manifest.checksum[:8]}, "
        f"{plan.num_local_replicas} replicas a worker"
    )


def _make(
    config: Config,
    manifest: Manifest,
    plan: DevicePlan,
    run: RunDirectory,
    strategy: Any = None,
    *,
    overwrite: bool = False,
) -> tuple[Session, Transfer | None]:
    """Build what trains the run, and read what it is to start from, unless it goes on from a checkpoint."""
    store = CheckpointStore(run.checkpoints_path)
    begins = overwrite or _checked_state(store, run, manifest) is None
    session = make_session(config, manifest, plan, strategy)
    return session, prepare_transfer(config, manifest, session.model) if begins else None


def _train(
    session: Session,
    transfer: Transfer | None,
    run: RunDirectory,
    stop: StopRequest,
    membership: Membership | None = None,
    *,
    data_note: str,
    asked_for: str,
) -> TrainResult:
    """Restore what is there, and train; the chief also writes down what is trained, and where."""
    config, manifest, plan = session.config, session.manifest, session.plan
    writes = membership is None or membership.task.is_chief
    store = CheckpointStore(run.checkpoints_path, config.run.keep_checkpoints)
    state = _checked_state(store, run, manifest)
    # Weights and velocities in float32: the checkpoints kept, the best, and one being written.
    check_disk_space(run.path, session.num_parameters() * 8 * (config.run.keep_checkpoints + 2))
    if state is not None:
        store.restore(session.checkpoint(), state.step)
    else:
        session.begin(transfer)
    if writes:
        store.remove_unfinished()
        _remove_unfinished_files(run)
    console = Console(run.log_path if writes else None)
    try:
        if writes:
            write_json_atomic(run.config_path, config.to_json())
            environment = describe_environment(config, manifest, plan, data_note, asked_for)
            write_json_atomic(run.environment_path, environment)
        if transfer and state is None and writes:
            # From here on the run goes on without what it started from.
            write_json_atomic(run.transfer_path, transfer.to_json())
            store.save(session.checkpoint(), _first_state(session))
            for line in transfer.lines():
                console.line(line)
        return TrainLoop(session, run, store, console, membership).run_to_end(state, stop)
    finally:
        console.close()


def _first_state(session: Session) -> CheckpointState:
    """Return the state before the first step."""
    return CheckpointState(
        step=0,
        seed=session.config.run.seed,
        data_checksum=session.manifest.checksum,
        num_replicas=session.plan.num_replicas,
    )


def _remove_unfinished_files(run: RunDirectory) -> None:
    """Remove what killed processes were about to rename into place: ``.<name>.<process id>….tmp``."""
    for folder in (run.path, run.predictions_path):
        for path in folder.glob(".*.tmp"):
            owner = re.search(r"\.(\d+)(\.\d+)?\.tmp$", path.name)
            if owner and not process_alive(int(owner[1])):
                path.unlink(missing_ok=True)


def _checked_state(store: CheckpointStore, run: RunDirectory, manifest: Manifest) -> CheckpointState | None:
    state = store.latest_state()
    if state is not None and state.data_checksum != manifest.checksum:
        raise InputError(
            f"{run.path} was trained on other data than {manifest.directory} holds now "
            f"(checksum {state.data_checksum[:12]} there, {manifest.checksum[:12]} here); "
            "prepare the same split again, or start anew with --overwrite"
        )
    return state
