"""What ``--start-from`` names, found and checked before any work: TensorFlow is not imported here."""

from dataclasses import dataclass
from pathlib import Path

from labkit.config import ModelConfig
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import find_run

__all__ = ["IMAGENET", "Place", "find_weight_source"]

IMAGENET = "imagenet"


@dataclass(frozen=True)
class Place:
    """Where initial weights are; ``kind``: ``run``, ``keras`` (a file) or ``imagenet``, which has no path."""

    kind: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.kind if self.path is None else str(self.path)


def find_weight_source(start_from: str, model: ModelConfig) -> Place:
    """Return what ``start_from`` means to a network.

    Raises InputError where it is nothing that is there, a run without a checkpoint, or ``imagenet`` for a
    network that has no such weights.
    """
    if start_from == IMAGENET:
        if model.model != "keras_application":
            raise InputError(
                f"--start-from is 'imagenet' with --model {model.model}; allowed for networks of "
                "keras.applications: --model keras_application --application NAME; or name a run or a file"
            )
        return Place(IMAGENET)
    path = Path(start_from).expanduser()
    if path.suffix == ".keras":
        if not path.is_file():
            raise InputError(
                f"--start-from {start_from!r} is no file; labkit export RUN --output FILE writes one"
            )
        return Place("keras", path.absolute())
    try:
        run = RunDirectory(find_run(start_from))
    except InputError as error:
        raise InputError(f"--start-from: {error}; or a .keras file") from None
    if not any(run.checkpoints_path.glob("step-*")):
        raise InputError(f"--start-from {run.path} has no checkpoint yet; train it further")
    return Place("run", run.path)
