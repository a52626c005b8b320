"""The parts of a run's manifests: options, pod template, Service and NetworkPolicy."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

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

    @property
    def pods(self) -> int:
        """Return the number of pods: the workers, and with parameter servers these and a chief."""
        return self.workers + self.ps + (1 if self.ps else 0)


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
    """
    # Kubernetes expands $(NAME) in arguments; "$$(" keeps the user's text as it is.
    training = [argument.replace("$(", "$$(") for argument in training]
    bind = [] if "--bind" in training else ["--bind", "$(POD_IP)"]
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
