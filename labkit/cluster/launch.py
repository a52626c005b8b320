"""``labkit cluster local``: decide and check what to train, then start the tasks."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from labkit.cluster.flags import train_arguments
from labkit.cluster.hosts import Hosts, PrivateNetwork
from labkit.cluster.local import LocalCluster, own_host
from labkit.cluster.local_run import run_local_cluster
from labkit.config import Config, fields_by_name
from labkit.distributed.cpu import has_no_gpu
from labkit.distributed.task import ClusterTask, split_address
from labkit.errors import InputError
from labkit.models.weight_source import IMAGENET
from labkit.parts.trust import APPROVED, acting, digest_of
from labkit.plurals import counted, listed
from labkit.run_directory.disk import discard
from labkit.run_directory.files import open_run_file
from labkit.run_directory.stop import forget_request, held
from labkit.startup.child import python_command
from labkit.startup.others import other_users
from labkit.startup.template import Template
from labkit.training.place import DATA_CHOICE, nothing_left
from labkit.training.plan import RunPlan, plan_run


class Launch:
    """A checked training and the cluster that runs it. ``finished``: nothing is left to do."""

    def __init__(
        self, plan: RunPlan, cluster: LocalCluster, host: str, hosts: Hosts | None, *, max_restarts: int
    ) -> None:
        self.plan, self.config, self.run, self.cluster = plan, plan.config, plan.run, cluster
        self.finished = plan.run_state == "finished"
        self._host, self._hosts, self._max_restarts = host, hosts, max_restarts

    def start(self, *, output: Callable[[str], None] = print, template: Template | None = None) -> int:
        """Run the cluster to its end; see ``run_local_cluster`` for ``template`` and the exit code.

        Raises InputError if another launcher or process trains the run.
        """
        if self.finished:
            output(nothing_left(self.run))
            return 0
        self.run.create()
        # Between a loss and the restart no task holds the run's lock; this one is held throughout.
        busy = "is being trained by another launcher or process; wait for it, or name another --job-dir"
        with held(self.run, f"{self.run.path} {busy}", [".launcher"]), ExitStack() as stack:
            forget_request(self.run)
            self._template = template
            if self.plan.overwrite:
                busy = "is being written by another process; wait for it"
                with held(self.run, f"{self.run.path} {busy}", [".lock"]):
                    discard(self.run)
            return self._run(output, self._enter_network(stack, output))

    def _enter_network(self, stack: ExitStack, output: Callable[[str], None]) -> PrivateNetwork | None:
        """Make the hosts that were asked for, else a network that nobody else reaches; None: this machine's.

        The tasks keep this machine's network where they may need it: to listen at an address that was named,
        to download weights, and for what callbacks send.
        """
        if self._hosts is not None:
            stack.enter_context(self._hosts)
            output(f"[cluster] {self._hosts.describe()}")
            return self._hosts
        config = self.config
        if not acting(config) and config.transfer.start_from != IMAGENET:
            try:
                return stack.enter_context(PrivateNetwork())
            except (InputError, OSError, subprocess.TimeoutExpired) as error:
                why = str(error)
        else:
            why = "the training may need this machine's network"
        if people := other_users():
            output(
                f"[cluster] note: {listed(people)} can connect to the ports of this cluster, and run code as "
                f"you, because TensorFlow's servers ask for no password ({why})"
            )
        return None

    def _run(self, output: Callable[[str], None], network: PrivateNetwork | None) -> int:
        command = python_command("-m", "labkit", *train_arguments(self.config))
        data_choice = json.dumps({"asked_for": self.plan.asked_for, "note": self.plan.data_note})
        return run_local_cluster(
            command,
            workers=self.cluster.workers,
            ps=self.cluster.ps,
            folder=self.run.cluster_path,
            max_restarts=self._max_restarts,
            host=self._host,
            hosts=network,
            arguments=lambda task: ["--bind", split_address(task.address)[0]] if self._hosts else [],
            environment=lambda task: {
                DATA_CHOICE: data_choice,
                APPROVED: digest_of(self.plan.files),
                **gpu_environment(task, self.config.distribution.num_gpus),
            },
            output=_recorded(output, self.run.cluster_path),
            stall_timeout=self.config.distribution.peer_timeout_seconds,
            template=self._template,
        )


def _recorded(output: Callable[[str], None], folder: Path) -> Callable[[str], None]:
    """Return ``output``, which also appends each task's lines to its log in ``folder``, worker-1.log.

    The lines of the launcher are in launcher.log. A log that can't be written doesn't end the run.
    """
    names = {"cluster": "launcher"}

    def record(line: str) -> None:
        output(line)
        task, _, text = line.removeprefix("[").partition("] ")
        name = names.setdefault(task, task.replace(":", "-"))
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with open_run_file(
                folder / f"{name}.log", "a", encoding="utf-8", errors="backslashreplace"
            ) as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    return record


def plan_launch(
    config: Config,
    *,
    workers: int,
    ps: int = 0,
    max_restarts: int = 3,
    hosts: bool = False,
    link: str | None = None,
    overwrite: bool = False,
    announce: Callable[[str], None] = print,
) -> Launch:
    """Decide what a local cluster trains and where, and prepare the data set if it is missing.

    Args:
        config: of the training; ``sync`` is set here.
        workers: processes that train.
        ps: parameter servers; 0: synchronous training.
        max_restarts: of the cluster, and of each asynchronous worker, after a loss.
        hosts: run each task in a network namespace of its own.
        link: with ``hosts``, the rate of each host's link, such as ``100mbit``; None: as fast as it goes.
        overwrite: discard an existing run, once, before the cluster starts.
        announce: takes lines to print.

    Raises InputError, before anything is written, if the training can't be run.
    """
    cluster = LocalCluster(workers, ps)
    distribution = config.distribution
    if cluster.asynchronous and distribution.sync:
        raise InputError(
            f"--ps is {ps} with --sync, which uses no parameter servers; leave one of the two out"
        )
    if max_restarts < 0:
        raise InputError(f"--max-restarts is {max_restarts}; allowed: 0 or more")
    made_hosts = _hosts(config, cluster, link) if hosts else None
    if link is not None and not hosts:
        raise InputError(f"--link is {link!r} without --hosts, which make the links; add --hosts")
    wanted, gpus = workers * (distribution.num_gpus or 0), visible_gpus()
    if wanted and not distribution.simulate_missing_gpus and (has_no_gpu() or 0 < len(gpus) < wanted):
        raise InputError(
            f"--num-gpus is {distribution.num_gpus} in each of {workers} tasks that train, and "
            f"{counted(len(gpus), 'GPU')} found here; give fewer, or add --simulate-missing-gpus"
        )
    if distribution.num_gpus is None and 0 < len(gpus) < workers:
        announce(f"{counted(len(gpus), 'GPU')} for {workers} tasks that train: all train on the CPU")
    host = own_host(distribution.bind)
    config = config.replace({"sync": not cluster.asynchronous})
    train_arguments(config)
    if not distribution.num_intra_threads:
        # All tasks share this machine; by default TensorFlow would use every core in each of them.
        config = config.replace({"num_intra_threads": max(1, (os.cpu_count() or 1) // workers)})
    plan = plan_run(
        config,
        task=cluster.tasks(host)[cluster.chief],
        cluster=cluster.label,
        overwrite=overwrite,
        announce=announce,
    )
    if plan.run_state != "finished":
        announce(plan.data_note)
    return Launch(plan, cluster, host, made_hosts, max_restarts=max_restarts)


def _hosts(config: Config, cluster: LocalCluster, link: str | None) -> Hosts:
    bind = config.distribution.bind
    if bind != fields_by_name()["bind"].default:
        raise InputError(f"--bind is {bind} with --hosts, where each task has its own address; leave it out")
    return Hosts(cluster.names, link)


def gpu_environment(task: ClusterTask, num_gpus: int | None) -> dict[str, str]:
    """Return the variable that gives each training task its own share of this machine's GPUs.

    Args:
        task: of the local cluster.
        num_gpus: for each training task; None: an equal share of all.

    Empty without an NVIDIA driver. If there are too few GPUs, the tasks refuse to start.
    """
    gpus = visible_gpus()
    if not gpus:
        return {}
    asynchronous = task.asynchronous_by_default
    if asynchronous and task.job_name != "worker":
        return {"CUDA_VISIBLE_DEVICES": ""}
    workers = task.count("worker") if asynchronous else task.num_workers
    each = len(gpus) // workers if num_gpus is None else num_gpus
    if asynchronous:
        each = min(each, 1)
    number = task.task_index if asynchronous else task.worker_number
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[number * each : (number + 1) * each])}


def visible_gpus() -> list[str]:
    """Return this machine's NVIDIA GPUs as ``CUDA_VISIBLE_DEVICES`` names them; empty without a driver."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    gpus = [str(index) for index in range(len(found))] if named is None else named.split(",")
    return gpus if any(gpus) and gpus[0] != "-1" else []
