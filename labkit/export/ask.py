"""Ask an exported file about pictures, by its description, as a run's network is asked."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.predict import Asked
from labkit.data.manifest import Manifest
from labkit.errors import InputError, short
from labkit.export.output import FORMATS, PIXELS, check_installed, description_path
from labkit.export.predict import READERS
from labkit.run_directory.files import read_json
from labkit.startup.quiet_import import import_tensorflow
from labkit.training import scores


def is_exported(path: Path) -> bool:
    """Return whether this is an exported file, or folder, with its description beside it."""
    return bool(path.name) and path.exists() and description_path(path).is_file()


def exported_network(path: Path) -> Asked:
    """Return the network of an exported file.

    Raises InputError where the file or its description is damaged, its input isn't pixels, or a package is
    missing that reads it.
    """
    described = read_json(description_path(path))
    try:
        kind, outputs = FORMATS[described["format"]], described["output"]["name"]
        manifest, step = _manifest(path, described), int(described["run"]["step"])
    except (LookupError, TypeError, ValueError):
        raise InputError(
            f"{description_path(path)} does not describe an export of this labkit; export the run again"
        ) from None
    if described["input"].get("values") != PIXELS:
        raise InputError(f"{path} takes standardized images; export the run without --standardized-input")
    check_installed(kind)
    if kind.name != "onnx":
        import_tensorflow()
    try:
        predict = READERS[kind.name](str(path))
    except Exception as error:  # of four libraries
        raise InputError(f"{path} is damaged: {short(str(error))}; export the run again") from None

    def ask(images: NDArray[np.uint8]) -> NDArray[np.float64]:
        found = np.asarray(predict(images), np.float64)
        if outputs != "logits":
            return found
        return scores.sigmoid(found) if manifest.multi_label else scores.softmax(found)

    return Asked(manifest, ask, step)


def _manifest(path: Path, described: dict[str, Any]) -> Manifest:
    """Return what a description says of the data. Raises LookupError, TypeError or ValueError."""
    taken, resize = described["input"], described["input"]["resize"]
    classes, targets = tuple(map(str, described["classes"])), described["output"]["targets"]
    height, width, channels = map(int, taken["shape"][1:])
    numbers = (0.0,) * len(classes) if targets == "numbers" else None  # the file's outputs have their unit
    return Manifest(
        dataset=str(described["data"]["dataset"]),
        directory=path.parent,
        classes=classes,
        image_shape=(height, width, channels),
        splits={},
        channel_mean=tuple(taken["channel_mean"]),
        channel_std=tuple(taken["channel_std"]),
        # Images of data sets that came as images are resized with Lanczos's filter.
        source={"resize": None if resize["filter"] == "lanczos" else resize["how"], "white": resize["white"]},
        validation_size=0,
        seed=0,
        multi_label=targets == "classes",
        target_mean=numbers,
        target_std=numbers,
    )
