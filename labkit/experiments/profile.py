"""Measure how long training steps take and where their time goes, without writing a run.

The time is split by kinds of operations from a trace of TensorFlow's profiler, which writes an XSpace
(tensorflow/tsl/profiler/protobuf/xplane.proto). It holds planes; a plane holds lines, one for each thread; a
line holds events. The kernel of an operation is an event that is named ``<node>:<type>`` and whose display
name is the type. What XLA compiled is an event ``XLA_CALL``.
"""

import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.run_directory.disk import check_writable
from labkit.run_directory.files import open_run_file
from labkit.startup.process import usable_cores
from labkit.training.plan import plan_measurement

STEP_NAME = "train"  # name of the event around each step, whose step_num TensorBoard reads
XLA_CALL, XLA = "CpuExecutable::ExecuteAsyncOnStream", "XLA"  # a call of what XLA compiled; its type here
INPUT_THREADS = "tf_data"  # prefix of the names of the input pipeline's threads

FORWARD, INPUT_GRADIENT, FILTER_GRADIENT = (
    "convolution, forward",
    "convolution, gradient of inputs",
    "convolution, gradient of filters",
)
NORMALIZATION, MATRIX, POOLING = "batch normalization", "matrix product", "pooling"
ELEMENTWISE, COMPILED = "elementwise", "compiled by XLA"
UPDATE, INPUT, OTHER = "optimizer update", "input", "other"
KINDS = (
    FORWARD,
    INPUT_GRADIENT,
    FILTER_GRADIENT,
    NORMALIZATION,
    MATRIX,
    POOLING,
    ELEMENTWISE,
    COMPILED,
    UPDATE,
    INPUT,
    OTHER,
)

# oneDNN's kernels and fused ones are named after the operation they replace: _MklNativeConv2D, _FusedMatMul.
_PREFIXES = re.compile(r"^_?(Mkl)?(Native)?(Fused)?")
_FUNCTIONS = (
    "Relu|Gelu|Elu|Selu|Softplus|Sigmoid|Tanh|Erf|Exp|Log|Pow|Sqrt|Rsqrt|Square|SquaredDifference|Abs|Neg|Sign|"
    "Add|AddV2|AddN|BiasAdd|Sub|Mul|RealDiv|DivNoNan|FloorDiv|FloorMod|Maximum|Minimum|Inv|Reciprocal|Cast|"
    "Select|SelectV2|Greater|GreaterEqual|Less|LessEqual|Equal|NotEqual|LogicalAnd|LogicalOr|LogicalNot"
)
# The first pattern that matches the beginning of the type, without its prefix, decides.
_BY_TYPE = (
    (INPUT_GRADIENT, r"(Conv2D|DepthwiseConv2dNative)BackpropInput"),
    (FILTER_GRADIENT, r"(Conv2D|DepthwiseConv2dNative)BackpropFilter"),
    (FORWARD, r"(Conv2D|DepthwiseConv2dNative|PadWithConv2D)"),
    (NORMALIZATION, r"BatchNorm"),
    (MATRIX, r"(Batch)?MatMul|Einsum"),
    (POOLING, r"(Max|Avg)Pool"),
    (UPDATE, r"ResourceApply|ResourceScatter|Assign\w*VariableOp"),
    (COMPILED, XLA),
    (ELEMENTWISE, rf"({_FUNCTIONS})6?(Grad)?$"),
)


@dataclass(frozen=True)
class KindTime:
    """One kind's part of a step.

    ``operations``: their mean number in a step. ``seconds``: of the step's wall time. ``types``: of the
    operations, the one that takes most time first. The optimizer's update includes all assignments to
    variables, also those of moving averages.
    """

    kind: str
    operations: float
    seconds: float
    types: tuple[str, ...]


@dataclass(frozen=True)
class StepTimes:
    """Means over ``steps`` traced steps. The kinds' seconds and ``idle_seconds`` add up to ``seconds``.

    When several operations run at once, each gets an equal share of that time. ``idle_seconds``: time in
    which no operation runs, but Python does, TensorFlow starts or ends a step, or the step waits for input.
    """

    steps: int
    seconds: float
    idle_seconds: float
    kinds: tuple[KindTime, ...]


def kind_of(op_type: str) -> str:
    """Return which of ``KINDS`` a type of operation is; never ``INPUT``, which the thread decides."""
    rest = _PREFIXES.sub("", op_type)
    return next((kind for kind, pattern in _BY_TYPE if re.match(pattern, rest)), OTHER)


