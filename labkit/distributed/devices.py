"""Which devices a run uses, and the ``tf.distribute`` strategy over them.

TensorFlow fixes threads and logical devices of a process at its first operation.
"""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from labkit.config import DistributionConfig, ModelConfig
from labkit.config.architectures import ARCHITECTURES
from labkit.distributed.cpu import bfloat16_instructions, missing_gpus_error
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.startup.process import usable_cores
from labkit.startup.quiet_import import is_own_process
from labkit.startup.tf_compat import is_running


@dataclass(frozen=True)
class Devices:
    """Where the replicas of a run are.

    ``names``: this process's logical devices, one for each replica. ``num_workers``: number of processes that
    train synchronously, each with the same number of devices; ``worker_number``: this process's number, from
    0. ``asynchronous_workers``: with parameter servers, the number of workers that this process coordinates;
    otherwise 0. ``banner``: a line to show with all results if the devices are simulated, otherwise empty.
    """

    kind: str
    names: tuple[str, ...]
    simulated: bool = False
    banner: str = ""
    num_workers: int = 1
    worker_number: int = 0
    asynchronous_workers: int = 0
    num_ps: int = 0

    @property
    def num_local_replicas(self) -> int:
        return len(self.names)

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas that share a global batch."""
        return len(self.names) * self.num_workers

    def describe(self) -> str:
        if self.asynchronous_workers:
            servers = counted(self.num_ps, "parameter server")
            return f"{counted(self.asynchronous_workers, 'asynchronous worker')} with {servers}"
        local = "CPU"
        if self.simulated:
            local = counted(self.num_local_replicas, "replica") + " simulated on logical CPU devices"
        elif self.kind == "GPU":
            local = counted(self.num_local_replicas, "GPU")
        return f"{self.num_workers} synchronous workers, each {local}" if self.num_workers > 1 else local


def find_devices(config: DistributionConfig, num_gpus_found: int) -> Devices:
    """Return the devices for ``config`` on a machine with ``num_gpus_found`` GPUs.

    Raises InputError if ``config`` requests more GPUs than were found and doesn't simulate missing ones, or
    if it requests the GPU variable strategy without a GPU.
    """
    wanted = num_gpus_found if config.num_gpus is None else config.num_gpus
    if wanted > num_gpus_found:
        if not config.simulate_missing_gpus:
            raise missing_gpus_error(wanted, num_gpus_found)
        # All replicas are simulated, not only the missing ones. A synchronous step is as slow as its
        # slowest replica anyway, and different kinds of devices would need different data formats.
        banner = (
            f"SIMULATED: {counted(wanted, 'GPU')} asked for, {num_gpus_found} found; replicas run on logical "
            "CPU devices, so speeds say nothing about GPUs"
        )
        devices = tuple(f"/cpu:{index}" for index in range(wanted))
        return Devices("CPU", devices, simulated=True, banner=banner)
    if wanted == 0:
        if config.variable_strategy == "GPU":
            raise InputError(
                "--variable-strategy is 'GPU' but no GPU is found; allowed here: 'CPU' (see labkit doctor)"
            )
        return Devices("CPU", ("/cpu:0",))
    return Devices("GPU", tuple(f"/gpu:{index}" for index in range(wanted)))


def configure_tensorflow(
    config: DistributionConfig,
    *,
    deterministic: bool,
    task: ClusterTask | None = None,
    ghosts: int = 1,
) -> Devices:
    """Set threads, placement, determinism and logical devices, and return the devices.

    TensorFlow fixes most of these at its first operation. Those that ``config`` leaves open stay as they are
    in this process.

    Args:
        config: threads and devices of this process.
        deterministic: whether operations must give bit-identical results each time.
        task: a worker of a synchronous cluster, or the coordinator of a cluster with parameter servers. The
            coordinator itself uses no GPU.
        ghosts: parts of a step that are computed at once.

    Raises InputError if the devices aren't available (``find_devices``), or if TensorFlow is already running
    in this process with other threads or devices than ``config`` asks for.
    """
    _check_surroundings()
    if task is not None and is_running():
        raise InputError(
            f"TensorFlow is already running in this process, which can't join a cluster any more; {_WAY_OUT}"
        )
    gpus = _gpus(_visible_before or tf.config.get_visible_devices("GPU"))
    if (config.num_gpus or 0) > len(gpus):  # perhaps among those that were hidden from this process
        gpus = _gpus(tf.config.list_physical_devices("GPU"))
    coordinates = task is not None and task.asynchronous_by_default
    devices = Devices("CPU", ("/cpu:0",)) if coordinates else find_devices(config, len(gpus))
    inter_threads = config.num_inter_threads
    if task is not None and coordinates:
        devices = replace(devices, asynchronous_workers=task.count("worker"), num_ps=task.count("ps"))
        inter_threads = inter_threads or threads_for_peers(task)
    elif task is not None:
        devices = replace(devices, num_workers=task.num_workers, worker_number=task.worker_number)
    threading = tf.config.threading
    intra = threading.get_intra_op_parallelism_threads(), threading.set_intra_op_parallelism_threads
    inter = threading.get_inter_op_parallelism_threads(), threading.set_inter_op_parallelism_threads
    intra_threads = config.num_intra_threads or _threads_for(ghosts, devices, inter_threads)
    _set_threads("--num-intra-threads", intra_threads, *intra)
    _set_threads("--num-inter-threads", inter_threads, *inter)
    _show_gpus(gpus[: devices.num_local_replicas] if devices.kind == "GPU" else [])
    if devices.simulated:
        _split_cpu(devices.num_local_replicas)
    if config.log_device_placement:
        tf.debugging.set_log_device_placement(True)
    tf.config.set_soft_device_placement(config.allow_soft_placement)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    return devices


_WAY_OUT = "restart the kernel, or start a new process"
_visible_before: list[tf.config.PhysicalDevice] = []  # those of which a training of this process hid some


def _check_surroundings() -> None:
    """Raise InputError where this thread is in a mode of TensorFlow in which labkit can't train."""
    if not tf.executing_eagerly():
        raise InputError(
            "TensorFlow builds a graph here, and labkit needs eager execution; leave the tf.function or "
            f"tf.Graph, or after tf.compat.v1.disable_eager_execution() {_WAY_OUT}"
        )
    if tf.distribute.has_strategy():
        raise InputError(
            "this is within the scope of a tf.distribute strategy, and labkit makes its own; leave the scope"
        )


