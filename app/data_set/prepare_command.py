"""The command that prepares the data set that a run was trained on."""

import shlex
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config.data_sets import is_own
from labkit.config.recorded import recorded_config
from labkit.data.manifest import Manifest, find_manifest
from labkit.data.of_run import folder_to_prepare
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["prepare_command"]


def prepare_command(run: RunDirectory) -> str:
    """Return the command that prepares the data set of a run where the run looks for it.

    Raises InputError if the run's configuration is damaged.
    """
    config = recorded_config(run)
    folder = str(folder_to_prepare(run, config))
    data = run.read_environment().get("data")
    recorded: dict[str, Any] = data if isinstance(data, dict) else {}
    source = recorded.get("source")
    if is_own(config.data.dataset):
        images = str(source.get("location", "DIR")) if isinstance(source, dict) else "DIR"
        words = ["labkit", "data", "prepare", "--images", images, "--name", config.data.dataset]
        return shlex.join([*words, "--data-dir", folder])
    words = ["labkit", "data", "prepare", "--dataset", config.data.dataset, "--data-dir", folder]
    if isinstance(source, dict) and source.get("kind") in ("archive", "folder"):
        words += ["--archive", str(source.get("location", ""))]
    return shlex.join(words + _differences(recorded, _present(Path(folder), config.data.dataset)))


def _present(folder: Path, dataset: str) -> Manifest | None:
    try:
        return find_manifest(home.expanded(folder), dataset)
    except InputError:
        return None


def _differences(recorded: dict[str, Any], present: Manifest | None) -> list[str]:
    """Return the flags for what was recorded otherwise than it is prepared now."""
    counts, classes = recorded.get("counts"), recorded.get("classes")
    if not isinstance(counts, dict) or not isinstance(classes, list):
        return []
    words: list[str] = []
    if present and [str(name) for name in classes] != list(present.classes):
        words += ["--classes", ",".join(map(str, classes))]
    # A data set that isn't there is prepared with the number of validation examples that labkit takes anyway.
    if present and counts.get("validation", 0) != present.count("validation"):
        words += ["--validation-size", str(counts.get("validation", 0))]
    elif present and counts.get("train") != present.count("train") and not words:
        words += ["--train-examples", str(counts.get("train"))]
    return words
