"""``labkit replicas``: one training on several layouts of replicas, their losses side by side."""

import argparse
import functools
import sys
from typing import TYPE_CHECKING

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, add_hidden_fields, local_path, typed, whole_number
from labkit.config import fields_by_name
from labkit.errors import InputError, require_extra

if TYPE_CHECKING:
    from labkit.experiments.replicas import ReplicaComparison

__all__ = ["declare_replicas"]


def declare_replicas(parser: Parser) -> Run:
    """Declare the flags of ``labkit replicas``: its own, and those of ``labkit train``."""
    parser.epilog = (
        "Without other flags, ResNet-8 is trained on the generated data set shapes, with batches of 128\n"
        "at a constant learning rate of 2e-4, with and without synchronized batch normalization;\n"
        "--sync-batch-norm and --no-sync-batch-norm train one of the two. The other flags are those of\n"
        "labkit train that don't choose steps, a directory, devices or a cluster:\n"
        "see labkit train --help-all."
    )
    parser.add_argument(
        "--layouts",
        metavar="NAMES",
        help="Layouts, separated by commas; the first is the reference. Allowed: '1 replica', 'N logical "
        "devices', 'N GPUs', 'N processes', 'N processes x M logical devices', 'N processes x M GPUs'. "
        "Default: '1 replica,2 logical devices,4 logical devices,2 processes'.",
    )
    parser.add_argument(
        "--steps", type=whole_number(), default=50, metavar="N", help="Steps of each training. Default: 50."
    )
    parser.add_argument(
        "--tolerance",
        type=_number,
        default=1e-5,
        metavar="X",
        help="Largest difference of two losses that agree, in nats. Default: 1e-5.",
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="Starts from a named run; see labkit train --list-presets."
    )
    parser.add_argument(
        "--output",
        type=local_path,
        metavar="DIR",
        help="Folder for runs and results. Default: <home>/comparisons/<name made from the settings>.",
    )
    add_hidden_fields(parser, fields_by_name().values())
    return _run


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number above 0") from None


def _run(options: argparse.Namespace) -> int:
    """Train, print and write what is compared. Returns the exit code. Raises InputError."""
    require_extra("notebook", ("matplotlib",), "labkit replicas")
    from labkit.experiments.replicas import LAYOUTS, compare_replicas

    fields = fields_by_name()
    say = functools.partial(print, flush=True)
    try:
        comparison = compare_replicas(
            LAYOUTS if options.layouts is None else options.layouts.split(","),
            steps=options.steps,
            tolerance=options.tolerance,
            output=options.output,
            preset=options.preset,
            announce=say,
            **{name: typed(fields[name], value) for name, value in vars(options).items() if name in fields},
        )
    except KeyboardInterrupt as stop:
        if not stop.args:
            raise
        say("stopped; the same command continues")
        return 128 + stop.args[0]
    except InputError:
        raise
    except RuntimeError as failure:
        print(f"labkit: error: {failure}", file=sys.stderr)
        return 1
    say(f"\n{comparison}")
    _write(comparison)
    say(f"\nreplicas.png, .md and .json are in {comparison.folder}")
    return 0


def _write(comparison: "ReplicaComparison") -> None:
    from labkit import figures as plots
    from labkit.experiments.comparison.tables import write_if_changed

    for kind, content in (
        ("md", comparison.as_markdown().encode()),
        ("json", comparison.as_json().encode()),
        ("png", plots.png(plots.replica_curves(comparison))),
    ):
        write_if_changed(comparison.folder / f"replicas.{kind}", content)