def _threads_for(ghosts: int, devices: Devices, inter_threads: int) -> int:
    """Return 1 where all cores are busy with one thread in each part of a step, else 0.

    More threads in parts that are computed at once only wait for each other (docs/speed.md). In a kernel or a
    program, the next training would have the one thread, too, so only a process of labkit's own gets it.
    """
    at_once = ghosts * devices.num_local_replicas
    at_once = min(at_once, inter_threads or at_once)
    fills = devices.kind == "CPU" and ghosts > 1 and at_once >= usable_cores()
    return int(fills and is_own_process() and not is_running())


def _set_threads(flag: str, wanted: int, now: int, change: Callable[[int], None]) -> None:
    """Set a number of threads. 0 leaves what this process has, which perhaps somebody chose."""
    if wanted in (0, now):
        return
    try:
        change(wanted)
    except RuntimeError:
        raise InputError(
            f"{flag} is {wanted}, but TensorFlow is already running in this process with "
            f"{now or 'a number of its own choice'}; leave it out, or {_WAY_OUT}"
        ) from None


def _gpus(physical: Sequence[tf.config.PhysicalDevice]) -> list[tf.config.PhysicalDevice]:
    """Return the physical device of each logical GPU: more than one where the user has split a GPU."""
    return [gpu for gpu in physical for _ in tf.config.get_logical_device_configuration(gpu) or [None]]


def _show_gpus(used: Sequence[tf.config.PhysicalDevice]) -> None:
    """Hide the other GPUs from this process, if it isn't too late, and let those used grow in memory."""
    global _visible_before
    used = list(dict.fromkeys(used))
    visible = tf.config.get_visible_devices("GPU")
    _visible_before = _visible_before or visible
    try:
        tf.config.set_visible_devices(used, "GPU")
        for gpu in used:
            if tf.config.get_logical_device_configuration(gpu) is None:
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        if visible[: len(used)] != used:
            raise InputError(
                f"{counted(len(used), 'GPU')} would train (--num-gpus), but TensorFlow is already running in "
                f"this process with {len(visible)}; give --num-gpus {len(visible)}, or {_WAY_OUT}"
            ) from None


def threads_for_peers(task: ClusterTask) -> int:
    """Return how many operations a process of a parameter-server cluster must be able to run at once.

    An operation that waits for another process blocks its thread. With no more threads than workers, all
    threads may be blocked: a deadlock (seen with two workers on two cores).
    """
    return max(task.count("worker") + task.count("ps") + 1, os.cpu_count() or 1)


