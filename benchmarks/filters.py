"""For which convolutions is the gradient of the filters faster by matrix products than by oneDNN's operation?

3 x 3 filters with as many input as output channels, on a batch that stays in memory; both ways take turns in
one process. `labkit.models.convolution` has the rule that follows from this.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.common import add_precisions_flag, at_least, make_parser, take_turns
from benchmarks.report import Figure, Report, ratios
from labkit.models.convolution import filter_gradient

SIZE = (3, 3)
TURN_SECONDS = 0.3
# Side in pixels and channels: of ResNet-20, of the fast net as its images grow, and of VGG and wide networks.
SHAPES = ((32, 16), (16, 32), (8, 64), (8, 128), (8, 256), (7, 256), (5, 256), (4, 512), (3, 256), (2, 512))


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.add_argument("--batch-size", type=at_least(1), default=256, help="images")
    add_precisions_flag(parser, help="precisions of the operands")
    options = parser.parse_args(arguments)
    report = Report("filters", __doc__, vars(options))
    rows = []
    for precision in options.precisions:
        for side, channels in SHAPES:
            name = f"{precision}: {side} x {side} pixels, {channels} channels"
            rows.append(Figure(name, "x", speed_up(options, precision, side, channels)))
            print(f"{name}: {rows[-1].median:.2f} x", flush=True)
    report.finish(rows, options.output)


def speed_up(options: Any, precision: str, side: int, channels: int) -> tuple[float, ...]:
    """Return the seconds of oneDNN's operation over those of matrix products, for each repeat."""
    dtype = tf.bfloat16 if precision == "mixed_bfloat16" else tf.float32
    generator = tf.random.Generator.from_seed(0)
    shape = [options.batch_size, side, side, channels]
    images, upstream = (tf.cast(generator.normal(shape), dtype) for _ in range(2))

    @tf.function
    def operation():
        return tf.raw_ops.Conv2DBackpropFilter(
            input=images,
            filter_sizes=[*SIZE, channels, channels],
            out_backprop=upstream,
            strides=[1, 1, 1, 1],
            padding="SAME",
        )

    @tf.function
    def products():
        return filter_gradient(images, upstream, SIZE)

    ways = {"operation": operation, "products": products}
    count = max(1, round(TURN_SECONDS / max(seconds_of(way, 1) for way in ways.values())))
    turns = {name: functools.partial(seconds_of, way, count) for name, way in ways.items()}
    spent = take_turns(turns, options.repeats, "{:.3f} s".format)
    return ratios(spent["operation"], spent["products"])


def seconds_of(way: Callable[[], tf.Tensor], count: int) -> float:
    """Return the seconds of ``count`` calls, after one that isn't measured."""
    way().numpy()
    started = time.perf_counter()
    for _ in range(count):
        way().numpy()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
