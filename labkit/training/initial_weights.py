"""The weights that ``--start-from`` names: of another run, a file, or keras.applications."""

from typing import Any

import keras

from labkit.config import Config
from labkit.config.recorded import recorded_config
from labkit.data.manifest import Manifest
from labkit.data.network_input.settings import input_shape
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.run_directory import RunDirectory
from labkit.training.checkpoints import CheckpointStore, checkpoint_of_network
from labkit.transfer.load import Transfer, match
from labkit.transfer.source import WeightSource, find_weight_source
from labkit.transfer.weights import InitialWeights, read_weights, weight_arrays

__all__ = ["prepare_transfer", "read_initial_weights"]


def prepare_transfer(config: Config, manifest: Manifest, model: keras.Model) -> Transfer | None:
    """Read the weights that ``--start-from`` names and match them with ``model``; None without the flag.

    Raises InputError if they can't be read, or if no kernel among them fits.
    """
    if config.transfer.start_from is None:
        return None
    source = find_weight_source(config.transfer.start_from, config.model)
    return match(read_initial_weights(source, config, manifest), model, manifest.classes)


def read_initial_weights(source: WeightSource, config: Config, manifest: Manifest) -> InitialWeights:
    """Read the weights of ``source``.

    Args:
        source: found by ``find_weight_source``.
        config: of the run that starts from them.
        manifest: of the data to be trained on. Its image size is used for a source run that did not record
            one.

    Raises InputError if the run, its checkpoint or the file can't be read or downloaded.
    """
    if source.kind != "run":
        return read_weights(source, config.model, input_shape(manifest, config.data))
    assert source.path is not None
    return _from_run(source, RunDirectory(source.path), manifest)


def _from_run(source: WeightSource, run: RunDirectory, manifest: Manifest) -> InitialWeights:
    config = recorded_config(run)
    store = CheckpointStore(run.checkpoints_path)
    step = store.chosen_step()
    recorded = run.read_environment().get("data")
    data: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
    classes = data.get("classes")
    if not isinstance(classes, list) or not classes:
        raise InputError(
            f"--start-from {run.path}: its environment.json is missing, damaged or names no classes; restore "
            "the file from a copy"
        )
    if config.model.precision != "float64":  # mixed precision also keeps its weights in float32
        config = config.replace({"precision": "float32"})
    height, width, channels = data.get("image_shape", manifest.image_shape)
    side = config.data.crop_size
    shape = (side or height, side or width, channels)
    model = build_model(config.model, num_classes=len(classes), image_shape=shape)
    store.restore(checkpoint_of_network(config, model), step, partial=True)
    return InitialWeights(source, weight_arrays(model), step, tuple(classes))
