"""What a run trains for and is judged by: its loss with class weights, and its further metrics.

Losses and metrics of Keras, and of one's own, become ``Loss`` objects like the built-in ones.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.config import Config
from labkit.config.fields import CODE, arguments_of, code_and_names
from labkit.config.optimizer import KERAS_LOSSES
from labkit.data.manifest import Manifest
from labkit.data.mixup import soft_targets
from labkit.data.shards import read_labels
from labkit.errors import InputError, short, unknown_name_error
from labkit.parts.code import first_line, named_object
from labkit.run_directory.metrics import is_minimized
from labkit.training import scores
from labkit.training.losses import (
    LOSSES,
    SIGMOID,
    SOFTMAX,
    Loss,
    in_standard_units,
    of_numbers,
    softmax_cross_entropy,
)

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Metric = Callable[[np.ndarray, np.ndarray], float]
# By rows; the last two would choose the best checkpoint in place of the loss's own metric.
_TAKEN = ("split", "step", "epoch", "wall_time", "examples", "seconds", "best_by", "accuracy", "f1_micro")
_AT_ONCE = 4096  # examples of a split, whose loss or metric is computed together


def loss_of(config: Config, manifest: Manifest, *, trains: bool = True) -> Loss:
    """Return the loss of a configuration on a data set.

    ``trains``: with class weights and further metrics, which only trainings and evaluations need.

    Raises InputError if a loss or a metric of one's own can't be made, or doesn't give what it should, and
    for a class that the data set doesn't have.
    """
    chosen = config.optimizer
    base = SIGMOID if manifest.multi_label else SOFTMAX
    if manifest.target_mean is not None and manifest.target_std is not None:
        base = of_numbers(manifest.target_mean, manifest.target_std)
    if chosen.loss in LOSSES:
        loss = LOSSES[chosen.loss]
    else:
        flag = f"--loss {chosen.loss}"
        per_example = _in_standard_units(_per_example(flag, config, base), manifest)
        labels, logits = example(manifest)
        _check(flag, per_example, labels, logits)
        if config.data.mixup_alpha or config.data.cutmix_alpha:
            flag += " with mixup or CutMix, where labels in training are shares of the classes,"
            _check(flag, per_example, soft_targets(labels, manifest.num_classes), logits)
        loss = _with_loss(base, per_example)
    if not trains:
        return loss
    if chosen.class_weights is not None:
        loss = replace(loss, class_weights=_class_weights(chosen.class_weights, manifest))
    further = _further_metrics(config, manifest, loss)
    if further:
        own = loss.scores
        loss = replace(
            loss,
            scores=lambda *split: own(*split) | {name: float(one(*split)) for name, one in further.items()},
        )
    return replace(loss, best_by=_best_by(config, loss, manifest))


# ---- the loss ------------------------------------------------------------------------------------------


def _per_example(flag: str, config: Config, base: Loss) -> PerExample:
    """Return (labels, logits) to the loss of each example. Raises InputError."""
    name, arguments = config.optimizer.loss, arguments_of(config.optimizer.loss_arguments)
    if name in KERAS_LOSSES:
        found = getattr(keras.losses, KERAS_LOSSES[name][base.targets])  # checked by check_targets
    else:
        found = named_object("--loss", name)
    parameters = _parameters(found)
    arguments = _of_logits(found) | arguments
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if inspect.isclass(found) or len(places) < 2:  # else it is called with labels and logits
        try:
            found = found(**arguments)
        except Exception as error:
            raise InputError(f"{flag} failed, called with {arguments}: {first_line(error)}") from None
        arguments = {}
    if isinstance(found, keras.losses.Loss):
        if found.reduction not in (None, "none", "sum_over_batch_size"):
            raise InputError(f"{flag} has reduction={found.reduction!r}; labkit takes the mean; leave it out")
        return _of_keras(flag, found)
    if not callable(found):
        raise InputError(f"{flag} is {short(found)}; allowed: a function (labels, logits), or a Keras loss")
    return lambda labels, logits: found(labels, logits, **arguments)


def _parameters(found: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):  # of what isn't written in Python
        return list(inspect.signature(softmax_cross_entropy).parameters.values())


def _of_logits(found: Any) -> dict[str, bool]:
    """Return the argument that tells a function that it gets logits, if it has one."""
    return {"from_logits": True} if any(one.name == "from_logits" for one in _parameters(found)) else {}


def _in_standard_units(per_example: PerExample, manifest: Manifest) -> PerExample:
    """Return the function of labels that are numbers as it is called: with them in standard units."""
    if manifest.targets != "numbers":
        return per_example
    mean, std = (np.array(values, np.float32) for values in (manifest.target_mean, manifest.target_std))
    return lambda labels, logits: per_example(in_standard_units(labels, mean, std, logits.dtype), logits)


def _of_keras(flag: str, loss: keras.losses.Loss) -> PerExample:
    settings = loss.get_config()
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        raise InputError(f"{flag} has its own __call__, which labkit doesn't call; write call alone")
    if settings.get("from_logits", True) is not True:
        raise InputError(
            f"{flag} takes probabilities, and labkit gives logits; make it with from_logits=True"
        )
    is_sparse = type(loss).__name__.startswith("Sparse")

    def per_example(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        if labels.shape.rank == 1 and not is_sparse:
            labels = tf.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        return loss.call(labels, logits)  # without the mean that calling the object would take

    return per_example


def _check(flag: str, per_example: PerExample, labels: tf.Tensor, logits: tf.Tensor) -> None:
    """Call the function with numbers as those of a batch. Raises InputError for a misfit."""
    try:
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = tf.convert_to_tensor(tf.function(per_example, autograph=False)(labels, logits))
        alone = np.asarray(per_example(labels[:2], logits[:2]))
        gradient = tape.gradient(losses, logits)
    except InputError:
        raise
    except Exception as error:
        given = f"labels {list(labels.shape)} and logits {list(logits.shape)}"
        raise InputError(f"{flag} failed for {given}: {first_line(error)}") from None
    if losses.shape != [len(labels)] or not losses.dtype.is_floating:
        raise InputError(
            f"{flag} returned {losses.dtype.name} {list(losses.shape)} for a batch of {len(labels)}; "
            "allowed: a float for each image, [batch], without a mean over the batch"
        )
    if not np.allclose(alone, losses[:2], 1e-3, 1e-5, equal_nan=True):
        raise InputError(
            f"{flag} gives two images other losses without their batch, or when it is called again, so that "
            "replicas or a resumed run would differ; let it depend on each image alone"
        )
    if gradient is None:
        raise InputError(
            f"{flag} has no gradient with respect to the logits, so nothing can be trained with it"
        )


def note_of_negative_loss(config: Config, loss: Loss, manifest: Manifest) -> list[str]:
    """Return a line where a loss of one's own gives a negative number: its sign may be wrong."""
    if not CODE.fullmatch(config.optimizer.loss):
        return []
    least = float(tf.reduce_min(loss.per_example(*example(manifest), 0.0)))
    line = (
        f"note: --loss {config.optimizer.loss} gives {least:.3g} for random logits, and training lowers it; "
        "if it measures errors, its sign is wrong"
    )
    return [line] if least < 0 else []


