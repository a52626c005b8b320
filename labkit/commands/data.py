"""``labkit data``: data sets, made ready for training."""

import argparse

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path, whole_number
from labkit.errors import InputError

__all__ = ["declare_prepare"]


def declare_prepare(parser: Parser) -> Run:
    """Declare the flags of ``labkit data prepare``."""
    parser.add_argument(
        "--dataset",
        choices=("cifar10", "shapes", "shapes_multilabel"),
        default="cifar10",
        help="Data set to prepare. labkit draws the two of shapes itself; images of shapes_multilabel have "
        "several labels. Default: cifar10.",
    )
    parser.add_argument(
        "--data-dir",
        type=local_path,
        metavar="DIR",
        help="Folder of prepared data sets. Default: <home>/data.",
    )
    parser.add_argument(
        "--archive",
        type=local_path,
        metavar="PATH",
        help="Reads cifar-10-python.tar.gz, cifar-10-binary.tar.gz or an extracted folder instead of "
        "downloading CIFAR-10.",
    )
    parser.add_argument(
        "--validation-size",
        type=whole_number(),
        metavar="N",
        help="Training examples to hold out for validation. Default: as prepared before, else a tenth "
        "(5000 of CIFAR-10).",
    )
    parser.add_argument(
        "--classes",
        metavar="NAMES",
        help="Keeps only these classes, in this order: names or numbers, separated by commas. Needs "
        "--data-dir. Default: as prepared before, else all.",
    )
    parser.add_argument(
        "--train-examples",
        type=whole_number(),
        metavar="N",
        help="Keeps only this many training examples, with the classes in proportion. Needs --data-dir. "
        "Default: as prepared before, else all.",
    )
    parser.add_argument("--url", help="Downloads from this address instead of the published one.")
    return _prepare


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
