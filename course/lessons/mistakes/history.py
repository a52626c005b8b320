"""What happens to each training example during a training: learned, forgotten, never learned."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.callbacks.callback import Callback

if TYPE_CHECKING:
    from labkit.callbacks.callback import TrainingView

BATCH = 500  # images in a forward pass


class ExampleHistory(Callback):
    """Records the loss and the prediction of each training example every few steps.

    Args:
        images: uint8 [n, height, width, channels].
        labels: int [n], as the training sees them.
        every: steps between two records.
    """

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[Any], every: int) -> None:
        self.images, self.labels, self.every = images, labels, max(1, every)
        self.steps: list[int] = []
        self._losses: list[NDArray[np.float64]] = []
        self._predicted: list[NDArray[np.intp]] = []

    def after_step(self, training: "TrainingView", row: Mapping[str, Any]) -> None:
        """Record every example with the current weights."""
        if row["step"] % self.every:
            return
        starts = range(0, len(self.images), BATCH)
        logits = np.concatenate([training.logits(self.images[at : at + BATCH]) for at in starts])
        self.record(row["step"], logits)

    def record(self, step: int, logits: NDArray[Any]) -> None:
        """Add what ``logits`` [n, classes] say of each example after ``step`` steps."""
        logits = logits.astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        of_label = shifted[np.arange(len(logits)), self.labels]
        self.steps.append(step)
        self._losses.append(np.log(np.exp(shifted).sum(axis=1)) - of_label)
        self._predicted.append(logits.argmax(axis=1))

    @property
    def losses(self) -> NDArray[np.float64]:
        """Cross-entropy in nats, float64 [records, n]."""
        return np.array(self._losses)

    @property
    def predicted(self) -> NDArray[np.intp]:
        """The most probable class, int [records, n]."""
        return np.array(self._predicted)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the prediction equals the label of the training, bool [records, n]."""
        return self.predicted == self.labels


def hunt_scores(
    ranked: ArrayLike, flipped: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision and recall of the first 1, 2, … suspects, float64 [suspects] each.

    Args:
        ranked: indices of the suspects, int [suspects], the most suspicious first.
        flipped: which labels are wrong, bool [n].
    """
    found = np.cumsum(flipped[np.asarray(ranked)])
    return found / np.arange(1, len(found) + 1), found / max(int(flipped.sum()), 1)
