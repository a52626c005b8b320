"""Where does the time of a training step go, and how much of it could a machine like this one save?

The operations of the optimized step are grouped by kind, as in `labkit profile`. Each kind has a limit, which
no program can beat: the time of its arithmetic at the speed of a large matrix product, or of its bytes (all
inputs and outputs once) at the speed of a sum of two long vectors, whichever is longer: the two lines of a
roofline (Williams, Waterman & Patterson, 2009). A figure shows the time of each kind and its limit in it.
"""

import argparse
import math
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import tensorflow as tf
from tensorflow.python.eager import context

from benchmarks.common import add_precisions_flag, at_least, make_parser, measure_and_report
from benchmarks.report import Figure, Goal, ratios
from labkit.config import Config
from labkit.config.presets import preset_values
from labkit.data.manifest import Manifest
from labkit.experiments.profile import (
    COMPILED,
    FILTER_GRADIENT,
    FORWARD,
    INPUT_GRADIENT,
    MATRIX,
    kind_of,
    profile_training,
)
from labkit.training import network as training_network
from labkit.training.plan import plan_measurement

CONVOLUTIONS = (FORWARD, INPUT_GRADIENT, FILTER_GRADIENT)
ARITHMETIC = (*CONVOLUTIONS, MATRIX)  # products compute some filters' gradients (labkit.models.convolution)
FAST_GOAL = Goal("at least", 75.0)
SMALL = 0.01  # of a step; what is shorter is drawn as one bar
VECTOR_MEGABYTES = (2, 8, 64)  # from a small activation of the network to more than the caches hold


@dataclass(frozen=True)
class Work:
    """What one kind of operation does in a step: floating-point operations, and bytes in and out."""

    flops: float
    bytes: float

    def limit(self, gflops: float, gigabytes: float) -> float:
        """Return the seconds that it takes at least on a machine with these speeds (a second)."""
        return max(self.flops / gflops, self.bytes / gigabytes) / 1e9


@dataclass(frozen=True)
class Machine:
    """The machine's best: GFLOP/s of a matrix product, GB/s of a sum of vectors."""

    gflops: float
    gigabytes: float


@dataclass(frozen=True)
class Measured:
    """The seconds of each kind in a step and the machine's best, one value per repeat; the work of a step."""

    seconds: dict[str, list[float]]
    machine: list[Machine]
    work: dict[str, Work]

    def limits(self, kind: str) -> list[float]:
        """Return the limit of a kind in seconds, one value per repeat; zeros where nothing is known."""
        work = self.work.get(kind, Work(0.0, 0.0))
        return [work.limit(each.gflops, each.gigabytes) for each in self.machine]

    @property
    def steps(self) -> list[float]:
        """The seconds of a traced step, one value per repeat."""
        return [sum(values) for values in zip(*self.seconds.values(), strict=True)]


@dataclass(frozen=True)
class Network:
    """What to train: ``values`` of the configuration; ``steps`` of a repeat; ``goal`` of its arithmetic."""

    values: dict[str, Any]
    steps: int
    goal: Goal | None = None


