"""A training image as the network gets it in chosen epochs, exactly as the run's pipeline makes it."""

import re
from dataclasses import dataclass

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.images import cards
from app.images.subject import check_index, file_of
from app.markup import number_text, plain
from labkit.config.config import Config, recorded_config
from labkit.data.augment import CELLS, augment, augmentation_offsets, crop_grid
from labkit.data.hashes import augmentation_key, order_key, permutation
from labkit.data.inputs import augmentation_of, choose_input_path
from labkit.data.manifest import Manifest
from labkit.data.network_input import as_pixels, central_corner, central_crop, shrunk
from labkit.data.shards import find_split, read_rows
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

MAX_EPOCHS = 48  # shown at a time


@dataclass(frozen=True, eq=False)
class AugmentedImage:
    """An image in one epoch.

    ``epoch``: from 0. ``step``: the training step whose batch has it, from 1; None where only TensorFlow
    knows the order (``input_path=streaming``). ``image``: uint8 [height, width, channels], cropped, flipped,
    its colours changed (and clipped to 0 to 255), covered and resized. ``right``, ``down``: by how many
    pixels the content has moved, before the flip. ``flipped``: whether it is mirrored. ``kept``: the share
    of the area that a random-resized-crop keeps; None without one.
    """

    epoch: int
    step: int | None
    image: NDArray[np.uint8]
    right: int
    down: int
    flipped: bool
    kept: float | None = None

    def in_words(self) -> str:
        """Return what was done to it."""
        moves = [
            f"{abs(by)} {forth if by > 0 else back}"
            for by, forth, back in ((self.right, "right", "left"), (self.down, "down", "up"))
            if by
        ]
        if self.kept is not None:
            moves = [f"{number_text(self.kept, '.0%')} of the image"]
        return ", ".join([*moves, *(["flipped"] if self.flipped else [])]) or "not moved"


def augmented_image(
    manifest: Manifest, config: Config, index: int, epochs: list[int]
) -> tuple[NDArray[np.uint8], list[AugmentedImage]]:
    """Return a training image as it is stored, uint8 [height, width, channels], and as it is in these epochs.

    Args:
        manifest: the run's prepared data set.
        config: of the run.
        index: position in the training split.
        epochs: from 0, at least one.

    Raises InputError if there is no such image, or its file is missing or damaged.
    """
    check_index(manifest, "train", index)
    count = manifest.count("train")
    if config.data.balanced_sampling:
        raise InputError(
            "this run has balanced_sampling: an epoch shows an image several times or not at all; labkit "
            "replay --batch-only shows a step's images"
        )
    originals, _ = read_rows(manifest, "train", np.array([index]))
    images = np.repeat(originals, len(epochs), axis=0)
    at, where = np.asarray(epochs, np.int64), np.full(len(epochs), index, np.int64)
    settings = augmentation_of(config.data)
    right = down = np.zeros(len(epochs), np.int64)
    flips = np.zeros(len(epochs), bool)
    kept: list[float | None] = [None] * len(epochs)
    if settings:
        key = augmentation_key(config.run.seed)
        size = originals.shape[1], originals.shape[2]
        images = as_pixels(augment(images, manifest, settings, key=key, epoch=at, index=where))
        top, left, flips = augmentation_offsets(key, at, where, settings, size)
        if settings.random_resized_crop:
            grid = crop_grid(
                settings.random_resized_crop, key=key, epoch=at, index=where, height=size[0], width=size[1]
            )
            kept = (grid.down * grid.across / CELLS**2).tolist()
        else:
            middle = central_corner(*size, settings.crop_size) if settings.crop_size else (0, 0)
            right = settings.crop_padding + middle[1] - left
            down = settings.crop_padding + middle[0] - top
    else:
        images = central_crop(images, config.data.crop_size)
    steps = _steps(manifest, config, index, epochs)
    made = []
    for place, epoch in enumerate(epochs):
        step = steps[place]
        seen_at = step or epoch * count // config.data.images_per_step + 1
        image, size_then = images[place], config.data.image_size_at(seen_at - 1, config.run.train_steps)
        if size_then is not None:
            image = np.round(shrunk(image[None].astype(np.float32), size_then)[0])
            image = image.clip(0, 255).astype(np.uint8)
        made.append(
            AugmentedImage(
                epoch, step, image, int(right[place]), int(down[place]), bool(flips[place]), kept[place]
            )
        )
    return originals[0], made


