"""``labkit models``: what networks there are, how large they are, and what they are known for."""

import contextlib
import dataclasses
import sys
import textwrap
from json import dumps
from typing import Any

from labkit.commands.flags import LocalPath
from labkit.config import Config, ModelConfig, TransferConfig
from labkit.config.architectures import ARCHITECTURES, architecture_of, parse_model_name, published_for
from labkit.config.fields import CODE
from labkit.config.known_models import KNOWN_MODELS, KnownModel
from labkit.errors import InputError
from labkit.models.weight_source import WeightSource, find_weight_source
from labkit.parts.code import allow, named_object, with_whole_paths
from labkit.parts.trust import files_of
from labkit.startup.quiet_import import import_without_gpus
from labkit.tables import print_table

NOTES = (
    "Multiply-adds are those of one image's forward pass, in convolutions and dense layers. The receptive "
    "field is the part of the image that one place of the last convolution or pool depends on. Accuracies "
    "are published ones, each reached with a recipe of its own: on CIFAR-10's test images, or on one crop of "
    "each of ImageNet's validation images:"
)


def models(
    name: str | None = None,
    /,
    *,
    model_arguments: str | None = None,
    start_from: LocalPath | None = None,
    name_map: LocalPath | None = None,
    json: bool = False,
) -> int:
    """Print the known models, or one by stages. Raises InputError for an unknown name.

    Args:
        name: Shows this network stage by stage, such as resnet26 or wide_resnet22_2; it is built for that.
            FILE.py:NAME shows one of your own.
        model_arguments: Further arguments of your own network, such as width=64, as for labkit train.
        start_from: Shows which weight of this file, or of imagenet, becomes which of the network.
        name_map: File that says which weights of --start-from are which, as for labkit train.
        json: Prints JSON, for programs.
    """
    if name is None and (start_from or name_map or model_arguments):
        raise InputError(
            "--model-arguments, --start-from and --name-map need a network; name it first, such as resnet20"
        )
    if name is None:
        described = [_listed(model) for model in KNOWN_MODELS]
        if json:
            print(dumps(described, indent=2))
        else:
            _print_table(described)
        return 0
    config = _config(name, model_arguments)  # fails before TensorFlow loads
    start = TransferConfig(start_from, name_map)
    source = None if start.start_from is None else find_weight_source(start.start_from, config)
    if source is not None and source.kind == "run":
        raise InputError(f"--start-from is {start.start_from!r}, a run; give a file of weights, or imagenet")
    allow(files_of(Config(model=config)))
    print(f"building {name} with TensorFlow, which takes some seconds to load", file=sys.stderr)
    import_without_gpus()
    if source is not None:
        _print_transfer(source, Config(model=config, transfer=start), json)
        return 0
    built = _built(name, config)
    if json:
        print(dumps(built, indent=2))
    else:
        _print_one(built)
    return 0


def _config(name: str, arguments: str | None) -> ModelConfig:
    """Return the network of a name, or one's own, ``FILE.py:NAME``. Raises InputError."""
    named: dict[str, Any] = {"model": name} if CODE.fullmatch(name) else parse_model_name(name)
    return with_whole_paths(Config(model=ModelConfig(**named, model_arguments=arguments))).model


def _facts(name: str) -> dict[str, Any]:
    """Return what is known of a model without building it; None is unknown."""
    config = {"model": name} if CODE.fullmatch(name) else parse_model_name(name)
    architecture = architecture_of(config["model"])
    published = published_for(config["model"], config.get("application", ""))
    known = next((model for model in KNOWN_MODELS if model.name == name), None)
    return {
        "name": name,
        "summary": architecture.summary,
        "paper": architecture.paper,
        "config": config,
        "data_set": published.data_set,
        "image_shape": list(published.image_shape),
        "num_classes": published.num_classes,
        "accuracy": known.accuracy if known else None,
        "accuracy_source": known.source if known and known.source else None,
    }


def _listed(known: KnownModel) -> dict[str, Any]:
    """Return a known model with the counts that are kept for it."""
    return {
        **_facts(known.name),
        "parameters": known.parameters,
        "multiply_adds": known.multiply_adds,
        "receptive_field": [known.receptive_field, known.receptive_field],
    }


