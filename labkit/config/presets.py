"""Presets: named sets of configuration values. Flags given on the command line override them.

A preset's docstring states its command, its purpose and the expected result (``docs/results.md``). Minutes
are of two cores of an AMD EPYC with AVX-512 and BF16, where no other processor is named.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.config.architectures import architecture_of
from labkit.config.config import by_field, fields_by_name
from labkit.config.fields import argument
from labkit.config.optimizer import KERAS_LEARNING_RATE, is_adaptive
from labkit.errors import InputError, reason_of, unknown_name_error


def estimator_2017() -> Mapping[str, Any]:
    """The defaults of TensorFlow's cifar10_estimator of 2017, and labkit's own: ResNet-44, 80,000 steps.

    Command: ``labkit train --preset estimator_2017``. Meant for GPUs; on two CPU cores it takes days.
    """
    return {"batch_norm_decay": 0.997}


def tutorial_2017() -> Mapping[str, Any]:
    """TensorFlow's CIFAR-10 tutorial of 2017: its network on 24x24 pixels, 100,000 steps, averaged weights.

    Command: ``labkit train --preset tutorial_2017 --dataset cifar10``. The recipe is that of
    ``tutorials/image/cifar10`` in github.com/tensorflow/models (``cifar10.py``, ``cifar10_input.py``): random
    crops, flips, brightness up to 63 grey levels, contrast from 0.2 to 1.8, standardization of each image,
    evaluation on the middle of each image, weight decay 0.004 of the two hidden dense layers, SGD without
    momentum, a moving average of 0.9999. ``cifar10_train.py`` states 86 % after 100,000 steps.

    It differs in four points. The tutorial trains on all 50,000 training images; labkit takes 5,000 of them
    for validation, unless the data set is prepared with ``labkit data prepare --validation-size 0``. The
    tutorial draws from a queue of 20,000 images; here every epoch is a permutation of all of them. It tests
    the last weights; labkit those chosen on validation. Its average may miss the newest update,
    because nothing orders the two operations; here it follows the update. Two parts of the recipe have no
    effect, there and here: standardization of each image removes any change of brightness, and the first
    drop of the learning rate, after 350 epochs, comes after the last step.
    """
    return {
        "model": "tutorial_cnn",
        "train_steps": 100_000,
        "train_batch_size": 128,
        "eval_batch_size": 500,
        "learning_rate": 0.1,
        "learning_rate_schedule": "staircase",
        "staircase_factor": 0.1,
        "staircase_epochs": 350.0,
        "momentum": 0.0,
        "weight_decay": 0.004,  # times tf.nn.l2_loss, half the sum of squares: adds 0.004 w to the gradient
        "weight_decay_of": "hidden_dense",
        "ema_decay": 0.9999,
        "crop_padding": 0,
        "crop_size": 24,
        "brightness": 63.0,
        "contrast": 0.8,
        "standardization": "per_image",
        "validate_every_steps": 1000,
    }


def resnet20_one_cycle() -> Mapping[str, Any]:
    """ResNet-20: 82.8 % test accuracy on CIFAR-10 in 9 minutes on two cores of an AMD EPYC.

    Command: ``labkit train --preset resnet20_one_cycle --dataset cifar10``.
    """
    return {
        "num_layers": 20,
        "epochs": 7.0,
        "steps_range": "200:40000",
        "train_batch_size": 128,
        "eval_batch_size": 500,
        "learning_rate": 0.2,
        "learning_rate_schedule": "one_cycle",
        "nesterov": True,
        "weight_decay": 5e-4,
        "weight_decay_of": "kernels",
        "batch_norm_decay": 0.9,
        "log_every_steps": 50,
    }


def resnet20_muon() -> Mapping[str, Any]:
    """ResNet-20: 88.2 % on CIFAR-10 in 10 minutes on a quiet Xeon with AMX, mixed_bfloat16, all images.

    Command: ``labkit train --preset resnet20_muon --dataset cifar10``; add ``--precision auto`` for bfloat16
    where it is faster. It differs from ``resnet20_one_cycle`` in: Muon for the kernels of convolutions, a
    learning rate that falls from the first step on, twenty epochs with smaller images first, and the
    augmentation of airbench94 (alternating flips, two reflected pixels around an image). All images:
    ``labkit data prepare --validation-size 0``.
    """
    return {
        **resnet20_one_cycle(),
        "epochs": 20.0,
        "optimizer": "muon",
        "muon_learning_rate": 0.06,
        "one_cycle_peak": 0.0,  # falls linearly to zero from the first step on
        "crop_padding": 2,
        "crop_padding_mode": "reflect",
        "flip": "alternating",
        "progressive_resizing": "16:0.3,24:0.6,28:0.8",
    }


def fast() -> Mapping[str, Any]:
    """The fast network: 89.7 % on CIFAR-10 in 6 minutes on a Xeon with AMX, mixed_bfloat16, all images.

    Command: ``labkit train --preset fast --dataset cifar10``; add ``--precision auto`` for bfloat16 where it
    is faster, and with all images ``--train-steps 230`` for the minutes above. The recipe is based on
    airbench94_muon (Jordan, 2024, github.com/KellerJordan/cifar10-airbench; the network: arXiv:2404.00498).
    It differs, for validation accuracy or speed, in: no weight decay of offsets, no offsets in the whitening
    layer, smaller images at first, batch statistics of halves. airbench sums the loss over a batch and
    divides logits by 256; labkit takes the mean and divides by 9. The learning rates are converted: for
    offsets 0.053 * 2000 = 106, for the head 0.67 * 2000 * (9 / 256)^2 = 1.66.
    """
    return {
        "model": "fast",
        "activation": "gelu",
        "train_batch_size": 2000,
        "ghost_batches": 2,
        "eval_batch_size": 500,
        "epochs": 10.222,  # 230 steps for 45,000 examples; of all 50,000 they are 9.2 epochs
        "steps_range": "100:4000",
        "optimizer": "muon",
        "learning_rate": 1.66,
        "learning_rate_schedule": "one_cycle",
        "one_cycle_peak": 0.0,  # falls linearly to zero from the first step on
        "momentum": 0.85,
        "nesterov": True,
        "norm_bias_learning_rate_factor": 64.0,
        "weight_decay": 2.4e-3,  # 2e-6 * 2000 per step in airbench, for a learning rate of 1.66
        "weight_decay_of": "kernels",
        "label_smoothing": 0.2,
        "batch_norm_decay": 0.6,
        "batch_norm_epsilon": 1e-12,
        "crop_padding": 2,
        "crop_padding_mode": "reflect",
        "flip": "alternating",
        "progressive_resizing": "24:0.25,28:0.45",
        "test_time_augmentation": "mirror_and_shift",
        "log_every_steps": 10,
    }


def fast_residual() -> Mapping[str, Any]:
    """The fast network with shortcuts: 91.4 % (three seeds) on CIFAR-10 in 55 minutes, bfloat16, all images.

    Command: ``labkit train --preset fast_residual --dataset cifar10``; add ``--precision auto`` as for
    ``fast``. It differs from ``fast`` in: a third convolution and a shortcut in each stage, as in airbench96
    (the same repository), squeeze and excitation, 34 epochs, padding of 4 pixels, cutout of 12, slower
    averages of the statistics.
    """
    return {
        **fast(),
        "model": "fast_residual",
        "epochs": 34.0,
        "batch_norm_decay": 0.8,
        "crop_padding": 4,
        "cutout_size": 12,
    }


def smoke() -> Mapping[str, Any]:
    """A quick check that training works: ResNet-8 for 20 steps on the generated shapes, under a minute.

    Command: ``labkit train --preset smoke``.
    """
    return {
        "dataset": "shapes",
        "num_layers": 8,
        "train_steps": 20,
        "train_batch_size": 32,
        "learning_rate": 0.02,
        "batch_norm_decay": 0.9,
        "log_every_steps": 5,
    }


AUTO = "auto"  # fits the data set: see labkit.data.recipe
PRESETS: dict[str, Callable[[], Mapping[str, Any]]] = {
    preset.__name__: preset
    for preset in (
        estimator_2017, tutorial_2017, resnet20_one_cycle, resnet20_muon, fast, fast_residual, smoke,
    )
}  # fmt: skip


def preset_values(name: str) -> Mapping[str, Any]:
    """Return the values of a preset: a named one, or a file ``NAME.json``, which holds an object of values.

    Raises InputError for an unknown name, and for a file that can't be read.
    """
    name = argument("preset", name, str)
    if name.endswith(".json"):
        try:
            values = json.loads(Path(name).read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"--preset {name} can't be read: {reason_of(error)}") from None
        if not isinstance(values, dict):
            raise InputError(f"--preset {name} is no JSON object; allowed: values of flags by their names")
        return by_field(values)
    if name not in PRESETS:
        raise unknown_name_error("preset", name, [AUTO, *PRESETS])
    return PRESETS[name]()


def merged_with_preset(
    name: str | None, given: Mapping[str, Any], base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of a preset, if one is named, and ``given`` ones, which take precedence.

    What ``given`` makes useless is left out of the preset: the learning rates of another optimizer, the
    length with another one, and the depth if the given model has none such. ``base``: values in place of a
    preset's.
    """
    values = dict(base or {}) if name is None else dict(preset_values(name))
    named = given.get("model")
    block = str(given.get("block", "basic"))
    depths = None if named is None else architecture_of(str(named)).depths.get(block)
    if depths and "num_layers" in values and not depths.allows(values["num_layers"]):
        values.pop("num_layers")
    if given.get("epochs", 0) is None:  # it has no length of its own
        given = {field: value for field, value in given.items() if field != "epochs"}
    if {"train_steps", "epochs"} & given.keys():
        epochs, steps = given.get("epochs"), given.get("train_steps")
        if epochs is not None and steps is not None:
            raise InputError(f"--epochs is {epochs} beside --train-steps {steps}; give one of the two")
        for length in ("train_steps", "epochs", "steps_range"):
            values.pop(length, None)
    if (optimizer := given.get("optimizer", "sgd")) != values.get("optimizer") and is_adaptive(optimizer):
        values["learning_rate"] = KERAS_LEARNING_RATE  # not that of another optimizer, nor its factor
        values.pop("norm_bias_learning_rate_factor", None)
    merged, known = {**values, **given}, fields_by_name()
    for name in (values.keys() & known.keys()) - given.keys():
        other, *wanted = known[name].only_with or (name,)
        if other in given and given[other] not in wanted:
            del merged[name]
    return merged


def changed_by_merging(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that ``given`` alone would not lead to: see ``merged_with_preset``."""
    merged = merged_with_preset(None, given)
    return {name: values[name] for name in merged.keys() & values.keys() if merged[name] != values[name]}


def preset_summary(name: str) -> str:
    """Return what a preset is for, in a line."""
    if name == AUTO:
        return "ResNet-20 with batch, length and augmentation that fit the data set."
    return (inspect.getdoc(PRESETS[name]) or "").splitlines()[0]
