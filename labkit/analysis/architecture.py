"""A model in numbers: its stages (resolution, layers, parameters, multiply-adds), its receptive field, and
the floating-point operations of a training step beside those that the machine reaches.
"""

import itertools
import math
import re
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.models.variants import calls_of, with_image_size
from labkit.startup.tf_compat import all_layers
from labkit.tables import html_table, text_table


def training_flops(model: keras.Model, frozen: Collection[str] = (), *, image_size: int | None = None) -> int:
    """Return the floating-point operations per image of a training step, in convolutions and dense layers.

    A multiply-add counts as two operations. A layer performs its multiply-adds once in the forward pass, once
    for the gradient of its kernel if the kernel is trained, and once for the gradient of its inputs if an
    earlier layer is trained (so never in the first layer). Everything else (normalization, activations,
    pooling, the optimizer's update) counts as zero, though it takes time.

    Args:
        model: functional, in either data format; each layer is called once and has one output.
        frozen: names of layers that aren't trained.
        image_size: side of the images in pixels; None: the size that the model was built for.
    """
    total = 0
    counted = _counted(model, image_size)
    trained: set[int] = set()  # tensors that depend on trained weights
    calls = calls_of(model, image_size)  # keeps the tensors, and so their ids
    for operation, inputs, output in calls:
        before = any(id(tensor) in trained for tensor in inputs)
        for layer, forward in counted.get(operation.name, ()):
            learns = bool(layer.trainable_weights) and not {layer.name, operation.name} & set(frozen)
            has_kernel = any(kernel.trainable for kernel in _kernels(layer))
            total += 2 * forward * (1 + (learns and has_kernel) + before)
            before = before or learns
        if before:
            trained.add(id(output))
    return total


def _counted(model: keras.Model, image_size: int | None = None) -> dict[str, list[tuple[Any, int]]]:
    """Return the layers with weights of each operation, in the order of their calls, by the operation's name.

    Each is with its multiply-adds for one image. Layers inside of other layers and models count as well.
    """
    inside = {operation.name: _inside(operation) for operation in model.operations}
    if all(len(layers) == 1 and layers[0].name == name for name, layers in inside.items() if layers):
        calls = [] if image_size is None else calls_of(model, image_size)
        shapes = {call[0].name: _positions(call[0], call[1][0], call[2]).shape for call in calls}
        return {
            name: [(layer, multiply_adds(layer, shapes.get(name)))]
            for name, layers in inside.items()
            for layer in layers
        }
    owners = {id(layer): name for name, layers in inside.items() for layer in layers}
    found: dict[str, list[tuple[Any, int]]] = {}
    for layer, shape in _traced_calls(model, [*itertools.chain(*inside.values())], image_size):
        found.setdefault(owners[id(layer)], []).append((layer, multiply_adds(layer, shape)))
    return found


def _inside(operation: Any) -> list[Any]:
    """Return an operation's layers with weights of their own: itself, or those that it is made of."""
    if not getattr(operation, "weights", None):
        return []
    layers = [layer for layer in all_layers(operation) if layer.weights]
    outer = {id(layer) for layer in layers if any(inner.weights for inner in all_layers(layer)[1:])}
    return [layer for layer in layers if id(layer) not in outer]


def _traced_calls(model: keras.Model, layers: list[Any], image_size: int | None) -> list[tuple[Any, Any]]:
    """Return the calls of layers anywhere in a model, with the shapes of their ``_positions``."""
    found: list[tuple[Any, Any]] = []

    def watched(layer: Any) -> Callable[..., Any]:
        call = layer.call

        def recorded(*arguments: Any, **options: Any) -> Any:
            output = call(*arguments, **options)
            taken = keras.tree.flatten((arguments, options))[0]
            found.append((layer, _positions(layer, taken, output).shape))
            return output

        return recorded

    sized = model if image_size is None else with_image_size(model, image_size)
    images = tf.TensorSpec((1, *sized.input_shape[1:]), sized.inputs[0].dtype)
    for layer in layers:
        layer.call = watched(layer)
    try:
        tf.function(lambda pixels: sized(pixels, training=False)).get_concrete_function(images)
    finally:
        for layer in layers:
            del layer.call
    return found


