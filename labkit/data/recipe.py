"""The recipe that fits a data set: ``--preset auto``, and what is trained where nobody chose a recipe."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from labkit import home
from labkit.config import Config, by_field, fields_by_name, presets
from labkit.config.config import flags_of
from labkit.config.data_sets import AUTO, GENERATED, fold_name, fold_of_name
from labkit.config.fields import argument, plain
from labkit.config.optimizer import is_adaptive
from labkit.config.presets import merged_with_preset, preset_values
from labkit.data.manifest import find_manifest
from labkit.errors import InputError
from labkit.parts.trust import check_preset_file

CIFAR10_EXAMPLES = 45_000
# Passes over CIFAR-10, all of whole images. The images seen grow with this power of the
# examples: a tenth of the examples is seen in a quarter of the images.
CIFAR10_EPOCHS, GROWTH = 12, 0.6
# AdamW's learning rate for batches of 128. Each of its steps is about as large as the rate.
ADAMW_RATE = 0.002
# The two flags that belong to the call of 2017 alone. Whoever gives one of them gets the defaults of 2017.
CHOICES_OF_2017 = ("batch_norm_decay", "train_steps")


@dataclass(frozen=True)
class DataFacts:
    """What the recipe depends on: the training examples, and the shorter side of what the network sees."""

    examples: int
    side: int


def fitting_recipe(
    data: DataFacts, *, batch_size: int | None = None, passes: int = 1, optimizer: str = "muon"
) -> dict[str, Any]:
    """Return the values of a recipe for a data set; the network's head fits any number of classes.

    It is ``resnet20_muon`` on whole images. The batch grows with the number of examples. So does the number
    of images that the run sees, but slower. The rates grow with the batch: SGD's in proportion, Muon's, whose
    steps all have one size, with its square root. Only images of at least 48 pixels are made smaller for the
    first part of the run, which takes a fraction of the time.

    Args:
        data: what the recipe depends on.
        batch_size: the chosen one. Default: 32, 64 or 128.
        passes: of a step, each over so many images.
        optimizer: the chosen one.
    """
    examples, side = max(1, data.examples), data.side
    batch = 32 if examples < 1_000 else 64 if examples < 10_000 else 128
    batch = batch_size or min(batch, 2 ** int(math.log2(max(1, examples // passes))))
    epochs = CIFAR10_EPOCHS * (CIFAR10_EXAMPLES / examples) ** (1 - GROWTH)
    base = dict(preset_values("resnet20_muon"))
    del base["progressive_resizing"]
    share = batch * passes / base["train_batch_size"]
    rate = ADAMW_RATE * share**0.5 if is_adaptive(optimizer) else base["learning_rate"] * share
    values = {
        **base,
        "train_batch_size": batch,
        # Each batch of an evaluation is filled up to this size; a tenth of the images is for validation.
        "eval_batch_size": min(base["eval_batch_size"], max(batch, examples // 9)),
        "learning_rate": float(f"{rate:.3g}"),
        "muon_learning_rate": float(f"{base['muon_learning_rate'] * share**0.5:.3g}"),
        "epochs": float(f"{epochs:.3g}"),
        "steps_range": None,
        "crop_padding": min(16, max(1, side // 16)),  # images over 64 pixels aren't padded
    }
    if optimizer != "muon":
        values |= {"optimizer": optimizer}
        del values["muon_learning_rate"]
    if side >= 48:
        values["progressive_resizing"] = f"{side // 2}:0.6,{side * 3 // 4}:0.8"
    return values


def fits_the_data(preset: str | None, given: Mapping[str, Any]) -> bool:
    """Return whether a configuration that is asked for gets ``fitting_recipe``.

    It does with the preset ``auto``, and without any preset if the data set isn't CIFAR-10, for which the
    defaults of 2017 are made, and ``given`` has none of ``CHOICES_OF_2017``.
    """
    if preset is not None:
        return preset == presets.AUTO
    return given.get("dataset", AUTO) not in (AUTO, "cifar10") and given.keys().isdisjoint(CHOICES_OF_2017)


def requested_values(
    preset: str | None, given: Mapping[str, Any], *, asynchronous: bool = False
) -> tuple[dict[str, Any], str]:
    """Return the values of a configuration that is asked for, and a line on the recipe, or "".

    ``given`` values take precedence over those of the preset, or of the recipe (see ``fits_the_data``).

    Args:
        preset: its name, or None.
        given: the values by the names of their fields.
        asynchronous: whether the training is for a cluster with parameter servers.

    Raises InputError for an unknown preset, and for a preset's file with code that nobody consented to.
    """
    preset = argument("preset", preset, str, optional=True)
    dataset = given.get("dataset", AUTO)
    if not isinstance(dataset, str):  # which the configuration refuses
        return merged_with_preset(None, given), ""
    if not fits_the_data(preset, given):
        if preset is not None and preset.endswith(".json"):
            own = preset_values(preset)
            check_preset_file(preset, {name: own[name] for name in own if name not in given})
        return merged_with_preset(preset, given), ""
    data = _facts(dataset, given.get("data_dir"), given.get("fold"))
    if data is None:  # the training says why the data set can't be had
        return dict(given), ""
    sizes = (plain(given.get(name)) for name in ("train_batch_size", "accumulate_steps", "crop_size"))
    # Parameter servers, which flags may name, too, apply SGD alone.
    optimizer = given.get("optimizer", "sgd" if asynchronous or given.get("ps_hosts") else "muon")
    # The configuration refuses others.
    size, passes, crop = (value if isinstance(value, int) and value > 0 else None for value in sizes)
    data = replace(data, side=min(data.side, crop or data.side))
    recipe = fitting_recipe(data, batch_size=size, passes=passes or 1, optimizer=optimizer)
    values = merged_with_preset(None, given, base=recipe)
    shown = {name: value for name, value in values.items() if name not in given}
    why = f"for {data.examples:,} training images of {data.side} pixels"
    flags = " ".join(flags_of(shown))
    return values, f"recipe auto, {why}: {flags} (add --flip none where left and right matter)"


def requested_config(
    preset: str | None,
    flags: Mapping[str, Any],
    *,
    asynchronous: bool = False,
    announce: Callable[[str], None] = print,
) -> Config:
    """Return the configuration that is asked for, as ``requested_values`` does.

    ``flags``: by the names of their fields or aliases. ``announce`` takes the line on the recipe.
    """
    given = by_field(flags)
    values, recipe = requested_values(preset, given, asynchronous=asynchronous)
    if recipe:
        announce(recipe)
    try:
        return Config.from_flat(values)
    except InputError as error:
        flag, known = str(error).split()[0], fields_by_name()
        if flag in [known[name].flag for name in values.keys() - given.keys()]:
            raise InputError(f"{error} ({flag} is of --preset {preset or presets.AUTO})") from None
        raise


def _facts(dataset: str, data_dir: Any, fold: Any) -> DataFacts | None:
    """Return what is known of a data set, or a fold of it, which may not be prepared yet; None for one of
    somebody's own.
    """
    if not isinstance(data_dir, str | os.PathLike | None):
        return None
    directory = home.expanded(data_dir).absolute() if data_dir else home.data_home()
    manifest = find_manifest(directory, "cifar10" if dataset == AUTO else dataset)
    if manifest is not None:
        trained, held_out = manifest.count("train"), manifest.count("validation")
        side = min(manifest.image_shape[:2])
    elif dataset in (AUTO, "cifar10"):
        trained, held_out, side = CIFAR10_EXAMPLES, 5_000, 32
    elif dataset in GENERATED:
        trained, held_out, side = 9_000, 1_000, 32
    else:
        return None
    if found := fold_of_name(fold_name(dataset, str(fold))):
        number, count = map(int, found[1].split("/"))
        trained += held_out
        trained -= len(range(number - 1, trained, count))
    return DataFacts(trained, side)