def example(manifest: Manifest) -> tuple[tf.Tensor, tf.Tensor]:
    """Return labels and logits of some images that aren't there, to try a function on.

    They are not as many as the classes: a value for each class would be taken for one for each image.
    """
    random, count = np.random.default_rng(0), 6 if manifest.num_classes == 5 else 5
    logits = random.normal(size=(count, manifest.num_classes)).astype(np.float32)
    labels = {
        "class": np.arange(count) % manifest.num_classes,
        "classes": random.integers(0, 2, size=logits.shape),
        "numbers": random.normal(size=logits.shape),
    }[manifest.targets]
    return tf.constant(labels, manifest.target_dtype), tf.constant(logits)


def _with_loss(base: Loss, per_example: PerExample) -> Loss:
    """Return a loss that differs from ``base`` by its values."""

    def of_each(targets: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
        return tf.cast(per_example(targets, logits), logits.dtype)

    def of_split(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
        parts = [
            of_each(
                tf.constant(labels[start : start + _AT_ONCE]), tf.constant(logits[start : start + _AT_ONCE])
            )
            for start in range(0, max(len(labels), 1), _AT_ONCE)
        ]
        mean = np.concatenate([part.numpy() for part in parts]).mean(dtype=np.float64)
        return base.scores(labels, logits) | {"loss": float(mean)}

    return replace(base, per_example=of_each, scores=of_split, chance=lambda num_classes: float("nan"))


def _class_weights(text: str, manifest: Manifest) -> tuple[float, ...]:
    """Return the weight of each class, given by name or number.

    Raises InputError for one that the data set doesn't have.
    """
    if text == "balanced":  # as in scikit-learn: each class has the same weight in all
        labels = read_labels(manifest, "train", np.arange(manifest.count("train")))
        counts = scores.indicators(labels, manifest.num_classes).sum(axis=0)
        total = counts.sum() / max(1, np.count_nonzero(counts))
        return tuple(float(total / count) if count else 1.0 for count in counts)
    weights, given = dict.fromkeys(manifest.classes, 1.0), dict[str, str]()
    numbers = {str(number): name for number, name in enumerate(manifest.classes)}  # as in Keras
    for name, weight in json.loads(text).items():
        found = name if name in weights else numbers.get(name)
        if found is None:
            raise unknown_name_error("class of --class-weights", name, manifest.classes)
        if found in given:
            raise InputError(
                f"--class-weights has {given[found]!r} and {name!r} for the class {found!r}; give one"
            )
        weights[found], given[found] = float(weight), name
    return tuple(weights.values())


# ---- metrics -------------------------------------------------------------------------------------------


def _further_metrics(config: Config, manifest: Manifest, base: Loss) -> dict[str, Metric]:
    """Return the metrics of ``--metrics`` by name. Raises InputError for one that gives no number."""
    text = config.run.metrics
    if text is None:
        return {}
    own, names = code_and_names(text, scores.FURTHER)
    if names and base.targets == "numbers":
        raise InputError(
            f"--metrics has {','.join(names)!r}, which is for classes; {manifest.dataset} has numbers"
        )
    named: dict[str, Metric] = {name: scores.FURTHER[name] for name in names}
    if own is None:
        return named
    flag, found = f"--metrics {own}", named_object("--metrics", own)
    for one in found if isinstance(found, list | tuple) else [found]:
        if isinstance(one, str) and one in scores.FURTHER:
            named[one] = scores.FURTHER[one]
            continue
        if inspect.isclass(one) and issubclass(one, keras.metrics.Metric):
            one = one()
        name, metric = _own_metric(flag, one, base)
        falls = getattr(one, "_direction", None) == "down" and not is_minimized(name)
        if falls and name == config.run.best_by:
            raise InputError(
                f"--best-by is {name!r}, whose highest value would be chosen, but the lowest is best; give "
                f"it a name that ends in error: keras.metrics.{type(one).__name__}(name='{name}_error')"
            )
        labels, logits = (value.numpy() for value in example(manifest))
        try:
            float(metric(labels, logits))
        except Exception as error:
            given = f"labels {list(labels.shape)} and logits {list(logits.shape)}"
            raise InputError(f"{flag}: {name} failed for {given}: {first_line(error)}") from None
        if name in named or name in _TAKEN or name in base.scores(labels, logits):
            raise InputError(
                f"{flag} has a metric {name!r}, a name that labkit's own rows have; choose another one"
            )
        named[name] = metric
    return named


def _own_metric(flag: str, one: Any, base: Loss) -> tuple[str, Metric]:
    """Return a metric's name, and (labels, logits) to its value on a split. Raises InputError.

    Where labels are numbers, the metric gets the predicted numbers in place of logits.
    """
    if isinstance(one, keras.metrics.Metric):
        if type(one).result is keras.metrics.Metric.result:
            raise InputError(
                f"{flag}: {one.name} has no result(); a metric of Keras needs it, to return a number"
            )
        if one.get_config().get("from_logits"):
            raise InputError(
                f"{flag}: {one.name} takes logits, but gets probabilities; leave from_logits out"
            )
        return one.name, _of_keras_metric(one, base)
    name = getattr(one, "__name__", "")
    if not callable(one) or not name:
        raise InputError(
            f"{flag} has {short(one)}; allowed: a function (labels, logits), a metric of Keras, one of "
            f"{', '.join(scores.FURTHER)}, or a list of these"
        )
    if base.targets != "numbers" and str(getattr(one, "__module__", "")).startswith("keras."):
        raise InputError(
            f"{flag} has {name}, Keras's function of probabilities; give the class, such as "
            "keras.metrics.CategoricalAccuracy"
        )
    arguments = _of_logits(one)

    def mean(labels: np.ndarray, logits: np.ndarray) -> float:
        """Return the mean of the values of all examples, or the one number for the split."""
        if base.targets == "numbers":
            logits = base.probabilities(logits).astype(np.float32)
        values = np.asarray(one(tf.constant(labels), tf.constant(logits), **arguments), np.float64)
        if values.shape not in ((), (len(labels),)):
            raise InputError(f"it returned {list(values.shape)}; allowed: a number, or one for each image")
        return float(values.mean())

    return name, mean


def _of_keras_metric(metric: keras.metrics.Metric, base: Loss) -> Metric:
    def value(labels: np.ndarray, logits: np.ndarray) -> float:
        """Return the metric of probabilities, as in ``model.compile``, over the whole split."""
        as_is = base.targets == "numbers" or type(metric).__name__.startswith("Sparse")
        shares = base.probabilities(logits)
        targets = labels if as_is else scores.indicators(labels, logits.shape[1]).astype(np.float32)
        metric.reset_state()
        for start in range(0, max(len(labels), 1), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            metric.update_state(targets[part], shares[part].astype(np.float32))
        return float(metric.result())

    return value


def _best_by(config: Config, loss: Loss, manifest: Manifest) -> str | None:
    """Return the metric of ``--best-by``. Raises InputError if validations don't have it."""
    name = config.run.best_by
    if name is None:
        return None
    names = loss.scores(*(value.numpy() for value in example(manifest)))
    if name not in names:
        raise InputError(
            f"--best-by is {name!r}; this run's validations have: {', '.join(names)}; --metrics adds more"
        )
    return name
