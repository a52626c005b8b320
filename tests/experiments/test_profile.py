"""Profiles: the time of traced steps, the flops of a step, and the peak of the machine."""

import itertools
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from labkit.analysis import architecture
from labkit.analysis.architecture import ceiling, matrix_product, training_flops
from labkit.config import Config, ModelConfig
from labkit.experiments import profile
from labkit.experiments import profile as profiling
from labkit.experiments.profile import kind_of, step_times
from labkit.models.freezing import Freezing
from labkit.models.registry import build_model
from labkit.optim.optimizers import SGD
from labkit.training import network as network_module
from labkit.training.losses import SOFTMAX
from labkit.training.network import Network
from tests.steps import compiled_step

# ---- kinds of operations -------------------------------------------------------------------------------


KINDS = {
    "convolution, forward": "Conv2D _MklNativeConv2D _MklNativeFusedConv2D",
    "convolution, gradient of inputs": "_MklNativeConv2DBackpropInput",
    "convolution, gradient of filters": "Conv2DBackpropFilter",
    "batch normalization": "_MklNativeFusedBatchNormEx FusedBatchNormGradV3",
    "matrix product": "_MklMatMul BatchMatMulV2",
    "pooling": "_MklNativeMaxPoolGrad AvgPool",
    "elementwise": "ReluGrad Relu6Grad AddN Erf",
    "compiled by XLA": "XLA",
    "optimizer update": "ResourceApplyMomentum AssignSubVariableOp",
    "other": "ReadVariableOp Sum Expand",  # begins like Exp
}


def test_the_kind_of_an_operation():
    found = {op: kind_of(op) for types in KINDS.values() for op in types.split()}
    assert found == {op: kind for kind, types in KINDS.items() for op in types.split()}


# ---- made-up traces ------------------------------------------------------------------------------------


class Trace:
    """An XSpace with one plane; times in microseconds."""

    def __init__(self) -> None:
        self.space = xplane_pb2.XSpace()
        self._plane = self.space.planes.add(name="/host:CPU")

    def line(self, name: str, *events: tuple[str, float, float], origin: float = 0.0) -> "Trace":
        """Add a thread; an event named ``node:type`` gets its type as display name, as in TensorFlow."""
        line = self._plane.lines.add(name=name, timestamp_ns=round(origin * 1e3))
        for what, start, end in events:
            number = len(self._plane.event_metadata) + 1
            about = self._plane.event_metadata[number]
            about.id, about.name = number, what
            about.display_name = what.rpartition(":")[2] if what.count(":") == 1 else ""
            line.events.add(
                metadata_id=number, offset_ps=round(start * 1e6), duration_ps=round((end - start) * 1e6)
            )
        return self


def microseconds(times, kind: str) -> float:
    return next(found.seconds for found in times.kinds if found.kind == kind) * 1e6


def operations(times, kind: str) -> float:
    return next(found.operations for found in times.kinds if found.kind == kind)


def test_operations_that_run_at_once_share_the_wall_time():
    made = Trace().line("python", ("train", 100, 200))
    made.line("tf_Compute/1", ("a/conv:Conv2D", 110, 150), ("a/relu:Relu", 160, 170))
    made.line("tf_Compute/2", ("a/grad:Conv2DBackpropInput", 130, 160))
    times = step_times(made.space)
    # 110-130 alone, 130-150 shared; 150-160 alone; 160-170 alone.
    assert microseconds(times, "convolution, forward") == pytest.approx(30)
    assert microseconds(times, "convolution, gradient of inputs") == pytest.approx(20)
    assert microseconds(times, "elementwise") == pytest.approx(10)
    assert times.idle_seconds * 1e6 == pytest.approx(40)
    assert times.seconds * 1e6 == pytest.approx(100)


def test_kinds_and_idle_time_add_up_to_the_mean_step():
    made = Trace().line("python", ("train", 0, 100), ("train", 120, 300))
    made.line("tf_Compute/1", ("c:Conv2D", 10, 90), ("c:Conv2D", 130, 290))
    made.line("tf_Compute/2", ("x:Relu", 50, 95), ("y:Unheard", 125, 250))
    times = step_times(made.space)
    assert times.steps == 2
    assert times.seconds * 1e6 == pytest.approx(150)  # includes the time between the steps
    assert sum(kind.seconds for kind in times.kinds) + times.idle_seconds == pytest.approx(times.seconds)
    assert operations(times, "convolution, forward") == 1
    assert operations(times, "other") == 0.5


