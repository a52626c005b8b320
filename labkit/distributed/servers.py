"""Parameter servers and asynchronous workers: tasks that run a TensorFlow server for the coordinator."""

import time
from typing import Any

from labkit.config import Config
from labkit.distributed.peers import PeerLost, Peers, exit_after_loss
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.machine import machine_recorded
from labkit.startup.interruption import StopRequest, stop_on_signals
from labkit.startup.quiet_import import import_tensorflow

POLL_SECONDS = 0.2
# A server that was asked to stop is still needed while the coordinator saves its last checkpoint.
SECONDS_TO_STOP = 45.0


def is_server(task: ClusterTask, config: Config) -> bool:
    """Return whether ``task`` runs a server for the coordinator of an asynchronous cluster."""
    asynchronous = task.asynchronous_by_default and not config.distribution.sync
    return asynchronous and task.job_name in ("worker", "ps")


def serve(task: ClusterTask, config: Config, run: RunDirectory) -> int:
    """Run a server until the coordinator leaves.

    Returns 0, or 128 + signal if this task was asked to stop. Ends the process with ``EXIT_LOST_PEER`` when
    the coordinator is lost. Raises InputError for an impossible configuration, PeerLost if no coordinator
    appears.
    """
    run.create()
    with stop_on_signals() as stop:
        return _serve(task, config, run, stop)


def _serve(task: ClusterTask, config: Config, run: RunDirectory, stop: StopRequest) -> int:
    import_tensorflow()
    from labkit.distributed.bind_address import listen_on
    from labkit.distributed.devices import threads_for_peers

    listen_on(config.distribution.bind)
    server = _start_server(task, config, threads_for_peers(task))
    peers = Peers(
        run.cluster_path,
        task.name,
        task.address,
        task.addresses("chief"),
        timeout=config.distribution.peer_timeout_seconds,
    )
    peers.start()
    if not peers.rendezvous(config.distribution.rendezvous_seconds, lambda: bool(stop)):
        peers.leave()
        return 128 + (stop.signal_number or 0)
    peers.watch(exit_after_loss)
    peers.tell(phase="serving")
    print(f"{task.name} serves at {task.address}", flush=True)
    with machine_recorded(run, task.name, chief=False):
        code = _wait_for_coordinator(peers, stop)
    peers.leave()
    del server  # it runs as long as it is referenced
    return code


def _start_server(task: ClusterTask, config: Config, inter_threads: int) -> Any:
    import tensorflow as tf

    proto = tf.compat.v1.ConfigProto()
    proto.intra_op_parallelism_threads = config.distribution.num_intra_threads
    proto.inter_op_parallelism_threads = config.distribution.num_inter_threads or inter_threads
    proto.allow_soft_placement = config.distribution.allow_soft_placement
    proto.gpu_options.allow_growth = True
    wants_gpu = task.job_name == "worker" and config.distribution.num_gpus != 0
    proto.device_count["GPU"] = 1 if wants_gpu else 0
    jobs = tf.train.ClusterSpec({job: list(addresses) for job, addresses in task.jobs.items()})
    found = len(tf.config.list_physical_devices("GPU"))
    if task.job_name == "worker" and (config.distribution.num_gpus or 0) > found:
        raise InputError(
            f"--num-gpus is {config.distribution.num_gpus}, but TensorFlow finds {found} here (see labkit "
            "doctor); allowed: 0"
        )
    try:
        return tf.distribute.Server(
            jobs, job_name=task.job_name, task_index=task.task_index, config=proto, protocol="grpc"
        )
    except tf.errors.OpError as error:
        raise PeerLost(
            f"{task.name} can't listen at {task.address} ({str(error).splitlines()[0][:160]}); "
            "is another process there?"
        ) from None


def _wait_for_coordinator(peers: Peers, stop: StopRequest) -> int:
    """Return 0 once the coordinator has left; 128 + signal if it is still there long after a stop request."""
    asked_at: float | None = None
    while True:
        coordinator = peers.heartbeats().get("chief:0")
        if coordinator is not None and coordinator.phase == "left":
            return 0
        if stop and asked_at is None:
            asked_at = time.monotonic()
            peers.tell(phase="stopping")  # from a parameter server: asks the coordinator to save and end
        if asked_at is not None and time.monotonic() - asked_at > SECONDS_TO_STOP:
            return 128 + (stop.signal_number or 0)
        time.sleep(POLL_SECONDS)
