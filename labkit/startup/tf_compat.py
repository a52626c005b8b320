"""Everything that labkit uses of TensorFlow and Keras beyond their public interface: patches, private fields.

Checked with TensorFlow 2.21 and Keras 3.15. In another version the private names may be gone or mean
something else, so a task of a cluster calls ``check_versions`` before it joins. Training with one process
uses ``is_running``, ``switches``, ``restore_switches`` and what is said of Keras.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import tensorflow as tf

from labkit.errors import InputError

CHECKED_WITH = {"tensorflow": "2.21", "keras": "3.15"}


def check_versions() -> None:
    """Raise InputError where TensorFlow or Keras has another version than labkit was checked with."""
    installed = {"tensorflow": tf.__version__, "keras": keras.__version__}
    for package, checked in CHECKED_WITH.items():
        if installed[package].split(".")[:2] != checked.split("."):
            raise InputError(
                f"{package} {installed[package]} is installed, but training with several processes uses "
                f"internals of {package} {checked}; install {package} {checked}.*, or train with one process"
            )


@contextmanager
def without_values() -> Iterator[None]:
    """Make networks whose weights have shapes only: no memory is taken for them.

    Keras keeps a list of such weights, and would make their values when another scope without state ends.
    """
    from keras.src.backend.common import global_state

    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute("uninitialized_variables", [])


def is_running() -> bool:
    """Return whether TensorFlow has run an operation in this process: its threads and devices are fixed."""
    from tensorflow.python.eager import context

    return context.context()._context_handle is not None


def switches() -> tuple[bool, bool, bool]:
    """Return whether this process computes deterministically, logs devices, and may move operations."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import config

    logs_placement = context.context().log_device_placement
    return config.is_op_determinism_enabled(), logs_placement, tf.config.get_soft_device_placement()


def watches_operations() -> bool:
    """Return whether each operation of a function that is traced now gets another that looks at its result.

    ``--debugger-dump`` and ``tf.debugging.enable_check_numerics`` add them, and XLA can't compile them.
    """
    from tensorflow.python.eager import context

    return bool(context.context().op_callbacks)


