"""Kubernetes: a run as an Indexed Job, reachable by its own pods only.

TensorFlow's servers execute whatever a client sends, so every manifest has a NetworkPolicy that admits the
run's own pods and nobody else.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from labkit.cluster.flags import check_replicas, train_arguments
from labkit.cluster.local import LocalCluster
from labkit.config import Config, fields_by_name
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError

PORT = 2222
DNS_LABEL = r"[a-z]([a-z0-9-]*[a-z0-9])?"  # RFC 1035: the form of a Service's name
QUANTITY = r"\d+(\.\d+)?(m|[kMGTP]i?|Ki)?"


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """What to request from Kubernetes.

    Args:
        name: Name of the job, its Service and its NetworkPolicy.
        image: Container image; see deploy/Containerfile.
        claim: PersistentVolumeClaim (ReadWriteMany) that holds data/ and runs/.
        workers: Pods that train.
        ps: Pods that are parameter servers, started with a chief. 0 trains synchronously.
        mount: Where the claim is mounted.
        cpus: CPUs for each pod.
        memory: Memory for each pod.
        gpus: GPUs for each pod.
        max_restarts: Restarts of the Job after the loss of a pod.
        grace_seconds: Seconds for saving a checkpoint before a pod is killed.
        deadline_seconds: Longest time of the whole run, in seconds. Default: none.

    Raises InputError, on construction, for values that Kubernetes would refuse.
    """

    name: str
    image: str
    claim: str
    workers: int
    ps: int = 0
    mount: str = "/shared"
    cpus: str = "2"
    memory: str = "4Gi"
    gpus: int = 0
    max_restarts: int = 3
    grace_seconds: int = 120
    deadline_seconds: int | None = None

    def __post_init__(self) -> None:
        # A pod's host name is this name and the pod's index, 63 characters in all.
        if not re.fullmatch(DNS_LABEL, self.name) or len(self.name) > 50:
            raise InputError(
                f"--name is {self.name!r}; allowed: up to 50 of a-z, 0-9 and -, with a letter first "
                "and no - at the end"
            )
        if not re.fullmatch(rf"{DNS_LABEL}(\.{DNS_LABEL})*", self.claim):
            raise InputError(f"--claim is {self.claim!r}; allowed: the name of a PersistentVolumeClaim")
        if not re.fullmatch(r"[\w.:/@-]+", self.image):
            raise InputError(f"--image is {self.image!r}; allowed: an image such as registry/labkit:1")
        if not PurePosixPath(self.mount).is_absolute() or self.mount == "/":
            raise InputError(f"--mount is {self.mount!r}; allowed: an absolute path such as /shared")
        for flag, value in (("--cpus", self.cpus), ("--memory", self.memory)):
            if not re.fullmatch(QUANTITY, value):
                raise InputError(f"{flag} is {value!r}; allowed: a quantity such as 500m, 2 or 4Gi")
        for name in ("workers", "grace_seconds", "deadline_seconds", "ps", "gpus", "max_restarts"):
            value, minimum = getattr(self, name), 0 if name in ("ps", "gpus", "max_restarts") else 1
            if value is not None and value < minimum:
                raise InputError(f"--{name.replace('_', '-')} is {value}; allowed: {minimum} or more")

    def check_shared(self, flag: str, folder: str | None) -> None:
        """Raise InputError unless ``folder`` is on the claim, which all pods see and which outlives them."""
        if folder is not None and PurePosixPath(self.mount) not in PurePosixPath(folder).parents:
            raise InputError(
                f"{flag} is {folder!r}; allowed: a folder below {self.mount}, where the pods mount the claim "
                "(--mount)"
            )

    @property
    def pods(self) -> int:
        """Return the number of pods: the workers, and with parameter servers these and a chief."""
        return len(LocalCluster(self.workers, self.ps).names)


def labels(options: PodOptions) -> dict[str, str]:
    return {"app.kubernetes.io/name": "labkit", "app.kubernetes.io/instance": options.name}


def metadata(options: PodOptions) -> dict[str, Any]:
    return {"name": options.name, "labels": labels(options)}


def service(options: PodOptions) -> dict[str, Any]:
    """Return the headless Service under which the pods find each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(options),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # the pods look for each other before they are ready
            "selector": labels(options),
            "ports": [{"name": "tensorflow", "port": PORT}],
        },
    }


