"""One session of training: lock the run, build the network, restore the checkpoint, run the loop."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import tensorflow as tf

from labkit.data.manifest import check_same_data
from labkit.distributed.membership import Membership
from labkit.distributed.signals import StopRequest, stop_on_signals
from labkit.distributed.tf_compat import told_of_other_kernels
from labkit.errors import InputError
from labkit.parts.trust import accept
from labkit.run_directory import RunDirectory, RunLock, process_alive, write_json_atomic
from labkit.run_directory.certificate import write_certificate
from labkit.run_directory.disk import check_disk_space, discard, quiet_threads
from labkit.run_directory.find import remember
from labkit.run_directory.machine import machine_recorded
from labkit.run_directory.stop import forget_request
from labkit.tensorboard.events import debugger_dump
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.console import Console
from labkit.training.environment import describe_environment
from labkit.training.initial_weights import prepare_transfer
from labkit.training.loop import TrainLoop
from labkit.training.network import Network, make_network
from labkit.training.plan import TrainingPlan, TrainResult
from labkit.transfer.load import Transfer

__all__ = ["prepare", "train_alone", "train_session"]


def train_alone(plan: TrainingPlan) -> TrainResult:
    """Train the run of ``plan`` in this process; see ``labkit.training.train.train``."""
    network, transfer = prepare(plan)
    plan.run.create()
    with _held(plan.run), stop_on_signals() as stop:
        if plan.overwrite:
            discard(plan.run)
        dumped = debugger_dump(plan.run) if plan.config.distribution.debugger_dump else nullcontext()
        with dumped:
            return train_session(plan, network, transfer, stop)


@contextmanager
def _held(run: RunDirectory) -> Iterator[None]:
    """Lock the run against writes by other processes. Raises InputError if another one holds the lock."""
    lock, launcher = RunLock(run), RunLock(run, ".launcher")
    if not (launcher.acquire() and lock.acquire()):
        launcher.release()
        raise InputError(
            f"{run.path} is being written by another process; stop it with labkit stop, or name another "
            "--job-dir"
        )
    forget_request(run)  # of an earlier session, perhaps of this process
    try:
        yield
    finally:
        lock.release()
        launcher.release()


def prepare(
    plan: TrainingPlan, strategy: tf.distribute.Strategy | None = None
) -> tuple[Network, Transfer | None]:
    """Build the network, and read the weights that a new run starts from (None for a resumed run)."""
    resumes = not plan.overwrite and _newest_state(plan) is not None
    network = make_network(plan.config, plan.manifest, plan.devices, plan.data_format, strategy)
    return network, None if resumes else prepare_transfer(plan.config, plan.manifest, network.model)


def train_session(
    plan: TrainingPlan,
    network: Network,
    transfer: Transfer | None,
    stop: StopRequest,
    membership: Membership | None = None,
) -> TrainResult:
    """Restore the newest checkpoint, if there is one, and train.

    Args:
        plan: of the run.
        network: that ``prepare`` has built.
        transfer: the weights that a new run starts from; None for randomly initialized ones.
        stop: checked between steps.
        membership: this process's membership of a cluster, where only the chief writes the run; None for a
            single process.
    """
    config, run = plan.config, plan.run
    writes = membership is None or membership.task.is_chief
    store = CheckpointStore(run.checkpoints_path, config.run.keep_checkpoints)
    state = _newest_state(plan)
    # The kept checkpoints, the best one and one being written.
    check_disk_space(run.path, network.checkpoint_bytes() * (config.run.keep_checkpoints + 2))
    if state is not None:
        store.restore(network.checkpoint(), state.step)
    else:
        network.begin(transfer)
    if writes:
        store.remove_unfinished()
        _remove_unfinished_files(run)
    console = Console(run.log_path if writes else None)
    try:
        if writes:
            if state is not None and (told := told_of_other_kernels(run.read_environment())):
                console.line(f"note: {told}; the result differs by rounding from that of one session")
            write_json_atomic(run.config_path, config.to_json())
            task = plan.task
            accept(config, plan.files, (task.count("worker"), task.count("ps")) if task else None)
            environment = {**describe_environment(plan), "parameters": network.num_parameters()}
            write_json_atomic(run.environment_path, environment)
            remember(run)
            run.flush()
        if transfer and state is None and writes:
            # Once this checkpoint is saved, the run no longer needs the source of its weights.
            write_json_atomic(run.transfer_path, transfer.to_json())
            store.save(network.checkpoint(), network.state_after(0))
            for line in transfer.lines():
                console.line(line)
        name = membership.task.name if membership else ""
        with quiet_threads(), machine_recorded(run, name, chief=writes):
            result = TrainLoop(plan, network, store, console, state, stop, membership).run_to_end()
        if writes and config.run.deterministic:
            write_certificate(run, step=result.step, settings=config.identity(), data=plan.manifest.checksum)
        return result
    finally:
        console.close()


def _newest_state(plan: TrainingPlan) -> CheckpointState | None:
    """Return the newest checkpoint's state, or None. Raises InputError if it was trained on other data."""
    state = CheckpointStore(plan.run.checkpoints_path).latest_state()
    if state is not None:
        check_same_data(plan.manifest, state.data_checksum, plan.run.path)
    return state


def _remove_unfinished_files(run: RunDirectory) -> None:
    """Remove temporary files of killed processes: ``.<name>.<process id>….tmp``."""
    for folder in (run.path, run.predictions_path):
        for path in folder.glob(".*.tmp"):
            owner = re.search(r"\.(\d+)(\.\d+)?\.tmp$", path.name)
            if owner and not process_alive(int(owner[1])):
                path.unlink(missing_ok=True)
