"""Batch statistics of slices of a batch, where variables live, and the gradient noise scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from course.lessons.replicas.sweep import DenseNetwork
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.data.network_input import standardize
from labkit.data.shards import load_split
from labkit.distributed.devices import Devices, make_strategy
from labkit.models.variants import with_layer_outputs


def stem_outputs(network: Any, manifest: Manifest, count: int) -> NDArray[np.float32]:
    """Return what the first convolution makes of ``count`` training images, [count, pixels, channels]."""
    images, _ = load_split(manifest, "train")
    outputs = with_layer_outputs(network)(standardize(images[:count], manifest), training=False)
    values = next(value for name, value in outputs.items() if "conv" in name).numpy()
    return values.reshape(count, -1, values.shape[-1])


def gradient_bytes(network: Any) -> int:
    """Return the bytes of all gradients of a step: four for each trained weight."""
    return sum(4 * int(np.prod(weight.shape)) for weight in network.trainable_weights)


def slice_statistics(
    values: NDArray[np.float32], replicas: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and variance of each channel in each replica's slice, float64 [replicas, channels].

    Args:
        values: [images, pixels, channels]; the images are split evenly over the replicas.
    """
    slices = np.array(np.split(values.astype(np.float64), replicas))
    return slices.mean((1, 2)), slices.var((1, 2))


@dataclass(frozen=True)
class Placement:
    """Where the copies of a variable are. ``copies``: the device of each, as TensorFlow names it."""

    strategy: str
    variable_strategy: str
    replicas: tuple[str, ...]
    copies: tuple[str, ...]

    def __repr__(self) -> str:
        lines = [f"{self.strategy} (variable_strategy={self.variable_strategy})"]
        lines += [f"  replica {number} computes on {name}" for number, name in enumerate(self.replicas)]
        lines += [f"  a copy of the variable is on {name}" for name in self.copies]
        return "\n".join(lines)


def place_variable(devices: Devices, variable_strategy: str) -> Placement:
    """Create a variable under labkit's strategy for ``devices`` and return where it is."""
    strategy = make_strategy(devices, variable_strategy)
    with strategy.scope():
        variable: Any = tf.Variable(tf.zeros([4]))
    copies = getattr(variable, "values", (variable,))
    return Placement(
        type(strategy).__name__.removesuffix("V1"),
        variable_strategy,
        tuple(map(_canonical, strategy.extended.worker_devices)),
        tuple(_canonical(copy.device) for copy in copies),
    )


def _canonical(device: str) -> str:
    """Return a device's whole name, such as ``/job:localhost/replica:0/task:0/device:CPU:1``."""
    whole = tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0")
    return whole.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string()


def comparison_flags(config: Config) -> dict[str, Any]:
    """Return the flags of ``labkit.compare_replicas`` that train ``config``: its network, data and rate."""
    names = {"dataset", "data_dir", "num_layers", "train_batch_size", "learning_rate", "batch_norm_decay"}
    return {name: value for name, value in config.flat().items() if name in names | {"seed"}}


def layout_name(devices: Devices) -> str:
    """Return what ``labkit.compare_replicas`` calls these devices; two replicas at least."""
    kind = "GPUs" if devices.kind == "GPU" and devices.num_local_replicas > 1 else "logical devices"
    return f"{max(2, devices.num_local_replicas)} {kind}"


# ---- the gradient noise scale ----------------------------------------------------------------------------


def squared_norms(network: DenseNetwork, weights: list[Any], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return the mean squared length of the gradient of 48 random batches of each size, float64 [sizes]."""
    random = np.random.default_rng(0)
    found = []
    for size in sizes:
        index = random.integers(0, len(network.images), (48, size))
        found.append(float((network.gradients(weights, index) ** 2).sum(1).mean()))
    return np.array(found)


def noise_scale(small: int, big: int, small_squared: float, big_squared: float) -> float:
    """Return the gradient noise scale, in images: tr Σ / |G|² (McCandlish et al., 2018, appendix A.1).

    The mean squared length of the gradient of a batch of B images is |G|² + tr Σ / B. Two sizes give two
    equations for the two unknowns.

    Args:
        small, big: the two batch sizes.
        small_squared, big_squared: mean squared length of their gradients.
    """
    squared = (big * big_squared - small * small_squared) / (big - small)
    variance = (small_squared - big_squared) / (1 / small - 1 / big)
    return variance / squared


def step_seconds(
    replicas: NDArray[np.int64], compute: float, num_bytes: float, bandwidth: float, latency: float
) -> NDArray[np.float64]:
    """Return the seconds of a step on each number of replicas: its computation, then a ring all-reduce.

    Args:
        replicas: numbers of replicas.
        compute: seconds of the whole global batch on one replica.
        num_bytes: of the gradients.
        bandwidth: of a link, in bytes a second.
        latency: seconds of a message of no bytes.
    """
    sent = 2 * (replicas - 1) / replicas * num_bytes
    return compute / replicas + sent / bandwidth + 2 * (replicas - 1) * latency