def read_trace(folder: Path) -> Any:
    """Return the newest XSpace that TensorFlow's profiler wrote below ``folder``."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    newest = max(folder.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime_ns)
    space = xplane_pb2.XSpace()
    with open_run_file(newest) as file:
        space.ParseFromString(file.read())
    return space


@dataclass(frozen=True)
class _Running:
    """A stretch of an operation without interruption on its thread. ``begins``: 1 for the first, else 0."""

    start: int  # picoseconds
    end: int
    op_type: str
    kind: str
    begins: int


def step_times(space: Any) -> StepTimes:
    """Return how the time of the steps in a trace of the CPU was spent.

    The time runs from the start of the first step to the end of the last, including the time between steps.

    Args:
        space: the XSpace of a trace, of ``read_trace``.

    Raises ValueError if the trace holds no step.
    """
    lines = [(plane, line) for plane in space.planes for line in plane.lines]
    steps = [span for plane, line in lines for name, _, *span in _events(plane, line) if name == STEP_NAME]
    if not steps:
        raise ValueError("the trace holds no training step")
    first, last = min(start for start, _ in steps), max(end for _, end in steps)
    parts = (part for plane, line in lines for part in _operations(plane, line))
    running = [part for part in parts if part.start < last and part.end > first]
    by_type, busy = _shared_time(running, first, last)
    seconds, count, kinds = (last - first) / 1e12, len(steps), []
    for kind in KINDS:
        types = {key[1]: spent for key, spent in by_type.items() if key[0] == kind}
        kinds.append(
            KindTime(
                kind,
                sum(part.begins for part in running if part.kind == kind) / count,
                sum(types.values()) / count,
                tuple(sorted(types, key=lambda name: -types[name])),
            )
        )
    return StepTimes(count, seconds / count, (seconds - busy) / count, tuple(kinds))


def _events(plane: Any, line: Any) -> Iterator[tuple[str, str, int, int]]:
    """Yield (name, display name, start, end) of a line's events, in picoseconds of the trace's clock."""
    origin = line.timestamp_ns * 1000
    for event in line.events:
        about = plane.event_metadata[event.metadata_id]
        start = origin + event.offset_ps
        yield about.name, about.display_name, start, start + event.duration_ps


def _operations(plane: Any, line: Any) -> Iterator[_Running]:
    """Yield what a thread ran, in pieces: an operation inside another one interrupts the outer one."""
    is_input = line.name.startswith(INPUT_THREADS)
    spans = [
        (start, end, op_type)
        for name, shown, start, end in _events(plane, line)
        if end > start and (op_type := _type_of(name, shown))
    ]
    # Where two start together, the outer one comes first.
    spans.sort(key=lambda span: (span[0], -span[1]))
    open_spans: list[list[Any]] = []  # [start of the piece, end, type, whether it is the first piece]

    def close_until(time: float) -> Iterator[_Running]:
        while open_spans and open_spans[-1][1] <= time:
            start, end, op_type, begins = open_spans.pop()
            yield _Running(start, end, op_type, INPUT if is_input else kind_of(op_type), begins)
            if open_spans:
                open_spans[-1][0] = end

    for start, end, op_type in spans:
        yield from close_until(start)
        if open_spans:
            outer = open_spans[-1]
            if start > outer[0]:
                kind = INPUT if is_input else kind_of(outer[2])
                yield _Running(outer[0], start, outer[2], kind, outer[3])
                outer[3] = 0
        open_spans.append([start, end, op_type, 1])
    yield from close_until(float("inf"))


def _type_of(name: str, shown: str) -> str:
    """Return the type of the operation that an event is about; "" for other events."""
    if name == XLA_CALL:
        return XLA
    return shown if name.count(":") == 1 and name.endswith(f":{shown}") else ""


def _shared_time(
    running: Iterable[_Running], first: int, last: int
) -> tuple[Mapping[tuple[str, str], float], float]:
    """Return the seconds of each (kind, type), and the seconds in which any operation ran.

    Operations that run at once share the time equally.
    """
    changes: list[tuple[int, int, tuple[str, str]]] = sorted(
        change
        for part in running
        for change in (
            (max(part.start, first), 1, (part.kind, part.op_type)),
            (min(part.end, last), -1, (part.kind, part.op_type)),
        )
    )
    spent: dict[tuple[str, str], float] = defaultdict(float)
    active: Counter[tuple[str, str]] = Counter()
    count, busy = 0, 0.0
    before = first
    for moment, change, key in changes:
        if count and moment > before:
            passed = (moment - before) / 1e12
            busy += passed
            for running_key, number in active.items():
                spent[running_key] += passed * number / count
        before = moment
        count += change
        active[key] += change
        if not active[key]:
            del active[key]
    return spent, busy


WARMUP_STEPS = 3  # the first one traces and compiles; memory and input settle during the next ones
STEPS_AHEAD = 100  # batches beyond the last step, so that the input pipeline doesn't run out of work


@dataclass(frozen=True)
class Profile:
    """The result of a profile.

    ``seconds_per_step``, ``waited_per_step`` (seconds of waiting for input) and ``cpu_seconds_per_step`` (of
    all threads) are means over steps that aren't traced. ``flops_per_step``:
    ``labkit.analysis.architecture.training_flops`` times the batch size. ``ceiling_gflops``: reached by large
    matrix products in the model's precision. ``times``: None for steps on GPUs, whose traces differ.
    ``image_size``: side in pixels of the first images of ``progressive_resizing``; None without it.
    """

    model: str
    parameters: int
    device: str
    precision: str
    batch_size: int
    steps: int
    seconds_per_step: float
    waited_per_step: float
    cpu_seconds_per_step: float
    flops_per_step: int
    ceiling_gflops: float
    times: StepTimes | None
    image_size: int | None = None

    @property
    def examples_per_second(self) -> float:
        return self.batch_size / self.seconds_per_step

    @property
    def gflops(self) -> float:
        """GFLOP/s that a step reaches; its time includes everything else that it does."""
        return self.flops_per_step / self.seconds_per_step / 1e9


def profile_training(
    config: Config, *, steps: int, output: Path | None, announce: Callable[[str], None] = print
) -> Profile:
    """Train some steps as ``labkit train`` would, from the initial weights, and measure them.

    The data set is found or prepared as in ``labkit train``. The first step is measured repeatedly, so images
    don't grow and layers don't thaw meanwhile.

    Args:
        config: what to train. No run is written, so ``job_dir`` must be None.
        steps: how many steps to measure, and then how many to trace.
        output: folder for the trace, which TensorBoard's profile plugin reads; None discards the trace.
        announce: takes lines for people.

    Raises InputError, before anything is written, if the configuration can't be trained on this machine.
    """
    if output is not None:
        check_writable(output, "--output")
    network = network_without_run(config, announce)
    network.adapt_to_data()
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        return _measure(network, steps, output)
    with tempfile.TemporaryDirectory(prefix="labkit-profile-") as folder:
        return _measure(network, steps, Path(folder))


def network_without_run(config: Config, announce: Callable[[str], None]) -> Any:
    """Return the untrained network of a training that writes no run.

    ``announce``: takes lines on its data and devices. Raises InputError if it can't be trained here.
    """
    plan = plan_measurement(config, announce=announce)
    announce(plan.data_note)
    if plan.devices.banner:
        announce(plan.devices.banner)
    from labkit.training.network import Network

    return Network(plan.config, plan.manifest, plan.devices, plan.data_format)


def _measure(network: Any, steps: int, folder: Path) -> Profile:
    import tensorflow as tf

    from labkit.analysis.architecture import ceiling, training_flops

    engine = engine_of_first_step(network, WARMUP_STEPS + 2 * steps + STEPS_AHEAD)
    for _ in range(WARMUP_STEPS):
        engine.next_step()
    started, used = time.perf_counter(), time.process_time()
    waited = sum(engine.next_step().waited for _ in range(steps))
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    # Tracing Python's calls would only make the file larger; the operations are traced without it.
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    with tf.profiler.experimental.Profile(str(folder), options):
        for number in range(steps):
            with tf.profiler.experimental.Trace(STEP_NAME, step_num=number, _r=1):
                engine.next_step()
    config, devices = network.config, network.devices
    on_gpu = devices.kind == "GPU" and not devices.simulated
    alone = tf.config.threading.get_intra_op_parallelism_threads() == 1  # a product has one core
    parts = config.data.ghost_batches * devices.num_local_replicas
    at_once = {"at_once": min(parts, usable_cores())} if alone else {}
    sizes = {"sizes": (8192,), "device": devices.names[0]} if on_gpu else at_once
    image_size = config.data.image_size_at(0, config.run.train_steps)
    flops = training_flops(network.model, network.freezing.at(0), image_size=image_size)
    return Profile(
        model=network.model.name,
        parameters=network.num_parameters(),
        device=devices.describe(),
        precision=config.model.precision,
        batch_size=config.data.images_per_step,
        steps=steps,
        seconds_per_step=seconds / steps,
        waited_per_step=waited / steps,
        cpu_seconds_per_step=cpu / steps,
        flops_per_step=flops * config.data.images_per_step,
        ceiling_gflops=ceiling(config.model.precision, **sizes) * (len(devices.names) if on_gpu else 1),
        times=None if on_gpu else step_times(read_trace(folder)),
        image_size=image_size,
    )


def engine_of_first_step(network: Any, stop_step: int, **settings: Any) -> Any:
    """Return an engine that runs the first training step on each batch; ``settings``: of its ``Steps``."""
    from labkit.distributed.synchronous import SynchronousEngine
    from labkit.training.network import training_batches

    first = network.train_step
    batches = training_batches(network, start_step=0, stop_step=stop_step)
    steps = replace(network.steps, compiled_at=lambda step: first, **settings)
    return SynchronousEngine(steps, batches, step=0)
