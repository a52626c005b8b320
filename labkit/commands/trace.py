"""``labkit trace``: the last steps of all workers of a cluster on one time axis."""

import argparse
import os

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path, whole_number
from labkit.commands.terminal.text_tables import print_table
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory.disk import check_writable
from labkit.run_directory.find import run_to_read
from labkit.run_directory.worker_metrics import KEPT_STEPS

__all__ = ["declare_trace"]


def declare_trace(parser: Parser) -> Run:
    """Declare the flags of ``labkit trace``."""
    parser.add_argument("run", metavar="RUN", help="Directory of a cluster's run, or its name.")
    parser.add_argument(
        "--steps",
        type=whole_number(),
        default=5,
        metavar="N",
        help=f"Last steps to take, at most {KEPT_STEPS}. Default: 5.",
    )
    parser.add_argument(
        "--output",
        type=local_path,
        metavar="FILE",
        help="File to write: .json or .json.gz for Perfetto, .xplane.pb for TensorBoard. Default: "
        "<run>-trace.json in the current folder.",
    )
    return _run


def _run(options: argparse.Namespace) -> int:
    """Write the trace. Returns 0. Raises InputError before anything is written."""
    from labkit.analysis.timeline import FORMATS, KINDS, read_timeline, write_trace
    from labkit.home import expanded

    if not 1 <= options.steps <= KEPT_STEPS:
        raise InputError(f"--steps is {options.steps}; allowed: 1 to {KEPT_STEPS}")
    run = run_to_read(options.run)
    output = expanded(options.output or f"{run.name}-trace.json").absolute()
    if not output.name.endswith(tuple(FORMATS)):
        raise InputError(f"--output is {str(output)!r}; allowed: a file that ends in {', '.join(FORMATS)}")
    check_writable(output.parent, "--output")
    if os.path.isdir(output):
        raise InputError(f"--output {output} is a folder; name a file")
    timeline = read_timeline(run, options.steps)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_trace(timeline, output)
    steps = timeline.steps
    workers = counted(len(timeline.offsets), "worker")
    print(f"{counted(len(steps), 'step')} of {workers}, {steps[0]} to {steps[-1]}")
    print_table(
        ("milliseconds a step", *KINDS, "clock put forward"),
        [
            (
                worker,
                *(f"{1e3 * seconds:.1f}" for seconds in timeline.seconds(worker).values()),
                f"{1e3 * offset:.1f}",
            )
            for worker, offset in timeline.offsets.items()
        ],
        right=(*KINDS, "clock put forward"),
    )
    if not timeline.has_exchanges:
        print("note: no exchange was measured: with --deterministic TensorFlow refuses to read the clock")
    if output.name.endswith(".xplane.pb"):
        print(f"wrote {output}, for TensorBoard with xprof")
    else:
        print(f"open {output} in https://ui.perfetto.dev, or in Chromium at chrome://tracing")
    return 0
