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
from benchmarks.report import Goal, Report
from benchmarks.turns import data_set_flags, turns_flags
from labkit.data.manifest import Manifest

QUESTION = "Does labkit's predict step make at least as many images per second as PyTorch's inference_mode?"
LABKIT, EAGER, COMPILED = "labkit evaluate", "PyTorch eager", "torch.compile"
AS_FAST = dict.fromkeys(PRECISIONS, Goal("at least", 1.0))
GOALS = {EAGER: AS_FAST, COMPILED: AS_FAST}
FORMS = {"eager": EAGER, "compile": COMPILED}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(batch_size=256)
    parser.add_argument("--steps", type=at_least(1), default=12, help="batches of a turn")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="forms of PyTorch")
    add_form_flags(parser)
    options = parser.parse_args(arguments)
    if not torch_is_installed():
        sys.exit(f"inference: {MISSING_TORCH}")
    manifest = prepared_data(options.data_dir)
    if options.batch_size > manifest.count("test"):
        parser.error(f"--batch-size is {options.batch_size}; allowed: at most {manifest.count('test')}")
    left_out: dict[str, str] = {}
    report = Report(
        "inference", QUESTION, vars(options) | {"dataset": manifest.dataset, "left_out": left_out}
    )
    with work_folder() as folder:
        found = {
            precision: measure(options, precision, manifest, folder / precision, left_out)
            for precision in options.precisions
        }
    report.finish(figures(found, LABKIT, GOALS), options.output)


def measure(
    options: argparse.Namespace, precision: str, manifest: Manifest, folder: Path, left_out: dict[str, str]
) -> dict[Form, list[float]]:
    """Return images per second of every form; those that can't be run go to ``left_out`` with the reason."""
    folder.mkdir()
    arrays = folder / "test.npz"
    write_arrays(manifest, "test", arrays)
    with ExitStack() as stack:
        turns = start_turns(stack, _sides(options, precision, manifest, arrays), folder, left_out)
        return take_turns(turns, options.repeats)


def _sides(
    options: argparse.Namespace, precision: str, manifest: Manifest, arrays: Path
) -> list[tuple[Form, str, list[str]]]:
    ours = [*turns_flags(options, precision), *data_set_flags(manifest)]
    theirs = [*turns_flags(options, precision), "--task", "predict", "--arrays", str(arrays)]
    sides = []
    for allocator in options.allocators:
        sides.append((Form(LABKIT, "", allocator), "predict_turns", ours))
        for kind in options.forms:
            flags = [*theirs, "--form", kind]
            sides.append((Form(FORMS[kind], "as it is", allocator), "torch_peer", flags))
            folded = "folded" if kind == "eager" else "frozen"
            sides.append((Form(FORMS[kind], folded, allocator), "torch_peer", [*flags, "--folded"]))
    return sides


if __name__ == "__main__":
    main()