def network_policy(options: PodOptions) -> dict[str, Any]:
    """Return the policy that admits connections from the run's own pods only."""
    own_pods: dict[str, Any] = {"from": [{"podSelector": {"matchLabels": labels(options)}}]}
    if not options.gpus:  # NCCL connects GPUs on ports that it chooses itself
        own_pods["ports"] = [{"protocol": "TCP", "port": PORT}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(options),
        "spec": {
            "podSelector": {"matchLabels": labels(options)},
            "policyTypes": ["Ingress"],
            "ingress": [own_pods],
        },
    }


def pod_template(options: PodOptions, task: list[str], training: list[str]) -> dict[str, Any]:
    """Return the template of all pods: one unprivileged container that can write to the claim and /tmp only.

    Args:
        options: resources, image and volumes.
        task: arguments of labkit that make the pod a task of the cluster.
        training: arguments of the training; unless they have ``--bind``, the pod's own address is added.
            Empty: ``task`` is all.
    """
    # Kubernetes expands $(NAME) in arguments; "$$(" keeps the user's text as it is.
    training = [argument.replace("$(", "$$(") for argument in training]
    bind = ["--bind", "$(POD_IP)"] if training and "--bind" not in training else []
    volumes: dict[str, tuple[str, dict[str, Any]]] = {
        "shared": (options.mount, {"persistentVolumeClaim": {"claimName": options.claim}}),
        "tmp": ("/tmp", {"emptyDir": {}}),
    }
    if options.gpus:  # for NCCL's buffers; a container's default is 64 MiB
        volumes["shm"] = ("/dev/shm", {"emptyDir": {"medium": "Memory"}})
    return {
        "metadata": {"labels": labels(options)},
        "spec": {
            "subdomain": options.name,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": options.grace_seconds,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "fsGroup": 10001,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(options, [*task, *training, *bind], volumes)],
            "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
        },
    }


def _container(
    options: PodOptions, arguments: list[str], volumes: dict[str, tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    resources = {"cpu": options.cpus, "memory": options.memory}
    if options.gpus:
        resources["nvidia.com/gpu"] = str(options.gpus)
    return {
        "name": "labkit",
        "image": options.image,
        "command": ["labkit"],
        "args": arguments,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LABKIT_HOME", "value": options.mount},
            {"name": "HOME", "value": "/tmp"},
        ],
        "ports": [{"name": "tensorflow", "containerPort": PORT}],
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
    }


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
    cluster = LocalCluster(workers, ps)
    pods = len(cluster.names)
    if int(index) >= pods:
        raise InputError(
            f"JOB_COMPLETION_INDEX is {index}, but --workers {workers} --ps {ps} makes {pods} pods; "
            f"allowed: 0 to {pods - 1}"
        )
    tasks = cluster.tasks_at(f"{name}-{number}.{name}:{PORT}" for number in range(pods))
    return tasks[cluster.names[int(index)]]


def render_indexed_job(config: Config, options: PodOptions) -> list[dict[str, Any]]:
    """Return the Service, NetworkPolicy and Job that train ``config``.

    Each pod runs ``labkit cluster kubernetes-task``, which finds its task by its index. A failed training or
    bad input in any pod ends the Job. A pod that was asked to stop, or that lost another one, is replaced,
    and the run continues from the last checkpoint.

    Raises InputError if the pods can't train ``config`` together.
    """
    check_replicas(config, options.pods, options.gpus, options.ps)
    options.check_shared("--job-dir", config.run.job_dir)
    task = ["cluster", "kubernetes-task", "--name", options.name, "--workers", str(options.workers)]
    servers = ["--ps", str(options.ps)] if options.ps else []
    pod = pod_template(options, [*task, *servers, "--"], train_arguments(_patient(config)))
    return [service(options), network_policy(options), _job(options, pod)]


def render_search_job(search: Sequence[str], options: PodOptions) -> list[dict[str, Any]]:
    """Return the Job whose pods share a search. ``search``: a command of labkit with ``--join``."""
    return [_job(options, pod_template(options, [*search], []))]


def _job(options: PodOptions, pod: dict[str, Any]) -> dict[str, Any]:
    deadline = options.deadline_seconds
    return {
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
