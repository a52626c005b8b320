"""Kubernetes: a run as an Indexed Job or as a Kubeflow TFJob, with what keeps others away from it.

TensorFlow's servers run whatever they are sent by whoever reaches them, so every manifest comes with a
NetworkPolicy that lets in the run's own pods alone.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from labkit.cluster.flags import check_replicas, train_arguments
from labkit.cluster.pods import (
    PORT,
    PodOptions,
    deadline,
    field_variable,
    labels,
    metadata,
    network_policy,
    pod_template,
)
from labkit.config import Config, fields_by_name
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError

__all__ = ["PodOptions", "render_indexed_job", "render_tfjob", "task_from_kubernetes", "to_yaml"]

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 143
# Nothing starts all pods of a Job at once: the first ones have to wait until the last has found a node.
RENDEZVOUS_SECONDS = 900.0


def task_from_kubernetes(environment: Mapping[str, str], *, name: str, workers: int) -> ClusterTask:
    """Return the place of a pod of an Indexed Job ``name`` with a headless Service of the same name.

    Raises InputError where the pod has no index (``JOB_COMPLETION_INDEX``).
    """
    index = environment.get("JOB_COMPLETION_INDEX", "")
    if not index.isdecimal():
        raise InputError("JOB_COMPLETION_INDEX is not set; start this inside of a pod of an Indexed Job")
    return ClusterTask({"worker": _addresses(name, workers)}, "worker", int(index))


def render_indexed_job(config: Config, options: PodOptions) -> list[dict[str, Any]]:
    """Return Service, NetworkPolicy and Job that train ``config`` synchronously, every pod a worker.

    Pods whose training failed or whose input is bad end the Job. Pods that were asked to stop or that lost
    another one are replaced, and go on from the last checkpoint.

    Raises InputError for parameter servers and for batches that the workers can't share.
    """
    if options.ps:
        raise InputError(f"--ps is {options.ps}; an Indexed Job trains synchronously: allowed: 0, or a TFJob")
    check_replicas(config, options.workers, options.gpus, 0)
    arguments, environment = train_arguments(_patient(config)), _job_environment(options)
    pod = pod_template(options, "labkit", arguments, environment, command=["labkit"])
    pod["spec"] = {"subdomain": options.name, "restartPolicy": "Never", **pod["spec"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(options),
        "spec": {
            "completionMode": "Indexed",
            "completions": options.workers,
            "parallelism": options.workers,
            # When one worker is lost all end: a restart of the run is as many failed pods as workers.
            "backoffLimit": options.max_restarts * options.workers,
            **deadline(options),
            "podFailurePolicy": {
                "rules": [
                    _on_exit_codes("FailJob", EXIT_FAILED, EXIT_BAD_INPUT),
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    # One worker is evicted, and all of them save and stop with it.
                    _on_exit_codes("Ignore", EXIT_STOPPED),
                ]
            },
            "template": pod,
        },
    }
    return [_service(options), network_policy(options), job]


def render_tfjob(config: Config, options: PodOptions) -> list[dict[str, Any]]:
    """Return NetworkPolicy and TFJob (kubeflow.org/v1) that train ``config``.

    The operator makes TF_CONFIG and the Services. Without parameter servers all pods are workers and train
    synchronously. The operator replaces a pod that ended with 128 or more and gives up at any other code, so
    ``labkit cluster tfjob-task`` turns the code of a lost peer into one that it retries.

    Raises InputError for a cluster that can't train this configuration.
    """
    chief = 1 if options.ps else 0
    check_replicas(config, chief + options.workers + options.ps, options.gpus, options.ps)
    arguments = train_arguments(_patient(config))
    command = ["labkit", "cluster", "tfjob-task", "--"]
    environment = [field_variable("POD_IP", "status.podIP")]

    def replicas(count: int, gpus: bool = True) -> dict[str, Any]:
        pod = pod_template(options, "tensorflow", arguments, environment, command=command, gpus=gpus)
        pod["metadata"]["annotations"] = {"sidecar.istio.io/inject": "false"}
        return {"replicas": count, "restartPolicy": "ExitCode", "template": pod}

    specs = {
        # The chief coordinates and the parameter servers hold the weights: neither needs a GPU.
        **({"Chief": replicas(1, gpus=False)} if options.ps else {}),
        "Worker": replicas(options.workers),
        **({"PS": replicas(options.ps, gpus=False)} if options.ps else {}),
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(options),
        "spec": {"runPolicy": {"cleanPodPolicy": "Running", **deadline(options)}, "tfReplicaSpecs": specs},
    }
    return [network_policy(options), job]


def to_yaml(documents: list[dict[str, Any]]) -> str:
    """Return manifests as one YAML stream for ``kubectl apply -f -``."""
    return "---\n".join(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110) for document in documents
    )


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice: people read these files, and anchors don't read well."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _patient(config: Config) -> Config:
    if config.distribution.rendezvous_seconds != fields_by_name()["rendezvous_seconds"].default:
        return config
    return config.replace({"rendezvous_seconds": RENDEZVOUS_SECONDS})


def _addresses(name: str, workers: int) -> tuple[str, ...]:
    """Return where the pods of an Indexed Job are found: <job>-<index> in the Service's subdomain."""
    return tuple(f"{name}-{index}.{name}:{PORT}" for index in range(workers))


def _job_environment(options: PodOptions) -> list[dict[str, Any]]:
    """TF_CONFIG of each pod: Kubernetes puts in the index, a variable that has to stand before it.

    The Job controller would add JOB_COMPLETION_INDEX itself, but behind the others.
    """
    cluster = {"worker": list(_addresses(options.name, options.workers))}
    task = '{"type": "worker", "index": $(JOB_COMPLETION_INDEX)}'
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return [
        field_variable("JOB_COMPLETION_INDEX", index),
        field_variable("POD_IP", "status.podIP"),
        {"name": "TF_CONFIG", "value": f'{{"cluster": {json.dumps(cluster)}, "task": {task}}}'},
    ]


def _on_exit_codes(action: str, *codes: int) -> dict[str, Any]:
    match = {"containerName": "labkit", "operator": "In", "values": list(codes)}
    return {"action": action, "onExitCodes": match}


def _service(options: PodOptions) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(options),
        "spec": {
            "clusterIP": "None",
            # The workers look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": labels(options),
            "ports": [{"name": "tensorflow", "port": PORT}],
        },
    }
