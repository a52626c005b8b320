"""Random rotation, against SciPy's interpolation and by its own symmetries."""

import numpy as np
import pytest
from scipy import ndimage

from labkit.data.augment import rotated
from labkit.data.hashes import augmentation_key, mixed_in, named_key

KEY = augmentation_key(3)


def angles_of(degrees, epoch, index):
    """Return the angles in radians, with the draws made anew: the upper 32 bits of a hash, of 4096 angles."""
    bits = mixed_in(mixed_in(named_key(KEY, "rotate"), epoch), index) >> np.uint64(32)
    number = (bits * np.uint64(4096) >> np.uint64(32)).astype(int)
    return np.radians(degrees) * ((2 * number + 1) / 4096 - 1)


@pytest.mark.parametrize("shape", [(32, 32, 3), (24, 17, 1)])
@pytest.mark.parametrize("degrees", [10.0, 90.0, 179.0])
def test_images_are_turned_as_by_another_implementation(shape, degrees):
    images = np.random.default_rng(0).integers(0, 256, (8, *shape)).astype(np.uint8)
    epoch, index = np.arange(8), np.arange(8) + 50
    found = rotated(images, degrees, key=KEY, epoch=epoch, index=index).astype(float)
    height, width = shape[:2]
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    for image, turned, angle in zip(images, found, angles_of(degrees, epoch, index), strict=True):
        sine, cosine = np.sin(angle), np.cos(angle)
        matrix = np.array([[cosine, -sine], [sine, cosine]])
        for channel in range(shape[2]):
            padded = np.pad(image[..., channel].astype(float), 2)  # black around it, also between two pixels
            wanted = ndimage.affine_transform(padded, matrix, middle + 2 - matrix @ (middle + 2), order=1)
            np.testing.assert_allclose(turned[..., channel], wanted[2:-2, 2:-2], atol=4.5)


def test_a_small_angle_leaves_the_middle_and_angles_are_uniform():
    image = np.zeros((1, 33, 33, 1), np.uint8)
    image[0, 16, 16] = 255
    turned = rotated(image, 179.0, key=KEY, epoch=np.arange(1), index=np.arange(1))
    assert turned[0, 16, 16, 0] == 255
    angles = angles_of(30.0, np.zeros(4000, int), np.arange(4000))
    assert abs(angles.mean()) < 0.02 and np.abs(angles).max() > 0.52
    np.testing.assert_allclose(np.quantile(angles, 0.25), -np.radians(15), atol=0.03)
