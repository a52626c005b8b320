"""How much faster does `labkit train` make a ResNet-20 step than Keras 3's `model.fit`?

Both are fresh processes with the same environment, alive at the same time, taking turns of some steps: the
command itself, with its input pipeline, metrics, events and console, against `fit` on the same network,
images and update, without callbacks or progress bar. Keras is measured in several forms; the ratio is to
the one with the best median.
"""

import argparse
import statistics
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import at_least, make_parser, prepared_data, work_folder
from benchmarks.processes import KerasFit, Training, train_flags, train_images_per_second
from benchmarks.report import Figure, Goal, Report
from labkit.data.manifest import Manifest

QUESTION = "Is labkit's training step at least 1.3 times as fast as Keras 3's model.fit?"
GOAL = Goal("at least", 1.3)
PEERS = ("plain", "steps_per_execution", "xla")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=24, help="steps of a turn")
    parser.add_argument("--warmup-steps", type=at_least(1), default=10, help="steps before the first turn")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="forms of model.fit")
    parser.add_argument("--steps-per-execution", type=at_least(2), default=8, help="of the form named so")
    options = parser.parse_args(arguments)
    if "steps_per_execution" in options.peers and options.steps % options.steps_per_execution:
        parser.error("--steps must be a multiple of --steps-per-execution")
    manifest = prepared_data(options.data_dir)
    report = Report(
        "train_step", QUESTION, vars(options) | {"dataset": manifest.dataset, "interleaved": "turns of steps"}
    )
    with work_folder() as folder:
        speeds = measure(options, manifest, folder)
    report.finish(figures(speeds), options.output)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> dict[str, list[float]]:
    """Return images per second of ``labkit`` and of each peer, one value a repeat."""
    flags = train_flags(manifest, num_layers=options.num_layers, batch_size=options.batch_size)
    with ExitStack() as stack:
        training = stack.enter_context(Training(folder / "labkit", flags))
        training.start(options.warmup_steps)
        turns = {"labkit": lambda: train_images_per_second(training.turn(options.steps), options.batch_size)}
        for name in options.peers:
            peer = stack.enter_context(KerasFit(folder / name, _peer_flags(name, options, manifest)))
            peer.turn()  # traces and compiles
            turns[name] = peer.turn
        speeds: dict[str, list[float]] = {name: [] for name in turns}
        for repeat in range(options.repeats):
            # Back and forth, so that a drift favours neither side.
            for name in list(turns) if repeat % 2 == 0 else list(turns)[::-1]:
                speeds[name].append(turns[name]())
            told = "  ".join(f"{name} {values[-1]:.0f}" for name, values in speeds.items())
            print(f"repeat {repeat + 1}/{options.repeats}, images/s: {told}", flush=True)
    return speeds


def _peer_flags(name: str, options: argparse.Namespace, manifest: Manifest) -> list[str]:
    flags = [
        *("--data-dir", str(manifest.directory.parent), "--dataset", manifest.dataset),
        *("--num-layers", str(options.num_layers), "--batch-size", str(options.batch_size)),
        *("--steps", str(options.steps)),
    ]
    if name == "steps_per_execution":
        flags += ["--steps-per-execution", str(options.steps_per_execution)]
    return [*flags, "--jit-compile"] if name == "xla" else flags


def figures(speeds: dict[str, list[float]]) -> list[Figure]:
    """Return the ratio to the best peer, repeat by repeat, then every side's speed."""
    peers = {name: values for name, values in speeds.items() if name != "labkit"}
    best = max(peers, key=lambda name: statistics.median(peers[name]))
    ratios = tuple(ours / theirs for ours, theirs in zip(speeds["labkit"], peers[best], strict=True))
    return [
        Figure(f"labkit train over model.fit ({best})", "x", ratios, GOAL),
        Figure("labkit train", "images/s", tuple(speeds["labkit"])),
        *(Figure(f"model.fit ({name})", "images/s", tuple(values)) for name, values in peers.items()),
    ]


if __name__ == "__main__":
    main()
