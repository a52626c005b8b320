"""``labkit verify``: whether a run is what it says."""

import argparse
from typing import TYPE_CHECKING

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path, whole_number
from labkit.commands.terminal.text_tables import print_table
from labkit.config.recorded import recorded_config
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory.find import run_to_read

if TYPE_CHECKING:
    from labkit.experiments.verify.steps import VerifiedSteps

__all__ = ["declare_verify"]

# Rounding grows with each step, threefold at a training's start, so that it is judged by the first ones.
TOLERANCE, JUDGED_STEPS = 1e-4, 5


def declare_verify(parser: Parser) -> Run:
    """Declare the flags of ``labkit verify``."""
    parser.epilog = "It shows that a run can be made again, not who made it: anybody can write such a run."
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument(
        "--from",
        dest="start",
        type=whole_number(),
        metavar="STEP",
        help="Checkpoint to start from; 0 is the initial weights. Default: the newest with steps after it.",
    )
    parser.add_argument(
        "--steps",
        type=whole_number(),
        metavar="N",
        help="Steps to make again. Default: up to the next checkpoint, at most 100.",
    )
    parser.add_argument(
        "--files-only",
        action="store_true",
        help="Checks hashes only: certificate, checkpoints and data. Makes no step.",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="X",
        help=f"Largest difference of the losses of the first {JUDGED_STEPS} steps, in nats, that counts as "
        "rounding where something known differs, such as the number of processes. Default: "
        f"{TOLERANCE:g}.",
    )
    parser.add_argument(
        "--data-dir", type=local_path, metavar="DIR", help="Folder of prepared data sets. Default: the run's."
    )
    return _run


def _run(options: argparse.Namespace) -> int:
    """Verify a run. Returns 0 if it is what it says, 1 if not. Raises InputError before work starts."""
    from labkit.experiments.replay.recorded import with_data
    from labkit.experiments.verify.files import check_files

    if options.steps == 0:
        raise InputError("--steps is 0; allowed: a whole number from 1; --files-only makes no step")
    if not options.tolerance >= 0:
        raise InputError(f"--tolerance is {options.tolerance}; allowed: a number from 0, in nats")
    run = run_to_read(options.run)
    config, manifest = with_data(run, recorded_config(run), options.data_dir)
    checked = check_files(run, config, manifest)
    certificate = checked.certificate
    if certificate is None:
        print("no certificate: only trainings with --deterministic write one, at their end")
    else:
        print(f"certificate of step {certificate.step}, SHA-256 {certificate.sha256}")
    for change in checked.changes:
        print(change)
    if checked.changes:
        print(f"{run.name} is not what it was: {counted(len(checked.changes), 'change')}; no step was made")
        return 1
    rows = f"{certificate.count_of_rows():,} rows, settings, " if certificate else ""
    checkpoints = counted(len(run.checkpoint_steps()), "checkpoint")
    print(f"unchanged: {rows}{checkpoints}, data")
    if options.files_only:
        return 0
    from labkit.experiments.verify.steps import verify_steps

    result = verify_steps(
        run,
        start=options.start,
        steps=options.steps,
        data_dir=config.data.data_dir,  # found above
        announce=lambda line: print(line, flush=True),
    )
    return _report(result, options.tolerance)


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
