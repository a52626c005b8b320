"""Write an exported file from a checkpoint, check it, and move it to its final path."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit.analysis.network import restored_network
from labkit.config.architectures import model_name
from labkit.data.manifest import Manifest
from labkit.data.network_input import network_input_of
from labkit.export.check import compare
from labkit.export.output import PIXELS, ExportRequest, ExportResult, folder_beside, publish
from labkit.export.standard import standard_model
from labkit.plurals import counted
from labkit.run_directory.reader import evaluations_beside, read_metrics
from labkit.training.checkpoints import CheckpointState
from labkit.version import VERSION


def write_export(request: ExportRequest, announce: Callable[[str], None]) -> ExportResult:
    """Write the file and its description, or neither if the requested check fails.

    Raises:
        InputError: the checkpoint does not exist, is damaged, or belongs to another data set.
    """
    network, state = restored_network(request.run, request.config, request.manifest, request.checkpoint)
    options = {"standardized_input": request.standardized_input, "probabilities": request.probabilities}
    model = standard_model(
        request.config.model, network, **options, holds_classes=request.format.name != "keras"
    )
    description = _describe(request, state)
    comparison = None
    with folder_beside(request.path) as folder:
        written = folder / request.path.name
        announce(f"writing {request.path}")
        request.format.write(model, request.output_name, written)
        if request.check:
            images = request.manifest.count("test")
            announce(f"comparing it with the run's network on {counted(images, 'test image')}")
            comparison = compare(request.format, written, network, **options)
            description["check"] = comparison.to_json()
        result = ExportResult(request.path, state.step, description, comparison)
        if result.written:
            publish(written, request.path, description)
    return result


def _describe(request: ExportRequest, state: CheckpointState) -> dict[str, Any]:
    """Return the description of an exported file: input, output, classes, and where it comes from."""
    manifest = request.manifest
    taken = network_input_of(request.config.data)
    is_standardized = request.standardized_input
    shape = taken.shape(manifest) if is_standardized else manifest.image_shape
    return {
        "file": request.path.name,
        "format": request.format.name,
        "model": model_name(request.config.model),
        "input": {
            "name": "images",
            "shape": [None, *shape],
            "dtype": "float32",
            "values": taken.in_words() if is_standardized else PIXELS,
            "channel_mean": list(manifest.channel_mean),
            "channel_std": list(manifest.channel_std),
            "resize": _resizing(manifest),
            "pictures": _fitting_in_words(manifest),
        },
        "output": {
            "name": request.output_name,
            "shape": [None, manifest.num_classes],
            "dtype": "float32",
            "targets": manifest.targets,
        },
        "classes": list(manifest.classes),
        "run": {
            "name": request.run.name,
            "step": state.step,
            "seed": state.seed,
            "replicas": state.num_replicas,
            "precision": request.config.model.precision,
            "loss": request.config.optimizer.loss,
            **_tested(request, state.step),
        },
        "data": {"dataset": manifest.dataset, "checksum": manifest.checksum},
        "versions": {"labkit": VERSION, "tensorflow": tf.__version__, "keras": keras.__version__},
    }


def _resizing(manifest: Manifest) -> dict[str, Any]:
    """Return how a picture of any size becomes an image of the data set, for programs.

    ``how``: ``crop`` or ``letterbox``. ``filter``: as Pillow calls it: the one that prepared the data set; of
    a data set that came as images, the one with which labkit reads pictures
    (``labkit.data.images.pictures``).
    ``white``: the value of 16-bit grey that becomes 255; None: that of all bits that a picture needs.
    """
    how = manifest.source.get("resize")
    height, width, _ = manifest.image_shape
    return {
        "how": how or "crop",
        "size": {"height": height, "width": width},
        "filter": "lanczos" if how is None else "bicubic",
        "white": manifest.source.get("white"),
    }


def _fitting_in_words(manifest: Manifest) -> str:
    """Return what makes a picture of any size an image of the data set."""
    height, width, channels = manifest.image_shape
    colours = "RGB" if channels == 3 else "grey"
    if white := manifest.source.get("white"):
        colours += f" with 8 bits (16-bit grey: {white} becomes 255)"
    if manifest.source.get("resize") == "letterbox":
        size = f"resize it to fit into {width}×{height} pixels, and fill the rest with black"
    else:
        size = (
            f"cut out its middle in the proportions {width}:{height}, resize that to {width}×{height} pixels"
        )
    named = _resizing(manifest)["filter"]
    return (
        f"turn the picture upright as its EXIF data ask for, convert it to {colours}, {size}; "
        f"resize with Pillow's filter {named.upper()}"
    )


def _tested(request: ExportRequest, step: int) -> dict[str, float | None]:
    """Return ``test_accuracy`` with the weights of ``step``, None if it was not evaluated; or of numbers
    ``test_mean_absolute_error``."""
    name = "mean_absolute_error" if request.manifest.targets == "numbers" else "accuracy"
    reader = read_metrics(request.run)
    evaluations = [*reader.evaluations, *evaluations_beside(reader)]
    tests = (row for row in evaluations if row["split"] == "test")
    return {f"test_{name}": next((row.get(name) for row in tests if row.get("step") == step), None)}
