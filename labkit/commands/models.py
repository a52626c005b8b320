"""``labkit models``: what networks there are, how large they are, and what they are known for."""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import Any

from labkit.commands.command import Command
from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES, KNOWN_MODELS, parse_model_name
from labkit.quiet_import import import_tensorflow

__all__ = ["COMMAND"]

# Those of CIFAR-10; the embedded shapes have the same.
IMAGE_SHAPE = (32, 32, 3)
NUM_CLASSES = 10

NOTES = (
    "Built for 32×32×3 images of 10 classes. Multiply-adds: of one image's forward pass, in convolutions and "
    "dense layers. Receptive field: pixels that one place of the last convolution or pool depends on. "
    "Accuracy: published, on CIFAR-10's test images, each by a recipe of its own:"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit models``."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="this one by stages, such as resnet26 or wide_resnet22_2"
    )
    parser.add_argument("--json", action="store_true", help="for programs: the same as JSON")


def _run(options: argparse.Namespace) -> int:
    """Print the known models, or one by stages. Raises InputError for an unknown name."""
    names = [model.name for model in KNOWN_MODELS] if options.name is None else [options.name]
    configs = {name: ModelConfig(**parse_model_name(name)) for name in names}  # fails before TensorFlow loads
    _import_without_gpus()
    described = [_describe(name, configs[name]) for name in _shown(names)]
    if options.json:
        print(json.dumps(described if options.name is None else described[0], indent=2))
    elif options.name is None:
        _print_table(described)
    else:
        _print_one(described[0])
    return 0


def _shown(names: list[str]) -> Iterable[str]:
    """Return ``names`` with a bar on a terminal: building all of them takes a while."""
    from rich.console import Console
    from rich.progress import track

    disable = not sys.stderr.isatty() or len(names) == 1
    return track(names, "building", console=Console(stderr=True), transient=True, disable=disable)


def _import_without_gpus() -> None:
    """Counting needs no GPU, and TensorFlow would take all of its memory."""
    import_tensorflow()
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # where TensorFlow runs already, it has them
        tf.config.set_visible_devices([], "GPU")


def _describe(name: str, config: ModelConfig) -> dict[str, Any]:
    """Build a model and return what is known of it; shares are from 0 to 1, None is unknown."""
    from labkit.analysis.architecture import receptive_field, summarize
    from labkit.models.registry import build_model

    architecture = ARCHITECTURES[config.model]
    known = next((model for model in KNOWN_MODELS if model.name == name), None)
    model = build_model(config, num_classes=NUM_CLASSES, image_shape=IMAGE_SHAPE)
    summary = summarize(model)
    return {
        "name": name,
        "summary": architecture.summary,
        "paper": architecture.paper,
        "config": parse_model_name(name),
        "image_shape": list(IMAGE_SHAPE),
        "num_classes": NUM_CLASSES,
        "parameters": summary.parameters,
        "multiply_adds": summary.multiply_adds,
        "receptive_field": list(receptive_field(model)),
        "accuracy": known.accuracy if known else None,
        "accuracy_source": known.source if known and known.source else None,
        "stages": [dataclasses.asdict(stage) for stage in summary.stages],
    }


def _print_table(described: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    sources = list(dict.fromkeys(model["accuracy_source"] for model in described if model["accuracy_source"]))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    for column in ("parameters", "multiply-adds", "receptive field", "accuracy"):
        table.add_column(column, justify="right")
    for model in described:
        source = model["accuracy_source"]
        table.add_row(
            model["name"],
            _millions(model["parameters"]),
            _millions(model["multiply_adds"]),
            _size(model["receptive_field"]),
            _percent(model["accuracy"]) + (f" ({sources.index(source) + 1})" if source else ""),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(NOTES)
    for number, source in enumerate(sources, start=1):
        console.print(f"({number}) {source}")


def _print_one(model: dict[str, Any]) -> None:
    from labkit.analysis.architecture import ModelSummary, Stage

    stages = tuple(Stage(**{**stage, "resolution": tuple(stage["resolution"])}) for stage in model["stages"])
    source = f" ({model['accuracy_source']})" if model["accuracy_source"] else ""
    print(f"{model['summary']}\n{model['paper']}\n")
    print(ModelSummary(f"{model['name']}, {_size(model['image_shape'])} images", stages))
    print(f"\nreceptive field {_size(model['receptive_field'])} pixels")
    print(f"published accuracy on CIFAR-10 {_percent(model['accuracy'])}{source}")


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"


def _size(lengths: list[int]) -> str:
    return "×".join(map(str, lengths))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


COMMAND = Command("models", "List the networks, or show one by stages.", _add_arguments, _run)
