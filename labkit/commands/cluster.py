"""``labkit cluster``: clusters on this machine and under schedulers."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from labkit.cluster.kubernetes import (
    PodOptions,
    render_indexed_job,
    render_search_job,
    task_from_kubernetes,
    to_yaml,
)
from labkit.cluster.slurm import BatchOptions, render_batch_script, render_search_script, task_from_slurm
from labkit.cluster.tasks import become_kubernetes_task, become_slurm_task
from labkit.commands.flags import Command, Flag, Training, parsed, takes
from labkit.commands.search import search
from labkit.commands.train import training_of
from labkit.config import Config
from labkit.distributed.cpu import has_no_gpu
from labkit.errors import InputError
from labkit.home import LOCAL_PATH, is_local_path
from labkit.startup.child import EXIT_STATUS, record_failure
from labkit.startup.template import Template

JobName = Annotated[str, Flag(metavar="TEXT", help="Name of the Job and its Service.")]


def cluster_local(
    training: Training,
    *,
    workers: int = 2,
    ps: int = 0,
    max_restarts: int = 3,
    hosts: bool = False,
    link: Annotated[str | None, Flag(metavar="RATE")] = None,
) -> int:
    """Run a training on a cluster of this machine. Returns its exit code. Raises InputError.

    Args:
        workers: Processes that train.
        ps: Parameter servers, started with a chief. 0 trains synchronously.
        max_restarts: Restarts after the loss of a process.
        hosts: Gives each process a host of its own: a network namespace with an address on a bridge. Needs
            Linux, and root or user namespaces.
        link: With --hosts: the rate of each host's link, such as 100mbit. Default: no limit.
    """
    config, overwrite = training_of(training, "labkit cluster local", asynchronous=ps > 0)
    # A file of callbacks is run before TensorFlow is imported, and may decide what Keras and TensorFlow load.
    forks = has_no_gpu() and config.run.callbacks is None
    with closing(Template(of_cluster=True)) if forks else nullcontext() as template:
        from labkit.cluster.launch import plan_launch  # while TensorFlow is imported

        launch = plan_launch(
            config,
            workers=workers,
            ps=ps,
            max_restarts=max_restarts,
            hosts=hosts,
            link=link,
            overwrite=overwrite,
        )
        return launch.start(output=print, template=template)


@takes(BatchOptions)
def cluster_slurm(
    training: Training, *, labkit: Annotated[str | None, Flag(metavar="TEXT")] = None, **given: Any
) -> int:
    """Print the batch script of a training, or an array for labkit search. Raises InputError.

    Args:
        labkit: Path of labkit on the nodes. Default: the one that runs now.
    """
    if labkit is None:  # all nodes usually see the command that runs now
        beside = Path(sys.executable).with_name("labkit")
        labkit = str(beside) if beside.is_file() else shutil.which("labkit") or "labkit"
    options = BatchOptions(**given, labkit=labkit)
    if training[:1] == ["search"]:
        _folder_of_search(training)
        print(render_search_script(training, options), end="")
        return 0
    config = _of_a_job(training, "labkit cluster slurm", given["ps"])
    print(render_batch_script(config, options), end="")
    return 0


@takes(PodOptions)
def cluster_kubernetes(training: Training, **given: Any) -> int:
    """Print the manifests of a training, or of labkit search, as YAML. Raises InputError."""
    options = PodOptions(**given)
    if training[:1] == ["search"]:
        options.check_shared("--join", _folder_of_search(training))
        print(to_yaml(render_search_job(training, options)), end="")
        return 0
    config = _of_a_job(training, "labkit cluster kubernetes", given["ps"])
    print(to_yaml(render_indexed_job(config, options)), end="")
    return 0


def _folder_of_search(words: Sequence[str]) -> str:
    """Return the folder of a search that several jobs work on. Raises InputError if ``words`` name none."""
    folder: str | None = parsed("labkit search", search, words[1:]).keywords["join"]
    if folder is None:
        raise InputError("labkit search without --join; name the folder that all jobs share: --join DIR")
    return folder


def _of_a_job(training: Training, program: str, ps: int) -> Config:
    """Return the configuration of a job's training. Scripts show the flags of a recipe themselves."""
    config, overwrite = training_of(training, program, asynchronous=ps > 0, announce=lambda line: None)
    if overwrite:
        raise InputError(
            "--overwrite in a job would discard the run at every restart; leave it out, and remove the run's "
            "directory yourself"
        )
    return config


def cluster_slurm_task(
    command: Command, *, ps: int = 0, exit_status: Annotated[str | None, Flag(metavar="PATH")] = None
) -> NoReturn:
    """Become the task that Slurm's variables describe. Raises InputError.

    Args:
        ps: Parameter servers.
        exit_status: Writes a failure to PATH.failed and the step of a stop to PATH.step.
    """
    if exit_status and not is_local_path(exit_status):
        raise InputError(f"--exit-status is {exit_status!r}; allowed: {LOCAL_PATH}")
    try:
        become_slurm_task(command, ps=ps, exit_status=exit_status)
    except InputError:
        if exit_status:
            record_failure(2, {EXIT_STATUS: exit_status})
        raise


def cluster_kubernetes_task(command: Command, *, name: JobName, workers: int, ps: int = 0) -> NoReturn:
    """Become the task of this pod's index. Raises InputError.

    Args:
        workers: Pods that train.
        ps: Parameter servers.
    """
    become_kubernetes_task(command, name=name, workers=workers, ps=ps)


def cluster_tf_config(
    *,
    platform: Literal["slurm", "kubernetes", "hosts"],
    ps: int = 0,
    name: str | None = None,
    workers: int | None = None,
    worker_hosts: str | None = None,
    ps_hosts: str | None = None,
    job_name: str | None = None,
    task_index: int | None = None,
    sync: bool = False,
) -> int:
    """Print TF_CONFIG of one task, for ``TF_CONFIG=$(labkit cluster tf-config …)``. Raises InputError.

    Args:
        platform: Where the task is described: slurm within srun, kubernetes within a pod, hosts by flags.
        ps: slurm, kubernetes: parameter servers.
        name: kubernetes: name of the Job and its Service.
        workers: kubernetes: pods that train.
        worker_hosts: hosts: host:port of each worker, separated by commas.
        ps_hosts: hosts: host:port of each parameter server, separated by commas.
        job_name: hosts: worker or ps.
        task_index: hosts: number of the task, from 0.
        sync: hosts: synchronous training.
    """
    from labkit.distributed.task import make_tf_config, task_from_hosts

    if platform == "slurm":
        task = task_from_slurm(os.environ, ps=ps)
    elif platform == "kubernetes":
        if name is None or workers is None:
            raise InputError("--platform is kubernetes; give --name and --workers of the Job with it")
        task = task_from_kubernetes(os.environ, name=name, workers=workers, ps=ps)
    else:
        hosts = {"worker_hosts": worker_hosts, "ps_hosts": ps_hosts, "job_name": job_name}
        given = Config.from_flat({**hosts, "task_index": task_index, "sync": sync})
        found = task_from_hosts(given.distribution)
        if found is None:
            raise InputError("--platform is hosts; give --worker-hosts, --job-name and --task-index with it")
        task = found
    print(make_tf_config(task))
    return 0
