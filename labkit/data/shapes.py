"""The generated data sets: 32×32 colour images in CIFAR-10's layout.

They replace CIFAR-10 when there is neither a network nor an archive. Colours, position, size, rotation,
background, clutter and noise are random in every image, so single pixels tell almost nothing about the class:
softmax regression on the pixels stays below 60 % test accuracy. A small convolutional network, which sees
edges and their arrangement, exceeds 90 %.

In ``shapes`` an image shows one of ten shapes. In ``shapes_multilabel`` it shows one to three different
shapes, smaller and each in its own quadrant, and is labelled with all of them. ``shapes_size`` has the images
of ``shapes``, labelled with the radius of the shape in pixels, a number from 8 to 12.5.

One seed gives the same bytes on every machine: pixels are computed only by IEEE-exact operations on float32
(+, −, ×, ÷, square root, comparison), and sines are computed in float64 and then rounded.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkit.config.data_sets import Targets
from labkit.data.subset import ImageData

DEFAULT_TRAIN_COUNT = 10_000
DEFAULT_TEST_COUNT = 2_000
DEFAULT_SEED = 0
_SIZE = 32
_CHUNK = 250  # 250 × 1024 float32 values fit into a second-level cache
_CLUTTER = 3
_MAX_SHAPES = 3

Array = np.ndarray


def _triangle(u: Array, v: Array) -> Array:
    half_root_3 = np.float32(0.8660254)
    slanted = np.abs(u) * half_root_3 + v * np.float32(0.5)
    return np.maximum(slanted, -v) - np.float32(0.48)


def _cross(u: Array, v: Array) -> Array:
    long, wide = np.float32(0.92), np.float32(0.26)
    a, b = np.abs(u), np.abs(v)
    return np.minimum(np.maximum(a - long, b - wide), np.maximum(a - wide, b - long))


def _crescent(u: Array, v: Array) -> Array:
    shifted = u - np.float32(0.5)
    bite = np.float32(0.7) - np.sqrt(shifted * shifted + v * v)
    return np.maximum(np.sqrt(u * u + v * v) - np.float32(0.92), bite)


def _bars(u: Array, v: Array) -> Array:
    a = np.abs(u)
    across = np.minimum(a, np.abs(a - np.float32(0.64))) - np.float32(0.17)
    return np.maximum(across, np.abs(v) - np.float32(0.8))


# Each function returns the signed distance to the outline (negative inside) in units of the shape's radius.
_OUTLINES: dict[str, Callable[[Array, Array], Array]] = {
    "disc": lambda u, v: np.sqrt(u * u + v * v) - np.float32(0.85),
    "ring": lambda u, v: np.abs(np.sqrt(u * u + v * v) - np.float32(0.72)) - np.float32(0.2),
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) - np.float32(0.74),
    "frame": lambda u, v: np.abs(np.maximum(np.abs(u), np.abs(v)) - np.float32(0.65)) - np.float32(0.17),
    "triangle": _triangle,
    "star": lambda u, v: np.minimum(_triangle(u, v), _triangle(u, -v)),
    "cross": _cross,
    "crescent": _crescent,
    "bars": _bars,
    "bowl": lambda u, v: np.maximum(np.sqrt(u * u + v * v) - np.float32(0.95), np.float32(-0.12) - v),
}
CLASSES: tuple[str, ...] = tuple(_OUTLINES)


def generate(
    seed: int = DEFAULT_SEED,
    train_count: int = DEFAULT_TRAIN_COUNT,
    test_count: int = DEFAULT_TEST_COUNT,
    *,
    targets: Targets = "class",
) -> ImageData:
    """Generate the training and test split from independent random streams.

    Args:
        seed: any non-negative integer.
        train_count: number of training images.
        test_count: number of test images.
        targets: ``class`` for ``shapes``, ``classes`` for ``shapes_multilabel``, ``numbers`` for
            ``shapes_size``, whose label is the radius of the shape in pixels.
    """
    train_images, train_labels = generate_split(seed, train_count, 0, targets=targets)
    test_images, test_labels = generate_split(seed, test_count, 1, targets=targets)
    names = ("radius",) if targets == "numbers" else CLASSES
    return ImageData(train_images, train_labels, test_images, test_labels, names, layout="generated")


def describe(data: ImageData) -> dict[str, Any]:
    """Return what a manifest records about the source."""
    digest = hashlib.sha256()
    for array in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        digest.update(array.tobytes())
    return {
        "kind": "generated",
        "location": "labkit.data.shapes",
        "sha256": digest.hexdigest(),
        "matches_published": None,
    }


def generate_split(seed: int, count: int, stream: int, *, targets: Targets = "class") -> tuple[Array, Array]:
    """Generate `count` images in random order, equally many of each class (±1).

    Args:
        seed: any non-negative integer; the same seed gives the same bytes.
        count: the number of images.
        stream: number of the random stream; another one for each split.
        targets: ``classes`` shows several shapes: one, two and three in equally many images (±1). ``numbers``
            shows those of ``class``.

    Returns:
        Images uint8 [count, 32, 32, 3] and labels: int32 [count], zeros and ones [count, 10] for `classes`,
        or radii in pixels, float32 [count, 1], for `numbers`.
    """
    images, labels, sizes = _generate(seed, count, stream, targets == "classes")
    return images, sizes[:, None] if targets == "numbers" else labels


def radii(seed: int, count: int, stream: int) -> Array:
    """Return the radius in pixels of the shape in each image that `generate_split` returns, float32 [count].

    The images are drawn again for it. Not for `multi_label`.
    """
    return _generate(seed, count, stream, False)[2]


def _generate(seed: int, count: int, stream: int, multi_label: bool) -> tuple[Array, Array, Array]:
    """Return images, labels and radii; the radii are zero for `multi_label`."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, stream))))
    order = np.argsort(generator.random(count), kind="stable")
    labels = (order % len(CLASSES)).astype(np.int32)
    if multi_label:
        drawn = np.argsort(generator.random((count, len(CLASSES))), axis=1, kind="stable")
        ranks = np.argsort(drawn, axis=1, kind="stable")
        labels = (ranks <= (order % _MAX_SHAPES)[:, None]).astype(np.int32)
    images, sizes = np.empty((count, _SIZE, _SIZE, 3), np.uint8), np.zeros(count, np.float32)
    for start in range(0, count, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        images[chunk], sizes[chunk] = draw(labels[chunk], generator)
    return images, labels, sizes


def draw(labels: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    """Draw one image per label or row of labels: background, clutter behind and in front of shapes, noise.

    Also returns the radius of the shape, float32 [n]; zeros where an image has several.
    """
    n = len(labels)
    slots = 1 if labels.ndim == 1 else _MAX_SHAPES
    base = generator.random((n, 1, 1, 3), np.float32)
    # Each channel of a shape differs from the background by 0.3 to 0.7 (modulo 1), so every shape is visible.
    difference = np.float32(0.3) + np.float32(0.4) * generator.random((slots, n, 1, 1, 3), np.float32)
    colours = (base + difference) % np.float32(1)
    canvas = base + _gradient(n, generator)
    for _ in range(_CLUTTER - 1):
        canvas = _blend(canvas, generator.random((n, 1, 1, 3), np.float32), _clutter(n, generator))
    sizes = np.zeros(n, np.float32)
    if slots == 1:
        coverage, sizes = _shape(labels, generator)
        shapes: Any = [coverage]
    else:
        shapes = _shapes_in_quadrants(labels, generator)
    for colour, shape in zip(colours, shapes, strict=True):
        canvas = _blend(canvas, colour, shape)
    canvas = _blend(canvas, generator.random((n, 1, 1, 3), np.float32), _clutter(n, generator))
    # The sum of four random bytes is exact and close to normally distributed; its standard deviation is 148.
    noise = generator.integers(0, 256, (n, _SIZE, _SIZE, 3, 4), np.uint8).sum(axis=-1, dtype=np.int32) - 510
    pixels = canvas * np.float32(255) + noise.astype(np.float32) * np.float32(0.06)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), sizes


def _blend(canvas: Array, colour: Array, coverage: Array) -> Array:
    return canvas + (colour - canvas) * coverage[..., None]


def _gradient(n: int, generator: np.random.Generator) -> Array:
    """Return a linear change of colour across the image, at most ±0.15 per channel in the corners."""
    ramp = (np.arange(_SIZE, dtype=np.float32) - np.float32(15.5)) / np.float32(15.5)
    slope = (generator.random((2, n, 1, 1, 3), np.float32) - np.float32(0.5)) * np.float32(0.15)
    return slope[0] * ramp[None, :, None, None] + slope[1] * ramp[None, None, :, None]


def _uniform(generator: np.random.Generator, n: int, low: float, high: float) -> Array:
    return (np.float32(low) + np.float32(high - low) * generator.random(n, np.float32))[:, None, None]


def _local_axes(
    n: int,
    generator: np.random.Generator,
    low: float,
    high: float,
    radius: Array,
    corner: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Return coordinates [n, 32, 32] in randomly rotated and centred frames, in units of `radius`.

    The centres are random in [low, high]² pixels, relative to `corner` (columns and rows, float32 [n]) or, if
    None, to the image's first pixel.
    """
    grid = np.arange(_SIZE, dtype=np.float32)
    dx = grid[None, None, :] - _uniform(generator, n, low, high)
    dy = grid[None, :, None] - _uniform(generator, n, low, high)
    if corner is not None:
        dx, dy = dx - corner[0][:, None, None], dy - corner[1][:, None, None]
    angle = 2 * np.pi * generator.random(n)
    cosine = np.cos(angle).astype(np.float32)[:, None, None] / radius
    sine = np.sin(angle).astype(np.float32)[:, None, None] / radius
    return dx * cosine + dy * sine, dy * cosine - dx * sine


def _shapes_in_quadrants(labels: Array, generator: np.random.Generator) -> Iterator[Array]:
    """Yield the coverage of each image's first, second and third shape, each in its own quadrant."""
    n, half = len(labels), _SIZE // 2
    quadrants = np.argsort(generator.random((n, 4)), axis=1, kind="stable")
    columns, rows = ((half * side).astype(np.float32) for side in (quadrants % 2, quadrants // 2))
    classes = np.argsort(-labels, axis=1, kind="stable")
    for slot in range(_MAX_SHAPES):
        shown = np.where(slot < labels.sum(axis=1), classes[:, slot], -1)
        yield _shape(shown, generator, (5.0, 7.0), (6.5, 8.5), (columns[:, slot], rows[:, slot]))[0]


def _shape(
    labels: Array,
    generator: np.random.Generator,
    radii: tuple[float, float] = (8.0, 12.5),
    centre: tuple[float, float] = (12.0, 19.0),
    corner: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Return the coverage [n, 32, 32] of each label's shape, anti-aliased over one pixel; 0 for label -1.

    Also returns the radii in pixels, float32 [n].
    """
    n = len(labels)
    radius = _uniform(generator, n, *radii)
    u, v = _local_axes(n, generator, *centre, radius, corner)
    distance = np.ones_like(u)
    for label, outline in enumerate(_OUTLINES.values()):
        rows = np.flatnonzero(labels == label)
        distance[rows] = outline(u[rows], v[rows])
    return np.clip(np.float32(0.5) - distance * radius, 0, 1), radius.ravel()


def _clutter(n: int, generator: np.random.Generator) -> Array:
    """Return the coverage [n, 32, 32] of one small bar or spot anywhere in each image."""
    ones = np.ones((n, 1, 1), np.float32)
    u, v = _local_axes(n, generator, 1.0, 30.0, ones)
    length, width = _uniform(generator, n, 0.8, 4.5), _uniform(generator, n, 0.5, 1.4)
    distance = np.maximum(np.abs(u) - length, np.abs(v) - width)
    return np.clip(np.float32(0.5) - distance, 0, 1)
