"""``NetworkInput``: how stored pixels become what the network takes."""

from dataclasses import dataclass

from labkit.config import DataConfig
from labkit.data.manifest import Manifest

__all__ = ["WHOLE_IMAGE", "NetworkInput", "central_corner", "input_shape", "network_input_of"]


@dataclass(frozen=True)
class NetworkInput:
    """How an image that is not augmented, or already is, becomes what the network takes.

    ``crop_size``: side in pixels of the square in the middle that the network sees; None: the whole image. An
    image of this size stays whole. ``standardization``: ``dataset`` or ``per_image``, as in ``DataConfig``.
    """

    crop_size: int | None = None
    standardization: str = "dataset"

    def shape(self, manifest: Manifest) -> tuple[int, int, int]:
        """Return height, width and channels of what the network takes."""
        height, width, channels = manifest.image_shape
        return self.crop_size or height, self.crop_size or width, channels

    def in_words(self) -> str:
        """Return what the values of the network's input are."""
        part = "" if self.crop_size is None else f" of the middle {self.crop_size} x {self.crop_size} pixels"
        if self.standardization == "dataset":
            return f"(pixel / 255 - mean) / std{part}"
        return f"(pixel - m) / max(s, 1 / sqrt(n)), with mean m and deviation s of the n values{part}"


WHOLE_IMAGE = NetworkInput()


def network_input_of(data: DataConfig) -> NetworkInput:
    """Return what the network of a run takes."""
    return NetworkInput(data.crop_size, data.standardization)


def input_shape(manifest: Manifest, data: DataConfig) -> tuple[int, int, int]:
    """Return height, width and channels of the images that the network of a run takes."""
    return network_input_of(data).shape(manifest)


def central_corner(height: int, width: int, size: int) -> tuple[int, int]:
    """Return row and column where the middle square begins; as ``tf.image.resize_with_crop_or_pad``."""
    return (height - size) // 2, (width - size) // 2
