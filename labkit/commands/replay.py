"""``labkit replay`` and ``verify``: steps of a run, made again."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from labkit.commands.flags import DataDir, Flag, LocalPath, RunName, converter
from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.home import expanded
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.certificate import ROW_DIGITS
from labkit.run_directory.find import run_to_read
from labkit.tables import print_table

if TYPE_CHECKING:
    from labkit.experiments.replay.step import Replay
    from labkit.experiments.verify import VerifiedSteps

SHOWN_EXAMPLES = 5
# Rounding grows with each step, threefold at a training's start, so that it is judged by the first ones.
TOLERANCE, JUDGED_STEPS = 1e-4, 5


def replay(
    run: RunName,
    *,
    step: Annotated[int, Flag(metavar="S")],
    batch_only: bool = False,
    output: Annotated[LocalPath | None, Flag(metavar="DIR")] = None,
    max_steps: int = 1000,
    data_dir: DataDir | None = None,
) -> int:
    """Replay a step. Returns 0. Raises InputError before work starts.

    Args:
        step: Step to make again, from 1.
        batch_only: Writes the step's batch only. This needs no checkpoint, and takes a second.
        output: Folder to write; an earlier replay is replaced. Default: <run>-step-<S> in the current folder.
        max_steps: Most steps to make between the nearest checkpoint and step S.
    """
    if max_steps < 0:
        raise InputError(f"--max-steps is {max_steps}; allowed: a whole number from 0")
    found = run_to_read(run)
    folder = expanded(output or f"{found.name}-step-{step}").absolute()
    if folder == found.path or found.path in folder.parents:
        raise InputError(f"--output {folder} is in the run directory, which a replay doesn't change")
    from labkit.experiments.replay.step import check_folder, write_batch
    from labkit.experiments.replay.step import replay as make_again

    check_folder(folder)
    if batch_only:
        _show_batch(found, step, data_dir, folder)
    else:
        made = make_again(found, step, data_dir=data_dir, max_steps=max_steps)
        write_batch(made.batch, folder, str(found.path), made)
        _print(made)
    print(f"images of the batch, table of its examples and arrays: {folder}")
    return 0


def _show_batch(run: RunDirectory, step: int, data_dir: str | None, output: Path) -> None:
    from labkit.experiments.replay.batch import batch_note
    from labkit.experiments.replay.recorded import batch_of_run
    from labkit.experiments.replay.step import write_batch

    batch = batch_of_run(run, step, data_dir=data_dir)
    write_batch(batch, output, str(run.path))
    epochs = " and ".join(str(epoch) for epoch in sorted(set(batch.epoch.tolist())))
    print(f"step {batch.step} of {run.name}: {counted(len(batch), 'example')} of epoch {epochs}, from 0")
    if note := batch_note(run, step):
        print(f"note: {note}")


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
    losses = made.losses  # those that are NaN stand first
    order = sorted(
        range(len(losses)), key=lambda position: (not math.isnan(losses[position]), -losses[position])
    )
    print_table(
        ("index", "label", "loss"),
        [
            (str(made.index[position]), made.batch.names(position)[:60], f"{made.losses[position]:.5g}")
            for position in order[:SHOWN_EXAMPLES]
        ],
        right=("index", "loss"),
    )


# ---- verify --------------------------------------------------------------------------------------------


def verify(
    run: RunName,
    *,
    start: Annotated[int | None, Flag(flags=("--from",), metavar="STEP")] = None,
    steps: int | None = None,
    files_only: bool = False,
    tolerance: Annotated[
        float, Flag(type=converter(float, "a number from 0, in nats", lambda value: value >= 0))
    ] = TOLERANCE,
    data_dir: DataDir | None = None,
) -> int:
    """Verify a run. Returns 0 if it is what it says, 1 if not. Raises InputError before work starts.

    It shows that a run can be made again, not who made it: anybody can write such a run.

    Args:
        start: Checkpoint to start from; 0 is the initial weights. Default: the newest with steps after it.
        steps: Steps to make again. Default: up to the next checkpoint, at most 100.
        files_only: Checks hashes only: certificate, checkpoints and data. Makes no step.
        tolerance: Largest difference of the losses of the first 5 steps, in nats, that counts as rounding
            where something known differs, such as the number of processes.
    """
    from labkit.experiments.replay.recorded import with_data
    from labkit.experiments.verify import check_files

    if steps is not None and steps < 1:
        raise InputError(f"--steps is {steps}; allowed: a whole number from 1; --files-only makes no step")
    found = run_to_read(run)
    config, manifest = with_data(found, recorded_config(found), data_dir)
    certificate, changes = check_files(found, config, manifest)
    if certificate is None:
        print("no certificate: only trainings with --deterministic write one, at their end")
    else:
        print(f"certificate of step {certificate.step}, SHA-256 {certificate.sha256}")
    for change in changes:
        print(change)
    if changes:
        print(f"{found.name} is not what it was: {counted(len(changes), 'change')}; no step was made")
        return 1
    code = ", code" if certificate and certificate.code else ""
    rows = f"{len(certificate.rows) // ROW_DIGITS:,} rows, settings{code}, " if certificate else ""
    checkpoints = counted(len(found.checkpoint_steps()), "checkpoint")
    print(f"unchanged: {rows}{checkpoints}, data")
    if files_only:
        return 0
    from labkit.experiments.verify import verify_steps

    folder = config.data.data_dir  # found above
    return _report(verify_steps(found, start=start, steps=steps, data_dir=folder), tolerance)


def _report(result: "VerifiedSteps", tolerance: float) -> int:
    steps = f"steps {result.first:,} to {result.last:,}"
    for step, weights in result.weights.items():
        if weights is None:
            print(f"the weights after step {step} are those of the checkpoint, bit by bit")
        else:
            print(f"the weights after step {step} differ from the checkpoint, most {weights}")
    if result.are_bit_equal:
        print(f"bit-equal: {steps} of the run, made again")
        return 0
    if result.differences:
        first = result.differences[0]
        print(f"step {first.step} is the first that differs: {first}")
    loss = result.largest("loss")
    if loss:
        print(f"the loss differs most at step {loss.step}: {loss}")
    for note in result.notes:
        print(f"note: {note}")
    if changed := result.changed_row(tolerance):
        print(f"the row of step {changed.step} was changed: the weights after it are the recorded ones")
        return 1
    if found := result.changed_checkpoint(tolerance):
        print(
            f"the checkpoint of step {found.step} was changed: the losses until it agree, and its weights "
            f"differ by {found.share:.2g} of their norm"
        )
        return 1
    if not result.reasons and not result.notes:
        print("nothing in the recorded environment explains it: a row, a checkpoint or the code was changed")
        return 1
    if result.reasons:
        print("what differs between the training and this process:")
        print_table(("", "the run", "here"), result.reasons)
    judged = result.first + JUDGED_STEPS - 1
    early = result.largest("loss", up_to=judged)
    if early is None or early.size <= tolerance:
        print(
            f"equal to rounding: until step {min(judged, result.last)} every loss is within {tolerance:g} "
            "nats (--tolerance); rounding then grows with each step"
        )
        return 0
    print(f"different: {early} at step {early.step}; {tolerance:g} nats (--tolerance) would be rounding")
    return 1
