"""How much faster is a ResNet-20 step in `labkit train` than in Keras 3's `model.fit` and in PyTorch?

All sides run at the same time in new processes and take turns of some steps. labkit's side is the command
itself with input pipeline, metrics, events and console. Keras trains the same network with the same images
and update, without callbacks or progress bar, in several modes of execution. PyTorch has a plain loop, eager
and compiled, channels last. Each side is measured with glibc's default allocator settings and with those that
keep freed memory. A ratio compares the forms with the best medians.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.allocators import environment_with
from benchmarks.common import (
    MISSING_TORCH,
    PRECISIONS,
    at_least,
    make_parser,
    prepared_data,
    torch_is_installed,
    work_folder,
    write_arrays,
)
from benchmarks.forms import Form, add_form_flags, figures, start_turns, take_turns
from benchmarks.processes import Training, train_flags, train_images_per_second
from benchmarks.report import Goal, Report
from benchmarks.turns import data_set_flags, turns_flags
from labkit.data.manifest import Manifest

QUESTION = "How much faster is labkit's training step than Keras 3's model.fit and PyTorch's?"
LABKIT, KERAS, EAGER, COMPILED = "labkit train", "model.fit", "PyTorch eager", "torch.compile"
GOALS: dict[str, dict[str, Goal]] = {
    KERAS: {"float32": Goal("at least", 1.5), "mixed_bfloat16": Goal("at least", 1.75)},
    EAGER: dict.fromkeys(PRECISIONS, Goal("at least", 1.1)),
    COMPILED: {},
}
KERAS_PEERS = ("plain", "steps_per_execution", "xla")
TORCH_PEERS = {"torch_eager": EAGER, "torch_compile": COMPILED}
PEERS = (*KERAS_PEERS, *TORCH_PEERS)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=24, help="training steps of a turn")
    parser.add_argument("--warmup-steps", type=at_least(1), default=10, help="steps before the first turn")
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="what to compare with (default: all)")
    add_form_flags(parser)
    parser.add_argument(
        "--steps-per-execution", type=at_least(2), default=8, help="of model.fit in this form"
    )
    options = parser.parse_args(arguments)
    left_out = choose_peers(parser, options)
    if "steps_per_execution" in options.peers and options.steps % options.steps_per_execution:
        parser.error("--steps must be a multiple of --steps-per-execution")
    manifest = prepared_data(options.data_dir)
    chosen = {"dataset": manifest.dataset, "interleaved": "turns of steps", "left_out": left_out}
    report = Report("train_step", QUESTION, vars(options) | chosen)
    with work_folder() as folder:
        found = {
            precision: measure(options, precision, manifest, folder / precision, left_out)
            for precision in options.precisions
        }
    report.finish(figures(found, LABKIT, GOALS), options.output)


def choose_peers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, str]:
    """Set the default peers if none are named. Returns those that can't be run here, with the reason."""
    wanted = options.peers or list(PEERS)
    missing = [] if torch_is_installed() else [name for name in wanted if name in TORCH_PEERS]
    if missing and options.peers:
        parser.error(f"--peers {' '.join(missing)}: {MISSING_TORCH}")
    if missing:
        print(f"without {', '.join(missing)}: {MISSING_TORCH}", flush=True)
    options.peers = [name for name in wanted if name not in missing]
    return dict.fromkeys(missing, MISSING_TORCH)


def measure(
    options: argparse.Namespace, precision: str, manifest: Manifest, folder: Path, left_out: dict[str, str]
) -> dict[Form, list[float]]:
    """Return images per second of every form in ``precision``, one value per repeat.

    ``left_out`` gets the forms that can't be run here, with the reason.
    """
    folder.mkdir()
    arrays = folder / "train.npz"
    if set(options.peers) & set(TORCH_PEERS):
        write_arrays(manifest, "train", arrays)
    turns: dict[Form, Callable[[], float]] = {}
    with ExitStack() as stack:
        for allocator in options.allocators:
            turns[Form(LABKIT, "", allocator)] = _labkit(
                stack, options, precision, manifest, folder, allocator
            )
        turns |= start_turns(stack, _peers(options, precision, manifest, arrays), folder, left_out)
        return take_turns(turns, options.repeats)


def _labkit(
    stack: ExitStack,
    options: argparse.Namespace,
    precision: str,
    manifest: Manifest,
    folder: Path,
    allocator: str,
) -> Callable[[], float]:
    flags = train_flags(
        manifest,
        num_layers=options.num_layers,
        batch_size=options.batch_size,
        precision=precision,
    )
    log_folder = folder / f"labkit-{allocator}"
    training = stack.enter_context(Training(log_folder, flags, environment_with(allocator)))
    training.start(options.warmup_steps)
    return lambda: train_images_per_second(training.turn(options.steps), options.batch_size)


def _peers(
    options: argparse.Namespace, precision: str, manifest: Manifest, arrays: Path
) -> list[tuple[Form, str, list[str]]]:
    """Return the forms of the peers, each with its module and flags."""
    common = turns_flags(options, precision)
    keras = [*common, *data_set_flags(manifest)]
    execution = {
        "plain": [],
        "steps_per_execution": ["--steps-per-execution", str(options.steps_per_execution)],
        "xla": ["--jit-compile"],
    }
    found = []
    for name in options.peers:
        for allocator in options.allocators:
            if name == "xla" and (allocator, precision) != (options.allocators[0], "float32"):
                continue  # half as fast as the other forms, so more of it would not change the best
            if name in TORCH_PEERS:
                kind = name.removeprefix("torch_")
                flags = [*common, "--task", "train", "--form", kind, "--arrays", str(arrays)]
                found.append((Form(TORCH_PEERS[name], "", allocator), "torch_peer", flags))
            else:
                found.append((Form(KERAS, name, allocator), "keras_fit", keras + execution[name]))
    return found


if __name__ == "__main__":
    main()
