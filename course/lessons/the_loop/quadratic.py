"""A loss with two weights, on which momentum and weight decay can be seen."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["CURVATURE", "MINIMUM", "START", "descend", "loss_at"]

CURVATURE = np.array([1.0, 25.0])  # of the two directions: flat and steep
MINIMUM = np.array([3.0, 1.0])
START = np.array([-3.0, -1.0])


def loss_at(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the loss at ``weights`` float64 [..., 2]: half the curvature times the squared distance."""
    return 0.5 * ((weights - MINIMUM) ** 2 * CURVATURE).sum(axis=-1)


def descend(rate: float, momentum: float = 0.0, decay: float = 0.0, steps: int = 40) -> NDArray[np.float64]:
    """Return the weights from ``START`` on, float64 [steps + 1, 2], under SGD with labkit's rule."""
    weights, velocity = START.copy(), np.zeros(2)
    path = [weights]
    for _ in range(steps):
        gradient = CURVATURE * (weights - MINIMUM) + decay * weights
        velocity = momentum * velocity + gradient
        weights = weights - rate * velocity
        path.append(weights)
    return np.array(path)