def _steps(manifest: Manifest, config: Config, index: int, epochs: list[int]) -> list[int | None]:
    """Return the step of each epoch in which the network gets an image."""
    if choose_input_path(manifest, config.data.input_path) != "memory":
        return [None] * len(epochs)
    count, key = find_split(manifest, "train").count, order_key(config.run.seed)
    places = [int(np.flatnonzero(permutation(count, key, epoch) == index)[0]) for epoch in epochs]
    samples = [epoch * count + place for epoch, place in zip(epochs, places, strict=True)]
    return [sample // config.data.images_per_step + 1 for sample in samples]


def epochs_of(text: str) -> list[int]:
    """Return the epochs that a text names, such as ``0-11`` or ``0, 5, 100``.

    Raises InputError for another text, for a range that ends before it begins, and for too many epochs.
    """
    epochs: list[int] = []
    for part in filter(None, re.split(r"[,\s]+", re.sub(r"\s*[-–]\s*", "-", text.strip()))):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if last < first:
            raise InputError(
                f"epochs are {text[:40]!r}; allowed: numbers from 0 and ranges, such as 0-11, 50"
            )
        epochs += range(first, min(last, first + MAX_EPOCHS) + 1)
        if len(epochs) > MAX_EPOCHS:
            raise InputError(f"{text[:40]!r} names more than {MAX_EPOCHS} epochs; name fewer")
    if not epochs:
        raise InputError("no epoch is named; name some, such as 0-11")
    return epochs


def settings_in_words(config: Config) -> str:
    """Return the settings of a run that decide how a training image is changed."""
    data, settings = config.data, augmentation_of(config.data)
    if settings is None:
        words = ["not augmented (use_distortion_for_training is off)"]
    else:
        padded = f"{settings.crop_padding} pixels ({settings.crop_padding_mode})"
        crop = f"random crop after padding by {padded}" if settings.crop_padding else "no crop"
        if settings.random_resized_crop:
            least = number_text(settings.random_resized_crop, ".0%")
            crop = f"random crop of at least {least} of the area, resized"
        elif settings.crop_size:
            after = f" after padding by {padded}" if settings.crop_padding else ""
            crop = f"random crop of {settings.crop_size}×{settings.crop_size} pixels{after}"
        words = [
            crop,
            f"{settings.flip} flip" if settings.flip != "none" else "no flip",
            f"cutout of {settings.cutout_size}×{settings.cutout_size} pixels"
            if settings.cutout_size
            else "no cutout",
        ]
        words += [f"rotation ±{settings.rotation:g}°"] if settings.rotation else []
        words += ["TrivialAugment"] if settings.trivial else []
        words += [f"brightness ±{settings.brightness:g}"] if settings.brightness else []
        words += [f"contrast ±{number_text(settings.contrast, '.0%')}"] if settings.contrast else []
        words += [f"changed by {settings.own}"] if settings.own else []
        words += [f"mixup with alpha {data.mixup_alpha:g} (not shown)"] if data.mixup_alpha else []
        words += [f"CutMix with alpha {data.cutmix_alpha:g} (not shown)"] if data.cutmix_alpha else []
    if data.progressive_resizing:
        words.append(f"progressive resizing {data.progressive_resizing}")
    return f"{'; '.join(words)}; seed {config.run.seed}"


FIRST_EPOCHS = "0-11"


def augmentation(run: RunDirectory, manifest: Manifest) -> None:
    """Draw the choice of an image and of epochs, and the images that the run's pipeline makes."""
    config = recorded_config(run)
    count = manifest.count("train")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        index = st.number_input(
            "Training image",
            min_value=0,
            max_value=max(count - 1, 0),
            step=1,
            key="image",
            bind="query-params",
            width=160,
            help=f"Its number in the training split, 0 to {count - 1:,}.",
        )
        text = st.text_input(
            "Epochs",
            value=FIRST_EPOCHS,
            key="epochs",
            bind="query-params",
            width=240,
            help="Numbers from 0 and ranges, such as 0-11, 50. The first epoch is 0.",
        )
    st.caption(f"Settings of this run: {plain(settings_in_words(config))}.")
    try:
        epochs = epochs_of(text)
        original, made = augmented_image(manifest, config, int(index), epochs)
    except InputError as error:
        st.warning(plain(str(error)), icon=":material/error:")
        return
    height, width = original.shape[:2]
    lines = ["original", f"{width}×{height} pixels", file_of(manifest, "train", int(index))]
    shown = [cards.Card(original, [*filter(None, lines)])]
    for image in made:
        step = f"step {image.step:,}" if image.step else ""
        side = image.image.shape[0]
        size = f"{side}×{side} pixels" if side != height else ""
        shown.append(
            cards.Card(image.image, [f"epoch {image.epoch:,}", *filter(None, [step, image.in_words(), size])])
        )
    st.html(cards.grid(shown))
    last = config.run.train_steps * config.data.images_per_step // max(count, 1)
    words = "The pixels are exactly those of the training, before standardization. "
    if made[0].step is None:
        words += "The steps aren't known, because this run reads its examples as a stream. "
    elif any((image.step or 0) > config.run.train_steps for image in made):
        words += (
            f"The run ends after {config.run.train_steps:,} steps, in epoch {last:,}; later ones show how it "
            "would go on. "
        )
    st.caption(words)
