"""``labkit replay``: one training step again."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path, whole_number
from labkit.commands.terminal.text_tables import print_table
from labkit.errors import InputError
from labkit.home import expanded
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import run_to_read

if TYPE_CHECKING:
    from labkit.experiments.replay.step import Replay

__all__ = ["declare_replay"]

SHOWN_EXAMPLES = 5


def declare_replay(parser: Parser) -> Run:
    """Declare the flags of ``labkit replay``."""
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument(
        "--step", type=whole_number(), required=True, metavar="S", help="Step to make again, from 1."
    )
    parser.add_argument(
        "--batch-only",
        action="store_true",
        help="Writes the step's batch only. This needs no checkpoint, and takes a second.",
    )
    parser.add_argument(
        "--output",
        type=local_path,
        metavar="DIR",
        help="Folder to write; an earlier replay is replaced. Default: <run>-step-<S> in the current folder.",
    )
    parser.add_argument(
        "--max-steps",
        type=whole_number(),
        default=1000,
        metavar="N",
        help="Most steps to make between the nearest checkpoint and step S. Default: 1000.",
    )
    parser.add_argument(
        "--data-dir", type=local_path, metavar="DIR", help="Folder of prepared data sets. Default: the run's."
    )
    return _run


def _run(options: argparse.Namespace) -> int:
    """Replay a step. Returns 0. Raises InputError before work starts."""
    if options.max_steps < 0:
        raise InputError(f"--max-steps is {options.max_steps}; allowed: a whole number from 0")
    run = run_to_read(options.run)
    output = expanded(options.output or f"{run.name}-step-{options.step}").absolute()
    if output == run.path or run.path in output.parents:
        raise InputError(f"--output {output} is in the run directory, which a replay doesn't change")
    if options.batch_only:
        return _show_batch(run, options, output)
    from labkit.experiments.replay.files import check_folder, write_replay
    from labkit.experiments.replay.step import replay

    check_folder(output)
    made = replay(
        run,
        options.step,
        data_dir=options.data_dir,
        max_steps=options.max_steps,
        announce=lambda line: print(line, flush=True),
    )
    write_replay(made, output)
    _print(made)
    print(f"pictures of the batch, table of its examples and arrays: {output}")
    return 0


def _show_batch(run: RunDirectory, options: argparse.Namespace, output: Path) -> int:
    from labkit.experiments.replay.batch import batch_note
    from labkit.experiments.replay.files import check_folder, write_batch
    from labkit.experiments.replay.recorded import batch_of_run

    check_folder(output)
    batch = batch_of_run(run, options.step, data_dir=options.data_dir)
    write_batch(batch, output, str(run.path))
    epochs = " and ".join(str(epoch) for epoch in sorted(set(batch.epoch.tolist())))
    print(f"step {batch.step} of {run.name}: {counted(len(batch), 'example')} of epoch {epochs}, from 0")
    note = batch_note(run, options.step)
    if note:
        print(f"note: {note}")
    print(f"pictures of the batch, table of its examples and arrays: {output}")
    return 0


def _print(made: "Replay") -> None:
    metrics, row = made.metrics, made.row
    equal = "the very loss of its row" if made.loss_is_equal else f"its row has {row['loss']!r}"
    print(f"step {made.step} of {made.run.name}, {counted(len(made.batch), 'example')}, made again")
    print(f"loss {metrics['loss']!r} ({equal})")
    others = {name: value for name, value in metrics.items() if name != "loss"}
    print("  ".join(f"{name} {value:.5g}" for name, value in others.items()))
    for note in made.notes:
        print(f"note: {note}")
    first = made.first_non_finite
    print(first.sentence(made.num_replicas) if first else "every tensor of the step is finite")
    print()
    print_table(
        ("layer", "gradient norm"),
        [(layer, f"{norm:.4g}") for layer, norm in made.gradient_norms.items()],
        right=("gradient norm",),
    )
    print()
    print("examples with the largest loss:")
    order = sorted(range(len(made.batch)), key=lambda position: -_sortable(float(made.losses[position])))
    print_table(
        ("index", "label", "loss"),
        [
            (str(made.index[position]), made.batch.names(position)[:60], f"{made.losses[position]:.5g}")
            for position in order[:SHOWN_EXAMPLES]
        ],
        right=("index", "loss"),
    )


def _sortable(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
