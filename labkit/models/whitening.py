"""A first convolution that is computed before training: it whitens patches of the training images."""

import keras
import numpy as np

__all__ = ["Whitening", "whitening_kernel"]


def whitening_kernel(images: np.ndarray, patch_size: int, epsilon: float) -> np.ndarray:
    """Return a kernel whose outputs over the patches of ``images`` are uncorrelated and have variance 1.

    The filters are the eigenvectors of the patches' covariance, divided by the square roots of their
    eigenvalues (Page, "How to Train Your ResNet 8", 2019). Each filter is repeated with the opposite sign,
    because the activation after it passes mostly one sign (Jordan, "94% on CIFAR-10 in 3.29 Seconds", 2024,
    arXiv:2404.00498, section 3.2).

    Args:
        images: float [n, height, width, channels].
        patch_size: height and width of a patch.
        epsilon: added to the eigenvalues, so that directions without variance are not amplified.

    Returns:
        float32 [patch_size, patch_size, channels, 2 * patch_size**2 * channels], ordered by decreasing
        eigenvalue.
    """
    windows = np.lib.stride_tricks.sliding_window_view(images, (patch_size, patch_size), axis=(1, 2))
    # [n, rows, columns, channels, patch, patch] -> one row per patch, in the order of a kernel's weights.
    patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, patch_size**2 * images.shape[3])
    patches = patches.astype(np.float64)
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    # The sign of an eigenvector is arbitrary. Fix it, or it would depend on the linear algebra library.
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(len(values))])
    filters = (vectors / np.sqrt(values + epsilon))[:, ::-1]
    filters = np.concatenate([filters, -filters], axis=1)
    return filters.reshape(patch_size, patch_size, images.shape[3], -1).astype(np.float32)


@keras.saving.register_keras_serializable(package="labkit")
class Whitening(keras.layers.Conv2D):
    """Convolution without padding or bias, with a frozen kernel computed by :meth:`adapt`.

    airbench trains a bias for three of its eight epochs. Without it, a training step needs no gradient of the
    largest activations and of the next convolution's inputs, which saves a twentieth of its time.

    Args:
        filters: twice the number of values in a patch.
        patch_size: height and width of a patch.
        epsilon: see :func:`whitening_kernel`; airbench uses 5e-4.
        **kwargs: further arguments of ``keras.layers.Conv2D``.
    """

    def __init__(self, filters: int, patch_size: int = 2, epsilon: float = 5e-4, **kwargs) -> None:
        for fixed in ("kernel_size", "padding", "strides", "dilation_rate", "groups", "use_bias"):
            kwargs.pop(fixed, None)  # the configuration of a saved layer contains them
        super().__init__(filters, patch_size, padding="valid", use_bias=False, **kwargs)
        self.patch_size, self.epsilon = patch_size, epsilon

    def build(self, input_shape) -> None:
        super().build(input_shape)
        self._kernel.trainable = False

    def adapt(self, images: np.ndarray) -> None:
        """Compute the kernel from ``images``, float [n, height, width, channels], standardized."""
        self.kernel.assign(whitening_kernel(images, self.patch_size, self.epsilon))

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size, "epsilon": self.epsilon}
