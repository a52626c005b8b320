"""On which devices a run is trained."""

from dataclasses import dataclass

from labkit.config.fields import FieldOwner, option
from labkit.errors import InputError

__all__ = ["DistributionConfig"]


@dataclass(frozen=True)
class DistributionConfig(FieldOwner):
    """On which devices."""

    num_gpus: int | None = option(
        None,
        "GPUs to use, one replica each; 0: the CPU (None: as many as there are)",
        minimum=0,
        identity=False,
    )
    simulate_missing_gpus: bool = option(
        False, "where there are fewer GPUs, run the replicas on logical CPU devices", identity=False
    )
    variable_strategy: str = option(
        "CPU",
        "where gradients are reduced and the update is made when there are several replicas",
        choices=("CPU", "GPU"),
        identity=False,
    )
    sync: bool = option(
        False, "in a cluster: synchronous training; one process is always synchronous", identity=False
    )
    num_intra_threads: int = option(
        0, "threads inside one operation (0: TensorFlow's choice)", minimum=0, maximum=1024, identity=False
    )
    num_inter_threads: int = option(
        0, "operations at the same time (0: TensorFlow's choice)", minimum=0, maximum=1024, identity=False
    )
    allow_soft_placement: bool = option(
        True, "place operations that a device can't run elsewhere", identity=False
    )
    xla: bool = option(
        False,
        "let XLA compile loss and gradients, for one replica a process; on a CPU that makes steps slower",
        identity=False,
    )
    log_device_placement: bool = option(False, "log where each operation runs", identity=False)
    worker_hosts: str | None = option(
        None, "cluster without TF_CONFIG: host:port of each worker, comma-separated", identity=False
    )
    ps_hosts: str | None = option(
        None, "cluster without TF_CONFIG: host:port of each parameter server, comma-separated", identity=False
    )
    job_name: str | None = option(
        None, "cluster without TF_CONFIG: what this process is", choices=("worker", "ps"), identity=False
    )
    task_index: int | None = option(
        None, "cluster without TF_CONFIG: which worker or server this process is", minimum=0, identity=False
    )
    bind: str = option(
        "127.0.0.1",
        "address on which this process's server listens in a cluster; 0.0.0.0: on every one",
        identity=False,
    )
    variable_placement: str = option(
        "round_robin",
        "over parameter servers: round_robin: in turn; greedy: to the server with the fewest bytes",
        choices=("round_robin", "greedy"),
        identity=False,
    )
    rendezvous_seconds: float = option(
        120.0, "how long the tasks of a cluster wait for each other at the start", minimum=1, identity=False
    )
    peer_timeout_seconds: float = option(
        15.0, "silence after which another task of the cluster counts as lost", minimum=2, identity=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_gpus == 0 and self.variable_strategy == "GPU":
            raise InputError(
                "--variable-strategy is 'GPU' with --num-gpus 0; allowed: 'CPU', or one GPU or more"
            )
