"""How close does training the fast net come to the machine's fastest matrix products?

The GFLOP/s of labkit's training step with the network of the preset `fast` are divided by the GFLOP/s of
large square matrix products in the same precision. Both are measured in turns in the same process; of several
matrix sizes the one with the best median counts.

Only convolutions and the dense layer count as operations, two for each multiply-add: in the forward pass, in
the gradient of each trained kernel, and in the gradient of a layer's inputs if there is a trained weight
before it. So the frozen whitening kernel counts once, and the convolution after it three times, because of
the whitening's trained bias. The time of everything else (normalization, activations, pooling, the update)
is included.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.allocators import ALLOCATORS, environment_with
from benchmarks.common import add_precisions_flag, at_least, make_parser, prepared_data, work_folder
from benchmarks.processes import Turns
from benchmarks.report import Figure, Goal, Report
from benchmarks.turns import data_set_flags
from labkit.data.manifest import Manifest

QUESTION = "Does training the fast net reach three quarters of the machine's matrix-product GFLOP/s?"
GOAL = Goal("at least", 0.75)
Combination = tuple[str, int, str]
Turn = dict[str, float]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.add_argument("--steps", type=at_least(1), default=2, help="training steps of a turn")
    parser.add_argument("--warmup-turns", type=at_least(1), default=1, help="turns before the measurement")
    add_precisions_flag(parser, help="precisions of network and matrices")
    # The preset's batch size, with its activation and with the published one.
    parser.add_argument("--batch-sizes", nargs="+", type=at_least(1), default=[2000])
    parser.add_argument(
        "--activations", nargs="+", choices=("relu", "silu", "gelu"), default=["relu", "silu"]
    )
    parser.add_argument("--width-factor", type=float, help="(default: the preset's)")
    parser.add_argument("--matrix-sizes", nargs="+", type=at_least(1), default=[2048, 4096])
    parser.add_argument(
        "--products", type=at_least(1), default=3, help="matrix products of each size in a turn"
    )
    parser.add_argument(
        "--allocator", choices=ALLOCATORS, default="default", help="allocator setting of the process"
    )
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    report = Report("fast_net", QUESTION, vars(options) | {"dataset": manifest.dataset})
    found: dict[Combination, list[Turn]] = {}
    with work_folder() as folder:
        for precision in options.precisions:
            for batch_size in options.batch_sizes:
                for activation in options.activations:
                    combination = (precision, batch_size, activation)
                    found[combination] = measure(options, manifest, folder, combination)
    report.configuration["flops_per_image"] = next(iter(found.values()))[0]["flops_per_image"]
    report.finish(figures(found), options.output)


def measure(
    options: argparse.Namespace, manifest: Manifest, folder: Path, combination: Combination
) -> list[Turn]:
    """Return one turn of one combination for each repeat."""
    precision, batch_size, activation = combination
    flags = [*data_set_flags(manifest), "--precision", precision]
    flags += ["--batch-size", str(batch_size), "--activation", activation]
    flags += ["--steps", str(options.steps), "--products", str(options.products)]
    flags += ["--matrix-sizes", *map(str, options.matrix_sizes)]
    if options.width_factor is not None:
        flags += ["--width-factor", str(options.width_factor)]
    log_folder = folder / "-".join(map(str, combination))
    with Turns("fast_net_turns", log_folder, flags, environment_with(options.allocator)) as process:
        for _ in range(options.warmup_turns):
            process.turn()
        turns = [process.turn() for _ in range(options.repeats)]
    line = "  ".join(f"{turn['step_gflops']:.0f}/{turn['ceiling_gflops']:.0f}" for turn in turns)
    print(f"{name_of(combination)}, GFLOP/s of step/ceiling: {line}", flush=True)
    return turns


def name_of(combination: Combination) -> str:
    precision, batch_size, activation = combination
    return f"{precision} (batch {batch_size}, {activation})"


def shares(turns: list[Turn]) -> tuple[float, ...]:
    """Return the step's share of the ceiling for each turn."""
    return tuple(turn["step_gflops"] / turn["ceiling_gflops"] for turn in turns)


def figures(found: dict[Combination, list[Turn]]) -> list[Figure]:
    """Return each combination's share, with the goal for the best of each precision, then the parts of it."""
    best: dict[str, Combination] = {}
    for combination, turns in found.items():
        current = best.setdefault(combination[0], combination)
        if statistics.median(shares(turns)) > statistics.median(shares(found[current])):
            best[combination[0]] = combination
    rows = [
        Figure(
            f"training step over matrix product, {name_of(combination)}",
            "x",
            shares(turns),
            GOAL if combination in best.values() else None,
        )
        for combination, turns in found.items()
    ]
    units = {"step": "step_gflops", "matrix product": "ceiling_gflops"}
    for combination, turns in found.items():
        for words, key in units.items():
            values = tuple(turn[key] for turn in turns)
            rows.append(Figure(f"{words}, {name_of(combination)}", "GFLOP/s", values))
        values = tuple(turn["images_per_second"] for turn in turns)
        rows.append(Figure(f"training, {name_of(combination)}", "images/s", values))
    return sorted(rows, key=lambda figure: figure.goal is None)


if __name__ == "__main__":
    main()
