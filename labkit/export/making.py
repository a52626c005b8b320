"""From a checkpoint to a checked file in its place."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit import __version__
from labkit.architectures import model_name
from labkit.export.check import compare
from labkit.export.output import folder_beside, publish
from labkit.export.request import ExportRequest, ExportResult
from labkit.export.standard import standard_model
from labkit.export.trained import trained_model
from labkit.metrics import MetricsReader, with_evaluations
from labkit.plurals import counted
from labkit.training.api import chosen_step
from labkit.training.checkpoint_evaluator import check_same_data
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.losses import LOSSES

__all__ = ["make"]


def make(request: ExportRequest, announce: Callable[[str], None]) -> ExportResult:
    """Write the file and its description; neither where the comparison that was asked for fails.

    Raises InputError where the checkpoint isn't there or belongs to other data.
    """
    store = CheckpointStore(request.run.checkpoints_path)
    step = chosen_step(store, request.checkpoint, request.run)
    state = store.state(step)
    check_same_data(request.run, state, request.manifest)
    ends = {"standardized_input": request.standardized_input, "probabilities": request.probabilities}
    loss = LOSSES[request.config.optimizer.loss]
    trained = trained_model(request.config, request.manifest, store, step)
    model = standard_model(request.config.model, trained, request.manifest, **ends, loss=loss.name)
    description = _describe(request, state)
    comparison = None
    with folder_beside(request.path) as folder:
        made = folder / request.path.name
        announce(f"writing {request.path}")
        request.format.write(model, request.output_name, made)
        if request.check:
            images = request.manifest.count("test")
            announce(f"comparing it with the run's network on {counted(images, 'test image')}")
            comparison = compare(request.format, made, trained, request.manifest, **ends, loss=loss)
            description["check"] = comparison.to_json()
        result = ExportResult(request.path, step, description, comparison)
        if result.written:
            publish(made, request.path, description)
    return result


def _describe(request: ExportRequest, state: CheckpointState) -> dict[str, Any]:
    """Return what an exported file has no place for: classes, what goes in and comes out, its origin."""
    manifest = request.manifest
    taken = "(pixel / 255 - mean) / std" if request.standardized_input else "pixels from 0 to 255"
    return {
        "file": request.path.name,
        "format": request.format.name,
        "model": model_name(request.config.model),
        "input": {
            "name": "images",
            "shape": [None, *manifest.image_shape],
            "dtype": "float32",
            "values": taken,
            "channel_mean": list(manifest.channel_mean),
            "channel_std": list(manifest.channel_std),
        },
        "output": {"name": request.output_name, "shape": [None, manifest.num_classes], "dtype": "float32"},
        "classes": list(manifest.classes),
        "run": {
            "name": request.run.name,
            "step": state.step,
            "seed": state.seed,
            "replicas": state.num_replicas,
            "precision": request.config.model.precision,
            "loss": request.config.optimizer.loss,
            "test_accuracy": _test_accuracy(request, state.step),
        },
        "data": {"dataset": manifest.dataset, "checksum": manifest.checksum},
        "versions": {"labkit": __version__, "tensorflow": tf.__version__, "keras": keras.__version__},
    }


def _test_accuracy(request: ExportRequest, step: int) -> float | None:
    """Return what the run measured with the weights of ``step``, None where it measured nothing."""
    reader = MetricsReader(request.run.metrics_path)
    reader.poll()
    tests = (row for row in with_evaluations(reader) if row.get("split") == "test")
    return next((row["accuracy"] for row in tests if row.get("step") == step), None)
