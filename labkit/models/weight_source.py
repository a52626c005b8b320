"""Where ``--start-from`` takes weights from, checked before any work and without TensorFlow."""

from dataclasses import dataclass
from pathlib import Path

from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES
from labkit.errors import InputError
from labkit.home import expanded
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import find_run

IMAGENET = "imagenet"


@dataclass(frozen=True)
class WeightSource:
    """Where initial weights come from.

    ``kind``: ``run``, ``keras`` (a file) or ``imagenet``, which has no ``path``.
    """

    kind: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.kind if self.path is None else str(self.path)


def find_weight_source(start_from: str, model: ModelConfig) -> WeightSource:
    """Return the source that ``--start-from`` names: ``imagenet``, a ``.keras`` file or a run.

    Raises InputError if the file or run does not exist, if the run has no checkpoint, and for ``imagenet``
    with a network for which keras.applications has no weights.
    """
    if start_from == IMAGENET:
        if model.model != "keras_application" and imagenet_network(model) is None:
            raise InputError(
                f"--start-from is 'imagenet' with --model {model.model} --num-layers {model.depth}, for "
                f"which keras.applications has no weights; allowed: {_with_imagenet_weights()}; or name a "
                "run or a .keras file"
            )
        return WeightSource(IMAGENET)
    path = expanded(start_from)
    if path.suffix == ".keras":
        if not path.is_file():
            raise InputError(
                f"--start-from is {start_from!r}: no such file; labkit export RUN --output FILE writes one"
            )
        return WeightSource("keras", path.absolute())
    try:
        run = RunDirectory(find_run(start_from))
    except InputError as error:
        raise InputError(f"--start-from: {error}; or a .keras file") from None
    if not run.checkpoint_steps():
        raise InputError(f"--start-from {run.path} has no checkpoint yet; train it further")
    return WeightSource("run", run.path)


def imagenet_network(model: ModelConfig) -> str | None:
    """Return the network in keras.applications whose weights fit one of labkit's own; None if none does."""
    return ARCHITECTURES[model.model].imagenet_weights.get(model.depth)


def _with_imagenet_weights() -> str:
    """Return the flags of all networks that can start from ImageNet's weights."""
    own = [
        f"--model {architecture.name} --num-layers {' or '.join(map(str, architecture.imagenet_weights))}"
        for architecture in ARCHITECTURES.values()
        if architecture.imagenet_weights
    ]
    return ", ".join(["--model keras_application", *own])
