"""``labkit export``: a run as a file that needs no labkit."""

import argparse

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path
from labkit.export.formats import FORMATS
from labkit.run_directory.find import find_run

__all__ = ["declare_export"]


def declare_export(parser: Parser) -> Run:
    """Declare the flags of ``labkit export``."""
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="best|last|STEP",
        help="Checkpoint to export. Default: best, on validation.",
    )
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default="keras", help="Format of the file. Default: keras."
    )
    parser.add_argument(
        "--output",
        type=local_path,
        metavar="PATH",
        help="File to write; for saved_model a folder. Default: named after the run, in the current folder.",
    )
    parser.add_argument(
        "--standardized-input",
        action="store_true",
        help="Makes the network take standardized images instead of pixels from 0 to 255.",
    )
    parser.add_argument(
        "--probabilities", action="store_true", help="Returns probabilities instead of logits."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="Compares the file, read by a process without labkit, with the run's own network on every test "
        "image. Where they differ nothing is written and the exit code is 1.",
    )
    parser.add_argument(
        "--data-dir", type=local_path, metavar="DIR", help="Folder of prepared data sets. Default: the run's."
    )
    parser.add_argument("--overwrite", action="store_true", help="Replaces an output that is there.")
    return _run


def _run(options: argparse.Namespace) -> int:
    """Export a run. Returns 0 where the file was written, 1 where it failed its check."""
    from labkit.export.api import export

    result = export(
        str(find_run(options.run)),
        checkpoint=options.checkpoint,
        format=options.format,
        output=options.output,
        standardized_input=options.standardized_input,
        probabilities=options.probabilities,
        check=options.check,
        data_dir=options.data_dir,
        overwrite=options.overwrite,
        announce=lambda line: print(line, flush=True),
    )
    if result.comparison is not None:
        _print_comparison(result.comparison, result.description)
    if not result.written:
        print("they differ by more than allowed; nothing was written")
        return 1
    taken, given = result.description["input"], result.description["output"]
    print(
        f"{result.description['model']}, step {result.step}: {_shape(taken)} ({taken['values']}) to "
        f"{_shape(given)}; classes and origin: {result.path.name}.json"
    )
    return 0


def _print_comparison(comparison, description) -> None:
    name, found = description["output"]["name"], comparison.to_json()
    if description["run"]["precision"] != "float32":
        print(f"the run computed in {description['run']['precision']}; compared is float32 with its weights")
    print(
        f"{name}: largest difference {found['max_difference']:.2e}, allowed "
        f"{found['tolerance'] * found['scale']:.2e} ({found['tolerance']:g} of the largest, "
        f"{found['scale']:.4g})"
    )
    print(
        f"same prediction for {found['equal_predictions']:.2%}; accuracy {found['accuracy_exported']:.4f} "
        f"exported, {found['accuracy_run']:.4f} of the run's network"
    )


def _shape(tensor) -> str:
    sizes = ", ".join("batch" if size is None else str(size) for size in tensor["shape"])
    return f"{tensor['name']} {tensor['dtype']} [{sizes}]"
