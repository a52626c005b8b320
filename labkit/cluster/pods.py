"""What the pods of a run have in common: size, rights, volumes, labels, and who may reach them."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from labkit.errors import InputError

__all__ = [
    "PORT",
    "PodOptions",
    "deadline",
    "field_variable",
    "labels",
    "metadata",
    "network_policy",
    "pod_template",
]

PORT = 2222  # TFJob's default
DNS_LABEL = r"[a-z]([a-z0-9-]*[a-z0-9])?"  # RFC 1035, what a Service's name has to be
QUANTITY = r"\d+(\.\d+)?(m|[kMGTP]i?|Ki)?"


@dataclass(frozen=True)
class PodOptions:
    """What to ask Kubernetes for.

    ``workers`` train; ``ps`` parameter servers (0: synchronous training) and the chief that they need come on
    top. ``claim`` is a PersistentVolumeClaim that all pods can write to (ReadWriteMany); it is mounted at
    ``mount`` and holds ``data/`` and ``runs/``. ``cpus``, ``memory`` and ``gpus`` are for each pod.
    ``max_restarts``: how often the tasks may be lost before a Job gives up. ``grace_seconds``: for saving a
    checkpoint after SIGTERM. ``deadline_seconds``: of the whole run (None: no end).

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
        # A pod's host name is the run's with the task's job and index behind it, 63 characters in all.
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


def labels(options: PodOptions) -> dict[str, str]:
    return {"app.kubernetes.io/name": "labkit", "app.kubernetes.io/instance": options.name}


def metadata(options: PodOptions) -> dict[str, Any]:
    return {"name": options.name, "labels": labels(options)}


def deadline(options: PodOptions) -> dict[str, int]:
    return {} if options.deadline_seconds is None else {"activeDeadlineSeconds": options.deadline_seconds}


def field_variable(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def network_policy(options: PodOptions) -> dict[str, Any]:
    own_pods: dict[str, Any] = {"from": [{"podSelector": {"matchLabels": labels(options)}}]}
    if not options.gpus:  # NCCL connects the pods' GPUs on ports that it chooses itself
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


def pod_template(
    options: PodOptions,
    container: str,
    arguments: list[str],
    environment: list[dict[str, Any]],
    *,
    command: list[str],
    gpus: bool = True,
) -> dict[str, Any]:
    """Return a pod template: one unprivileged container that can write to the claim and to /tmp alone."""
    resources = {"cpu": options.cpus, "memory": options.memory}
    if options.gpus and gpus:
        resources["nvidia.com/gpu"] = str(options.gpus)
    # Kubernetes puts variables in place of $(NAME); what the user wrote stays as it is.
    arguments = [argument.replace("$(", "$$(") for argument in arguments]
    bind = [] if "--bind" in arguments else ["--bind", "$(POD_IP)"]
    home = [{"name": "LABKIT_HOME", "value": options.mount}, {"name": "HOME", "value": "/tmp"}]
    volumes: dict[str, tuple[str, dict[str, Any]]] = {
        "shared": (options.mount, {"persistentVolumeClaim": {"claimName": options.claim}}),
        "tmp": ("/tmp", {"emptyDir": {}}),
    }
    if options.gpus and gpus:  # NCCL's buffers: a container has 64 MiB of its own
        volumes["shm"] = ("/dev/shm", {"emptyDir": {"medium": "Memory"}})
    return {
        "metadata": {"labels": labels(options)},
        "spec": {
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
            "containers": [
                {
                    "name": container,
                    "image": options.image,
                    "command": command,
                    "args": [*arguments, *bind],
                    "env": [*environment, *home],
                    "ports": [{"name": "tfjob-port", "containerPort": PORT}],
                    "resources": {"requests": resources, "limits": resources},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": name, "mountPath": path} for name, (path, _) in volumes.items()
                    ],
                }
            ],
            "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
        },
    }
