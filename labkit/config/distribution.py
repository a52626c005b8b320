"""On which devices a run is trained."""

import re
from dataclasses import dataclass

from labkit.config.fields import OF_ONE_PROCESS, FieldOwner, option
from labkit.errors import InputError

MAX_SLOWNESS = 100  # more would look like a lost worker


@dataclass(frozen=True)
class DistributionConfig(FieldOwner):
    """On which devices."""

    num_gpus: int | None = option(
        None,
        "GPUs to use, with one replica on each. 0 trains on the CPU.",
        unset="all GPUs of this machine",
        minimum=0,
        role="measurement",
        common=True,
    )
    simulate_missing_gpus: bool = option(
        False,
        "Where the machine has fewer GPUs than --num-gpus, runs the replicas on logical CPU devices.",
        role="measurement",
    )
    variable_strategy: str = option(
        "CPU",
        "Where several replicas' gradients are reduced and the weights updated.",
        choices=("CPU", "GPU"),
        role="measurement",
        synchronous=True,
    )
    sync: bool = option(
        False,
        "Trains synchronously in a cluster. A single process always does.",
        role="other",
        group="cluster",
    )
    num_intra_threads: int = option(
        0,
        "Threads within one operation. 0: TensorFlow chooses, or 1 where ghost batches fill the cores.",
        minimum=0,
        maximum=1024,
        role="measurement",
    )
    num_inter_threads: int = option(
        0,
        "Operations that run at once. 0 lets TensorFlow choose.",
        minimum=0,
        maximum=1024,
        role="measurement",
    )
    xla: bool = option(
        False,
        "Compiles loss and gradients with XLA, for one replica in each process. Makes steps slower on CPUs.",
        role="measurement",
    )
    allow_soft_placement: bool = option(
        True,
        "Lets TensorFlow run an operation on another device where the chosen one can't, instead of failing.",
        role="other",
    )
    log_device_placement: bool = option(
        False, "Logs the device of each operation.", role="observation", group="logging"
    )
    debugger_dump: bool = option(
        False,
        "Writes the health of every operation's results for TensorBoard's Debugger V2. Steps take about five "
        "times as long.",
        role="observation",
        group="logging",
    )
    worker_hosts: str | None = option(
        None,
        "host:port of each worker, separated by commas, for a cluster without TF_CONFIG.",
        role="task",
        fork=OF_ONE_PROCESS,
        group="cluster",
    )
    ps_hosts: str | None = option(
        None,
        "host:port of each parameter server, separated by commas, for a cluster without TF_CONFIG.",
        role="task",
        fork=OF_ONE_PROCESS,
        group="cluster",
    )
    job_name: str | None = option(
        None,
        "What this process is in a cluster without TF_CONFIG.",
        choices=("worker", "ps"),
        role="task",
        fork=OF_ONE_PROCESS,
        group="cluster",
    )
    task_index: int | None = option(
        None,
        "Which of the workers or parameter servers this process is, from 0, in a cluster without TF_CONFIG.",
        minimum=0,
        role="task",
        fork=OF_ONE_PROCESS,
        group="cluster",
    )
    bind: str = option(
        "127.0.0.1",
        "Address on which this process listens to the other tasks. 0.0.0.0 listens on every address.",
        role="other",
        group="cluster",
        acts="listen on",
    )
    gradient_compression: str = option(
        "none",
        "Rounds gradients for the exchange between replicas: bfloat16 sends half the bytes.",
        choices=("none", "bfloat16"),
        group="cluster",
    )
    variable_placement: str = option(
        "round_robin",
        "How variables are spread over parameter servers: in turn, or greedily by bytes.",
        choices=("round_robin", "greedy"),
        role="other",
        group="cluster",
    )
    max_staleness: int | None = option(
        None,
        "Updates by other workers that may come between an asynchronous worker's read of the weights and its "
        "update. Workers wait where more would come.",
        unset="unlimited",
        minimum=0,
        role="other",
        group="cluster",
    )
    slow_worker: str | None = option(
        None,
        "Slows one worker down, for lessons and tests. 1:3 makes worker 1 take three times as long.",
        role="other",
        group="cluster",
    )
    rendezvous_seconds: float = option(
        120.0,
        "Seconds that the tasks wait for each other at the start.",
        minimum=1,
        role="other",
        group="cluster",
    )
    peer_timeout_seconds: float = option(
        15.0,
        "Seconds without a heartbeat after which another task counts as lost.",
        minimum=2,
        role="other",
        group="cluster",
    )
    progress_timeout_seconds: float = option(
        60.0,
        "Seconds without a finished step after which the tasks start again (or an asynchronous worker that "
        "hangs alone), if that is over 20 times the usual time of a step. What has no usual time, such as a "
        "checkpoint, has ten times as long.",
        minimum=2,
        role="other",
        group="cluster",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.xla and self.debugger_dump:
            raise InputError(
                "--debugger-dump can't see into steps that --xla compiles; leave one of them out"
            )
        if "/" in self.bind or re.fullmatch(r"[^:]+:\d+|\[.*", self.bind):
            raise InputError(
                f"--bind is {self.bind!r}; allowed: a host's address or name, without a scheme and a port, "
                "such as 127.0.0.1"
            )
        if self.num_gpus == 0 and self.variable_strategy == "GPU":
            raise InputError(
                "--variable-strategy is 'GPU' with --num-gpus 0; allowed: 'CPU', or one GPU or more"
            )
        factor = 1.0 if self.slow is None else self.slow[1]
        if not 1 <= factor <= MAX_SLOWNESS:
            raise InputError(
                f"--slow-worker is {self.slow_worker!r}; allowed: the index of a worker, a colon, and a "
                f"factor from 1 to {MAX_SLOWNESS}, such as 1:3 for worker 1 three times as slow"
            )

    @property
    def slow(self) -> tuple[int, float] | None:
        """The parts of ``slow_worker``: index and factor (0 if it can't be read); None if it is unset."""
        if self.slow_worker is None:
            return None
        found = re.fullmatch(r"(\d{1,6}):(\d{1,6}(?:\.\d{1,6})?)", self.slow_worker, re.ASCII)
        return (int(found[1]), float(found[2])) if found else (0, 0.0)

    def slowness_of(self, worker: str) -> float:
        """Return how many times as slow ``slow_worker`` makes a task, such as ``worker:1``."""
        return self.slow[1] if self.slow is not None and worker == f"worker:{self.slow[0]}" else 1.0
