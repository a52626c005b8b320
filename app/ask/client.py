"""Ask the networks of runs about images, without importing TensorFlow.

networks = Networks()
network = networks.of(run.path, step)
network.predict(images)
"""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.ask.process import NetworkProcess, NoAnswer, Worker
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import state_path

Images = NDArray[np.uint8]
Labels = NDArray[Any]
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Prediction:
    """``probabilities``: float64 [n, classes]. ``losses``: float64 [n] in nats; None without labels."""

    probabilities: NDArray[np.float64]
    losses: NDArray[np.float64] | None


@dataclass(frozen=True)
class Neighbours:
    """The images of a split whose features are nearest, the nearest first.

    ``positions``: int64 [k] in the split. ``distances``: float64 [k], Euclidean. ``labels``: int32 [k], or
    zeros and ones [k, classes]. ``images``: uint8 [k, height, width, channels].
    """

    positions: NDArray[np.int64]
    distances: NDArray[np.float64]
    labels: Labels
    images: Images


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of images whose features are nearest, the nearest first: positions in two splits, int64 [k].

    ``distances``: float64 [k], Euclidean.
    """

    rows: NDArray[np.int64]
    others: NDArray[np.int64]
    distances: NDArray[np.float64]


@dataclass(frozen=True)
class Moment:
    """The prediction at one kept checkpoint: ``probabilities`` float64 [classes], or why there is none."""

    step: int
    probabilities: NDArray[np.float64] | None
    problem: str = ""


class AskedNetwork:
    """The network of one checkpoint, held by a process.

    Each method raises InputError for a question that can't be answered, and ``NoAnswer`` if the process
    fails.
    """

    def __init__(self, process: NetworkProcess) -> None:
        self.process = process

    @property
    def loading_seconds(self) -> float | None:
        """For how long the network has been loading; None if it isn't."""
        since = self.process.loading_since
        return None if since is None else time.monotonic() - since

    def predict(
        self,
        images: Images,
        labels: Labels | None = None,
        *,
        step: int | None = None,
        as_in_training: bool = False,
    ) -> Prediction:
        """Return the probabilities and, with ``labels``, the loss of each image.

        Args:
            images: uint8 [n, height, width, channels], 1 to 512.
            labels: int [n]; with several labels per image, zeros and ones [n, classes].
            step: of another kept checkpoint to ask; None: the network's own.
            as_in_training: batch normalization takes the statistics of these images, as a training step does,
                not the moving ones. Then the answer for an image depends on the others.
        """
        content = {"question": "predict", "as_in_training": as_in_training, "step": step}
        arrays: dict[str, NDArray[Any]] = {"images": images}
        if labels is not None:
            arrays["labels"] = labels if labels.dtype.kind == "f" else labels.astype(np.int32)
        answer = self.process.ask(content, arrays, patient=step is not None).arrays
        return Prediction(answer["probabilities"], answer.get("losses"))

    def evaluate(self, split: str, step: int, progress: Progress = silent) -> Prediction:
        """Return the probabilities and losses of all images of a split at a kept checkpoint, in their order.

        Args:
            split: ``train``, ``validation`` or ``test``.
            step: of the checkpoint.
            progress: called with the number of images that are ready, and of all.
        """
        parts: list[dict[str, NDArray[Any]]] = []
        done, total = 0, 1
        while done < total:
            content = {"question": "evaluate", "split": split, "step": step, "start": done}
            answer = self.process.ask(content, patient=True)
            parts.append(answer.arrays)
            done, total = done + len(next(iter(answer.arrays.values()))), answer.content["of"]
            progress(done, total)
        return Prediction(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def saliency(self, image: Images, label: int, method: str) -> NDArray[np.float32]:
        """Return how much each pixel matters, float32 [height, width].

        Args:
            image: uint8 [height, width, channels].
            label: the number of the class.
            method: ``grad_cam`` or ``integrated_gradients``; see ``labkit.analysis.network``.
        """
        content = {"question": "saliency", "class": label, "method": method}
        return self.process.ask(content, {"images": image[None]}).arrays["map"]

    def features(self, images: Images) -> NDArray[np.float32]:
        """Return the inputs of the last dense layer, float32 [n, d], of images [n, …], 1 to 512."""
        return self.process.ask({"question": "features"}, {"images": images}).arrays["features"]

    def nearest(
        self,
        image: Images,
        split: str,
        k: int = 8,
        *,
        exclude: int | None = None,
        progress: Progress = silent,
    ) -> Neighbours:
        """Return the ``k`` images of a split that the network finds most alike.

        The first call for a split computes the features of all its images.

        Args:
            image: uint8 [height, width, channels].
            split: ``train``, ``validation`` or ``test``.
            k: 1 to 100.
            exclude: position of an image that is left out: the image itself.
            progress: called with the number of images whose features are ready, and of all.
        """
        content = {"question": "nearest", "split": split, "k": k, "exclude": exclude}
        while True:
            answer = self.process.ask(content, {"images": image[None]}, patient=True)
            progress(answer.content["done"], answer.content["of"])
            if answer.arrays:
                return Neighbours(**answer.arrays)

    def alike(self, split: str, other: str, k: int, progress: Progress = silent) -> Pairs:
        """Return the ``k`` pairs of an image of a split and one of another, or the same, that are nearest.

        Args:
            split, other: ``train``, ``validation`` or ``test``. Each image of ``split`` is in at most one
                pair.
            k: 1 to 512.
            progress: called with how much is done, and of how much.
        """
        content = {"question": "alike", "split": split, "other": other, "k": k}
        while True:
            answer = self.process.ask(content, patient=True)
            progress(answer.content["done"], answer.content["of"])
            if answer.arrays:
                return Pairs(**answer.arrays)

    def history(
        self, image: Images, steps: Sequence[int] | None = None, progress: Progress = silent
    ) -> list[Moment]:
        """Return the prediction for an image at each kept checkpoint, ascending.

        Args:
            image: uint8 [height, width, channels].
            steps: of the checkpoints; None: all that the run has kept.
            progress: called with the number of checkpoints that are ready, and of all.
        """
        kept = RunDirectory(self.process.run).checkpoint_steps() if steps is None else list(steps)
        moments = []
        for done, step in enumerate(kept):
            progress(done, len(kept))
            try:
                moments.append(Moment(step, self.predict(image[None], step=step).probabilities[0]))
            except InputError as error:  # this checkpoint is damaged, or was removed meanwhile
                moments.append(Moment(step, None, str(error)))
        return moments


class Networks:
    """The processes of several checkpoints, at most ``limit`` at a time: those that were asked last.

    Args:
        limit: number of processes.
        options: of ``Worker``.
    """

    def __init__(self, limit: int = 2, **options: Any) -> None:
        self._limit, self._options = limit, options
        self._lock = threading.Lock()
        self._networks: OrderedDict[tuple[Any, ...], AskedNetwork] = OrderedDict()
        self._spare_lock = (
            threading.Lock()
        )  # another one: ``of`` may wait for a process that is being started
        self._spare: Worker | None = None  # holds no network yet

    def of(self, run: Path, step: int) -> AskedNetwork:
        """Return the network of a run's checkpoint. A checkpoint that was replaced is loaded anew.

        Raises InputError where the run has no such checkpoint.
        """
        key = (run, step, _written(run, step))
        with self._lock:
            if key not in self._networks:
                while len(self._networks) >= self._limit:
                    self._networks.popitem(last=False)[1].process.close()
                self._networks[key] = AskedNetwork(NetworkProcess(run, step, worker=self._worker))
            self._networks.move_to_end(key)
            return self._networks[key]

    def prepare(self, run: Path) -> None:
        """Start a process before a network of the run is asked: importing TensorFlow takes seconds.

        Nothing is started where one waits or holds a network of the run, or where ``limit`` are alive.
        """
        with self._lock:
            alive = [key[0] for key, network in self._networks.items() if network.process.pid]
        if run in alive or len(alive) >= self._limit:
            return
        with self._spare_lock:
            if self._spare is not None and self._spare.pid:
                return
            if self._spare is not None:
                self._spare.close()
            with contextlib.suppress(NoAnswer):  # the first question says that none can be started
                self._spare = Worker(**self._options)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            while self._networks:
                self._networks.popitem()[1].process.close()
        if (spare := self._taken()) is not None:
            spare.close()

    def _worker(self) -> Worker:
        """Return the process that waits, or a new one."""
        spare = self._taken()
        if spare is None or spare.pid:
            return spare or Worker(**self._options)
        spare.close()  # it has ended after a silence
        return Worker(**self._options)

    def _taken(self) -> Worker | None:
        with self._spare_lock:
            spare, self._spare = self._spare, None
        return spare


def _written(run: Path, step: int) -> tuple[int, int]:
    """Return what tells a checkpoint from a later one of the same step."""
    folder = RunDirectory(run).checkpoints_path
    try:
        stat = state_path(folder, step).stat()
    except OSError:
        raise InputError(f"{folder} has no checkpoint of step {step}") from None
    return stat.st_mtime_ns, stat.st_ino
