"""Where the data set of a recorded run lies today: the run, its data or labkit's home may have been moved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.config.data_sets import GENERATED
from labkit.data.manifest import Manifest, check_same_data, find_manifest, load_manifest
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import state_path
from labkit.run_directory.files import read_object


class NotPrepared(InputError):
    """A run's data set isn't in any of the folders that it is looked for in."""


def data_set_of(run: RunDirectory) -> Manifest:
    """Return the prepared data set that a run was trained on.

    Raises InputError if it is no longer prepared, or was prepared otherwise since.
    """
    manifest, _ = data_of_run(run, recorded_config(run))
    return manifest


def data_of_run(run: RunDirectory, config: Config, data_dir: str | None = None) -> tuple[Manifest, str]:
    """Return the prepared data set that a run was trained on, and a line if it isn't where it was.

    Without ``data_dir``, the first of these folders that holds the same data, by their checksum, is taken:
    the folder that somebody chose for the run (``--data-dir``); labkit's own folder of today; and, if nobody
    chose one, the folder that the data lay in when the run was trained. The line is empty if nothing has
    moved.

    Args:
        run: the run directory.
        config: its recorded configuration.
        data_dir: a folder of data sets that the user names now; no other one is looked into.

    Raises InputError if the data set isn't found, is damaged, or was prepared otherwise since.
    """
    name, checksum = config.data.dataset, recorded_checksum(run)
    if data_dir is not None:
        manifest = load_manifest(home.expanded(data_dir).absolute(), name)
        check_same_data(manifest, checksum, run.path)
        return manifest, ""
    folders = _folders(run, config)
    others, damage = [], []
    for folder in folders:
        try:
            manifest_or_none = find_manifest(folder, name)
        except InputError as error:
            damage.append(error)
            continue
        if manifest_or_none is None:
            continue
        if checksum in (None, manifest_or_none.checksum):
            return manifest_or_none, _moved(run, config, manifest_or_none)
        others.append(manifest_or_none)
    if others:
        check_same_data(others[0], checksum, run.path)
    if damage:
        raise damage[0]
    there = folder_to_prepare(run, config)
    try:
        manifest = load_manifest(there, name)
    except InputError as error:
        gone = [str(folder) for folder in folders if folder != there]
        also = f"; it isn't in {' or '.join(gone)} either" if gone else ""
        raise NotPrepared(f"{error}{also}; if it lies elsewhere, name its folder with --data-dir") from None
    return manifest, ""  # prepared a moment ago


def data_dir_of_run(run: RunDirectory, config: Config, data_dir: str | None = None) -> tuple[str | None, str]:
    """Return the value of ``--data-dir`` that finds the run's data today, and the line of ``data_of_run``.

    That is None if they lie in labkit's own folder and nobody named it, or if a training generates them
    there. Raises InputError as ``data_of_run``.
    """
    try:
        manifest, note = data_of_run(run, config, data_dir)
    except NotPrepared:
        if config.data.dataset in GENERATED and folder_to_prepare(run, config) == home.data_home():
            return None, ""
        raise
    folder = manifest.directory.parent
    is_own = data_dir is None and folder == home.data_home()
    return (None if is_own else str(folder)), note


def folder_to_prepare(run: RunDirectory, config: Config) -> Path:
    """Return the folder in which to prepare a run's data if they are gone: the one that it looks into first.

    A recorded folder that is gone itself was renamed or is on another machine: then labkit's own.
    """
    first = _folders(run, config)[0]
    return first if first.is_dir() else home.data_home()


def recorded_checksum(run: RunDirectory) -> str | None:
    """Return the checksum of a run's data: from its environment, or else its newest checkpoint; or None."""
    checksum = _recorded(run).get("checksum")
    if isinstance(checksum, str):
        return checksum
    states = (
        read_object(state_path(run.checkpoints_path, step)) for step in reversed(run.checkpoint_steps())
    )
    return next((str(state["data_checksum"]) for state in states if "data_checksum" in state), None)


@dataclass(frozen=True)
class _RecordedManifest(Manifest):
    """What a run recorded of its data: enough to build its network, without any image."""

    recorded: str = ""

    @property
    def checksum(self) -> str:
        return self.recorded


def recorded_manifest(run: RunDirectory) -> Manifest | None:
    """Return what the run recorded of its data, as a manifest without splits; None if that isn't enough.

    Runs of earlier versions didn't record the mean and standard deviation of the channels.
    """
    data = _recorded(run)
    try:
        return _RecordedManifest(
            dataset=str(data["dataset"]),
            directory=Path(data["directory"]),
            classes=tuple(map(str, data["classes"])),
            image_shape=tuple(map(int, data["image_shape"])),  # type: ignore[arg-type]
            splits={},
            channel_mean=tuple(map(float, data["channel_mean"])),
            channel_std=tuple(map(float, data["channel_std"])),
            source=dict(data["source"]),
            validation_size=0,
            seed=0,
            multi_label=bool(data["multi_label"]),
            target_mean=_numbers(data.get("target_mean")),
            target_std=_numbers(data.get("target_std")),
            recorded=str(data["checksum"]),
        )
    except (LookupError, TypeError, ValueError):
        return None


def _numbers(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(map(float, values))


def _recorded(run: RunDirectory) -> dict[str, Any]:
    data = run.read_environment().get("data")
    return data if isinstance(data, dict) else {}


def _folders(run: RunDirectory, config: Config) -> list[Path]:
    """Return the folders to search, in order; see ``data_of_run``."""
    chosen, lay = config.data.data_dir, _recorded(run).get("directory")
    if chosen is not None:
        return list(dict.fromkeys([home.expanded(chosen).absolute(), home.data_home()]))
    before = [Path(lay).parent] if isinstance(lay, str) else []
    return list(dict.fromkeys([home.data_home(), *before]))


def _moved(run: RunDirectory, config: Config, manifest: Manifest) -> str:
    """Return a line that says where the data are, if they aren't where they were in training."""
    lay = _recorded(run).get("directory")
    before = Path(lay) if isinstance(lay, str) else _folders(run, config)[0] / manifest.dataset
    if manifest.directory == before:
        return ""
    how = "the same data by its checksum" if recorded_checksum(run) else "the run recorded no checksum"
    return f"data set: {manifest.dataset} in {manifest.directory} ({how}; in training it was {before})"
