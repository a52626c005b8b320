"""What a step of a residual block sends under each split, and how long that takes over a link.

The block has two 3×3 convolutions of equal width. A step is its forward and its backward pass.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.workers import Worker, Workers

SPLITS = ("images", "channels", "height")
FLOAT = 4  # bytes
Pairs = dict[str, dict[str, tuple[float, float]]]  # (predicted, measured) by split, by block and link


@dataclass(frozen=True)
class Block:
    """The shape of a residual block's input: ``images`` of ``size`` × ``size`` positions and ``channels``."""

    name: str
    images: int
    size: int
    channels: int

    def with_images(self, images: int) -> "Block":
        """Return this block for a batch of another size."""
        return replace(self, images=images)

    def tensors(self, seed: int) -> list[NDArray[Any]]:
        """Return input, gradient of the output, first and second kernel, drawn from ``seed``."""
        random, channels = np.random.default_rng(seed), self.channels
        values = random.normal(0, 1, (2, self.images, self.size, self.size, channels))
        kernels = random.normal(0, (2 / (9 * channels)) ** 0.5, (2, 3, 3, channels, channels))
        return [array.astype(np.float32) for array in (*values, *kernels)]


STAGES = (
    Block("CIFAR: 32×32, 16 channels", 1, 32, 16),
    Block("CIFAR: 8×8, 64 channels", 1, 8, 64),
    Block("CIFAR, wide: 8×8, 256 channels", 1, 8, 256),
    Block("ImageNet: 56×56, 64 channels", 1, 56, 64),
    Block("ImageNet: 28×28, 128 channels", 1, 28, 128),
    Block("ImageNet: 14×14, 256 channels", 1, 14, 256),
    Block("ImageNet: 7×7, 512 channels", 1, 7, 512),
)


def bytes_sent(split: str, block: Block, workers: int) -> float:
    """Return the bytes that the busiest worker sends in a step, with ring all-reduces of float32 numbers.

    Args:
        split: one of ``SPLITS``.
    """
    ring, row = 2 * (workers - 1) / workers * FLOAT, block.images * block.size * block.channels
    if split == "channels":
        return ring * 2 * row * block.size  # two all-reduces of activations
    sent = ring * (2 * 9 * block.channels**2 + 4 * 2 * block.channels)  # kernels; four times two statistics
    return sent + (split == "height") * 4 * min(workers - 1, 2) * FLOAT * row


def cheapest(block: Block, workers: int) -> str:
    """Return the split with the fewest bytes. There must be an image, a channel or a row for each worker."""
    parts = dict(zip(SPLITS, (block.images, block.channels, block.size), strict=True))
    possible = [split for split in SPLITS if parts[split] >= workers]
    return min(possible, key=lambda split: bytes_sent(split, block, workers))


# ---- seconds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """Seconds of a message of no bytes, and bytes a second in each direction."""

    delay: float
    rate: float

    def seconds(self, split: str, block: Block, workers: int) -> float:
        """Return the seconds that the messages of a step take."""
        ring = 2 * (workers - 1)
        in_a_row = {"images": 6 * ring, "channels": 2 * ring, "height": 6 * ring + 4}[split]
        return in_a_row * self.delay + bytes_sent(split, block, workers) / self.rate


def measure_link(workers: Workers) -> Link:
    """Return what a message takes of two workers that both send at the same time, as in a ring."""
    large = 4_000_000
    small, all_of_it = (max(workers.run(_swap, size).results) for size in (16, large))
    return Link(small, large / max(all_of_it - small, 1e-9))


def _swap(worker: Worker, num_bytes: int) -> float:
    array = np.zeros(num_bytes, np.uint8)

    def swap() -> None:
        worker.send(1 - worker.rank, array)
        worker.receive(1 - worker.rank)

    return least_seconds(swap, 15, worker.barrier)


def measure_steps(
    workers: Workers, step: Callable[..., Any], splits: Mapping[str, Any], blocks: Sequence[Block]
) -> dict[str, dict[str, float]]:
    """Return the seconds of ``step(worker, split, tensors)`` on the slowest worker, by block and split."""

    def timed(worker: Worker, split: Any, block: Block) -> float:
        tensors = block.tensors(0)
        return least_seconds(lambda: step(worker, split, tensors), 4, worker.barrier)

    return {
        block.name: {
            name: max(workers.run(timed, split, block, seconds=60).results) for name, split in splits.items()
        }
        for block in blocks
    }


def least_seconds(compute: Callable[[], Any], repeats: int, ready: Callable[[], Any] = lambda: None) -> float:
    """Return the seconds of the fastest of some calls. ``ready`` is called before each, and isn't counted."""
    seconds = []
    for _ in range(repeats):
        ready()
        begin = time.perf_counter()
        compute()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)  # other work on the machine only makes it slower


def predicted_and_measured(
    measured: Mapping[str, Mapping[str, Mapping[str, float]]],
    links: Mapping[str, Link],
    blocks: Sequence[Block],
) -> Pairs:
    """Return seconds of a step on two workers: half of those alone plus those of messages; and as measured.

    Args:
        measured: seconds by link, block and split; one of the splits is ``alone``.
    """
    pairs: Pairs = {}
    for (name, by_block), block in itertools.product(measured.items(), blocks):
        found = by_block[block.name]
        pairs[f"{block.name}, {name}"] = {
            f"by {split}": (found["alone"] / 2 + links[name].seconds(split, block, 2), found[split])
            for split in SPLITS
        }
    return pairs
