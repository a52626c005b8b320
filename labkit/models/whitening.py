"""A first convolution that is known before training: it whitens patches of the training images."""

import keras
import numpy as np

__all__ = ["Whitening", "whitening_kernel"]


def whitening_kernel(images: np.ndarray, patch_size: int, epsilon: float) -> np.ndarray:
    """Return a convolution whose outputs, over the patches of ``images``, are uncorrelated and of variance 1.

    The eigenvectors of the patches' covariance, each over the root of its eigenvalue (Page, "How to Train
    Your ResNet 8", 2019), and again with the other sign, since a rectifier behind it lets one side through
    (Jordan, "94% on CIFAR-10 in 3.29 Seconds", 2024, arXiv:2404.00498, section 3.2).

    Args:
        images: float [n, height, width, channels].
        patch_size: height and width of a patch.
        epsilon: added to the eigenvalues, so that directions without variance aren't blown up.

    Returns:
        float32 [patch_size, patch_size, channels, 2 * patch_size**2 * channels], the largest variance first.
    """
    windows = np.lib.stride_tricks.sliding_window_view(images, (patch_size, patch_size), axis=(1, 2))
    # [n, rows, columns, channels, patch, patch] -> one row a patch, in the order of a kernel's weights.
    patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, patch_size**2 * images.shape[3])
    patches = patches.astype(np.float64)
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    # An eigenvector has no sign of its own: without a rule it would depend on the library that found it.
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(len(values))])
    filters = (vectors / np.sqrt(values + epsilon))[:, ::-1]
    filters = np.concatenate([filters, -filters], axis=1)
    return filters.reshape(patch_size, patch_size, images.shape[3], -1).astype(np.float32)


@keras.saving.register_keras_serializable(package="labkit")
class Whitening(keras.layers.Conv2D):
    """Convolution with a frozen kernel that :meth:`adapt` computes, and a trained bias; no padding.

    Args:
        filters: twice the weights of a patch.
        patch_size: height and width of a patch.
        epsilon: see :func:`whitening_kernel`; 5e-4 is airbench's.

    The rest are those of ``keras.layers.Conv2D``.
    """

    def __init__(self, filters: int, patch_size: int = 2, epsilon: float = 5e-4, **kwargs) -> None:
        for fixed in ("kernel_size", "padding", "strides", "dilation_rate", "groups", "use_bias"):
            kwargs.pop(fixed, None)  # a saved layer names them
        super().__init__(filters, patch_size, padding="valid", use_bias=True, **kwargs)
        self.patch_size, self.epsilon = patch_size, epsilon

    def build(self, input_shape) -> None:
        super().build(input_shape)
        self._kernel.trainable = False

    def adapt(self, images: np.ndarray) -> None:
        """Set the kernel for ``images``, float [n, height, width, channels], as the model takes them."""
        self.kernel.assign(whitening_kernel(images, self.patch_size, self.epsilon))

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size, "epsilon": self.epsilon}
