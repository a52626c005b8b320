"""From what was asked for to what is trained: data set, run directory and every ``auto``, before any work.

TensorFlow is imported only where a data set has to be made.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from labkit import home
from labkit.config import Config, DataConfig
from labkit.data.inputs import choose_input_path
from labkit.data.manifest import MULTI_LABEL, Manifest, load_manifest, verify_shards
from labkit.data.resolve import find_data_set, resolve
from labkit.errors import InputError
from labkit.quiet_import import import_tensorflow
from labkit.run_directory import RunDirectory
from labkit.training.admission import (
    Admission,
    admit,
    check_place,
    check_writable,
    recorded_config,
    run_directory,
)
from labkit.transfer.source import find_weight_source

__all__ = [
    "DATA_CHOICE",
    "admit_to_cluster",
    "admitted",
    "check_fits",
    "check_targets",
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
    config: Config, data_dir: Path, *, may_prepare: bool = True
) -> tuple[Manifest | None, str]:
    """Return the manifest and the line that says which data set it is; None where it must be made first.

    A data directory that the user names must hold what is asked for; the default one is filled as
    ``dataset`` allows (``labkit.data.resolve.resolve``), unless ``may_prepare`` is False. Raises InputError
    where it doesn't, or where the loss isn't for such data.
    """
    dataset = config.data.dataset
    may_prepare = may_prepare and config.data.data_dir is None
    manifest, note = find_data_set(dataset, data_dir, may_prepare=may_prepare)
    check_targets(config, manifest)
    if manifest is not None:
        return manifest, note
    if dataset == "cifar10":
        load_manifest(data_dir, dataset)
    if config.data.data_dir is not None:
        option = "" if dataset == "auto" else f" --dataset {dataset}"
        raise InputError(
            f"--data-dir {data_dir} holds no prepared data set{option and f' {dataset!r}'}; "
            f"prepare it with: labkit data prepare --data-dir {data_dir}{option}"
        )
    return None, ""


def check_targets(config: Config, manifest: Manifest | None = None) -> None:
    """Raise InputError where the loss is for other targets than the data set has.

    ``manifest`` None: the data set isn't prepared yet, its name tells; ``auto`` takes none of several labels.
    """
    dataset = manifest.dataset if manifest else config.data.dataset
    multi_label = manifest.multi_label if manifest else dataset in MULTI_LABEL
    if multi_label and config.optimizer.loss == "softmax":
        raise InputError(
            f"--loss is 'softmax', for one label per image; those of --dataset {dataset} have several: "
            "add --loss sigmoid"
        )
    if not multi_label and config.optimizer.loss == "sigmoid":
        raise InputError(
            f"--loss is 'sigmoid', for several labels per image; those of --dataset {dataset} have one: "
            f"leave --loss out, or name a data set of several: --dataset {MULTI_LABEL[0]}"
        )


def check_fits(data: DataConfig, manifest: Manifest) -> None:
    """Raise InputError where there are too few examples for a batch, or images can't be distorted so."""
    examples = manifest.count("train")
    if data.train_batch_size > examples:
        raise InputError(
            f"--train-batch-size is {data.train_batch_size}; allowed: at most {examples}, "
            f"the training examples of {manifest.dataset} in {manifest.directory}"
        )
    side = min(manifest.image_shape[:2])
    limits = [("--cutout-size", data.cutout_size, side - 1)]
    if data.crop_padding_mode == "reflect":  # there are so many pixels to mirror
        limits.append(("--crop-padding", data.crop_padding, side - 1))
    limits += [("--progressive-resizing", size, side - 1) for size, _ in data.image_sizes]
    for flag, value, limit in limits:
        if value > limit:
            raise InputError(
                f"{flag} has {value} pixels; allowed with images of {side} x {side}: at most {limit}"
            )


def admitted(
    config: Config, manifest: Manifest, overwrite: bool, cluster: str = ""
) -> tuple[Config, Admission]:
    """Return the configuration with everything in it decided, and the directory it is admitted to.

    ``cluster``: see ``run_directory``.
    """
    check_fits(config.data, manifest)
    # The run's name comes from what was asked for: what a machine makes of it must not change the name.
    run = run_directory(config, manifest.dataset, cluster)
    config = config.replace(
        {"dataset": manifest.dataset, "job_dir": str(run.path), "data_dir": str(manifest.directory.parent)}
    )
    config = with_recorded_choices(config, overwrite)
    config = config.replace({"input_path": choose_input_path(manifest, config.data.input_path)})
    admission = admit(config, manifest.dataset, overwrite=overwrite)
    if admission.found == "new" and config.transfer.start_from is not None:
        find_weight_source(config.transfer.start_from, config.model)
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
    manifest, note = prepared_data_set(config, data_dir, may_prepare=False)
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
) -> tuple[Config, str]:
    """Return ``config`` with a data set that is prepared, and the line that says which; it is announced, too.

    A missing one is made, by the rules of ``train``. Raises InputError where what is asked for can't be had.
    """
    config = with_recorded_choices(config, overwrite)
    data_dir = data_directory(config)
    manifest, note = prepared_data_set(config, data_dir)
    if manifest is None:
        if config.run.job_dir is not None:
            check_place(config, RunDirectory(config.run.job_dir))
        import_tensorflow()
        manifest, note = resolve(config.data.dataset, data_dir, announce=announce)
    announce(note)
    return config.replace({"dataset": manifest.dataset}), note


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
