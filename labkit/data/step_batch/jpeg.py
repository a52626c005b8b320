"""Decode the JPEGs of records without TensorFlow, to the same pixels."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["decoded"]


def decoded(content: bytes, image_shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return a JPEG's pixels, uint8 ``image_shape``.

    Pillow and TensorFlow both decode with libjpeg-turbo and its exact transform. Of images that have each
    colour for each pixel (4:4:4), as records do, the results are equal.

    Raises ValueError if it is broken, or has another shape.
    """
    mode = "RGB" if image_shape[2] == 3 else "L"
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as opened:
            image = np.asarray(opened.convert(mode), np.uint8).reshape(opened.height, opened.width, -1)
    # What Pillow raises for a broken file isn't limited to OSError.
    except (OSError, ValueError, SyntaxError, TypeError, EOFError, LookupError, ArithmeticError) as error:
        raise ValueError(f"the JPEG of a record is broken: {error}") from None
    if image.shape != tuple(image_shape):
        raise ValueError(f"the JPEG of a record has the shape {image.shape} instead of {tuple(image_shape)}")
    return image
