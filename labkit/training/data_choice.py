"""The data set of a training: the one that is prepared, a launcher's choice, or one to prepare now."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from labkit import home
from labkit.config import Config
from labkit.config.data_sets import AUTO, GENERATED, prepare_command
from labkit.data.manifest import Manifest, load_manifest, verify_shards
from labkit.data.resolve import find_data_set, resolve
from labkit.errors import InputError
from labkit.startup.quiet_import import import_tensorflow
from labkit.training.checks import check_fits, check_targets

# A launcher passes its choice of data set to its tasks, for the run's record: {"asked_for": …, "note": …}
DATA_CHOICE = "LABKIT_DATA_CHOICE"


def launchers_choice() -> tuple[str, str] | None:
    """Return the requested data set and the note that this task's launcher passed on, or None."""
    text = os.environ.get(DATA_CHOICE, "")
    if not text:
        return None
    try:
        choice = json.loads(text)
        return str(choice["asked_for"]), str(choice["note"])
    except (ValueError, LookupError, TypeError):
        raise InputError(
            f"{DATA_CHOICE} is {text[:200]!r}; only labkit cluster local sets it: unset it"
        ) from None


def data_directory(config: Config) -> Path:
    """Return the configured folder of data sets, or labkit's own."""
    named = config.data.data_dir
    return home.expanded(named).absolute() if named else home.data_home()


def prepared_data_set(config: Config, *, may_prepare: bool) -> tuple[Manifest | None, str]:
    """Return the manifest and a line that says which data set it is; None if it has to be prepared.

    A data directory that the user names must hold the data set already. Labkit's own directory may lack it if
    ``may_prepare``. Raises InputError if the data set is missing, or if the loss doesn't fit its labels.
    """
    dataset, data_dir = config.data.dataset, data_directory(config)
    is_named = config.data.data_dir is not None
    manifest, note = find_data_set(dataset, data_dir, may_prepare=may_prepare and not is_named)
    check_targets(config, manifest)
    if manifest is not None:
        return manifest, note
    if dataset not in (AUTO, *GENERATED):
        load_manifest(data_dir, dataset)  # raises an error that says what to do
    way_out = prepare_command(dataset, str(data_dir))
    if is_named:
        name = "" if dataset == AUTO else f" {dataset!r}"
        raise InputError(
            f"--data-dir {data_dir} holds no prepared data set{name}; prepare it with: {way_out}"
        )
    if not may_prepare:  # otherwise several tasks would prepare it at once
        raise InputError(f"no data set is prepared in {data_dir}; in a cluster prepare it first: {way_out}")
    return None, ""


def with_data_set(
    config: Config,
    *,
    may_prepare: bool,
    announce: Callable[[str], None],
    before_preparing: Callable[[Config], None],
) -> tuple[Config, Manifest, str]:
    """Return the configuration with its number of steps, its data set, and a line on the choice."""
    manifest, why = prepared_data_set(config, may_prepare=may_prepare)
    if manifest is None:
        before_preparing(config)
        import_tensorflow()
        manifest, why = resolve(config.data.dataset, data_directory(config), announce=announce)
    config = config.with_steps_for(manifest.count("train"))
    check_fits(config, manifest)
    return config, manifest, why


def check_shards(manifest: Manifest) -> None:
    """Raise InputError if files of the data set are damaged or missing."""
    damaged = verify_shards(manifest)
    if damaged:
        raise InputError(
            f"{manifest.directory}: damaged or missing {', '.join(damaged)}; rebuild with: "
            f"{manifest.prepare_command}"
        )
