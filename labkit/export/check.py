"""Compare the outputs of an exported file, read by a process without labkit, with the run's own network."""

import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from labkit.analysis.network import Classifier
from labkit.data.shards import load_split
from labkit.export import predict
from labkit.export.formats import Format
from labkit.startup.child import python_command
from labkit.training.losses import SOFTMAX, Loss
from labkit.training.scores import right

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
