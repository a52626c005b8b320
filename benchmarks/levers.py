"""Which settings of TensorFlow, oneDNN and the allocator change the speed of a training step?

A step on a batch that stays in memory, once as labkit makes it and once with each lever: of ResNet-20, or
with `--network fast` of the fast net, whose activations are 16 times as large. All sides run in processes of
their own, which exist at the same time and take turns of some steps.
"""

import argparse
import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.allocators import ALLOCATORS, environment_with
from benchmarks.common import add_precisions_flag, at_least, make_parser, prepared_data, work_folder
from benchmarks.forms import Form, take_turns
from benchmarks.processes import Turns
from benchmarks.report import Figure, Report
from benchmarks.turns import data_set_flags, turns_flags
from labkit.config.presets import preset_values
from labkit.data.manifest import Manifest

QUESTION = "Which settings change the speed of a training step?"
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
    "fast": preset_values("fast") | {"progressive_resizing": None, "num_layers": None},
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
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=8, help="steps of a turn")
    parser.add_argument("--network", choices=NETWORKS, default="ResNet-20")
    parser.add_argument("--levers", nargs="+", choices=LEVERS, default=list(LEVERS))
    add_precisions_flag(parser, help="precisions of the step")
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    report = Report("levers", QUESTION, vars(options) | {"dataset": manifest.dataset})
    rows: list[Figure] = []
    with work_folder() as folder:
        for precision in options.precisions:
            rows += figures(precision, measure(options, precision, manifest, folder / precision))
    report.finish(rows, options.output)


def measure(
    options: argparse.Namespace, precision: str, manifest: Manifest, folder: Path
) -> dict[Form, list[float]]:
    """Return images per second as it is and with each lever."""
    flags = [*turns_flags(options, precision), *data_set_flags(manifest)]
    with ExitStack() as stack:
        turns = {}
        for name, lever in {AS_IT_IS: Lever(), **{name: LEVERS[name] for name in options.levers}}.items():
            values = ["--values", json.dumps(NETWORKS[options.network] | lever.values)]
            environment = environment_with("default") | lever.environment
            side = stack.enter_context(Turns("step_turns", folder / name, [*flags, *values], environment))
            side.turn()  # traces and compiles
            turns[Form(name, "", "")] = lambda side=side: side.turn()["images_per_second"]
        return take_turns(turns, options.repeats)


def figures(precision: str, speeds: dict[Form, list[float]]) -> list[Figure]:
    """Return for each repeat the speed with each lever over that without."""
    [base, *others] = speeds
    rows = [Figure(f"{precision}: {AS_IT_IS}", "images/s", tuple(speeds[base]))]
    for form in others:
        values = tuple(fast / plain for fast, plain in zip(speeds[form], speeds[base], strict=True))
        rows.append(Figure(f"{precision}: {form.side}", "x", values))
    return rows


if __name__ == "__main__":
    main()
