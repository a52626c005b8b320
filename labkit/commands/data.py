"""``labkit data``: data sets, made ready for training."""

import shlex
import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from labkit import home
from labkit.api import correct_data, prepare_data
from labkit.commands.flags import Flag, LocalPath, takes
from labkit.data.manifest import Manifest, find_manifest, prepared_names
from labkit.errors import InputError
from labkit.plurals import printable
from labkit.tables import print_table


@takes(
    prepare_data,
    leave_out=("train", "validation", "test"),
    dataset=Flag(metavar="NAME"),
    name=Flag(metavar="NAME"),
    url=Flag(metavar="URL"),
    data_dir=Flag(metavar="DIR"),
    resize=Flag(metavar="HOW"),
    classes=Flag(metavar="NAMES"),
    class_names=Flag(metavar="NAMES"),
)
def data_prepare(**given: Any) -> int:
    """Prepare a data set. Returns 0. Raises InputError for what can't be prepared."""
    _say_next(prepare_data(**given), given["data_dir"])
    return 0


@takes(correct_data, name=Flag(metavar="NAME"), data_dir=Flag(metavar="DIR"))
def data_correct(**given: Any) -> int:
    """Make a corrected data set. Returns 0. Raises InputError for what can't be corrected."""
    _say_next(correct_data(**given), given["data_dir"])
    return 0


def _say_next(manifest: Manifest, data_dir: str | None) -> None:
    where = "" if data_dir is None else f" --data-dir {shlex.quote(data_dir)}"
    loss = {"class": "", "classes": " --loss sigmoid", "numbers": " --loss mse --flip none"}[manifest.targets]
    print(f"next: labkit train --dataset {shlex.quote(manifest.dataset)} --preset auto{loss}{where}")


def data_list(
    *, data_dir: Annotated[LocalPath | None, Flag(metavar="DIR")] = None, json: bool = False
) -> int:
    """Print the prepared data sets. Returns 0. Raises InputError for a folder that isn't there.

    Args:
        data_dir: Folder of prepared data sets. Default: <home>/data.
        json: Prints JSON, for programs.
    """
    folder = home.expanded(data_dir).absolute() if data_dir else home.data_home()
    if data_dir and not folder.is_dir():
        raise InputError(f"--data-dir {folder} is not a directory; name one that holds data sets")
    found = [_described(folder, name) for name in prepared_names(folder)]
    if json:
        print(dumps(found, indent=2))
    elif found:
        header = ("name", "train", "validation", "test", "classes", "pixels", "size", "from")
        print_table(header, [_row(one) for one in found], right=header[1:-1])
        for one in found:
            if "error" in one:
                print(f"note: {printable(one['error'])}", file=sys.stderr)
    else:
        print(f"no data sets in {folder}; prepare images of your own with: labkit data prepare --images DIR")
    return 0


def _described(folder: Path, name: str) -> dict[str, Any]:
    """Return what the manifest of a data set says, ready for JSON; ``error`` where it can't be read."""
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
        "targets": manifest.targets,
        "image_shape": list(manifest.image_shape),
        "image_format": manifest.image_format,
        "bytes": sum(shard.bytes for shard in shards),
        "source": manifest.source,
        "checksum": manifest.checksum,
    }


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    if "error" in found:
        return (found["name"], *["-"] * 6, "damaged")
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