NETWORKS = {
    "ResNet-20": Network({"num_layers": 20, "train_batch_size": 128}, 10),
    # Whole images, as at the end of a training.
    "fast": Network(preset_values("fast") | {"progressive_resizing": None, "ghost_batches": 1}, 1, FAST_GOAL),
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    add_precisions_flag(parser, help="precisions of the networks")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch-size", type=at_least(1), help="of each network, to try the script out")
    measure_and_report("roofline", __doc__, parser.parse_args(arguments), measure_all)


def measure_all(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure each network in each precision, and draw what was found."""
    found = {
        (name, precision): measure(options, manifest, name, precision)
        for name in options.networks
        for precision in options.precisions
    }
    draw(found, options.output / "roofline.png")
    return [figure for key, each in found.items() for figure in figures_of(*key, each)]


def measure(options: argparse.Namespace, manifest: Manifest, name: str, precision: str) -> Measured:
    """Measure steps and the machine's best in turn."""
    place = {"dataset": manifest.dataset, "data_dir": str(manifest.directory.parent), "num_gpus": 0}
    values = {**NETWORKS[name].values, **place, "precision": precision}
    if options.batch_size is not None:
        values["train_batch_size"] = options.batch_size
    config = Config.from_flat(values)
    seconds: dict[str, list[float]] = defaultdict(list)
    machine = []
    for _ in range(options.repeats):
        steps = NETWORKS[name].steps
        profile = profile_training(config, steps=steps, output=None, announce=lambda line: None)
        assert profile.times is not None
        for kind in profile.times.kinds:
            seconds[kind.kind].append(kind.seconds)
        seconds["nothing runs"].append(profile.times.idle_seconds)
        machine.append(Machine(profile.ceiling_gflops, bandwidth()))
        step = f"{1e3 * profile.times.seconds:.1f} ms a traced step"
        print(f"{name}, {precision}: {step}, {machine[-1]}", flush=True)
    return Measured(dict(seconds), machine, work_of_step(config))


def work_of_step(config: Config) -> dict[str, Work]:
    """Return what each kind of operation does in the step that TensorFlow runs, after its optimization."""
    plan = plan_measurement(config, announce=lambda line: None)
    network = training_network.Network(plan.config, plan.manifest, plan.devices, plan.data_format)
    batch = network.batch(0)
    scalars = tf.constant(0.1), tf.constant(0.0)
    # The names and shapes of the graph as it was traced also hold for what is left of it.
    traced: Any = network.train_step.get_concrete_function(*batch, *scalars).graph
    context.context().enable_graph_collection()
    network.train_step(*batch, *scalars)
    metadata: Any = context.context().export_run_metadata()
    context.context().disable_graph_collection()
    graph = max(
        (each.post_optimization_graph for each in metadata.function_graphs), key=lambda g: len(g.node)
    )
    work: dict[str, Work] = defaultdict(lambda: Work(0.0, 0.0))
    known = {operation.name: operation for operation in traced.get_operations() if operation.outputs}
    for node in graph.node:
        operation = known.get(node.name)
        if operation is None:
            continue
        inputs = [_tensor(known, name) for name in node.input if not name.startswith("^")]
        outputs = operation.outputs[:1] if "BatchNorm" in node.op else operation.outputs
        moved = sum(_bytes(tensor) for tensor in [*inputs, *outputs] if tensor is not None)
        kind = COMPILED if node.op.endswith("PartitionedCall") else kind_of(node.op)
        before = work[kind]
        while kind_of(operation.type) != kind and "Conv2D" in node.op:
            operation = operation.inputs[0].op  # a fused operation has the name of its last part
        work[kind] = Work(before.flops + _flops(operation), before.bytes + moved)
    return dict(work)


def _tensor(known: dict[str, Any], name: str) -> Any:
    """Return the traced tensor that a node of the optimized graph names as its input; None if it is new."""
    node, _, index = name.partition(":")
    return known[node].outputs[int(index or 0)] if node in known else None


def _bytes(tensor: Any) -> float:
    shape = tensor.shape
    if tensor.dtype in (tf.resource, tf.variant) or not shape.is_fully_defined():
        return 0.0
    return math.prod(shape.as_list()) * tensor.dtype.size


def _flops(operation: Any) -> float:
    """Return the floating-point operations of a convolution or matrix product, 0 for all others."""
    kind = kind_of(operation.type)
    if kind in CONVOLUTIONS:
        kernel = operation.outputs[0] if kind == FILTER_GRADIENT else operation.inputs[1]
        outputs = operation.outputs[0] if kind == FORWARD else operation.inputs[2]
        return 2.0 * math.prod(kernel.shape) * math.prod(outputs.shape[:-1])
    if kind == MATRIX:
        first, outputs = operation.inputs[0], operation.outputs[0]
        turned = operation.get_attr("adj_x" if operation.type.startswith("Batch") else "transpose_a")
        inner = first.shape[-2 if turned else -1]
        return 2.0 * math.prod(outputs.shape) * inner
    return 0.0


def bandwidth(repeats: int = 15) -> float:
    """Return the best GB/s at which two vectors are added: two are read, one is written."""
    best = 0.0
    for megabytes in VECTOR_MEGABYTES:
        first, second = (tf.zeros([megabytes * 250_000]) + number for number in range(2))

        @tf.function(autograph=False)
        def add(first, second):
            total = first + second
            return total, total[:1]  # fetching one element is enough to wait for all

        rates = []
        for _ in range(repeats):
            started = time.perf_counter()
            add(first, second)[1].numpy()
            rates.append(3 * megabytes / 1e3 / (time.perf_counter() - started))
        best = max(best, statistics.median(rates))
    return best


def figures_of(name: str, precision: str, measured: Measured) -> list[Figure]:
    """Return each kind's share of a step, and how far from its limit it is."""
    words = f"{name}, {precision}"
    steps = measured.steps
    physical = [sum(limits) for limits in zip(*map(measured.limits, ARITHMETIC), strict=True)]
    share = f"{words}: its arithmetic at the speed of a large matrix product over the step"
    found = [
        Figure(f"{words}: a traced step", "ms", [1e3 * step for step in steps]),
        Figure(share, "%", ratios(physical, steps, 100.0), NETWORKS[name].goal),
        Figure(f"{words}: large matrix product", "GFLOP/s", [each.gflops for each in measured.machine]),
        Figure(f"{words}: sum of vectors", "GB/s", [each.gigabytes for each in measured.machine]),
    ]
    for kind, values in sorted(measured.seconds.items(), key=lambda item: -statistics.median(item[1])):
        shares = ratios(values, steps, 100.0)
        if statistics.median(shares) < 100 * SMALL:
            continue
        found.append(Figure(f"{words}: {kind}", "%", shares))
        limits = measured.limits(kind)
        if all(limits):
            found.append(Figure(f"{words}: {kind} over its limit", "x", ratios(values, limits)))
    return found


def draw(found: dict[tuple[str, str], Measured], path: Path) -> None:
    """Draw the time of each kind, and within it the machine's limit."""
    columns = len({precision for _, precision in found})
    rows = -(-len(found) // columns)
    size = (6 * columns, 3.2 * len(found) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis, ((name, precision), measured) in zip(axes.flat, found.items(), strict=True):
        medians = {kind: 1e3 * statistics.median(values) for kind, values in measured.seconds.items()}
        step = sum(medians.values())
        bars = {kind: ms for kind, ms in medians.items() if ms >= SMALL * step}
        bars = dict(sorted(bars.items(), key=lambda item: -item[1]))
        bars["all else"] = step - sum(bars.values())
        for row, (kind, spent) in enumerate(bars.items()):
            limit = min(spent, 1e3 * statistics.median(measured.limits(kind)))
            axis.barh(row, spent, color="C0", alpha=0.35)
            axis.barh(row, limit, color="C0")
            axis.text(spent, row, f" {spent:.0f} ms, {100 * spent / step:.0f} %", va="center", fontsize=8)
        axis.set_yticks(range(len(bars)), list(bars), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{name}, {precision}: a step of {step:.0f} ms")
        axis.set_xlabel("ms; dark: at the machine's limit")
        axis.margins(x=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