def test_a_nested_operation_is_not_counted_for_the_outer_one():
    made = Trace().line("python", ("train", 0, 100))
    made.line("tf_Compute/1", ("call:PartitionedCall", 10, 60), ("c:Conv2D", 20, 30), ("r:Relu", 40, 60))
    times = step_times(made.space)
    assert microseconds(times, "other") == pytest.approx(20)
    assert microseconds(times, "convolution, forward") == pytest.approx(10)
    assert microseconds(times, "elementwise") == pytest.approx(20)
    assert [operations(times, kind) for kind in ("other", "elementwise")] == [1, 1]


def test_only_operations_within_the_steps_are_counted_by_the_origin_of_their_line():
    made = Trace().line("python", ("train", 100, 200), ("EagerExecute", 110, 190))
    made.line("tf_Compute/1", ("c:Conv2D", 50, 120), ("c:Conv2D", 10, 40), ("r:Relu", 190, 400))
    made.line("tf_Compute/2", ("ExecutorState::Process", 110, 190), ("ThreadpoolListener::Record", 120, 130))
    made.line("tf_Compute/3", ("m:MatMul", -360, -350), origin=500)
    made.line("tf_data_private_threadpool/1", ("a:AddV2", 160, 170), ("Iterator::Root::Map", 100, 190))
    times = step_times(made.space)
    assert microseconds(times, "convolution, forward") == pytest.approx(20)
    assert microseconds(times, "elementwise") == pytest.approx(10)
    assert microseconds(times, "matrix product") == microseconds(times, "input") == pytest.approx(10)
    assert times.idle_seconds * 1e6 == pytest.approx(50)
    with pytest.raises(ValueError, match="no training step"):
        step_times(Trace().line("tf_Compute/1", ("c:Conv2D", 0, 1)).space)


def test_what_xla_compiled_is_a_kind_of_its_own(tmp_path):
    compiled = tf.function(lambda x: tf.exp(x) * x, jit_compile=True)
    values = tf.ones([1000, 1000])
    compiled(values)
    with (
        tf.profiler.experimental.Profile(str(tmp_path)),
        tf.profiler.experimental.Trace(profile.STEP_NAME, step_num=0, _r=1),
    ):
        compiled(values).numpy()
    times = step_times(profile.read_trace(tmp_path))
    assert operations(times, "compiled by XLA") == 1
    assert 0 < microseconds(times, "compiled by XLA") <= times.seconds * 1e6


def test_the_newest_trace_of_a_folder_is_read(tmp_path):
    for number, name in enumerate(("2026_01_01", "2026_01_02")):
        folder = tmp_path / "plugins" / "profile" / name
        folder.mkdir(parents=True)
        space = Trace().line("python", *[("train", 0, 100)] * (number + 1)).space
        (folder / "host.xplane.pb").write_bytes(space.SerializeToString())
    assert step_times(profile.read_trace(tmp_path)).steps == 2


# ---- flops ---------------------------------------------------------------------------------------------

BATCH = 4


def concrete_step(model, config, **options):
    step = compiled_step(
        tf.distribute.get_strategy(),
        model,
        SGD(model, config.optimizer),
        tf.Variable(0, dtype=tf.int64),
        global_batch_size=BATCH,
        label_smoothing=0.0,
        **options,
    )
    return step.get_concrete_function(
        tf.TensorSpec([BATCH, 32, 32, 3]),
        tf.TensorSpec([BATCH], tf.int32),
        tf.TensorSpec([]),
        tf.TensorSpec([]),
    )


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"num_layers": 8}, 32),
        ({"model": "fast", "width_factor": 0.25}, 32),  # the first convolution is not trained
        ({"model": "fast", "width_factor": 0.25}, 16),
        ({"model": "fast", "width_factor": 0.25, "whitening": False}, 32),
        ({"model": "se_resnet", "num_layers": 8}, 32),  # dense layers beside the convolutions
    ],
    ids=str,
)
def test_flops_of_a_step_match_its_graph_at_any_image_size(fields, size):
    model = build_model(ModelConfig(**fields), num_classes=10, image_shape=(32, 32, 3))
    graph = concrete_step(model, Config(), **({} if size == 32 else {"image_size": size})).graph
    assert training_flops(model, image_size=size) * BATCH == sum(map(graph_flops, reached(graph)))


