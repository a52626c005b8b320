"""Kubernetes: a run as an Indexed Job, reachable by its own pods only.

TensorFlow's servers execute whatever a client sends, so every manifest has a NetworkPolicy that admits the
run's own pods and nobody else.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from labkit.cluster.flags import check_replicas, train_arguments
from labkit.cluster.pods import (
    PORT,
    PodOptions,
    metadata,
    network_policy,
    pod_template,
    service,
)
from labkit.config import Config, fields_by_name
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 143
# The pods of a Job do not start at the same time: the first ones wait until the last one is scheduled.
RENDEZVOUS_SECONDS = 900.0


def task_from_kubernetes(
    environment: Mapping[str, str], *, name: str, workers: int, ps: int = 0
) -> ClusterTask:
    """Return the task of a pod by its completion index.

    Without parameter servers every index is a worker. With them index 0 is the chief, the next ``workers``
    indices are the workers, and the last ``ps`` are the parameter servers. The Job controller names the host
    of a pod ``<job>-<index>``; the headless Service makes that name resolve.

    Args:
        environment: of a container in a pod of an Indexed Job.
        name: of the Job and of its Service.
        workers: pods that train. ps: parameter servers.

    Raises InputError outside of such a pod, and for an index beyond the cluster.
    """
    index = environment.get("JOB_COMPLETION_INDEX", "")
    if not index.isdecimal():
        raise InputError("JOB_COMPLETION_INDEX is not set; run this inside of a pod of an Indexed Job")
    counts = {"chief": 1, "worker": workers, "ps": ps} if ps else {"worker": workers}
    roles = [(job, number) for job, count in counts.items() for number in range(count)]
    if int(index) >= len(roles):
        raise InputError(
            f"JOB_COMPLETION_INDEX is {index}, but --workers {workers} --ps {ps} makes {len(roles)} pods; "
            f"allowed: 0 to {len(roles) - 1}"
        )
    jobs: dict[str, tuple[str, ...]] = {}
    for number, (job, _) in enumerate(roles):
        jobs[job] = (*jobs.get(job, ()), f"{name}-{number}.{name}:{PORT}")
    return ClusterTask(jobs, *roles[int(index)])


def render_indexed_job(config: Config, options: PodOptions) -> list[dict[str, Any]]:
    """Return the Service, NetworkPolicy and Job that train ``config``.

    Each pod runs ``labkit cluster kubernetes-task``, which finds its task by its index. A failed training or
    bad input in any pod ends the Job. A pod that was asked to stop, or that lost another one, is replaced,
    and the run continues from the last checkpoint.

    Raises InputError if the pods can't train ``config`` together.
    """
    check_replicas(config, options.pods, options.gpus, options.ps)
    task = ["cluster", "kubernetes-task", "--name", options.name, "--workers", str(options.workers)]
    servers = ["--ps", str(options.ps)] if options.ps else []
    pod = pod_template(options, [*task, *servers, "--"], train_arguments(_patient(config)))
    deadline = options.deadline_seconds
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(options),
        "spec": {
            "completionMode": "Indexed",
            "completions": options.pods,
            "parallelism": options.pods,
            # In synchronous training the loss of one pod ends all: each restart counts every pod once.
            "backoffLimit": options.max_restarts * options.pods,
            **({} if deadline is None else {"activeDeadlineSeconds": deadline}),
            "podFailurePolicy": {
                "rules": [
                    _on_exit_codes("FailJob", EXIT_FAILED, EXIT_BAD_INPUT),
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    # If one pod is evicted, the others save, stop and exit with this code as well.
                    _on_exit_codes("Ignore", EXIT_STOPPED),
                ]
            },
            "template": pod,
        },
    }
    return [service(options), network_policy(options), job]


def to_yaml(documents: list[dict[str, Any]]) -> str:
    """Return manifests as one YAML stream for ``kubectl apply -f -``."""
    return "---\n".join(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110) for document in documents
    )


class _Dumper(yaml.SafeDumper):
    """Repeats equal values in place of YAML anchors, which are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _patient(config: Config) -> Config:
    if config.distribution.rendezvous_seconds != fields_by_name()["rendezvous_seconds"].default:
        return config
    return config.replace({"rendezvous_seconds": RENDEZVOUS_SECONDS})


def _on_exit_codes(action: str, *codes: int) -> dict[str, Any]:
    match = {"containerName": "labkit", "operator": "In", "values": list(codes)}
    return {"action": action, "onExitCodes": match}
