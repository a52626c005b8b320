"""What a network says about images. Imports TensorFlow, so only the process that holds the network does.

Every answer takes at most about a second, so that a question never waits long for another one. What takes
longer (the features of a whole split) is computed in parts: the answer says how much is ready, and the asking
process asks again.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from app.ask.process import Message
from labkit.analysis.network import (
    Classifier,
    features_model,
    grad_cam,
    images_at_once,
    integrated_gradients,
    load_network,
    load_weights,
)
from labkit.config.config import recorded_config
from labkit.data.manifest import Manifest
from labkit.data.shards import load_split
from labkit.errors import InputError
from labkit.models.variants import folded_normalization
from labkit.run_directory import RunDirectory
from labkit.training.checkpoints import CheckpointStore

MAX_IMAGES = 512


def images_of(
    question: Message, manifest: Manifest, other_shape: tuple[int, int, int] | None = None
) -> NDArray[np.uint8]:
    """Return the question's images, uint8 [n, height, width, channels] as stored, or of ``other_shape``.

    Raises InputError for others.
    """
    images = question.arrays.get("images")
    if images is None:
        raise InputError("the question has no images")
    if images.dtype != np.uint8 or images.shape[1:] not in (manifest.image_shape, other_shape):
        wanted = ", ".join(map(str, manifest.image_shape))
        raise InputError(
            f"images are {images.dtype} {list(images.shape)}; allowed: uint8 [n, {wanted}], as the network's"
        )
    if not 1 <= len(images) <= MAX_IMAGES:
        raise InputError(f"there are {len(images)} images; allowed: 1 to {MAX_IMAGES}")
    return images


def image_of(question: Message, manifest: Manifest) -> NDArray[np.uint8]:
    """Return the question's only image, uint8 [height, width, channels]."""
    images = images_of(question, manifest)
    if len(images) != 1:
        raise InputError(f"there are {len(images)} images; allowed: 1")
    return images[0]


def labels_of(question: Message, manifest: Manifest, count: int) -> NDArray[Any] | None:
    """Return the labels, int32 [n], zeros and ones [n, classes] or float32 [n, numbers]; None without any."""
    labels = question.arrays.get("labels")
    if labels is None:
        return None
    wanted = (count, *manifest.target_shape)
    if manifest.targets == "numbers":
        if labels.dtype != np.float32 or labels.shape != wanted:
            given = f"{labels.dtype} {list(labels.shape)}"
            raise InputError(f"labels are {given}; allowed: float32 {list(wanted)}")
        return labels
    limit = 2 if manifest.multi_label else manifest.num_classes
    whole = np.issubdtype(labels.dtype, np.integer)
    if not whole or labels.shape != wanted or labels.min() < 0 or labels.max() >= limit:
        raise InputError(
            f"labels are {labels.dtype} {list(labels.shape)}; allowed: integers {list(wanted)} from 0 to "
            f"{limit - 1}"
        )
    return labels.astype(np.int32)


