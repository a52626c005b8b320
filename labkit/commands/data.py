"""``labkit data``: data sets, made ready for training."""

import argparse
import inspect
import json
import shlex
from pathlib import Path
from typing import Any

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path, whole_number
from labkit.commands.terminal.text_tables import print_table
from labkit.errors import InputError

__all__ = ["declare_list", "declare_prepare"]


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
        "--data-dir or --images; folders of --images that are named here are classes, whatever they are "
        "called. Default: as prepared before, else all.",
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
    from labkit.api import prepare_data

    classes = None if options.classes is None else options.classes.split(",")
    given = vars(options) | {"classes": classes}
    manifest = prepare_data(**{name: given[name] for name in inspect.signature(prepare_data).parameters})
    where = "" if options.data_dir is None else f" --data-dir {shlex.quote(str(options.data_dir))}"
    loss = " --loss sigmoid" if manifest.multi_label else ""
    print(f"next: labkit train --dataset {shlex.quote(manifest.dataset)} --preset auto{loss}{where}")
    return 0


# ---- list ----------------------------------------------------------------------------------------------


def declare_list(parser: Parser) -> Run:
    """Declare the flags of ``labkit data list``."""
    parser.add_argument(
        "--data-dir",
        type=local_path,
        metavar="DIR",
        help="Folder of prepared data sets. Default: <home>/data.",
    )
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs.")
    return _list


def _list(options: argparse.Namespace) -> int:
    """Print the prepared data sets. Returns 0. Raises InputError for a folder that isn't there."""
    from labkit import home
    from labkit.data.manifest import prepared_names

    folder = home.expanded(options.data_dir).absolute() if options.data_dir else home.data_home()
    if options.data_dir and not folder.is_dir():
        raise InputError(f"--data-dir {folder} is not a directory; name one that holds data sets")
    found = [_described(folder, name) for name in prepared_names(folder)]
    if options.json:
        print(json.dumps(found, indent=2))
    elif found:
        header = ("name", "train", "validation", "test", "classes", "pixels", "size", "from")
        print_table(header, [_row(one) for one in found], right=header[1:-1])
    else:
        print(
            f"no data sets in {folder}; prepare pictures of your own with: labkit data prepare --images DIR"
        )
    return 0


def _described(folder: Path, name: str) -> dict[str, Any]:
    """Return what the manifest of a data set says, ready for JSON; ``error`` where it can't be read."""
    from labkit.data.manifest import find_manifest

    try:
        manifest = find_manifest(folder, name)
    except InputError as error:
        return {"name": name, "path": str(folder / name), "error": str(error)}
    assert manifest is not None
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return {
        "name": name,
        "path": str(manifest.directory),
        "splits": {split.name: split.count for split in manifest.splits.values()},
        "classes": list(manifest.classes),
        "multi_label": manifest.multi_label,
        "image_shape": list(manifest.image_shape),
        "image_format": manifest.image_format,
        "bytes": sum(shard.bytes for shard in shards),
        "source": manifest.source,
        "checksum": manifest.checksum,
    }


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    if "error" in found:
        return (found["name"], *["-"] * 6, "damaged; labkit doctor says what to do")
    height, width, _ = found["image_shape"]
    source = found["source"]
    where = "drawn by labkit" if source["kind"] == "generated" else f"{source['kind']} {source['location']}"
    return (
        found["name"],
        *(f"{found['splits'].get(split, 0):,}" for split in ("train", "validation", "test")),
        f"{len(found['classes']):,}",
        f"{width}×{height}",
        f"{found['bytes'] / 1e6:,.1f} MB",
        where,
    )
