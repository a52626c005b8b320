"""One session of training, alone or as a task of a cluster: lock, network, checkpoint, loop, records."""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from labkit.config.config import as_recorded
from labkit.data.manifest import check_same_data
from labkit.distributed.asynchronous import AsynchronousEngine
from labkit.distributed.cpu import cpu_model
from labkit.distributed.devices import Devices, choose_data_format
from labkit.distributed.membership import Membership
from labkit.distributed.peers import PeerLost
from labkit.distributed.synchronous import SynchronousEngine
from labkit.distributed.task import ClusterTask
from labkit.errors import installed_version
from labkit.home import checkout
from labkit.models.initial_weights import Transfer
from labkit.parts.code import keep_replaced, record
from labkit.parts.trust import accept, digest_of
from labkit.plurals import counted, without_secrets
from labkit.run_directory import RunDirectory, RunLock, process_alive, write_json_atomic
from labkit.run_directory.certificate import write_certificate
from labkit.run_directory.disk import check_disk_space, discard, quiet_threads
from labkit.run_directory.find import remember
from labkit.run_directory.machine import machine_recorded
from labkit.run_directory.stop import forget_request, held
from labkit.startup.interruption import StopRequest, stop_on_signals
from labkit.startup.tf_compat import told_of_other_kernels, uses_onednn
from labkit.tensorboard.events import debugger_dump
from labkit.training.checkpoints import CheckpointState, CheckpointStore, prepare_transfer
from labkit.training.console import Console, note_of_new_averages
from labkit.training.loop import Engine, TrainLoop
from labkit.training.network import Network, training_batches
from labkit.training.plan import TrainingPlan, TrainResult
from labkit.version import VERSION


def train_alone(plan: TrainingPlan) -> TrainResult:
    """Train the run of ``plan`` in this process; see ``labkit.training.train.train``."""
    network, transfer = _prepare(plan)
    plan.run.create()
    busy = "is being written by another process; stop it with labkit stop, or name another --job-dir"
    with held(plan.run, f"{plan.run.path} {busy}"):
        forget_request(plan.run)  # of an earlier session, perhaps of this process
        with stop_on_signals() as stop:
            if plan.overwrite:
                discard(plan.run)
            dumped = debugger_dump(plan.run) if plan.config.distribution.debugger_dump else nullcontext()
            with dumped:
                return _train_session(plan, network, transfer, stop)


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
                network, transfer = _prepare(plan, strategy)
                result = _train_session(plan, network, transfer, stop, membership)
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
        "test_time_augmentation": config.run.test_time_augmentation,
    }
    words = json.dumps(config.identity() | order, sort_keys=True) + digest_of(plan.files)
    return (
        f"configuration {hashlib.sha256(words.encode()).hexdigest()[:8]}, data {plan.manifest.checksum[:8]}, "
        f"{counted(plan.devices.num_local_replicas, 'replica')} per worker"
    )


def _prepare(
    plan: TrainingPlan, strategy: tf.distribute.Strategy | None = None
) -> tuple[Network, Transfer | None]:
    """Build the network, and read the weights that a new run starts from (None for a resumed run)."""
    resumes = not plan.overwrite and _newest_state(plan) is not None
    network = Network(plan.config, plan.manifest, plan.devices, plan.data_format, strategy)
    return network, None if resumes else prepare_transfer(plan.config, plan.manifest, network.model)