def _built(name: str, config: ModelConfig) -> dict[str, Any]:
    """Build a model and return it with its counts and stages."""
    from labkit.analysis.architecture import receptive_field, summarize

    model = _without_values(config)
    summary, field = summarize(model), None
    with contextlib.suppress(ValueError):
        field = list(receptive_field(model))
    return {
        **_facts(name),
        "arguments": config.model_arguments,
        "parameters": summary.parameters,
        "multiply_adds": summary.multiply_adds,
        "receptive_field": field,
        "stages": [dataclasses.asdict(stage) for stage in summary.stages],
    }


def _without_values(config: ModelConfig, num_classes: int = 0) -> Any:
    """Return the network for the images and classes that it was published for; its weights have shapes.

    ``num_classes``: above 0, for another number of classes.
    """
    from labkit.models.registry import build_model
    from labkit.startup.tf_compat import without_values

    published = published_for(config.model, config.application)
    if CODE.fullmatch(config.model) and not config.model.endswith(".keras"):
        named_object("--model", config.model)  # loads the file: what it makes beside the network needs values
    with without_values():
        number = num_classes or published.num_classes
        return build_model(config, num_classes=number, image_shape=published.image_shape)


def _print_transfer(source: WeightSource, config: Config, as_json: bool) -> None:
    """Print which weight of a source becomes which of a network."""
    from labkit.models.initial_weights import read_weights
    from labkit.models.weight_names import transfer_to

    published = published_for(config.model.model, config.model.application)
    weights = read_weights(source, config.model, published.image_shape)
    classes = weights.classes or ()  # the table is of a training with the same
    transfer = transfer_to(_without_values(config.model, len(classes)), weights, config, classes)
    if as_json:
        print(dumps(transfer.to_json(), indent=2))
        return
    print_table(("in the source", "in the network", ""), transfer.rows())
    print(f"\n{transfer.lines()[0]}")
    said = f"the {len(classes)} classes of the file" if classes else f"{published.num_classes:,} classes"
    print(
        f"for images of {_size(list(published.image_shape))} and {said}; with others, the head, or a layer "
        "behind a Flatten, may be of another shape"
    )


def _print_table(described: list[dict[str, Any]]) -> None:
    sources = list(dict.fromkeys(model["accuracy_source"] for model in described if model["accuracy_source"]))
    header = ("model", "parameters", "multiply-adds", "receptive field", "accuracy")
    for published in dict.fromkeys(architecture.published for architecture in ARCHITECTURES.values()):
        rows = []
        for model in described:
            source = model["accuracy_source"]
            if model["data_set"] != published.data_set:
                continue
            rows.append(
                (
                    model["name"],
                    _millions(model["parameters"]),
                    _millions(model["multiply_adds"]),
                    _size(model["receptive_field"]),
                    _percent(model["accuracy"]) + (f" ({sources.index(source) + 1})" if source else ""),
                )
            )
        size = _size(list(published.image_shape))
        print(f"{published.data_set}'s {size} images of {published.num_classes:,} classes")
        print_table(header, rows, right=header[1:])
        print()
    print(textwrap.fill(NOTES, 100))
    for number, source in enumerate(sources, start=1):
        print(f"({number}) {source}")


def _print_one(model: dict[str, Any]) -> None:
    from labkit.analysis.architecture import ModelSummary, Stage

    stages = tuple(Stage(**{**stage, "resolution": tuple(stage["resolution"])}) for stage in model["stages"])
    source = f" ({model['accuracy_source']})" if model["accuracy_source"] else ""
    print("\n".join(filter(None, (model["summary"], model["paper"]))) + "\n")
    called = f" with {model['arguments']}" if model["arguments"] else ""
    images = f"{_size(model['image_shape'])} images of {model['num_classes']:,} classes"
    print(ModelSummary(f"{model['name']}{called}, {images}", stages))
    field = model["receptive_field"]
    unknown = "unknown: a layer or model within the network has convolutions or pools inside"
    print(f"\nreceptive field {f'{_size(field)} pixels' if field else unknown}")
    if model["accuracy"] is not None:
        print(f"published accuracy on {model['data_set']} {_percent(model['accuracy'])}{source}")


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"


def _size(lengths: list[int]) -> str:
    return "×".join(map(str, lengths))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
