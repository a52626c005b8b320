"""Compare an exported file, as a process without labkit reads it, with the run's own network."""

import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.data.augment import standardize
from labkit.data.loading import load_split
from labkit.data.manifest import Manifest
from labkit.export import predict
from labkit.export.formats import Format
from labkit.training.evaluate import evaluate_split
from labkit.training.losses import SOFTMAX, Loss
from labkit.training.scores import right
from labkit.training.step import make_predict_step

__all__ = ["TOLERANCE", "Comparison", "compare", "compare_outputs"]

TOLERANCE = 1e-5  # of the largest output; float32 itself was seen to cost 3e-7 to 3e-6
BATCH_SIZE = 250


@dataclass(frozen=True)
class Comparison:
    """Outputs of the exported file beside those of the run's network, for the same images.

    ``max_difference``: the largest absolute difference of two outputs; ``scale``: the largest absolute output
    of the run's network. ``equal_predictions`` and both accuracies are shares, from 0 to 1.
    """

    examples: int
    max_difference: float
    scale: float
    equal_predictions: float
    accuracy_exported: float
    accuracy_run: float

    @property
    def passed(self) -> bool:
        """Whether the outputs differ by at most ``TOLERANCE`` times their scale; NaN never passes."""
        return self.max_difference <= TOLERANCE * self.scale

    def to_json(self) -> dict[str, Any]:
        """Return the figures, the tolerance and whether they are within it."""
        return asdict(self) | {"tolerance": TOLERANCE, "passed": self.passed}


def compare_outputs(
    exported: np.ndarray,
    own: np.ndarray,
    labels: np.ndarray,
    *,
    loss: Loss = SOFTMAX,
    probabilities: bool = False,
) -> Comparison:
    """Compare outputs [n, num_classes] for the same n images of ``labels`` [n] or [n, num_classes].

    ``loss``: of the run; ``probabilities``: whether the outputs are these rather than logits.
    """
    exported, own = exported.astype(np.float64), own.astype(np.float64)
    # A probability of one half is a logit of zero; the largest of a row stays the largest.
    theirs, ours = (loss.predictions(outputs - probabilities / 2) for outputs in (exported, own))
    return Comparison(
        examples=len(labels),
        max_difference=float(np.abs(exported - own).max()),
        scale=float(np.abs(own).max()),
        equal_predictions=float(right(theirs, ours).mean()),
        accuracy_exported=float(right(theirs, labels).mean()),
        accuracy_run=float(right(ours, labels).mean()),
    )


def compare(
    format: Format,
    path: Path,
    trained: keras.Model,
    manifest: Manifest,
    *,
    loss: Loss = SOFTMAX,
    standardized_input: bool,
    probabilities: bool,
) -> Comparison:
    """Compare the exported file ``path`` with ``trained`` on every test image, both on the CPU.

    Raises InputError where the test images can't be read, RuntimeError where the file can't.
    """
    with tf.device("/cpu:0"):  # a GPU may round the products of float32 to 10 bits
        evaluation = evaluate_split(
            tf.distribute.get_strategy(),
            make_predict_step(tf.distribute.get_strategy(), trained),
            manifest,
            "test",
            loss=loss,
            global_batch_size=BATCH_SIZE,
        )
    own = evaluation.probabilities if probabilities else evaluation.logits
    images, _ = load_split(manifest, "test")
    if standardized_input:
        images = standardize(images, manifest).numpy()
    outputs = predict_without_labkit(format, path, images)
    return compare_outputs(outputs, own, evaluation.labels, loss=loss, probabilities=probabilities)


def predict_without_labkit(format: Format, path: Path, images: np.ndarray) -> np.ndarray:
    """Return the outputs of an exported file, from a process of its own that can't import labkit.

    Raises RuntimeError, with the process's last lines, where it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "images.npy"), Path(folder, "outputs.npy")
        np.save(given, images)
        # -P: not even the modules beside the program can be imported.
        program = [sys.executable, "-P", predict.__file__, format.name, *map(str, (path, given, found))]
        ended = subprocess.run(program, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"{path.name} can't be read without labkit: {ended.stderr[-2000:]}")
        return np.load(found)
