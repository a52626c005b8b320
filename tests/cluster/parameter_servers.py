"""Runs in a process of its own (one cluster a process); ends with "all held", or an AssertionError."""

from functools import partial

import numpy as np
import tensorflow as tf

from labkit.cluster.local import free_ports
from labkit.config import Config, TransferConfig
from labkit.distributed.asynchronous import StalenessLimit
from labkit.distributed.asynchronous_step import StepReport, make_asynchronous_step, read_packed
from labkit.distributed.bind_address import listen_on
from labkit.distributed.synchronous import make_parameter_server_strategy, variables_on_servers
from labkit.distributed.task import ClusterTask
from labkit.inspection.observer import StepObserver, read_observation
from labkit.models.freezing import Freezing
from labkit.models.registry import build_model
from labkit.optim.optimizers import SGD
from labkit.startup.tf_compat import hold_attempts, worker_of
from labkit.training.losses import SOFTMAX
from labkit.training.step import make_train_step
from tests.steps import compiled_step

STEPS = 200
BATCH = 8

listen_on("127.0.0.1")
ports = [f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", 5)]
jobs = {"worker": tuple(ports[:2]), "ps": tuple(ports[2:4])}
threads = tf.compat.v1.ConfigProto()
threads.inter_op_parallelism_threads = 5
servers = [
    tf.distribute.Server(
        tf.train.ClusterSpec({name: list(addresses) for name, addresses in jobs.items()}),
        job_name=job,
        task_index=index,
        protocol="grpc",
        config=threads,
    )
    for job in jobs
    for index in range(2)
]
strategy = make_parameter_server_strategy(ClusterTask(jobs | {"chief": (ports[4],)}, "chief", 0))
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


def prepare(images: tf.Tensor) -> tf.Tensor:
    """Stand for what is done to the bytes on the worker."""
    return tf.cast(images, tf.float32) / 128.0 - 1.0


config = Config.from_flat({"num_layers": 8, "train_batch_size": BATCH, "learning_rate": 1e-4})


def build(placement: str):
    with strategy.scope(), variables_on_servers(placement, 2):
        model = build_model(config.model, num_classes=10, image_shape=(8, 8, 3), seed=0)
        return model, SGD(model, config.optimizer), tf.Variable(0, dtype=tf.int64, trainable=False)


def load(model) -> tuple[list[int], list[int]]:
    """Return how many variables, and how many bytes, each server holds."""
    counts, sizes = [0, 0], [0, 0]
    for weight in model.weights:
        server = tf.DeviceSpec.from_string(weight.value.device).task
        counts[server] += 1
        sizes[server] += weight.value.shape.num_elements() * weight.value.dtype.size
    return counts, sizes


def make_remote_step(model, optimizer, step, **options):
    train_step = make_asynchronous_step(
        strategy,
        model,
        optimizer,
        step,
        metrics_of=partial(SOFTMAX.step_metrics_of, label_smoothing=0.0, global_batch_size=BATCH),
        standardize=prepare,
        **options,
    )
    return tf.function(train_step, reduce_retracing=True)


def make_local_step(**options):
    return compiled_step(local, local_model, local_optimizer, local_step, global_batch_size=BATCH, **options)


def values(model, optimizer) -> list[np.ndarray]:
    return [
        variable.numpy() for variable in [*(weight.value for weight in model.weights), *optimizer.velocities]
    ]


pixels = tf.constant(np.random.default_rng(0).integers(0, 256, [BATCH, 8, 8, 3]), tf.uint8)
labels = tf.range(BATCH)
scalars = (tf.constant(0.1), tf.constant(0.0))
local = tf.distribute.get_strategy()
local_model = build_model(config.model, num_classes=10, image_shape=(8, 8, 3), seed=0)
local_optimizer, local_step = SGD(local_model, config.optimizer), tf.Variable(0, dtype=tf.int64)
local_metrics = make_local_step()(prepare(pixels), labels, *scalars)
for placement in ("round_robin", "greedy"):
    model, optimizer, step = build(placement)
    counts, sizes = load(model)
    if placement == "round_robin":
        assert abs(counts[0] - counts[1]) <= 1, counts
    else:
        largest = max(weight.value.shape.num_elements() * 4 for weight in model.weights)
        assert abs(sizes[0] - sizes[1]) <= largest, (sizes, largest)
        assert abs(sizes[0] - sizes[1]) < abs(round_robin_sizes[0] - round_robin_sizes[1])  # noqa: F821
    round_robin_sizes = sizes
    for variable, velocity in zip(model.trainable_variables, optimizer.velocities, strict=True):
        assert variable.value.device == velocity.device
    train_step = make_remote_step(model, optimizer, step)
    # One step alone is the step of one process: every weight, moving average and velocity.
    metrics, _ = coordinator.schedule(train_step, args=(pixels, labels, *scalars)).fetch()
    np.testing.assert_allclose(metrics, local_metrics, rtol=1e-5)
    for ours, theirs in zip(values(model, optimizer), values(local_model, local_optimizer), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    before = [weight.numpy() for weight in model.trainable_weights]
    results = [coordinator.schedule(train_step, args=(pixels, labels, *scalars)) for _ in range(STEPS)]
    coordinator.join()
    assert int(step.numpy()) == STEPS + 1, step
    for result in results:
        _, report = result.fetch()
        report = StepReport(*report)
        assert report.started <= report.read < report.computed <= report.updated, report
        assert 0 < report.exchanged < report.seconds, report
        sizes = [weight.value.shape.num_elements() * 4 for weight in model.weights]
        assert report.bytes_sent == sum(sizes), "gradients and batch statistics"
        read = sum(weight.value.shape.num_elements() * 4 for weight in model.trainable_weights)
        assert report.bytes_received == read + BATCH * (8 * 8 * 3 + 4), "weights and the batch"
    assert any(
        (weight.numpy() != old).any() for weight, old in zip(model.trainable_weights, before, strict=True)
    )

# An inspected step shows what one of one process shows, also of the update on the servers.
local_model.set_weights(model.get_weights())
for ours, theirs in zip(local_optimizer.velocities, optimizer.velocities, strict=True):
    ours.assign(theirs.numpy())
observer = StepObserver(local_model, BATCH)
local_inspected = make_train_step(
    local, local_model, local_optimizer, local_step, global_batch_size=BATCH, observer=observer
)
compiled = tf.function(lambda *batch: (local_inspected(*batch), *observer.tensors))
_, shown_locally = compiled(prepare(pixels), labels, *scalars)
train_step = make_remote_step(model, optimizer, step, observer=StepObserver(model, BATCH, read_packed))
_, _, shown = coordinator.schedule(train_step, args=(pixels, labels, *scalars)).fetch()
ours, theirs = (read_observation(model, frozenset(), tensors) for tensors in (shown, shown_locally))
for figure, values_of_layers in ours.by_layer().items():
    expected = theirs.by_layer()[figure]
    if figure == "layers":
        assert values_of_layers == expected
    else:
        found, expected = (np.array(given, dtype=float) for given in (values_of_layers, expected))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6, err_msg=figure)
for path, counts in ours.weight_counts.items():
    assert counts.sum() == theirs.weight_counts[path].sum() > 0, path

# Gradients in bfloat16 are half the bytes, and change an update by their rounding alone.
local_model.set_weights(model.get_weights())
for ours, theirs in zip(local_optimizer.velocities, optimizer.velocities, strict=True):
    ours.assign(theirs.numpy())
before = [weight.numpy() for weight in model.trainable_weights]
make_local_step()(prepare(pixels), labels, *scalars)
train_step = make_remote_step(model, optimizer, step, compression="bfloat16")
_, report = coordinator.schedule(train_step, args=(pixels, labels, *scalars)).fetch()
statistics = sum(weight.value.shape.num_elements() * 4 for weight in model.non_trainable_weights)
assert StepReport(*report).bytes_sent == read / 2 + statistics, report
pairs = list(zip(model.trainable_weights, local_model.trainable_weights, before, strict=True))
updates = [(ours.numpy() - old, theirs.numpy() - old) for ours, theirs, old in pairs]
for ours, theirs in updates:  # bfloat16 keeps 8 bits; the velocity has some of the update
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2**-8 * np.abs(theirs).max() + 1e-7)
assert any((np.abs(ours - theirs) > 1e-4 * np.abs(theirs).max()).any() for ours, theirs in updates)
assert all(weight.dtype == "float32" for weight in model.weights)

