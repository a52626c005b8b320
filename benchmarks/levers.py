"""Which settings of TensorFlow, oneDNN and the allocator change the speed of a training step?

A step on a batch that stays in memory, once as labkit makes it and once with each lever: of ResNet-20, or
with `--network fast` of the fast net, whose activations are 16 times as large. All sides run in processes of
their own, which exist at the same time and take turns of some steps.
"""

import argparse
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import add_precisions_flag, make_parser, measure_and_report, take_turns
from benchmarks.forms import start_turns
from benchmarks.processes import ALLOCATORS, environment_with
from benchmarks.report import Figure, ratios
from benchmarks.turns import turn_options
from labkit.config.presets import preset_values
from labkit.data.manifest import Manifest

AS_IT_IS = "as_it_is"


@dataclass(frozen=True)
class Lever:
    """Variables of the environment, and values of the configuration."""

    environment: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


# Values of the configuration, beside those of the flags.
NETWORKS: dict[str, dict[str, Any]] = {
    "ResNet-20": {},
    # Whole images, as at the end of a training.
    "fast": preset_values("fast") | {"progressive_resizing": None, "ghost_batches": 1, "num_layers": None},
}
TWO_REPLICAS = {"num_gpus": 2, "simulate_missing_gpus": True, "num_intra_threads": 1}
LEVERS = {
    # oneDNN's primitive for the gradient of the filters is made anew at each call by default.
    "primitives_kept": Lever({"TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE": "false"}),
    "caller_computes": Lever({"TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD": "1"}),
    "glibc_keeps_memory": Lever(ALLOCATORS["keeping"]),
    "bfc_allocator": Lever({"TF_CPU_ALLOCATOR_USE_BFC": "1"}),
    "one_inter_op_thread": Lever(values={"num_inter_threads": 1}),
    "xla": Lever(values={"xla": True}),
    # Two replicas of one thread in place of one of two. Without shared statistics it is another training.
    "two_replicas": Lever(values=TWO_REPLICAS),
    "two_replicas_with_shared_statistics": Lever(values={**TWO_REPLICAS, "sync_batch_norm": True}),
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=8)
    parser.add_argument("--network", choices=NETWORKS, default="ResNet-20")
    parser.add_argument("--levers", nargs="+", choices=LEVERS, default=list(LEVERS))
    add_precisions_flag(parser, help="precisions of the step")
    measure_and_report("levers", __doc__, parser.parse_args(arguments), measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Return for each precision the speed as it is, and that with each lever over it."""
    levers = {AS_IT_IS: Lever(), **{name: LEVERS[name] for name in options.levers}}
    rows: list[Figure] = []
    for precision in options.precisions:
        common = turn_options(options, manifest, precision=precision, task="train")
        sides = [
            (
                name,
                "turns",
                {**common, "values": NETWORKS[options.network] | lever.values},
                environment_with("default") | lever.environment,
            )
            for name, lever in levers.items()
        ]
        with ExitStack() as stack:
            turns = start_turns(stack, sides, folder / precision, {})
            speeds = take_turns(turns, options.repeats)
        base = speeds.pop(AS_IT_IS)
        rows.append(Figure(f"{precision}: {AS_IT_IS}", "images/s", base))
        rows += [Figure(f"{precision}: {name}", "x", ratios(fast, base)) for name, fast in speeds.items()]
    return rows


if __name__ == "__main__":
    main()
