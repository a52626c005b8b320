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
        metavar="NAME",
        help="Data set to prepare: cifar10, shapes or shapes_multilabel (labkit draws these two itself; "
        "images of the second have several labels), or pictures of your own that were prepared before. "
        "Default: cifar10.",
    )
    _declare_pictures(parser)
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


def _declare_pictures(parser: Parser) -> None:
    parser.add_argument(
        "--images",
        type=local_path,
        metavar="PATH",
        help="Prepares pictures of your own: a folder with a folder for each class (or train/, validation/ "
        "and test/ with such folders), or a CSV file with the columns path,label.",
    )
    parser.add_argument(
        "--name",
        help="Name of the data set made from --images, for --dataset. Default: the name of the folder or "
        "file.",
    )
    parser.add_argument(
        "--image-size",
        type=int,
        metavar="N",
        help="Side of the images in pixels, 8 to 1024; up to 64 they are stored as pixels, above as JPEG. "
        "Default: that of the pictures if all are equal squares of up to 64, otherwise 64, or less where "
        "they are smaller.",
    )
    parser.add_argument(
        "--resize",
        metavar="HOW",
        help="What happens to pictures that are not square: crop keeps the centre, letterbox keeps all of "
        "them between black bars. Default: as prepared before, else crop.",
    )
    parser.add_argument(
        "--skip-damaged",
        action="store_true",
        help="Leaves out files that cannot be read as pictures, and lists them in the manifest. By default "
        "they are an error.",
    )


def _prepare(options: argparse.Namespace) -> int:
    """Prepare a data set. Returns 0. Raises InputError for what can't be prepared."""
    from labkit import home
    from labkit.data.prepare import prepare

    if options.data_dir is None and options.images is None:
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
        images=options.images,
        name=options.name,
        image_size=options.image_size,
        resize=options.resize,
        skip_damaged=options.skip_damaged,
    )
    for message in result.messages:
        show(message)
    if not result.did_work:
        show("every shard verified; nothing left to do")
    return 0
