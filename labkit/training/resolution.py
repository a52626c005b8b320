"""From what was asked for to what is trained: data set, run directory and every ``auto``, before any work.

TensorFlow is imported only where a data set has to be made.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from labkit import home
from labkit.config import Config
from labkit.data.inputs import choose_input_path
from labkit.data.manifest import Manifest, find_manifest, load_manifest, verify_shards
from labkit.errors import InputError
from labkit.notices import import_tensorflow
from labkit.runs import RunDirectory
from labkit.training.admission import (
    Admission,
    admit,
    check_place,
    check_writable,
    recorded_config,
    run_directory,
)

__all__ = [
    "DATA_CHOICE",
    "admit_to_cluster",
    "admitted",
    "data_directory",
    "ensure_data_set",
    "launchers_choice",
    "prepared_data_set",
    "with_recorded_choices",
]

# A launcher that chose the data set tells its tasks so, for the run's record: {"asked_for": …, "note": …}
DATA_CHOICE = "LABKIT_DATA_CHOICE"


def with_recorded_choices(config: Config, overwrite: bool) -> Config:
    """Let ``auto`` mean, for a run that goes on, the data set and the input path that it was started with."""
    automatic = [name for name in ("dataset", "input_path") if getattr(config.data, name) == "auto"]
    if not automatic or config.run.job_dir is None or overwrite:
        return config
    run = RunDirectory(config.run.job_dir)
    check_writable(run.path, "--job-dir")
    if not run.exists():
        return config
    recorded = recorded_config(run).flat()
    return config.replace({name: recorded[name] for name in automatic})


def prepared_data_set(
    config: Config, data_dir: Path, *, may_download: bool = True
) -> tuple[Manifest | None, str]:
    """Return the manifest and the line that says which data set it is; None where it must be made first.

    A data directory that the user names must hold what is asked for; the default one is filled as
    ``dataset`` allows.
    """
    dataset = config.data.dataset
    for name in ("cifar10", "shapes") if dataset == "auto" else (dataset,):
        manifest = find_manifest(data_dir, name)
        if name == "shapes" and dataset == "auto" and config.data.data_dir is None and may_download:
            break  # auto tries the download first
        if manifest is not None:
            return manifest, f"data set: {name} in {manifest.directory}"
    if dataset == "cifar10":
        load_manifest(data_dir, dataset)
    if config.data.data_dir is not None:
        option = "" if dataset == "auto" else f" --dataset {dataset}"
        raise InputError(
            f"--data-dir {data_dir} holds no prepared data set{option and f' {dataset!r}'}; "
            f"prepare it with: labkit data prepare --data-dir {data_dir}{option}"
        )
    return None, ""


def admitted(
    config: Config, manifest: Manifest, overwrite: bool, cluster: str = ""
) -> tuple[Config, Admission]:
    """Return the configuration with everything in it decided, and the directory it is admitted to.

    ``cluster``: see ``run_directory``.
    """
    examples = manifest.count("train")
    if config.data.train_batch_size > examples:
        raise InputError(
            f"--train-batch-size is {config.data.train_batch_size}; allowed: at most {examples}, "
            f"the training examples of {manifest.dataset} in {manifest.directory}"
        )
    # The run's name comes from what was asked for: what a machine makes of it must not change the name.
    run = run_directory(config, manifest.dataset, cluster)
    config = config.replace(
        {"dataset": manifest.dataset, "job_dir": str(run.path), "data_dir": str(manifest.directory.parent)}
    )
    config = with_recorded_choices(config, overwrite)
    config = config.replace({"input_path": choose_input_path(manifest, config.data.input_path)})
    admission = admit(config, manifest.dataset, overwrite=overwrite)
    if admission.found != "finished":
        damaged = verify_shards(manifest)
        if damaged:
            raise InputError(
                f"{manifest.directory}: damaged or missing {', '.join(damaged)}; rebuild with: "
                f"labkit data prepare --dataset {manifest.dataset} --data-dir {config.data.data_dir}"
            )
    return config, admission


def data_directory(config: Config) -> Path:
    named = config.data.data_dir
    return Path(named).expanduser().absolute() if named else home.data_home()


def admit_to_cluster(
    config: Config, *, overwrite: bool = False, cluster: str = ""
) -> tuple[Config, Manifest, str, Admission]:
    """Decide what a task of a cluster trains, and where; every task comes to the same result.

    Returns the configuration with everything in it decided, the data set, the line that says which it is, and
    the admission of the run directory. Raises InputError for what can't be run, and where no data set is
    prepared: many tasks would prepare it at once.
    """
    config = with_recorded_choices(config, overwrite)
    data_dir = data_directory(config)
    manifest, note = prepared_data_set(config, data_dir, may_download=False)
    if manifest is None:
        option = "" if config.data.dataset == "auto" else f" --dataset {config.data.dataset}"
        raise InputError(
            f"no data set is prepared in {data_dir}; in a cluster prepare it first: "
            f"labkit data prepare --data-dir {data_dir}{option}"
        )
    config, admission = admitted(config, manifest, overwrite, cluster)
    return config, manifest, note, admission


def ensure_data_set(
    config: Config, *, overwrite: bool = False, announce: Callable[[str], None] = print
) -> Config:
    """Return ``config`` with a data set that is prepared; a missing one is made, by the rules of ``train``.

    Raises InputError where what is asked for can't be had.
    """
    config = with_recorded_choices(config, overwrite)
    data_dir = data_directory(config)
    manifest, note = prepared_data_set(config, data_dir)
    if manifest is None:
        if config.run.job_dir is not None:
            check_place(config, RunDirectory(config.run.job_dir))
        import_tensorflow()
        from labkit.data.resolve import resolve

        manifest = resolve(config.data.dataset, data_dir, data_dir_is_default=True, announce=announce)
    else:
        announce(note)
    return config.replace({"dataset": manifest.dataset})


def launchers_choice() -> dict[str, str]:
    """Return what a launcher said of the data set; nothing where there is none."""
    text = os.environ.get(DATA_CHOICE, "")
    if not text:
        return {}
    try:
        choice = json.loads(text)
        return {name: str(choice[name]) for name in ("asked_for", "note")}
    except (ValueError, LookupError, TypeError):
        raise InputError(
            f"{DATA_CHOICE} is {text[:200]!r}; only labkit cluster local sets it: unset it"
        ) from None