def num_gpus_found() -> int:
    """Return the number of GPUs that TensorFlow finds and that aren't hidden from this process."""
    return len(_gpus(tf.config.get_visible_devices("GPU")))


def _split_cpu(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    now = len(tf.config.get_logical_device_configuration(cpu) or [None])
    if now >= count:  # an earlier training of this process split it, or the user did
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        )
    except RuntimeError:
        raise InputError(
            f"--num-gpus is {count} with --simulate-missing-gpus, but TensorFlow is already running in this "
            f"process with {counted(now, 'logical CPU device')}; {_WAY_OUT}"
        ) from None


def make_strategy(devices: Devices, variable_strategy: str) -> tf.distribute.Strategy:
    """Return the strategy over this process's devices (for clusters, see ``strategies``).

    One replica uses TensorFlow's default strategy or ``OneDeviceStrategy``; there is nothing to reduce.
    Several replicas with variable strategy ``CPU`` use ``CentralStorageStrategy``: the CPU holds one copy of
    the variables, sums the gradients and makes the update. With ``GPU`` they use ``MirroredStrategy``: each
    device holds a copy of the variables, and an all-reduce sums the gradients before each device updates its
    copy.
    """
    if devices.num_replicas == 1:
        # Without a strategy, variables go to a GPU if one was in use before and couldn't be hidden.
        if devices.kind == "CPU" and not tf.config.list_logical_devices("GPU"):
            return tf.distribute.get_strategy()
        return tf.distribute.OneDeviceStrategy(devices.names[0])
    if variable_strategy == "CPU":
        return tf.distribute.experimental.CentralStorageStrategy(list(devices.names), "/cpu:0")
    return tf.distribute.MirroredStrategy(list(devices.names))


def choose_data_format(config: ModelConfig, devices: Devices, *, probe: bool = True) -> str:
    """Return ``channels_last`` or ``channels_first``; ``auto`` means first on GPUs, last on CPUs.

    A network of one's own decides its layout by itself: its images are channels last everywhere.

    With ``probe``, a small forward and backward pass tests the format on the first device. Raises InputError
    if the device can't run it.
    """
    asked = data_format = config.data_format
    if asked == "auto":
        first = devices.kind == "GPU" and config.model in ARCHITECTURES
        data_format = "channels_first" if first else "channels_last"
    if not probe:
        return data_format
    is_double = config.precision == "float64"
    try:
        _probe_data_format(data_format, devices.names[0], tf.float64 if is_double else tf.float32)
    except (tf.errors.OpError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:160]
        raise InputError(
            f"--data-format is {asked!r}, which {devices.names[0]} can't run"
            f"{' in float64' if is_double else ''} ({reason}); "
            "allowed here: channels_last, or auto"
        ) from None
    return data_format


@functools.cache
def _probe_data_format(data_format: str, device: str, dtype: tf.DType) -> None:
    layout = "NHWC" if data_format == "channels_last" else "NCHW"
    shape = [2, 8, 8, 4] if layout == "NHWC" else [2, 4, 8, 8]
    window = [1, 2, 2, 1] if layout == "NHWC" else [1, 1, 2, 2]

    @tf.function(autograph=False)
    def probe(images, kernel, scale):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            x = tf.nn.conv2d(images, kernel, 1, "SAME", data_format=layout)
            if dtype != tf.float64:  # no device has a fused float64 kernel
                x, _, _ = tf.compat.v1.nn.fused_batch_norm(x, scale, scale, data_format=layout)
            x = tf.nn.avg_pool2d(x, window, window, "VALID", data_format=layout)
            loss = tf.reduce_sum(tf.square(x))
        return tape.gradient(loss, kernel)

    soft = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device(device):
            probe(tf.ones(shape, dtype), tf.ones([3, 3, 4, 4], dtype), tf.ones([4])).numpy()
    finally:
        tf.config.set_soft_device_placement(soft)


def check_precision(config: ModelConfig, devices: Devices) -> None:
    """Raise InputError if the devices have no hardware support for the requested precision."""
    if config.precision in ("float32", "float64"):
        return
    if devices.kind == "GPU":
        found = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
        capability = found.get("compute_capability", (0, 0))
        good, needs = capability >= (8, 0), f"compute capability 8.0, this one has {capability}"
    else:
        good, needs = bool(bfloat16_instructions()), "avx512_bf16 or amx_bf16, which this CPU doesn't have"
    if not good:
        raise InputError(
            f"--precision is {config.precision!r}, which needs {needs}; allowed here: float32, float64"
        )
