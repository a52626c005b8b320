"""Evaluations of whole splits that networks were asked for, kept for all sessions of this server."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app import background
from app.ask.client import AskedNetwork
from app.images import answers
from app.state import changed_at
from labkit.analysis.predictions import Predictions, forgetting_events
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_set_of
from labkit.data.shards import SplitImages, read_labels
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.training.scores import multi_label_scores, scores_of_numbers, single_label_scores


def computed_predictions(
    manifest: Manifest,
    split: str,
    step: int,
    labels: NDArray[Any],
    probabilities: NDArray[np.float64],
    losses: NDArray[np.float64],
) -> Predictions:
    """Return what a network of ``step`` says about a split, as an evaluation would have recorded it.

    Args:
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        step: of the checkpoint.
        labels: int [n], zeros and ones [n, classes], or float32 [n, numbers].
        probabilities: float64 [n, classes].
        losses: float64 [n] in nats.
    """
    summary: dict[str, Any] = {"split": split, "checkpoint_step": step, "examples": len(labels)}
    if len(labels):
        with np.errstate(divide="ignore", invalid="ignore"):  # a probability of 0 or 1, and NaN
            logits = np.log(probabilities)
            if labels.dtype.kind == "f":
                scores = scores_of_numbers(labels, probabilities, np.ones(labels.shape[1]))
            elif labels.ndim == 2:
                scores = multi_label_scores(labels, logits - np.log1p(-probabilities))
            else:
                scores = single_label_scores(labels, logits)
        summary = {**scores, **summary, "loss": float(losses.mean())}
    return Predictions(
        images=SplitImages(manifest, split),
        labels=labels if labels.dtype.kind == "f" else labels.astype(np.int64),
        probabilities=probabilities.astype(np.float32),
        index=np.arange(len(labels), dtype=np.int64),
        classes=list(manifest.classes),
        summary=summary,
        computed_losses=losses,
    )


KEPT = 24  # evaluations; one of 45,000 images with 10 classes takes 3 MB


@dataclass(frozen=True)
class _Key:
    """``written``, ``training``: when the checkpoint and the run's configuration were, in ns.

    A run that was started over writes its steps again.
    """

    run: Path
    split: str
    step: int
    written: int
    training: int


@dataclass(frozen=True)
class Question:
    """What a click on forgetting asks for; checkpoints that come and go later don't change it."""

    base: int
    written: int
    keys: tuple[_Key, ...]


@dataclass(frozen=True)
class Forgotten:
    """``counts``: int64 [n], how often each image of a split went from right to wrong between ``steps``."""

    steps: tuple[int, ...]
    counts: NDArray[np.int64]


class _Evaluations:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[_Key, Predictions] = OrderedDict()

    def get(self, key: _Key) -> Predictions | None:
        """Return an evaluation; that of a checkpoint that is gone (written at 0) is the last one known."""
        with self._lock:
            for known in reversed(self._known):
                if known == key or (key.written == 0 and replace(known, written=0) == key):
                    self._known.move_to_end(known)
                    return self._known[known]
        return None

    def evaluate(self, key: _Key, network: AskedNetwork, progress: background.Progress) -> Predictions:
        """Return the evaluation, computed by the network if it isn't known. Raises what asking raises."""
        if (known := self.get(key)) is not None:
            return known
        manifest = data_set_of(RunDirectory(key.run))
        found = network.evaluate(key.split, key.step, progress)
        assert found.losses is not None  # of a split, whose labels are known
        labels = read_labels(manifest, key.split, np.arange(manifest.count(key.split)))
        made = computed_predictions(manifest, key.split, key.step, labels, found.probabilities, found.losses)
        with self._lock:
            self._known[key] = made
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return made


_evaluations = _Evaluations()  # of this server


def _key(run: RunDirectory, split: str, step: int) -> _Key:
    return _Key(run.path, split, step, answers.written(run, step), changed_at(run.config_path))


def known_evaluation(run: RunDirectory, split: str, step: int) -> Predictions | None:
    """Return the evaluation of a checkpoint if it was computed before, also if the checkpoint is gone."""
    return _evaluations.get(_key(run, split, step))


class Evaluation(answers.Asked[Predictions]):
    """The evaluation of a split, that is being computed or was."""

    kept = KEPT


def ask_evaluation(run: RunDirectory, split: str, step: int) -> answers.Asked[Predictions] | None:
    """Ask for the evaluation of a split at a checkpoint. Returns None if the run has kept no checkpoint."""
    base = answers.pinned_step(run, "predictions")
    if base is None:
        return None
    key = _key(run, split, step)
    work = partial(_evaluations.evaluate, key)
    return answers.ask(run, base, ("evaluate", key), work, asked=Evaluation())


def forgetting_question(run: RunDirectory, split: str, steps: tuple[int, ...]) -> Question | None:
    """Return the question how often each image of a split was forgotten between ``steps``, ascending.

    Returns None if the run has kept no checkpoint.
    """
    base = answers.pinned_step(run, "predictions")
    if base is None:
        return None
    keys = tuple(_key(run, split, step) for step in steps)
    return Question(base, answers.written(run, base), keys)


def ask_forgetting(run: RunDirectory, question: Question) -> answers.Asked[Forgotten]:
    """Ask how often each image was forgotten. Checkpoints that are removed meanwhile are left out."""
    keys = question.keys

    def work(network: AskedNetwork, progress: background.Progress) -> Forgotten:
        right: list[NDArray[np.bool_]] = []
        read: list[int] = []
        problem = ""
        for place, key in enumerate(keys):

            def report(done: int, of: int, place: int = place) -> None:
                progress(place * of + done, len(keys) * of)

            try:
                right.append(~_evaluations.evaluate(key, network, report).wrong)
                read.append(key.step)
            except InputError as error:  # this checkpoint is damaged, or was removed meanwhile
                problem = str(error)
        if len(read) < 2:
            raise InputError(problem or "forgetting needs at least two kept checkpoints")
        return Forgotten(tuple(read), forgetting_events(np.stack(right)))

    return answers.ask(run, question.base, ("forgetting", keys), work, question.written)
