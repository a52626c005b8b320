"""``labkit data``: data sets, made ready for training."""

import argparse

from labkit.commands.arguments import whole_number
from labkit.commands.command import Command, CommandGroup
from labkit.errors import InputError

__all__ = ["COMMAND"]


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit data prepare``."""
    parser.add_argument(
        "--dataset",
        choices=("cifar10", "shapes", "shapes_multilabel"),
        default="cifar10",
        help="cifar10, or what labkit draws itself, with one label per image or several (default: cifar10)",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder of prepared data sets (default: <home>/data)"
    )
    parser.add_argument(
        "--archive",
        metavar="PATH",
        help="cifar-10-python.tar.gz, cifar-10-binary.tar.gz, or an extracted folder (default: download)",
    )
    parser.add_argument(
        "--validation-size",
        type=whole_number(),
        metavar="N",
        help="examples held out of training (default: as prepared, else a tenth: 5000 of CIFAR-10)",
    )
    parser.add_argument(
        "--classes",
        metavar="NAMES",
        help="only these, by name or number, comma-separated, in this order; with --data-dir (default: as "
        "prepared, else all)",
    )
    parser.add_argument(
        "--train-examples",
        type=whole_number(),
        metavar="N",
        help="only so many for training, of each class in proportion; with --data-dir (default: as prepared, "
        "else all)",
    )
    parser.add_argument("--url", help="download from here instead of the published place")


def _prepare(options: argparse.Namespace) -> int:
    """Prepare a data set. Returns 0. Raises InputError for what can't be prepared."""
    from labkit import home
    from labkit.data.prepare import prepare

    if options.data_dir is None:
        for flag, value in (("--classes", options.classes), ("--train-examples", options.train_examples)):
            if value is not None:
                raise InputError(
                    f"{flag} is {value!r} without --data-dir: a part of a data set would take the place of "
                    "the whole one; name a folder for it"
                )
    shown: list[str] = []

    def show(line: str) -> None:
        if line not in shown:
            shown.append(line)
            print(line, flush=True)

    result = prepare(
        options.dataset,
        options.data_dir or home.data_home(),
        archive=options.archive,
        validation_size=options.validation_size,
        url=options.url,
        progress=show,
        classes=None if options.classes is None else [name.strip() for name in options.classes.split(",")],
        train_examples=options.train_examples,
    )
    for message in result.messages:
        show(message)
    if not result.did_work:
        show("every shard verified; nothing left to do")
    return 0


COMMAND = CommandGroup(
    "data",
    "Prepare data sets.",
    (
        Command(
            "prepare",
            "Download or read a data set, and write it as sharded TFRecords.",
            _add_prepare,
            _prepare,
        ),
    ),
)