def uses_onednn() -> bool:
    """Return whether TensorFlow's kernels on a CPU are oneDNN's, which round otherwise than its own."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


def told_of_other_kernels(environment: Mapping[str, Any]) -> str:
    """Return a clause if a run had other kernels than this process, by its ``environment.json``; else ""."""
    here = uses_onednn()
    if environment.get("onednn") not in (True, False) or environment["onednn"] == here:
        return ""
    words = ("on", "off") if here else ("off", "on")
    return "oneDNN's kernels are {} here and were {} in the run (TF_ENABLE_ONEDNN_OPTS)".format(*words)


def restore_switches(before: tuple[bool, bool, bool]) -> None:
    """Set ``switches`` as before. With determinism, TensorFlow refuses random operations without a seed."""
    from tensorflow.python.framework import config

    deterministic, logs_placement, moves = before
    if switches() != before:
        (config.enable_op_determinism if deterministic else config.disable_op_determinism)()
        tf.debugging.set_log_device_placement(logs_placement)
        tf.config.set_soft_device_placement(moves)


@contextmanager
def without_coordination_service() -> Iterator[None]:
    """Create a ``MultiWorkerMirroredStrategy`` without TensorFlow's own supervision of the workers.

    ``labkit.distributed.peers`` supervises them. TensorFlow's coordination service waits for all workers
    with Python's global lock held and without a time limit: if a worker is lost meanwhile, neither signals
    nor threads of this process run. It also handles SIGTERM itself and delays the end of a worker by 10 s.
    Without it the strategy would start a health check, which runs a reduction first and does not name the
    worker that was lost. Neither has a setting.
    """
    check_versions()  # before the imports, which another version may not have
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
    from tensorflow.python.eager.context import Context

    with (
        _replaced(Context, "configure_coordination_service", lambda *arguments, **options: None),
        _replaced(CollectiveAllReduceExtended, "_enable_check_health", False),
    ):
        yield


@contextmanager
def local_cpu_replicas(count: int) -> Iterator[None]:
    """Create a ``MultiWorkerMirroredStrategy`` with ``count`` logical CPU devices in each worker.

    TensorFlow takes one CPU device a worker and has no setting for more.
    """
    if count < 2:
        yield
        return
    check_versions()
    from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

    def devices(extended: Any, resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker_device}/device:CPU:{index}" for index in range(count)), "CPU"

    with _replaced(CollectiveAllReduceExtended, "_initialize_local_devices", devices):
        yield


@contextmanager
def _replaced(owner: type, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# ---- RemoteValue (tensorflow/python/distribute/coordinator): what a scheduled step returned.


def is_here(result: Any) -> bool:
    """Return whether a ``RemoteValue`` has been copied here, or has failed: ``fetch`` returns at once.

    Its public methods copy it where they are called, and wait for ever if its worker hangs meanwhile.
    ``hold_attempts`` lets the thread that serves the worker do so.
    """
    return result._has_fetched_to_local or result._error is not None


def worker_of(result: Any) -> str:
    """Return the worker that computed a ``RemoteValue``, such as ``worker:1``."""
    spec = tf.DeviceSpec.from_string(result._values[0].backing_device)
    return f"{spec.job}:{spec.task}"


def hold_attempts(coordinator: Any, attempt: Callable[[str], AbstractContextManager[None]]) -> None:
    """Let a ``ClusterCoordinator`` run every attempt of its scheduled steps within ``attempt(worker)``.

    ``worker`` is the name of the worker that makes the step, such as ``worker:1``. The context is entered in
    the thread that serves the worker, before the step starts on it, and left after the step has ended and its
    result is here, or after it has failed. A step whose worker is lost is attempted again. TensorFlow takes
    compiled functions only, which leaves no place for a wait.

    The coordinator's thread and those of the workers get executors of their own. TensorFlow often waits for
    everything that a thread's executor has under way. The executor that threads share by default releases
    the tensors on the workers. While one worker hangs, this does not end, and all other threads would wait.
    """
    from tensorflow.python.eager import context, executor

    own = threading.local()  # an executor must live as long as its thread uses it

    def own_executor() -> Any:
        if not hasattr(own, "executor"):
            own.executor = executor.new_executor(enable_async=False)
            context.context().executor = own.executor
        return own.executor

    own_executor()
    coordinator.labkit_executors = own
    queue = coordinator._cluster.closure_queue
    put = queue.put

    def put_held(closure: Any, tag: Any = None) -> None:
        execute_on = closure.execute_on

        def held(worker: Any) -> None:
            mine = own_executor()
            try:
                with attempt(f"worker:{worker.worker_index}"):
                    execute_on(worker)
                    closure.maybe_call_with_output_remote_value(lambda result: result.get())
            finally:
                mine.clear_error()  # of a lost worker: TensorFlow would raise it again where it waits

        closure.execute_on = held
        put(closure, tag)

    queue.put = put_held


# ---- Keras -----------------------------------------------------------------------------------------------


@contextmanager
def weights_up_to(most: int, too_many: Exception) -> Iterator[None]:
    """Raise an error before Keras makes the values of more weights than these, which take memory."""
    from keras.src.backend.common import global_state

    owner = next(base for base in keras.Variable.__mro__ if "_initialize_with_initializer" in vars(base))
    made, initialize = 0, vars(owner)["_initialize_with_initializer"]

    def counted(variable: Any, initializer: Any) -> None:
        nonlocal made
        made += math.prod(variable.shape)
        if made > most:
            raise too_many
        initialize(variable, initializer)

    try:
        with _replaced(owner, "_initialize_with_initializer", counted):
            yield
    except Exception:
        if made > most:  # Keras may have put an error of its own in its place
            global_state.set_global_attribute("uninitialized_variables", [])  # see without_values
            raise too_many from None
        raise


def all_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Return a layer and all those inside of it, each once, in the order in which they were given to it."""
    return list(dict.fromkeys(layer._flatten_layers()))


def is_called_once(operation: keras.Operation) -> bool:
    """Return whether an operation of a functional network has one call."""
    return len(operation._inbound_nodes) == 1


def update_by_keras(
    optimizer: Any, gradients: Any, variables: Any, learning_rate: Any, update_each: Callable[..., None]
) -> None:
    """Let a Keras optimizer update weights in cross-replica context, with gradients that are summed.

    What it does once for all weights, it does; then ``update_each`` gets the three, to call ``update_step``
    for each weight. Keras itself does so in replica context only, and sums there.
    """
    kind = type(optimizer)
    distributing = next(base for base in kind.__mro__ if "_distributed_tf_update_step" in vars(base))

    def _backend_update_step(self: Any, *arguments: Any) -> None:
        update_each(*arguments)

    # Behind the optimizer's own class, whose method may call this one, and before TensorFlow's.
    behind = type("Behind", (distributing,), {"_backend_update_step": _backend_update_step})
    object.__setattr__(optimizer, "__class__", type(kind.__name__, (kind, behind), {}))
    try:
        optimizer._backend_update_step(gradients, variables, learning_rate)
    finally:
        object.__setattr__(optimizer, "__class__", kind)


@contextmanager
def names_from_the_beginning() -> Iterator[None]:
    """Let Keras name layers as in a new process, so that another copy of a network has the same names."""
    from keras.src.backend.common import global_state

    counts = global_state.get_global_attribute("object_name_uids")
    global_state.set_global_attribute("object_name_uids", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", counts)
