"""Arrange features on a plane: ``python -m app.data_set.embed FEATURES.npy POSITIONS.npy``."""

import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NICENESS = 10  # the dashboard and a training go first
COMPONENTS = 50  # of the PCA before t-SNE, as van der Maaten & Hinton 2008 took 30
PERPLEXITY = 30.0
ITERATIONS = 750
FEWEST = 8  # images; fewer are placed by PCA alone


def embedded(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 [n, 2] within −1 … 1. Takes features, float32 [n, d], finite."""
    values = features.astype(np.float64)
    values = values - values.mean(axis=0, keepdims=True)
    scale = values.std()
    if scale > 0:
        values = values / scale
    left, spread, _ = np.linalg.svd(values, full_matrices=False)
    components = (left * spread)[:, :COMPONENTS]
    if len(values) >= FEWEST and scale > 0:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits

        perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
        start = "pca" if components.shape[1] >= 2 else "random"
        solver = TSNE(perplexity=perplexity, init=start, random_state=0, max_iter=ITERATIONS)
        # A second thread saves nothing at this size, and on a busy machine the threads wait for each other.
        with threadpool_limits(1):
            plane = solver.fit_transform(components)
    else:
        plane = np.pad(components[:, :2], ((0, 0), (0, max(0, 2 - components.shape[1]))))
    plane = plane - (plane.max(axis=0) + plane.min(axis=0)) / 2
    return (plane / (np.abs(plane).max() or 1.0)).astype(np.float32)


def main(given: Path, found: Path) -> None:
    """Read features and write their places, whole or not at all."""
    os.nice(NICENESS)
    temporary = found.with_suffix(".tmp.npy")
    np.save(temporary, embedded(np.load(given)))
    temporary.replace(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
