"""The start of a lesson: its parameters, and the folder of its runs."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit import home
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.notebook.cluster import CLUSTER_DEFAULTS
from labkit.notebook.parameters import Parameters, read_parameters
from labkit.notebook.prepared import Prepared

# What a lesson sets for each of its runs, unless it is in its parameters cell.
CHOSEN_BY_LESSONS = ("job_dir", "overwrite", *CLUSTER_DEFAULTS)
SIDE = 8  # pixels of a small image
DATA_SETS = ("auto", "cifar10", "shapes")  # whose ten classes and 32×32 pixels the lessons explain


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A lesson that has begun. Its runs are trained with ``overwrite=True``, so that it can be run again.

    Args:
        name: such as ``04_replicas``.
        parameters: what its parameters cell and papermill ask for.
        folder: for its runs and files, ``<home>/runs/lessons/<name>``.
    """

    name: str
    parameters: Parameters
    folder: Path

    @property
    def config(self) -> Config:
        """The configuration that the parameters give; the lesson's runs change single values of it."""
        return self.parameters.config

    @property
    def processes(self) -> dict[str, int]:
        """``workers`` and ``ps`` for ``labkit.start``, as ``strategy`` asks."""
        cluster = self.parameters.cluster
        return {"workers": cluster.workers, "ps": cluster.ps} if cluster else {"workers": 1, "ps": 0}

    def prepare(self) -> Prepared:
        """Choose the devices and the data set; see ``labkit.notebook.parameters.Parameters.prepare``."""
        return self.parameters.prepare()

    def __repr__(self) -> str:
        return f"lesson {self.name}\nruns: {self.folder}\n{self.parameters}"


def begin(name: str, *, own_data: bool = False) -> Lesson:
    """Check the parameters of a lesson and make the folder of its runs.

    GPUs that are asked for and missing are simulated, unless ``simulate_missing_gpus`` is False.

    ``labkit.watch_parameters`` has to be called in the first code cell.

    Args:
        name: of the lesson.
        own_data: whether its text is right for any data set.

    Raises InputError for a parameter that isn't known or allowed or has no effect in the lesson, for a data
    set that its text isn't about, and for a home that can't be written.
    """
    parameters = read_parameters()
    dataset = parameters.config.data.dataset
    if dataset not in DATA_SETS and not own_data:
        raise InputError(
            f"dataset is {dataset!r}, but lesson {name} explains the ten classes and 32×32 pixels of cifar10 "
            f"and shapes: choose auto, cifar10 or shapes here, and run train.ipynb with {dataset!r}"
        )
    for parameter in CHOSEN_BY_LESSONS:
        if parameter in parameters.chosen and parameter not in parameters.own:
            raise InputError(
                f"{parameter} is {parameters.chosen[parameter]!r}, but lesson {name} chooses it itself for "
                "each of its runs; leave it out"
            )
    if "simulate_missing_gpus" not in parameters.chosen:  # -p num_gpus 2 works on any machine
        config = parameters.config.replace({"simulate_missing_gpus": True})
        parameters = dataclasses.replace(parameters, config=config)
    folder = home.runs_home() / "lessons" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"{folder} can't be written: {error.strerror}; set LABKIT_HOME to a folder of yours, "
            "restart the kernel and run the lesson from its first cell"
        ) from None
    _begun[:] = [Lesson(name, parameters, folder)]
    return _begun[0]


_begun: list[Lesson] = []  # the lesson of this kernel


def current_lesson() -> Lesson:
    """Return the lesson that began last. Raises InputError where none has."""
    if not _begun:
        raise InputError("no lesson has begun in this kernel; run the lesson from its first cell")
    return _begun[0]


def few_images(source: Manifest, folder: Path, count: int) -> dict[str, str]:
    """Write a data set with ``count`` training images of ``source``, the classes in proportion.

    It has no validation images. Returns the flags of a training on it. A training learns so few images by
    heart within some steps.
    """
    from labkit.data.records import write_derived
    from labkit.data.shards import load_split
    from labkit.data.subset import with_train_examples

    parts = {name: load_split(source, name) for name in ("train", "test")}
    parts["train"] = with_train_examples(*parts["train"], source.num_classes, count, seed=0)
    made = write_derived(source, folder, parts, train_examples=count)
    return {"dataset": made.dataset, "data_dir": str(made.directory.parent)}


def small_features(manifest: Manifest) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the training images averaged to 8×8 pixels, float32 [n, features], and labels int32 [n].

    Each feature has mean 0 and standard deviation 1.
    """
    from labkit.data.shards import load_split

    images, labels = load_split(manifest, "train")
    count, height, width, channels = images.shape
    blocks = images.reshape(count, SIDE, height // SIDE, SIDE, width // SIDE, channels)
    features = blocks.mean((2, 4), dtype=np.float32).reshape(count, -1)
    return (features - features.mean(0)) / features.std(0), labels


def say(text: str) -> None:
    """Show ``text`` as Markdown. Write it as an f-string, so that its numbers are those of this machine."""
    from IPython.display import Markdown, display

    display(Markdown(text))


def claim(text: str, holds: Any) -> None:
    """Show ``text`` with a check mark if it holds.

    Args:
        text: what is claimed, with the measured values, such as ``f"prefetching is {ratio:.1f} × as fast"``.
        holds: whether the measurement shows it.

    Raises AssertionError with the text otherwise, so that a lesson can't say what isn't so.
    """
    if not bool(holds):
        raise AssertionError(f"not so on this machine: {text}")
    say(f"✓ {text}")
