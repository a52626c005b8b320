"""Checks of a configuration against its data set, devices and cluster."""

import os

from labkit.config import Config, fields_by_name
from labkit.config.data_sets import CORRECTED, EXAMPLES, NPZ, TARGETS, is_own
from labkit.config.optimizer import KERAS_LOSSES
from labkit.data.manifest import Manifest
from labkit.distributed.task import ClusterTask, find_task, is_loopback, split_address
from labkit.errors import InputError

IN_WORDS = {"class": "one label per image", "classes": "several labels per image", "numbers": "numbers"}
LOSSES = {"softmax": ("class",), "sigmoid": ("classes",)} | {
    name: tuple(kinds) for name, kinds in KERAS_LOSSES.items()
}


def check_targets(config: Config, manifest: Manifest | None = None) -> None:
    """Raise InputError if loss or sampling don't fit the data set's labels.

    Without a ``manifest`` (the data set isn't prepared yet), the data set's name decides; ``auto`` has one
    label per image, and of somebody's own data set nothing is known yet.
    """
    if manifest is None and is_own(config.data.dataset):
        return
    dataset = manifest.dataset if manifest else config.data.dataset
    targets = manifest.targets if manifest else TARGETS.get(dataset, "class")
    if targets == "classes" and config.data.balanced_sampling:
        raise InputError(
            f"--balanced-sampling is on, and images of --dataset {dataset} have several labels, so that "
            "drawing one class more often draws others, too; leave it out, or give --class-weights balanced"
        )
    loss = config.optimizer.loss
    fitting = [name for name, kinds in LOSSES.items() if targets in kinds]
    if loss in LOSSES and loss not in fitting:
        *others, last = (IN_WORDS[kind] for kind in LOSSES[loss])
        hint = ""
        if targets == "numbers" and manifest and manifest.source["kind"] in (EXAMPLES, NPZ):
            hint = (
                "; if they are classes, prepare the data under another name with labels of an integer type, "
                "labels.astype(int)"
            )
        raise InputError(
            f"--loss is {loss!r}, for {' or '.join([*others, last])}; --dataset {dataset} has "
            f"{IN_WORDS[targets]}: choose --loss {' or '.join(fitting)}{hint}"
        )
    of_classes = {
        "--class-weights": config.optimizer.class_weights is not None,
        "--balanced-sampling": config.data.balanced_sampling,
    }
    if targets == "numbers" and (flag := next((flag for flag in of_classes if of_classes[flag]), None)):
        raise InputError(f"{flag} needs classes; --dataset {dataset} has numbers; leave it out")


def validation_command(manifest: Manifest) -> str:
    """Return what holds validation examples out; where only Python can give the examples, a call."""
    if manifest.source["kind"] == EXAMPLES:
        return f"labkit.prepare_data({manifest.dataset!r}, train=..., validation_size=N) in Python"
    if manifest.source["kind"] == CORRECTED:
        base = manifest.source["location"]
        return f"prepare {base} with a --validation-size, then {manifest.prepare_command}"
    return f"{manifest.prepare_command} --validation-size N"


def check_fits(config: Config, manifest: Manifest) -> None:
    """Raise InputError if the data set lacks a split, or has too few examples or too small images."""
    data = config.data
    for name in ("early_stopping_patience", "best_by"):
        if (value := getattr(config.run, name)) is not None and not manifest.splits.get("validation"):
            raise InputError(
                f"{fields_by_name()[name].flag} is {value}, but {manifest.dataset} in {manifest.directory} "
                "is prepared without a validation split; leave it out, or prepare one: "
                f"{validation_command(manifest)}"
            )
    examples, passes = manifest.count("train"), data.accumulate_steps
    if data.images_per_step > examples:
        by = f" with --accumulate-steps {passes}" if passes > 1 else ""
        raise InputError(
            f"--train-batch-size is {data.train_batch_size}{by}; allowed: at most {examples // passes}, as "
            f"{manifest.dataset} in {manifest.directory} has {examples} training examples"
        )
    whole = min(manifest.image_shape[:2])
    side = data.crop_size or whole
    limits = [("--crop-size", side, whole), ("--cutout-size", data.cutout_size, side - 1)]
    if data.crop_padding_mode == "reflect":  # at most side - 1 pixels can be mirrored
        limits.append(("--crop-padding", data.crop_padding, whole - 1))
    limits += [("--progressive-resizing", size, side - 1) for size, _ in data.image_sizes]
    for flag, value, limit in limits:
        if value > limit:
            resized = flag == "--progressive-resizing"
            raise InputError(
                f"{flag} has {value} pixels; allowed with images of {whole} x {whole}"
                f"{f' and --crop-size {side}' if side < whole else ''}: at most {limit}"
                f"{', or --progressive-resizing none, for whole images throughout' if resized else ''}"
            )


