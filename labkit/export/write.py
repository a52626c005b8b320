"""Write an exported file from a checkpoint, compare its outputs, read by a process without labkit, with those
of the run's own network, and move it to its final path.
"""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.analysis.network import Classifier, restored_network
from labkit.config.architectures import model_name
from labkit.data.manifest import Manifest
from labkit.data.network_input import network_input_of
from labkit.data.shards import load_split
from labkit.export import predict
from labkit.export.output import PIXELS, ExportRequest, ExportResult, Format, folder_beside, publish
from labkit.export.standard import standard_model
from labkit.plurals import counted
from labkit.run_directory.reader import evaluations_beside, read_metrics
from labkit.startup.child import python_command
from labkit.training.checkpoints import CheckpointState
from labkit.training.losses import SOFTMAX, Loss
from labkit.training.scores import right
from labkit.version import VERSION

TOLERANCE = 1e-5  # relative to the largest output; float32 rounding alone gave 3e-7 to 3e-6


@dataclass(frozen=True)
class Comparison:
    """The outputs of the exported file compared with those of the run's network for the same images.

    Args:
        examples: number of images.
        max_difference: the largest absolute difference between two outputs.
        scale: the largest absolute output of the run's network.
        equal_predictions: fraction of images with the same prediction, from 0 to 1; of numbers, those that
            differ by at most the tolerance.
        accuracy_exported, accuracy_run: accuracy of the file and of the run's network, from 0 to 1; None for
            numbers.
        mean_absolute_error_exported, mean_absolute_error_run: of numbers; None for classes.
    """

    examples: int
    max_difference: float
    scale: float
    equal_predictions: float
    accuracy_exported: float | None = None
    accuracy_run: float | None = None
    mean_absolute_error_exported: float | None = None
    mean_absolute_error_run: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the outputs differ by at most ``TOLERANCE`` times the scale; NaN never passes."""
        return self.max_difference <= TOLERANCE * self.scale

    def to_json(self) -> dict[str, Any]:
        """Return the metrics, the tolerance and whether the comparison passed."""
        return asdict(self) | {"tolerance": TOLERANCE, "passed": self.passed}


def compare_outputs(
    exported: np.ndarray,
    own: np.ndarray,
    labels: np.ndarray,
    *,
    loss: Loss = SOFTMAX,
    probabilities: bool = False,
) -> Comparison:
    """Compare two sets of outputs for the same n images.

    Args:
        exported: outputs of the exported file, float [n, num_classes].
        own: outputs of the run's network, float [n, num_classes].
        labels: int [n], zeros and ones [n, num_classes], or float [n, numbers].
        loss: the run's loss, which decides how outputs become predictions.
        probabilities: whether the outputs are probabilities rather than logits.
    """
    exported, own = exported.astype(np.float64), own.astype(np.float64)
    differences, scale = np.abs(exported - own), float(np.abs(own).max())
    found: dict[str, Any] = {
        "examples": len(labels),
        "max_difference": float(differences.max()),
        "scale": scale,
    }
    if loss.targets == "numbers":
        return Comparison(
            **found,
            equal_predictions=float((differences <= TOLERANCE * scale).all(axis=1).mean()),
            mean_absolute_error_exported=float(np.abs(exported - labels).mean()),
            mean_absolute_error_run=float(np.abs(own - labels).mean()),
        )
    # Probabilities minus 1/2 give the same predictions as logits: their signs and their argmax are the same.
    theirs, ours = (loss.predictions(outputs - probabilities / 2) for outputs in (exported, own))
    return Comparison(
        **found,
        equal_predictions=float(right(theirs, ours).mean()),
        accuracy_exported=float(right(theirs, labels).mean()),
        accuracy_run=float(right(ours, labels).mean()),
    )


def compare(
    format: Format, path: Path, network: Classifier, *, standardized_input: bool, probabilities: bool
) -> Comparison:
    """Compare the exported file ``path`` with the run's network on every test image, both on the CPU.

    Args:
        format: the file's format.
        path: the file.
        network: of the run.
        standardized_input: whether the exported network expects standardized images.
        probabilities: whether the exported network returns probabilities.

    Raises:
        InputError: the test images can't be read.
        RuntimeError: the exported file can't be read.
    """
    images, labels = load_split(network.manifest, "test")
    given_out = probabilities or network.loss.targets == "numbers"
    with tf.device("/cpu:0"):  # a GPU may round the factors of float32 products to 10 bits
        own = network.probabilities(images) if given_out else network.logits(images)
    given = network.inputs(images).numpy() if standardized_input else images
    outputs = predict_without_labkit(format, path, given)
    return compare_outputs(outputs, own, labels, loss=network.loss, probabilities=probabilities)


def predict_without_labkit(format: Format, path: Path, images: np.ndarray) -> np.ndarray:
    """Return the outputs of an exported file, computed by a separate process that can't import labkit.

    Raises:
        RuntimeError: the process fails; the message contains the end of its error output.
    """
    with tempfile.TemporaryDirectory() as folder:
        images_path, outputs_path = Path(folder, "images.npy"), Path(folder, "outputs.npy")
        np.save(images_path, images)
        command = python_command(predict.__file__, format.name, path, images_path, outputs_path)
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"{path.name} can't be read without labkit: {process.stderr[-2000:]}")
        return np.load(outputs_path)


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
        "turn the picture upright as its EXIF data ask for, put it on white where it is transparent, "
        f"convert it to {colours}, {size}; resize with Pillow's filter {named.upper()}"
    )


def _tested(request: ExportRequest, step: int) -> dict[str, float | None]:
    """Return ``test_accuracy`` with the weights of ``step``, None if it was not evaluated; or of numbers
    ``test_mean_absolute_error``."""
    name = "mean_absolute_error" if request.manifest.targets == "numbers" else "accuracy"
    reader = read_metrics(request.run)
    evaluations = [*reader.evaluations, *evaluations_beside(reader)]
    tests = (row for row in evaluations if row["split"] == "test")
    return {f"test_{name}": next((row.get(name) for row in tests if row.get("step") == step), None)}