# With frozen layers, too, a step is that of one process; nothing of theirs moves.
frozen = Freezing(model, TransferConfig(freeze="stem,stage1,stage2_*_norm*")).at(0)
local_model.set_weights(model.get_weights())
for ours, theirs in zip(local_optimizer.velocities, optimizer.velocities, strict=True):
    ours.assign(theirs.numpy())
before = {weight.path: weight.numpy() for weight in model.weights}
make_local_step(frozen=frozen)(prepare(pixels), labels, *scalars)
train_step = make_remote_step(model, optimizer, step, frozen=frozen)
coordinator.schedule(train_step, args=(pixels, labels, *scalars)).fetch()
for ours, theirs in zip(values(model, optimizer), values(local_model, local_optimizer), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
moved = {path.split("/")[0] for path, weight in zip(before, model.weights, strict=True)
         if (weight.numpy() != before[path]).any()}  # fmt: skip
assert moved == {path.split("/")[0] for path in before} - frozen, moved


def reports_of(train_step, steps: int) -> dict[str, list[StepReport]]:
    """Return what each worker reports of its steps."""
    results = [coordinator.schedule(train_step, args=(pixels, labels, *scalars)) for _ in range(steps)]
    coordinator.join()
    found: dict[str, list[StepReport]] = {"worker:0": [], "worker:1": []}
    for result in results:
        _, report = result.fetch()
        found[worker_of(result)].append(StepReport(*report))
    return found


# A worker that is four times as slow has four times as stale gradients, unless others are held back.
train_step = make_remote_step(model, optimizer, step, slow_worker=(1, 4.0))
reports_of(train_step, 4)  # the first steps are slower
reports = reports_of(train_step, 60)
for field, least in (("seconds", 2.0), ("staleness", 2.0)):
    fast, slow = (np.mean([getattr(each, field) for each in reports[name]]) for name in sorted(reports))
    assert slow > least * fast, (field, fast, slow)
every = [each.staleness for name in reports for each in reports[name]]
# While a step of one worker waits, each of the others' updates in between is counted, once.
assert max(every) >= 2, every
assert sum(every) <= 2 * len(every), every
limit = StalenessLimit(1)
hold_attempts(coordinator, lambda worker: limit.attempt())
held = reports_of(train_step, 30)
assert max(each.staleness for name in held for each in held[name]) == 1, held
print("all held", flush=True)