def check_layout(
    config: Config, *, num_local_replicas: int, num_workers: int = 1, asynchronous: bool = False
) -> None:
    """Raise InputError if ``config`` can't be trained on this number of replicas and workers."""
    num_replicas = num_local_replicas * num_workers
    if not asynchronous:
        config.check_replicas(num_replicas)
    reason = ""
    if num_local_replicas > 1:
        reason = f"{num_local_replicas} replicas in one process"
    elif asynchronous:
        reason = "variables on parameter servers"
    elif config.model.sync_batch_norm and num_replicas > 1:
        reason = "batch normalization over several replicas"
    if config.distribution.gradient_compression != "none" and num_replicas == 1 and not asynchronous:
        raise InputError(
            f"--gradient-compression is {config.distribution.gradient_compression}, but there is one "
            "replica, which exchanges no gradients; leave it out"
        )
    if config.model.sync_batch_norm and num_replicas > 1:
        for name in ("accumulate_steps", "ghost_batches"):
            if (value := getattr(config.data, name)) > 1:
                flag = fields_by_name()[name].flag
                raise InputError(
                    f"{flag} is {value} with --sync-batch-norm over several replicas, which needs the whole "
                    f"batch at once; give {flag} 1, or leave --sync-batch-norm out"
                )
    if config.distribution.xla and reason:
        raise InputError(f"--xla needs one replica per process; here: {reason}; leave --xla out")


def refuse_cluster(config: Config) -> None:
    """Raise InputError if this process is a task of a cluster, or ``config`` asks for what only one has."""
    task = find_task(config.distribution, os.environ)
    if task is not None:
        raise InputError(
            f"this process is {task.name} of a cluster, but trains alone here; unset TF_CONFIG and leave out "
            "--worker-hosts and --ps-hosts, or start each task with labkit train"
        )
    _check_cluster_options(config, workers=0, asynchronous=False)


def check_cluster(config: Config, task: ClusterTask) -> None:
    """Raise InputError if the cluster of ``task`` can't train ``config``. An evaluator may always join."""
    if task.job_name == "evaluator":
        return
    host, bind = split_address(task.address)[0], config.distribution.bind
    if is_loopback(bind) and not is_loopback(host):
        raise InputError(
            f"--bind is {bind}, which other machines can't reach, but {task.name} is at {task.address}; "
            f"give --bind {host}, or 0.0.0.0 for every address (whoever reaches a TensorFlow server can run "
            "code on it: see docs/clusters.md)"
        )
    asynchronous = task.asynchronous_by_default and not config.distribution.sync
    workers = task.count("worker")  # without a synchronous chief, which trains as well
    chiefs = 0 if asynchronous else task.num_workers - workers
    check_together(config, num_workers=workers + chiefs, asynchronous=asynchronous, chiefs=chiefs)


def check_together(
    config: Config,
    *,
    num_workers: int,
    asynchronous: bool,
    num_local_replicas: int | None = None,
    chiefs: int = 0,
) -> None:
    """Raise InputError where the processes of a cluster can't train ``config`` together.

    Args:
        config: of the training.
        num_workers: processes that train.
        asynchronous: whether there are parameter servers.
        num_local_replicas: of each process; None: those that ``--num-gpus`` names, or one.
        chiefs: how many of ``num_workers`` are no task of the job ``worker``, 0 or 1.
    """
    if config.distribution.debugger_dump:
        raise InputError("--debugger-dump is for a single process, not for a cluster; leave it out")
    _check_cluster_options(config, workers=num_workers - chiefs, asynchronous=asynchronous)
    local = max(1, config.distribution.num_gpus or 1) if num_local_replicas is None else num_local_replicas
    if asynchronous:
        _check_asynchronous(config)
        local = num_workers = 1
    check_layout(config, num_local_replicas=local, num_workers=num_workers, asynchronous=asynchronous)


def _check_cluster_options(config: Config, *, workers: int, asynchronous: bool) -> None:
    """Raise InputError for an option that needs another cluster. ``workers``: 0 without a cluster."""
    distribution = config.distribution
    if distribution.max_staleness is not None and not asynchronous:
        raise InputError(
            f"--max-staleness is {distribution.max_staleness}, but only updates through parameter servers "
            "are stale; leave it out, or train with them: labkit cluster local --workers 2 --ps 1 -- train …"
        )
    if distribution.slow is None:
        return
    if workers and config.run.deterministic:
        raise InputError(
            f"--slow-worker is {distribution.slow_worker!r} with --deterministic, which leaves the time of "
            "computing unmeasured, so that nothing can be slowed down; leave one of them out"
        )
    if distribution.slow[0] < workers:
        return
    if not workers:
        raise InputError(
            f"--slow-worker is {distribution.slow_worker!r}, but this is one process; leave it out, or train "
            "with several: labkit cluster local --workers 2 -- train …"
        )
    names = "worker:0" if workers == 1 else f"worker:0 to worker:{workers - 1}"
    raise InputError(
        f"--slow-worker is {distribution.slow_worker!r}, but there is no worker:{distribution.slow[0]}; "
        f"allowed: {names}"
    )


def _check_asynchronous(config: Config) -> None:
    num_gpus = config.distribution.num_gpus or 0
    if num_gpus > 1:
        raise InputError(
            f"--num-gpus is {num_gpus}; allowed in asynchronous training: 0 or 1; "
            "start one worker for each GPU"
        )
    if config.optimizer.optimizer != "sgd":
        # Muon overwrites a weight with a new value: updates by other workers in between would be lost.
        raise InputError(
            f"--optimizer is {config.optimizer.optimizer}; allowed in asynchronous training: sgd; "
            "use sgd, or train with --sync"
        )
    values = config.flat()
    for name, info in fields_by_name().items():
        if info.synchronous and values[name] != info.default:
            raise InputError(
                f"{info.spell(values[name])} is not available in asynchronous training, where workers don't "
                "wait for each other and parameter servers hold the variables; give "
                f"{info.spell(info.default)}, or train with --sync"
            )