def multiply_adds(layer: Any, shape: Sequence[int] | None = None) -> int:
    """Return the multiply-adds of a layer's forward pass for one image; 0 if it has no kernel.

    Each weight of the kernel is used once at each position of the output, or of a transposed convolution's
    input. A factor for each channel adds nothing, so it counts as none.

    Args:
        layer: with one output, in either data format.
        shape: of the batch with these positions; None: that of the layer's first call.
    """
    weights = sum(math.prod(kernel.shape) for kernel in _kernels(layer))
    if not weights:
        return 0
    shape = (_positions(layer, layer.input, layer.output).shape if shape is None else shape)[1:]
    if isinstance(layer, keras.layers.EinsumDense):  # as in attention: several of its axes may be channels
        _, letters, given = re.split(",|->", layer.equation)
        axes = zip(letters, layer.kernel.shape, strict=True)
        return weights * math.prod(shape) // math.prod(size for letter, size in axes if letter in given)
    channels_first = getattr(layer, "data_format", "channels_last") == "channels_first"
    return weights * math.prod(shape[1:] if channels_first else shape[:-1])


def _positions(layer: Any, taken: Any, given: Any) -> Any:
    """Return the tensor, of a layer's input and output, at whose positions its kernel is used."""
    return taken if isinstance(layer, keras.layers.Conv1DTranspose | keras.layers.Conv2DTranspose) else given


def _kernels(layer: Any) -> list[Any]:
    """Return a layer's kernel, or the two of a separable convolution; none of a factor for each channel."""
    names = ("kernel", "depthwise_kernel", "pointwise_kernel")
    kernels = [getattr(layer, name, None) for name in names]
    return [kernel for kernel in kernels if kernel is not None and len(kernel.shape) > 1]


def matrix_product(
    size: int, precision: str, device: str = "/cpu:0", at_once: int = 1
) -> Callable[[], float]:
    """Return a function that multiplies pairs of square matrices once and returns the GFLOP/s reached.

    Args:
        size: rows and columns of the matrices; a product takes 2 size³ operations.
        precision: ``float32``, ``float64`` or ``mixed_bfloat16``, as in ``--precision``.
        device: TensorFlow's name of the device that computes.
        at_once: number of pairs.
    """
    dtype = tf.bfloat16 if precision == "mixed_bfloat16" else tf.as_dtype(precision)
    with tf.device(device):
        matrices = [
            tf.cast(tf.random.stateless_normal([size, size], [number, 0]), dtype)
            for number in range(2 * at_once)
        ]

    @tf.function(autograph=False)
    def multiply(*factors):
        # Fetching one element is enough to wait for the whole product.
        pairs = zip(factors[::2], factors[1::2], strict=True)
        return tf.add_n([tf.linalg.matmul(first, second)[:1, :1] for first, second in pairs])

    def measure() -> float:
        started = time.perf_counter()
        with tf.device(device):
            multiply(*matrices).numpy()
        return 2 * at_once * size**3 / (time.perf_counter() - started) / 1e9

    measure()  # the first call traces the function
    return measure


def ceiling(
    precision: str,
    *,
    sizes: tuple[int, ...] = (1024, 2048),
    seconds: float = 0.7,
    least_repeats: int = 3,
    device: str = "/cpu:0",
    at_once: int = 1,
) -> float:
    """Return the peak GFLOP/s of large matrix products: the median of each size, and the best of these.

    Args:
        precision: see ``matrix_product``.
        sizes: rows and columns of the matrices to try.
        seconds: how long to repeat each size.
        least_repeats: the smallest number of repeats of each size.
        device, at_once: see ``matrix_product``.
    """
    medians = []
    for size in sizes:
        measure = matrix_product(size, precision, device, at_once)
        rates: list[float] = []
        end = time.perf_counter() + seconds
        while len(rates) < least_repeats or time.perf_counter() < end:
            rates.append(measure())
        medians.append(statistics.median(rates))
    return max(medians)


@dataclass(frozen=True)
class Stage:
    """Consecutive layers with weights whose outputs have the same resolution.

    ``resolution``: (height, width) of the outputs; empty for layers after the global pooling.
    ``channels``: of the last layer's output. ``layers``: number of convolutions and dense layers.
    ``parameters``: number of trainable weights. ``multiply_adds``: of one image's forward pass, in
    convolutions and dense layers.
    """

    resolution: tuple[int, ...]
    channels: int
    layers: int
    parameters: int
    multiply_adds: int

    @property
    def name(self) -> str:
        if self.resolution:
            return "×".join(map(str, self.resolution))
        return "logits" if self.layers == 1 else "dense"