def test_gradients_of_frozen_layers_are_neither_counted_nor_computed():
    model = build_model(ModelConfig(num_layers=8), num_classes=10, image_shape=(32, 32, 3))
    config = Config.from_flat({"freeze": "stem,stage1,stage2"})
    frozen = Freezing(model, config.transfer).at(0)
    graph = concrete_step(model, config, frozen=frozen).graph
    assert training_flops(model, frozen) * BATCH == sum(map(graph_flops, reached(graph)))
    assert training_flops(model, frozen) < 0.6 * training_flops(model)


def test_a_profile_repeats_the_first_step_even_if_images_grow_and_layers_thaw(monkeypatch):
    stages = {"train_steps": 4, "progressive_resizing": "16:0.5,24:0.75", "inspect_every_steps": 1}
    made = []

    def train_step_for(frozen, size, inspected):
        made.append((frozen, size, inspected))
        return lambda *batch: (tf.constant([2.0, 0.5, 0.0]), tf.zeros(2))

    network = Network.__new__(Network)  # without building anything
    network.config = Config.from_flat(stages)
    network.manifest = SimpleNamespace(count=lambda split: 1000)
    network.devices = SimpleNamespace(num_workers=1, asynchronous_workers=0)
    network.loss = SOFTMAX
    network.freezing = SimpleNamespace(at=lambda number: frozenset({"stem"} if number < 2 else ()))
    network.train_step_for = train_step_for
    network.strategy = network.step = None
    monkeypatch.setattr(network_module, "training_batches", lambda *_, **__: itertools.repeat((None, None)))
    engine = profiling.engine_of_first_step(network, 8)
    for _ in range(8):
        engine.next_step()
    assert made == [({"stem"}, 16, False)]


def reached(graph) -> set[tf.Operation]:
    """Return the operations that a function's outputs and updates need; no others are run."""
    found: set[tf.Operation] = set()
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return found


def graph_flops(operation: tf.Operation) -> int:
    """Return twice the multiply-adds of a node, computed from its shapes."""
    if operation.type == "Conv2D":
        kernel, outputs = operation.inputs[1].shape, operation.outputs[0].shape
    elif operation.type == "Conv2DBackpropInput":
        kernel, outputs = operation.inputs[1].shape, operation.inputs[2].shape
    elif operation.type == "Conv2DBackpropFilter":
        kernel, outputs = operation.outputs[0].shape, operation.inputs[2].shape
    elif operation.type == "MatMul":
        first = operation.inputs[0].shape
        inner = first[0] if operation.get_attr("transpose_a") else first[1]
        return 2 * operation.outputs[0].shape.num_elements() * inner
    else:
        return 0
    return 2 * kernel.num_elements() * outputs.num_elements() // outputs[-1]


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "float64"])
def test_a_matrix_product_is_two_size_cubed_operations(precision, monkeypatch):
    measure = matrix_product(8, precision)
    clock = iter([10.0, 10.5])
    monkeypatch.setattr(architecture.time, "perf_counter", lambda: next(clock))
    assert measure() == pytest.approx(2 * 8**3 / 0.5 / 1e9)


def test_the_ceiling_is_the_best_median_of_all_sizes(monkeypatch):
    rates = {16: iter([5.0, 1.0, 2.0]), 32: iter([3.0, 4.0, 3.5]), 64: iter([9.0, 1.0, 1.0])}
    monkeypatch.setattr(architecture, "matrix_product", lambda size, *_: lambda: next(rates[size]))
    assert ceiling("float32", sizes=(16, 32, 64), seconds=0.0) == 3.5
