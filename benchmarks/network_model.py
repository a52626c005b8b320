"""A model, not a measurement: how long an all-reduce of the gradients takes, and what is left of N devices.

Ring all-reduce (Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69, 2009): N devices in a ring pass N pieces of the data around twice, once to
sum and once to share, so each sends 2 (N - 1) / N of the bytes in 2 (N - 1) messages. A message takes its
latency plus its bytes over the bandwidth (Hockney's model), every link is alone on its wire, all devices
start at the same moment, and a step reduces everything at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "DEVICES",
    "NETWORKS",
    "NVLINK",
    "Network",
    "Prediction",
    "hierarchical_seconds",
    "predict",
    "ring_seconds",
    "step_seconds",
]

DEVICES = (2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Network:
    """A link: ``bandwidth`` in bytes a second and direction, ``latency`` in seconds a message."""

    name: str
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.latency >= 0):
            raise ValueError(f"{self}; allowed: a bandwidth above 0 and a latency of at least 0")

    @classmethod
    def parse(cls, text: str) -> "Network":
        """Make one of ``NAME:GBIT:MICROSECONDS``. Raises ValueError for anything else."""
        name, gigabits, microseconds = text.rsplit(":", 2)
        return cls(name, float(gigabits) * 1e9 / 8, float(microseconds) * 1e-6)


# Line rates of the standards, without protocol overhead. Latencies are round figures of the order that
# vendors and NCCL's own tests state for a message through the library; --network takes measured ones.
NVLINK = Network("NVLink", 300e9, 5e-6)  # NVLink 3 (A100): 12 links of 25 GB/s in each direction
NETWORKS = (
    Network("100 Gbit/s InfiniBand", 12.5e9, 5e-6),
    Network("100 Gbit/s Ethernet", 12.5e9, 30e-6),
    Network("10 Gbit/s Ethernet", 1.25e9, 50e-6),
)


def ring_seconds(devices: int, size: float, network: Network) -> float:
    """Return the time of one ring all-reduce of ``size`` bytes over ``devices``; 0 for one device."""
    if devices < 1:
        raise ValueError(f"devices is {devices}; allowed: at least 1")
    hops = 2 * (devices - 1)
    return hops / devices * size / network.bandwidth + hops * network.latency


def hierarchical_seconds(
    devices: int, size: float, inside: Network, between: Network, per_node: int = 8
) -> float:
    """Return the time of an all-reduce in three stages over nodes of ``per_node`` devices.

    Each node sums its devices' data piece by piece (half a ring), the nodes reduce the pieces in rings of
    their own, which share the node's one port, and each node shares the result (the other half).

    Raises ValueError where the devices don't fill their nodes.
    """
    if devices <= per_node:
        return ring_seconds(devices, size, inside)
    if devices % per_node:
        raise ValueError(f"{devices} devices don't fill nodes of {per_node}")
    return ring_seconds(per_node, size, inside) + ring_seconds(devices // per_node, size, between)


def step_seconds(compute: float, reduction: float, *, overlap: bool, backward_share: float = 2 / 3) -> float:
    """Return the time of a step that computes for ``compute`` seconds and reduces for ``reduction``.

    Without overlap one follows the other. With it the reduction hides behind the backward pass, as far as
    that goes: the bound that no order of the gradients can beat.

    Args:
        backward_share: of ``compute``; two thirds, since the backward pass of a convolution is two
            convolutions of the forward one's cost.
    """
    if not overlap:
        return compute + reduction
    backward = backward_share * compute
    return compute - backward + max(backward, reduction)


@dataclass(frozen=True)
class Prediction:
    """Weak scaling, the batch of each device kept: times in seconds, ``efficiency`` from 0 to 1."""

    devices: int
    network: str
    reduction: float
    efficiency: float
    efficiency_with_overlap: float

    def examples_per_second(self, one_device: float) -> float:
        """Return the speed of all devices, without overlap, from that of one."""
        return self.devices * self.efficiency * one_device


def predict(
    compute: float,
    size: float,
    networks: Sequence[Network] = NETWORKS,
    *,
    inside: Network = NVLINK,
    per_node: int = 8,
    devices: Sequence[int] = DEVICES,
) -> list[Prediction]:
    """Return a prediction for each network, flat and in nodes of ``per_node``, and number of devices.

    Args:
        compute: seconds of a step on one device, which has nothing to reduce.
        size: bytes that a step reduces.
        networks: between the nodes.
        inside: between the devices of a node.
    """
    predictions = []
    ways = [(f"{network.name}: one ring", network, False) for network in networks]
    ways += [(f"{network.name}: nodes of {per_node}", network, True) for network in networks]
    for name, network, nodes in ways:
        for count in devices:
            if nodes and count > per_node and count % per_node:
                continue
            reduction = (
                hierarchical_seconds(count, size, inside, network, per_node)
                if nodes
                else ring_seconds(count, size, network)
            )
            plain, hidden = (step_seconds(compute, reduction, overlap=way) for way in (False, True))
            predictions.append(Prediction(count, name, reduction, compute / plain, compute / hidden))
    return predictions
