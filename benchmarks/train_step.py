"""How much faster is a ResNet-20 step in `labkit train` than in Keras 3's `model.fit` and in PyTorch?

All sides run at the same time in new processes and take turns of some steps. labkit's side is the command
itself with input pipeline, metrics, events and console. Keras trains the same network with the same images
and update, without callbacks or progress bar, in several modes of execution. PyTorch has a plain loop, eager
and compiled, channels last. Each side is measured with glibc's default allocator settings and with those that
keep freed memory. A ratio compares the forms with the best medians.
"""

import argparse
import functools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import (
    PRECISIONS,
    at_least,
    choose_sides,
    make_parser,
    measure_and_report,
    take_turns,
    write_arrays,
)
from benchmarks.forms import Form, add_form_flags, figures, start_turns
from benchmarks.processes import Training, environment_with, train_command
from benchmarks.report import Figure, Goal
from benchmarks.turns import turn_options
from labkit.data.manifest import Manifest

LABKIT, KERAS, EAGER, COMPILED = "labkit train", "model.fit", "PyTorch eager", "torch.compile"
GOALS: dict[str, dict[str, Goal]] = {
    KERAS: {"float32": Goal("at least", 1.5), "mixed_bfloat16": Goal("at least", 1.75)},
    EAGER: dict.fromkeys(PRECISIONS, Goal("at least", 1.1)),
    COMPILED: {},
}
KERAS_PEERS = ("plain", "steps_per_execution", "xla")
TORCH_PEERS = {"torch_eager": EAGER, "torch_compile": COMPILED}
PEERS = dict.fromkeys(KERAS_PEERS, "keras") | dict.fromkeys(TORCH_PEERS, "torch")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=24, warmup_steps=10)
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="what to compare with (default: all)")
    add_form_flags(parser)
    parser.add_argument(
        "--steps-per-execution", type=at_least(2), default=8, help="of model.fit in this form"
    )
    options = parser.parse_args(arguments)
    options.peers, options.left_out = choose_sides(parser, "--peers", options.peers, PEERS)
    if "steps_per_execution" in options.peers and options.steps % options.steps_per_execution:
        parser.error("--steps must be a multiple of --steps-per-execution")
    measure_and_report("train_step", __doc__, options, measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure images per second of every form; those that can't be run go to ``options.left_out``."""
    arrays = folder / "train.npz"
    if set(options.peers) & set(TORCH_PEERS):
        write_arrays(manifest, "train", arrays)
    found = {}
    for precision in options.precisions:
        turns: dict[Form, Callable[[], float]] = {}
        with ExitStack() as stack:
            for allocator in options.allocators:
                command = train_command(options, manifest, precision=precision)
                logs, environment = folder / precision / f"labkit-{allocator}", environment_with(allocator)
                training = stack.enter_context(Training(logs, command, environment))
                training.start(options.warmup_steps)
                speed = functools.partial(training.speed, options.steps, options.batch_size)
                turns[Form(LABKIT, "", allocator)] = speed
            sides = _peers(options, precision, manifest, arrays)
            turns |= start_turns(stack, sides, folder / precision, options.left_out)
            found[precision] = take_turns(turns, options.repeats)
    return figures(found, LABKIT, GOALS)


def _peers(
    options: argparse.Namespace, precision: str, manifest: Manifest, arrays: Path
) -> list[tuple[Form, str, dict[str, Any], dict[str, str]]]:
    """Return the forms of the peers, each with its module, what it is told and its environment."""
    common = turn_options(options, manifest, precision=precision)
    execution = {
        "plain": {},
        "steps_per_execution": {"steps_per_execution": options.steps_per_execution},
        "xla": {"jit_compile": True},
    }
    found = []
    for name in options.peers:
        for allocator in options.allocators:
            if name == "xla" and (allocator, precision) != (options.allocators[0], "float32"):
                continue  # half as fast as the other forms, so more of it would not change the best
            environment = environment_with(allocator)
            if name in TORCH_PEERS:
                told = {**common, "task": "train", "form": name.removeprefix("torch_"), "arrays": str(arrays)}
                found.append((Form(TORCH_PEERS[name], "", allocator), "torch_peer", told, environment))
            else:
                told = {**common, **execution[name]}
                found.append((Form(KERAS, name, allocator), "keras_fit", told, environment))
    return found


if __name__ == "__main__":
    main()