def _train_session(
    plan: TrainingPlan,
    network: Network,
    transfer: Transfer | None,
    stop: StopRequest,
    membership: Membership | None = None,
) -> TrainResult:
    """Restore the newest checkpoint, if there is one, and train.

    Args:
        plan: of the run.
        network: that ``_prepare`` has built.
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
            for line in keep_replaced(run, config, plan.files, state.step if state else 0):
                console.line(line)
            record(run, plan.files)
            write_json_atomic(run.config_path, as_recorded(config).to_json())
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
            for line in [*transfer.lines(), *note_of_new_averages(network, transfer.loaded)]:
                console.line(line)
        name = membership.task.name if membership else ""
        with quiet_threads(), machine_recorded(run, name, chief=writes):
            engine = partial(_make_engine, network, stop, membership)
            result = TrainLoop(plan, network, store, console, state, engine, stop, membership).run_to_end()
        if writes and config.run.deterministic:
            write_certificate(run, step=result.step, settings=config.identity(), data=plan.manifest.checksum)
        return result
    finally:
        console.close()


def _make_engine(
    network: Network,
    stop: StopRequest,
    membership: Membership | None,
    step: int,
    pause_after: Callable[[int, int], int],
) -> Engine:
    """Return what makes the steps of the network from ``step`` on; see ``TrainLoop``."""
    distribution = network.config.distribution
    batches = training_batches(network, start_step=step, stop_step=network.config.run.train_steps)

    def stopping() -> bool:
        return bool(stop) or bool(membership and membership.a_server_stops())

    if network.devices.asynchronous_workers:
        assert membership is not None
        return AsynchronousEngine(
            network.steps,
            batches,
            step=step,
            pause_after=pause_after,
            stopping=stopping,
            stuck=membership.silent_workers,
            patience=2 * distribution.peer_timeout_seconds,
            attempts=membership.attempts,
            max_staleness=distribution.max_staleness,
        )
    name = membership.task.name if membership else "worker:0"
    return SynchronousEngine(
        network.steps,
        batches,
        step=step,
        stopping=stopping,
        name=name,
        beginning=membership.begin if membership else lambda step: None,
        slowness=distribution.slowness_of(name),
    )


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


# ---- environment.json

PACKAGES = ("tensorflow", "keras", "numpy")


def describe_environment(plan: TrainingPlan) -> dict[str, Any]:
    """Return versions, devices, processors, threads, kernels, command, git commit and data set of a run."""
    config, manifest, devices = plan.config, plan.manifest, plan.devices
    return {
        "versions": {"python": platform.python_version(), "labkit": VERSION}
        | {name: installed_version(name) for name in PACKAGES},
        "devices": list(devices.names),
        "device_kind": devices.kind,
        "processors": processors(devices),
        "description": devices.describe(),
        "replicas": devices.num_replicas,
        "simulated": devices.simulated,
        "banner": devices.banner,
        "variable_strategy": config.distribution.variable_strategy,
        "threads": {
            "intra": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter": tf.config.threading.get_inter_op_parallelism_threads(),
            "cores": os.cpu_count(),
        },
        "onednn": uses_onednn(),
        "platform": platform.platform(),
        "command": without_secrets(sys.argv),
        "git_commit": _git_commit(),
        "data": {
            "dataset": manifest.dataset,
            "asked_for": plan.asked_for,
            "directory": str(manifest.directory),
            "checksum": manifest.checksum,
            "classes": list(manifest.classes),
            "image_shape": list(manifest.image_shape),
            "channel_mean": list(manifest.channel_mean),
            "channel_std": list(manifest.channel_std),
            "multi_label": manifest.multi_label,
            "target_mean": manifest.target_mean,
            "target_std": manifest.target_std,
            "counts": {name: manifest.count(name) for name in manifest.splits},
            "source": manifest.source,
            "chosen_because": plan.data_note,
        },
    }


def processors(devices: Devices) -> list[str]:
    """Return the names of this process's processors. Others have other kernels, which round otherwise."""
    if devices.kind == "CPU":
        return [cpu_model()]
    gpus = tf.config.get_visible_devices("GPU")[: devices.num_local_replicas]
    return [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]


def _git_commit() -> str | None:
    """Return labkit's git commit, with ``-dirty`` if files differ from it; None outside a checkout."""
    folder = checkout()  # an installed labkit may lie in the repository of somebody else's project
    if folder is None:
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