@dataclass(frozen=True)
class ModelSummary:
    """A model by stages. A notebook displays it as a table."""

    name: str
    stages: tuple[Stage, ...]

    @property
    def parameters(self) -> int:
        return sum(stage.parameters for stage in self.stages)

    @property
    def multiply_adds(self) -> int:
        return sum(stage.multiply_adds for stage in self.stages)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [
            (stage.name, str(stage.channels), str(stage.layers), f"{stage.parameters:,}", _millions(stage))
            for stage in self.stages
        ]
        layers = sum(stage.layers for stage in self.stages)
        return [*rows, ("total", "", str(layers), f"{self.parameters:,}", _millions(self))]

    def __str__(self) -> str:
        return f"{self.name}\n{text_table([HEADER, *self._rows()], left_columns=0)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        *stages, total = self._rows()
        return html_table(HEADER, stages, caption=self.name, footer=total)


HEADER = ("stage", "channels", "layers", "parameters", "multiply-adds")


def _millions(part: Stage | ModelSummary) -> str:
    return f"{part.multiply_adds / 1e6:.2f} M"


def summarize(model: keras.Model) -> ModelSummary:
    """Summarize ``model`` by stages. A new stage begins at each layer with weights of another resolution.

    Dense layers between convolutions, as in squeeze and excitation, belong to the surrounding stage.

    Args:
        model: functional, channels last; each layer has one output.
    """
    layers: list[Stage] = []
    counted, calls = _counted(model), calls_of(model)
    last_spatial = max((index for index, call in enumerate(calls) if len(call[2].shape) > 2), default=-1)
    for index, (operation, _, output) in enumerate(calls):
        inside = counted.get(operation.name)
        if not inside:
            continue
        *resolution, channels = output.shape[1:]
        if not resolution and index < last_spatial:
            resolution, channels = list(layers[-1].resolution), layers[-1].channels
        costs = [cost for _, cost in inside if cost]
        parameters = sum(math.prod(weight.shape) for weight in operation.trainable_weights)
        layers.append(Stage(tuple(resolution), channels, len(costs), parameters, sum(costs)))
    stages = []
    for resolution, group in itertools.groupby(layers, lambda layer: layer.resolution):
        _, channels, *counts = zip(*map(astuple, group), strict=True)
        stages.append(Stage(resolution, channels[-1], *map(sum, counts)))
    return ModelSummary(model.name, tuple(stages))


def receptive_field(model: keras.Model) -> tuple[int, int]:
    """Return the (height, width) in pixels that one output position of the last convolution or pool sees.

    A window of k positions that are s pixels apart adds (k - 1) * s (Araujo et al., "Computing Receptive
    Fields of Convolutional Neural Networks", 2019). Where several paths meet, the widest counts. Outputs of a
    global average or a dense layer, such as the factors of squeeze and excitation, depend on the whole image
    and aren't counted. The image's border isn't considered, so the field may be larger than the image.

    Args:
        model: functional, in either data format; each layer is called once and has one output.

    Raises ValueError for a network with windows inside of a layer or model within it.
    """
    fields: dict[int, np.ndarray | None] = {}  # of each tensor: int [(size, spacing), (height, width)]
    widest, of_images = np.ones(2, int), np.ones((2, 2), int)
    calls = calls_of(model)  # keeps the tensors, and so their ids
    for operation, inputs, output in calls:
        known = [found for tensor in inputs if (found := fields.get(id(tensor), of_images)) is not None]
        field = None
        if known and not isinstance(operation, _NOT_SPATIAL):
            inner = all_layers(operation)[1:] if isinstance(operation, keras.Layer) else []
            if any(hasattr(layer, name) for layer in inner for name in ("kernel_size", "pool_size")):
                raise ValueError(f"{operation.name} has convolutions or pools inside")
            window, stride = _window(operation)
            size, spacing = np.max(known, axis=0)
            field = np.stack([size + (window - 1) * spacing, spacing * stride])
            widest = np.maximum(widest, field[0])
        fields[id(output)] = field
    height, width = widest.tolist()
    return height, width


# The outputs of these layers have no spatial positions.
_NOT_SPATIAL = (
    keras.layers.Flatten,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.GlobalMaxPooling2D,
)


def _window(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the size and stride, int [2] each, of a convolution's or pool's window; 1 for other layers."""
    size = getattr(layer, "kernel_size", getattr(layer, "pool_size", None))
    if size is None:
        return np.ones(2, int), np.ones(2, int)
    dilation = np.asarray(getattr(layer, "dilation_rate", 1))
    return (np.asarray(size) - 1) * dilation + 1, np.asarray(layer.strides)
