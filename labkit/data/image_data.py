"""A whole data set in memory, as a source gives it."""

from dataclasses import dataclass

import numpy as np

__all__ = ["ImageData"]


@dataclass(frozen=True)
class ImageData:
    """Images uint8 [n, 32, 32, 3], labels int32 and class names; ``layout`` names the storage layout.

    Labels are class indices [n], or zeros and ones [n, classes] in a multi-label data set.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    layout: str

    @property
    def multi_label(self) -> bool:
        return self.train_labels.ndim == 2