def number_of(content: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Return a whole number of the question from ``low`` to ``high``. Raises InputError for anything else."""
    value = content.get(name)
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{name} is {value!r}; allowed: a whole number from {low:,} to {high:,}")
    return value


def split_of(content: Mapping[str, Any], manifest: Manifest) -> str:
    """Return the split of the question. Raises InputError if the data set has none of this name."""
    value = content.get("split")
    if value not in manifest.splits:
        raise InputError(f"split is {value!r}; allowed: {', '.join(manifest.splits)}")
    return str(value)


PART_SECONDS = 0.15  # how long features are computed before the next question has its turn
FEATURE_BATCH = 250  # images of 32 x 32 pixels: a fifth faster than 50, and 0.1 s on two cores
METHODS = {"grad_cam": grad_cam, "integrated_gradients": integrated_gradients}
MAX_NEIGHBOURS = 100
PAIR_VALUES = 2**23  # distances at once, 32 MB

Answer = tuple[dict[str, Any], dict[str, NDArray[Any]]]


@dataclass
class SplitFeatures:
    """``rows``: float32 [n, d], of which ``done`` exist."""

    rows: NDArray[np.float32]
    done: int = 0


@dataclass
class Pairs:
    """The nearest image of another split for each image of one, of which ``done`` exist.

    ``nearest``: int64 [n]. ``squared``: float32 [n], squares of the distances; infinite where there is none.
    """

    nearest: NDArray[np.int64]
    squared: NDArray[np.float32]
    done: int = 0


class Answers:
    """Answers questions about the network of one checkpoint.

    Args:
        run: the run directory.
        step: of the checkpoint.

    Raises InputError if the checkpoint or the data set is missing, damaged, or doesn't belong to the run.
    """

    def __init__(self, run: RunDirectory, step: int) -> None:
        self._run = run
        self._network: Classifier = load_network(run, str(step))
        self._manifest = self._network.manifest
        self._forward = _compiled(self._network.model)
        self._in_training = _compiled_for_training(self._network.model)
        self._weights = self._network.model.get_weights()
        self._step: int | None = step  # whose weights the model has; None: those of a damaged checkpoint
        self._loaded: dict[str, tuple[NDArray[np.uint8], NDArray[Any]]] = {}
        self._splits: dict[str, SplitFeatures] = {}
        self._pairs: dict[tuple[str, str], Pairs] = {}

    def answer(self, question: Message) -> Answer:
        """Return content and arrays. Raises InputError for a question that can't be answered."""
        asked = {
            "predict": self._predict,
            "saliency": self._saliency,
            "features": lambda one: ({}, {"features": self._feature_rows(images_of(one, self._manifest))}),
            "nearest": self._nearest,
            "alike": self._alike,
            "evaluate": self._evaluate,
        }
        kind = question.content.get("question")
        if not isinstance(kind, str) or kind not in asked:
            raise InputError(f"question is {kind!r}; allowed: {', '.join(asked)}")
        step = self._network.step if question.content.get("step") is None else _step_of(question)
        if step != self._step:
            self._take_weights(step)
        return asked[kind](question)

    def _take_weights(self, step: int) -> None:
        """Give the model the weights of a step. Raises InputError if its checkpoint is missing or damaged."""
        if step == self._network.step:  # kept in memory: the training may have removed this checkpoint
            self._network.model.set_weights(self._weights)
        else:
            store = CheckpointStore(self._run.checkpoints_path)
            store.step_of(str(step))
            self._step = None
            config = recorded_config(self._run)
            load_weights(self._network.model, config, self._manifest, store, step)
        self._step = step

    def _predict(self, question: Message) -> Answer:
        # Those of a training batch are cropped already.
        images = images_of(question, self._manifest, self._network.network_input.shape(self._manifest))
        labels = labels_of(question, self._manifest, len(images))
        if question.content.get("as_in_training") is True:
            scores = self._scores(images, labels, self._in_training, len(images))
        else:
            scores = self._scores(images, labels, self._logits)
        return {"step": self._step}, scores

    def _evaluate(self, question: Message) -> Answer:
        """Return the scores of a split's images from ``start`` on, as many as ``PART_SECONDS`` allow."""
        step = _step_of(question)
        images, labels = self._pictures(split_of(question.content, self._manifest))
        stop = number_of(question.content, "start", 0, len(images) - 1)
        parts: list[dict[str, NDArray[Any]]] = []
        end = time.monotonic() + PART_SECONDS
        while stop < len(images) and (not parts or time.monotonic() < end):
            part = slice(stop, stop + images_at_once(images.shape[1:]))
            parts.append(self._scores(images[part], labels[part], self._logits))
            stop = min(part.stop, len(images))
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {"step": step, "of": len(images)}, arrays

    def _scores(
        self, images: NDArray[np.uint8], labels: NDArray[Any] | None, forward: Any, at_once: int | None = None
    ) -> dict[str, NDArray[Any]]:
        at_once = at_once or images_at_once(images.shape[1:])
        logits = np.concatenate(
            [
                forward(self._network.inputs(images[at : at + at_once])).numpy()
                for at in range(0, len(images), at_once)
            ]
        )
        loss = self._network.loss
        arrays = {"probabilities": np.asarray(loss.probabilities(logits), np.float64)}
        if labels is not None:
            targets = tf.constant(labels)
            arrays["losses"] = loss.per_example(targets, tf.constant(logits), 0.0).numpy().astype(np.float64)
        return arrays

    def _logits(self, pixels: tf.Tensor) -> tf.Tensor:
        return self._forward(pixels)[0]

    def _pictures(self, split: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        if split not in self._loaded:
            self._loaded[split] = load_split(self._manifest, split)
        return self._loaded[split]

    def _saliency(self, question: Message) -> Answer:
        image = image_of(question, self._manifest)
        label = number_of(question.content, "class", 0, self._manifest.num_classes - 1)
        method = question.content.get("method")
        if method not in METHODS:
            raise InputError(f"method is {method!r}; allowed: {', '.join(METHODS)}")
        found = METHODS[method](self._network, image, label)
        return {}, {"map": found.astype(np.float32)}

    def _nearest(self, question: Message) -> Answer:
        image = image_of(question, self._manifest)
        split = split_of(question.content, self._manifest)
        count = number_of(question.content, "k", 1, MAX_NEIGHBOURS)
        known = self._progress(split)
        content = {"done": known.done, "of": len(known.rows)}
        if known.done < len(known.rows):
            return content, {}
        squared = ((known.rows - self._feature_rows(image[None])) ** 2).sum(axis=1, dtype=np.float64)
        if question.content.get("exclude") is not None:  # the image itself
            squared[number_of(question.content, "exclude", 0, len(squared) - 1)] = np.inf
        order = np.argsort(squared, kind="stable")[:count]
        order = order[np.isfinite(squared[order])]
        images, labels = self._pictures(split)
        return content, {
            "positions": order.astype(np.int64),
            "distances": np.sqrt(squared[order]),
            "labels": labels[order],
            "images": images[order],
        }

    def _alike(self, question: Message) -> Answer:
        """Return the pairs of an image of ``split`` and one of ``other`` that are nearest."""
        split, other = (
            split_of({"split": question.content.get(name)}, self._manifest) for name in ("split", "other")
        )
        count = number_of(question.content, "k", 1, MAX_IMAGES)
        known = [self._progress(name) for name in dict.fromkeys((split, other))]
        rows, others = known[0].rows, known[-1].rows
        none = np.full(len(rows), -1), np.full(len(rows), np.inf, np.float32)
        pairs = self._pairs.setdefault((split, other), Pairs(*none))
        if all(one.done == len(one.rows) for one in known):
            # A rectified layer may make zeros of NaN, so that all images would be equal.
            if not (pairs.done or all(np.isfinite(one).all() for one in (*self._weights, rows, others))):
                raise InputError("the network gives NaN or infinite numbers, so no images can be compared")
            _compare(pairs, rows, others, itself=split == other)
        done = sum(one.done for one in known) + pairs.done
        content = {"done": done, "of": sum(len(one.rows) for one in known) + len(rows)}
        if done < content["of"]:
            return content, {}
        order = np.argsort(pairs.squared, kind="stable")[:count]
        order = order[np.isfinite(pairs.squared[order])]
        # The squares above lose the last digits of small distances.
        distances = np.sqrt(((rows[order] - others[pairs.nearest[order]]) ** 2).sum(axis=1, dtype=np.float64))
        order, distances = order[np.argsort(distances, kind="stable")].astype(np.int64), np.sort(distances)
        return content, {
            "rows": order,
            "others": pairs.nearest[order],
            "distances": distances,
        }

    def _progress(self, split: str) -> SplitFeatures:
        """Compute more features of a split for ``PART_SECONDS``, if it isn't complete."""
        images, _ = self._pictures(split)
        if split not in self._splits:
            width = self._feature_rows(images[:1]).shape[1]
            self._splits[split] = SplitFeatures(np.empty((len(images), width), np.float32))
        known = self._splits[split]
        end = time.monotonic() + PART_SECONDS
        at_once = images_at_once(images.shape[1:], FEATURE_BATCH)
        while known.done < len(known.rows) and time.monotonic() < end:
            part = slice(known.done, known.done + at_once)
            known.rows[part] = self._feature_rows(images[part])
            known.done = min(part.stop, len(known.rows))
        return known

    def _feature_rows(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the input of the last dense layer, float32 [n, d]."""
        at_once = images_at_once(images.shape[1:], FEATURE_BATCH)
        starts = range(0, len(images), at_once)
        rows = [self._forward(self._network.inputs(images[at : at + at_once]))[1].numpy() for at in starts]
        return np.concatenate(rows).astype(np.float32)


def _compare(pairs: Pairs, rows: NDArray[np.float32], others: NDArray[np.float32], *, itself: bool) -> None:
    """Find the nearest of ``others`` for more of the ``rows``, for ``PART_SECONDS``."""
    end, norms = time.monotonic() + PART_SECONDS, np.einsum("nf,nf->n", others, others)
    size = max(1, PAIR_VALUES // max(1, len(others)))
    while pairs.done < len(rows) and time.monotonic() < end:
        at = np.arange(pairs.done, min(pairs.done + size, len(rows)))
        squared = norms - 2 * (rows[at] @ others.T) + (rows[at] ** 2).sum(axis=1)[:, None]
        if itself:  # each pair once, and no image with itself
            squared[np.arange(len(others)) <= at[:, None]] = np.inf
        pairs.nearest[at], pairs.squared[at] = squared.argmin(axis=1), squared.min(axis=1)
        pairs.done = int(at[-1]) + 1


def _step_of(question: Message) -> int:
    step = question.content.get("step")
    if type(step) is not int:
        raise InputError(f"step is {step!r}; allowed: a whole number")
    return step


def _compiled(model: Any) -> Any:
    """Return a function of standardized images [n, height, width, channels], traced once for any n.

    It returns logits [n, classes] and the input of the last dense layer [n, d].
    """
    both = keras.Model(model.inputs, [model.output, features_model(model).output])
    signature = [tf.TensorSpec([None, *model.input_shape[1:]], tf.float32)]

    def forward(pixels: tf.Tensor) -> list[tf.Tensor]:
        with folded_normalization(model):
            return both(pixels, training=False)

    return tf.function(forward, input_signature=signature, autograph=False)


def _compiled_for_training(model: Any) -> Any:
    """Return a function from images to logits, as in training. No moving statistics change."""
    signature = [tf.TensorSpec([None, *model.input_shape[1:]], tf.float32)]

    def forward(pixels: tf.Tensor) -> tf.Tensor:
        trained = [variable.value for variable in model.trainable_variables]
        others = [variable.value for variable in model.non_trainable_variables]
        return model.stateless_call(trained, others, pixels, training=True)[0]

    return tf.function(forward, input_signature=signature, autograph=False)
