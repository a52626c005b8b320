"""Does a ResNet-20 predict as fast in `labkit evaluate` as in PyTorch, OpenVINO and ONNX Runtime?

labkit's predict step is compared with PyTorch's `inference_mode`, channels last, eager and compiled, and with
OpenVINO and ONNX Runtime, which predict labkit's network as `labkit export` writes it. All
sides run at the same time in new processes and take turns of some batches, from standardised images to
logits on the host. labkit folds batch normalization into the convolutions (`labkit.models.variants`), so
PyTorch is also measured with folded normalization: by `fuse_conv_bn_eval` (eager) and by inductor's
freezing (compiled). OpenVINO and ONNX Runtime fold it by themselves; they predict a batch whole, and in two
halves at a time. Each side is measured with glibc's default allocator settings and with those that keep
freed memory. A ratio compares the forms with the best medians.
"""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import (
    PRECISIONS,
    choose_sides,
    make_parser,
    measure_and_report,
    prepared_data,
    take_turns,
    write_arrays,
)
from benchmarks.exported_peer import RUNTIMES, write_network
from benchmarks.forms import Form, add_form_flags, figures, start_turns
from benchmarks.processes import environment_with
from benchmarks.report import Figure, Goal
from benchmarks.turns import turn_options
from labkit.data.manifest import Manifest

LABKIT, EAGER, COMPILED = "labkit evaluate", "PyTorch eager", "torch.compile"
FORMS = {"eager": EAGER, "compile": COMPILED, "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
PACKAGES = dict.fromkeys(("eager", "compile"), "torch") | {name: name for name in RUNTIMES}
# The ways in which each is measured, and what its process is told.
BY_PARTS = {"whole": {"parts": 1}, "halves": {"parts": 2}}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "eager": {"as it is": {"folded": False}, "folded": {"folded": True}},
    "compile": {"as it is": {"folded": False}, "frozen": {"folded": True}},
    "openvino": BY_PARTS,
    "onnxruntime": BY_PARTS,
}
AS_FAST = dict.fromkeys(PRECISIONS, Goal("at least", 1.0))
GOALS = {name: {} for name in FORMS.values()} | {EAGER: AS_FAST, COMPILED: AS_FAST}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=12)
    parser.set_defaults(batch_size=256)
    parser.add_argument("--forms", nargs="+", choices=FORMS, help="what to compare with (default: all)")
    add_form_flags(parser)
    options = parser.parse_args(arguments)
    count = prepared_data(options.data_dir).count("test")
    if options.batch_size > count or options.batch_size % 2:
        parser.error(f"--batch-size is {options.batch_size}; allowed: even numbers up to {count}")
    options.forms, options.left_out = choose_sides(parser, "--forms", options.forms, PACKAGES)
    measure_and_report("inference", __doc__, options, measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure images per second of every form; those that can't be run go to ``options.left_out``."""
    arrays = folder / "test.npz"
    write_arrays(manifest, "test", arrays)
    if set(options.forms) & set(RUNTIMES):
        write_network(options, manifest, arrays)
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
            if (kind, precision) == ("onnxruntime", "mixed_bfloat16"):
                continue  # it has no convolution in bfloat16 for CPUs
            module = "exported_peer" if kind in RUNTIMES else "torch_peer"
            for variant, told in VARIANTS[kind].items():
                side = {**common, "form": kind, **told}
                sides.append((Form(FORMS[kind], variant, allocator), module, side, environment))
    return sides


if __name__ == "__main__":
    main()
