"""Where ``--start-from`` takes weights from, checked before any work and without TensorFlow."""

import json
from dataclasses import dataclass
from pathlib import Path

from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES
from labkit.config.fields import CODE
from labkit.errors import InputError, reason_of, short
from labkit.home import expanded
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import open_regular
from labkit.run_directory.find import find_run

IMAGENET = "imagenet"
FILES = ("keras", "weights")  # kinds of sources whose names may be others than a network's
_WEIGHTS = (".safetensors", ".weights.h5")
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
LARGEST_MAP = 2**20  # bytes


@dataclass(frozen=True)
class WeightSource:
    """Where initial weights come from.

    ``kind``: ``run``, ``keras`` (a model's file), ``weights`` (a file without a model), or ``imagenet``,
    which has no ``path``.
    """

    kind: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.kind if self.path is None else str(self.path)


def find_weight_source(start_from: str, model: ModelConfig) -> WeightSource:
    """Return the source that ``--start-from`` names: ``imagenet``, a file of weights or a run.

    Raises InputError if the file or run does not exist, for a file that could hold code, if the run has no
    checkpoint, and for ``imagenet`` with a network for which keras.applications has no weights.
    """
    if start_from == IMAGENET:
        if CODE.fullmatch(model.model):
            raise InputError(f"--start-from is 'imagenet' with --model {model.model}; name a run or a file")
        if model.model != "keras_application" and imagenet_network(model) is None:
            raise InputError(
                f"--start-from is 'imagenet' with --model {model.model} --num-layers {model.depth}, for "
                f"which keras.applications has no weights; allowed: {_with_imagenet_weights()}; or name a "
                "run or a file"
            )
        return WeightSource(IMAGENET)
    path = expanded(start_from)
    if path.name.endswith((".keras", *_WEIGHTS)):
        if not path.is_file():
            raise InputError(
                f"--start-from is {start_from!r}: no such file; labkit export RUN --output FILE writes one"
            )
        return WeightSource("keras" if path.suffix == ".keras" else "weights", path.absolute())
    if path.suffix in _PICKLES and not path.is_dir():
        raise InputError(
            f"--start-from is {start_from!r}, which may hold a pickle, and reading one runs what is in it; "
            "where you trust it, save it with safetensors.torch.save_file(torch.load(FILE, "
            "weights_only=True), 'weights.safetensors')"
        )
    try:
        run = RunDirectory(find_run(start_from))
    except InputError as error:
        raise InputError(f"--start-from: {error}; or a file: .keras, {', '.join(_WEIGHTS)}") from None
    if not run.checkpoint_steps():
        raise InputError(f"--start-from {run.path} has no checkpoint yet; train it further")
    return WeightSource("run", run.path)


def read_name_map(name_map: str) -> dict[str, str]:
    """Return names in a source with the names in a network, of a JSON object or a text of two columns.

    Raises InputError, with the line, for a file that can't be read or says something else.
    """
    flag, path = f"--name-map {name_map}", expanded(name_map)
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_MAP + 1).decode()
        if len(text) > LARGEST_MAP:
            raise ValueError(f"more than {LARGEST_MAP:,} bytes")
        if text.lstrip().startswith("{"):
            pairs = json.loads(text, object_pairs_hook=list)
        else:
            lines = (line.split("#")[0].split() for line in text.splitlines())
            pairs = [line for line in lines if line]
        if wrong := [pair for pair in pairs if len(pair) != 2 or not isinstance(pair[1], str)]:
            raise ValueError(f"{short(wrong[0])} is no pair of names")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{flag} can't be read ({reason_of(error)}); allowed: a JSON object, or lines of two names, the "
            "source's and the network's"
        ) from None
    if twice := {pair[0] for pair in pairs if sum(other[0] == pair[0] for other in pairs) > 1}:
        raise InputError(f"{flag} names {min(twice)!r} twice; name each once")
    return dict(pairs)


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
