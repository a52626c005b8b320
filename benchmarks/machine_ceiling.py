"""How many GFLOP/s does a large matrix product reach here, in TensorFlow, NumPy and PyTorch?

Square matrices, with all libraries in turns in one process. The best result is the reference for a network's
GFLOP/s. If the libraries agree, it is a limit of the machine and not of a library.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

from benchmarks.common import (
    MISSING_TORCH,
    add_precisions_flag,
    at_least,
    make_parser,
    torch_is_installed,
)
from benchmarks.report import Figure, Report
from labkit.analysis.flops import matrix_product

QUESTION = "How many GFLOP/s does a large matrix product reach on this machine?"
NAMES = {"float32": "float32", "mixed_bfloat16": "bfloat16"}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.add_argument("--sizes", nargs="+", type=at_least(1), default=[2048, 4096], help="rows of a matrix")
    parser.add_argument(
        "--products",
        type=at_least(1),
        default=3,
        help="matrix products of each kind in a turn; the median counts",
    )
    add_precisions_flag(parser, help="precisions of the matrices")
    options = parser.parse_args(arguments)
    left_out = {} if torch_is_installed() else {"PyTorch": MISSING_TORCH}
    for name, reason in left_out.items():
        print(f"without {name}: {reason}", flush=True)
    report = Report("machine_ceiling", QUESTION, vars(options) | {"left_out": left_out})
    report.finish(figures(measure(options)), options.output)


def measure(options: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Return GFLOP/s by (precision, label of library and size), one value per repeat."""
    products: dict[tuple[str, str], Callable[[], float]] = {}
    for precision in options.precisions:
        for size in options.sizes:
            products[precision, f"TensorFlow, {size}"] = matrix_product(size, precision)
            if precision == "float32":  # NumPy has no bfloat16
                products[precision, f"NumPy, {size}"] = numpy_product(size)
            if torch_is_installed():
                products[precision, f"PyTorch, {size}"] = torch_product(size, precision)
    rates: dict[tuple[str, str], list[float]] = {kind: [] for kind in products}
    for repeat in range(options.repeats):
        for kind in list(products) if repeat % 2 == 0 else list(products)[::-1]:
            rates[kind].append(statistics.median(products[kind]() for _ in range(options.products)))
        line = "  ".join(f"{NAMES[kind[0]]} {kind[1]}: {values[-1]:.0f}" for kind, values in rates.items())
        print(f"repeat {repeat + 1}/{options.repeats}, GFLOP/s: {line}", flush=True)
    return rates


def numpy_product(size: int) -> Callable[[], float]:
    """Return a function that multiplies once with NumPy, in float32, and returns the GFLOP/s."""
    first, second = np.random.default_rng(0).normal(size=(2, size, size)).astype(np.float32)
    return _timed(size, lambda: np.matmul(first, second))


def torch_product(size: int, precision: str) -> Callable[[], float]:
    """Return a function that multiplies once with PyTorch and returns the GFLOP/s."""
    import torch

    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    first, second = torch.randn(2, size, size).to(dtype)
    return _timed(size, lambda: torch.matmul(first, second))


def _timed(size: int, multiply: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        multiply()
        return 2 * size**3 / (time.perf_counter() - started) / 1e9

    measure()  # allocates memory and starts threads
    return measure


def figures(rates: dict[tuple[str, str], list[float]]) -> list[Figure]:
    """Return each precision's ceiling (the kind with the best median), then every kind."""
    ceilings = []
    for precision in dict.fromkeys(kind[0] for kind in rates):
        best = max(
            (kind for kind in rates if kind[0] == precision), key=lambda kind: statistics.median(rates[kind])
        )
        ceilings.append(Figure(f"{NAMES[precision]} ceiling ({best[1]})", "GFLOP/s", tuple(rates[best])))
    kinds = [
        Figure(f"{NAMES[precision]}, {words}", "GFLOP/s", tuple(values))
        for (precision, words), values in rates.items()
    ]
    return ceilings + kinds


if __name__ == "__main__":
    main()
