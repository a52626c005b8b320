"""Does a ResNet-20 predict as fast in `labkit evaluate` as in PyTorch?

labkit's predict step is compared with PyTorch's `inference_mode`, channels last, eager and compiled. All
sides run at the same time in new processes and take turns of some batches, from standardised images to
logits on the host. labkit folds batch normalization into the convolutions (`labkit.models.variants`), so
PyTorch is also measured with folded normalization: by `fuse_conv_bn_eval` (eager) and by inductor's
freezing (compiled). Each side is measured with glibc's default allocator settings and with those that keep
freed memory. A ratio compares the forms with the best medians.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import (
    MISSING_TORCH,
    PRECISIONS,
    make_parser,
    measure_and_report,
    prepared_data,
    take_turns,
    torch_is_installed,
    write_arrays,
)
from benchmarks.forms import Form, add_form_flags, figures, start_turns
from benchmarks.processes import environment_with
from benchmarks.report import Figure, Goal
from benchmarks.turns import turn_options
from labkit.data.manifest import Manifest

LABKIT, EAGER, COMPILED = "labkit evaluate", "PyTorch eager", "torch.compile"
AS_FAST = dict.fromkeys(PRECISIONS, Goal("at least", 1.0))
GOALS = {EAGER: AS_FAST, COMPILED: AS_FAST}
FORMS = {"eager": EAGER, "compile": COMPILED}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=12)
    parser.set_defaults(batch_size=256)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="forms of PyTorch")
    add_form_flags(parser)
    options = parser.parse_args(arguments)
    if not torch_is_installed():
        sys.exit(f"inference: {MISSING_TORCH}")
    count = prepared_data(options.data_dir).count("test")
    if options.batch_size > count:
        parser.error(f"--batch-size is {options.batch_size}; allowed: at most {count}")
    options.left_out = {}
    measure_and_report("inference", __doc__, options, measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure images per second of every form; those that can't be run go to ``options.left_out``."""
    arrays = folder / "test.npz"
    write_arrays(manifest, "test", arrays)
    found = {}
    for precision in options.precisions:
        with ExitStack() as stack:
            sides = _sides(options, precision, manifest, arrays)
            turns = start_turns(stack, sides, folder / precision, options.left_out)
            found[precision] = take_turns(turns, options.repeats)
    return figures(found, LABKIT, GOALS)


def _sides(
    options: argparse.Namespace, precision: str, manifest: Manifest, arrays: Path
) -> list[tuple[Form, str, dict[str, Any], dict[str, str]]]:
    common = turn_options(options, manifest, precision=precision, task="predict", arrays=str(arrays))
    sides = []
    for allocator in options.allocators:
        environment = environment_with(allocator)
        sides.append((Form(LABKIT, "", allocator), "turns", common, environment))
        for kind in options.forms:
            for folded in (False, True):
                variant = {"eager": "folded", "compile": "frozen"}[kind] if folded else "as it is"
                told = {**common, "form": kind, "folded": folded}
                sides.append((Form(FORMS[kind], variant, allocator), "torch_peer", told, environment))
    return sides


if __name__ == "__main__":
    main()
