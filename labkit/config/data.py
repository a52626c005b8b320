"""Which examples a run is trained with, and how they are shown."""

import itertools
import math
from dataclasses import dataclass

from labkit.config.data_sets import checked_choice, checked_fold
from labkit.config.fields import CODE, IN_A_FILE, OF_THE_NETWORK, OF_THE_ORDER, FieldOwner, option
from labkit.errors import InputError, short


def _named_function(text: str) -> str:
    found = CODE.fullmatch(text)
    if found is None or found["path"] is None:
        raise InputError(f"--augment is {short(text)}; allowed: {IN_A_FILE}, a function of your own")
    return text


@dataclass(frozen=True)
class DataConfig(FieldOwner):
    """Which examples, in which batches, how augmented."""

    dataset: str = option(
        "auto",
        "Data set: cifar10, cifar100, cifar100_coarse, mnist, fashion_mnist, svhn; shapes, shapes_multilabel "
        "or shapes_size, which labkit draws; or the name of your own, made with labkit data prepare, such as "
        "--images DIR --name NAME, or with labkit.prepare_data. auto takes CIFAR-10 where it is prepared or "
        "can be downloaded, else shapes. Images with several labels need --loss sigmoid, labels that are "
        "numbers --loss mse.",
        spelled=checked_choice,
        common=True,
        fork=OF_THE_ORDER,
    )
    fold: str | None = option(
        None,
        "Cross-validation: 2/5 divides the training and validation images together into five folds, "
        "validates on the second and trains on the others. Each class is in proportion in each fold; the "
        "seed of the data set decides which image is in which. The test images stay.",
        spelled=checked_fold,
        unset="the split of the data set",
        fork=OF_THE_ORDER,
    )
    data_dir: str | None = option(
        None,
        "Folder of prepared data sets.",
        unset="<home>/data; see labkit doctor",
        role="other",
        is_path=True,
    )
    train_batch_size: int = option(
        128,
        "Examples in a training step, over all replicas; with --accumulate-steps in each of its passes. auto "
        "measures the largest power of two that fits into memory.",
        minimum=1,
        maximum=2**17,
        common=True,
        measured=True,
        fork=OF_THE_ORDER,
    )
    accumulate_steps: int = option(
        1,
        "Passes of a step, each over --train-batch-size examples, whose gradients are summed before the "
        "update: a step's batch is that many times as large, in the memory of one pass.",
        minimum=1,
        maximum=2**10,
        fork=OF_THE_ORDER,
        synchronous=True,
    )
    ghost_batches: int = option(
        1,
        "Parts of a batch (of each replica and pass) that are computed at once, each with its own statistics "
        "of batch normalization. As many as there are cores make steps on small images faster on a CPU.",
        minimum=1,
        maximum=64,
        fork=OF_THE_ORDER,
        synchronous=True,
    )
    eval_batch_size: int = option(
        100,
        "Examples in an evaluation step, over all replicas.",
        minimum=1,
        maximum=2**17,
        role="measurement",
    )
    balanced_sampling: bool = option(
        False,
        "Draws the images of each epoch so that all classes are equally frequent: those of a small class "
        "several times, of a large one some. Needs the memory input path.",
        fork=OF_THE_ORDER,
    )
    use_distortion_for_training: bool = option(
        True,
        "Augments the training images: rotation, random crops, flips, TrivialAugment, colours, cutout, mixup "
        "and CutMix.",
    )
    crop_padding: int = option(
        4,
        "Pixels added on each side of a training image before it is cropped. No effect with "
        "--random-resized-crop.",
        minimum=0,
        maximum=16,
        only_with=("use_distortion_for_training", True),
    )
    crop_padding_mode: str = option(
        "constant",
        "What is added before the crop: constant adds black, reflect mirrors the image.",
        choices=("constant", "reflect"),
        only_with=("use_distortion_for_training", True),
    )
    flip: str = option(
        "random",
        "Flips training images left to right: random flips half of them, alternating flips each one every "
        "second epoch.",
        choices=("random", "alternating", "none"),
        only_with=("use_distortion_for_training", True),
    )
    augment: str | None = option(
        None,
        "FILE.py:NAME: a function of your own, NAME(images, seeds), which changes the training images last. "
        "It returns images of the same shape, each a function of its image and its two seeds alone.",
        is_code=True,
        acts="run",
        spelled=_named_function,
        unset="nothing further is changed",
    )
    crop_size: int | None = option(
        None,
        "Side, in pixels, of the square that the network sees: a random part of each training image, and the "
        "middle of every other image.",
        unset="the image's own size",
        minimum=1,
        fork=OF_THE_NETWORK,
    )
    brightness: float = option(
        0.0,
        "Largest number of grey levels, of 255, by which a training image is made brighter or darker.",
        minimum=0,
        below=256,
        only_with=("use_distortion_for_training", True),
    )
    contrast: float = option(
        0.0,
        "Multiplies the contrast of a training image by a random factor from 1 - contrast to 1 + contrast.",
        minimum=0,
        below=1,
        only_with=("use_distortion_for_training", True),
    )
    cutout_size: int = option(
        0,
        "Side, in pixels, of a square that is blanked in each training image. 0 blanks none.",
        minimum=0,
        only_with=("use_distortion_for_training", True),
    )
    random_resized_crop: float | None = option(
        None,
        "Cuts a random part out of each training image and resizes it to the image's size. The value is the "
        "smallest share of the image's area that is kept. 0 pads and crops instead.",
        minimum=0,
        below=1,
        unset="0.25 for images over 64 pixels without --crop-size, else 0",
    )
    random_rotation: float = option(
        0.0,
        "Turns each training image about its centre by a random angle of up to so many degrees, to either "
        "side, before the crop. The corners become black.",
        minimum=0,
        below=180,
        only_with=("use_distortion_for_training", True),
    )
    trivial_augment: bool = option(
        False,
        "Changes each training image by one random operation of TrivialAugment at a random strength: shear, "
        "shift, rotation, or other colours or sharpness.",
        only_with=("use_distortion_for_training", True),
    )
    mixup_alpha: float = option(
        0.0,
        "Mixes each training image and its label with another of the batch, by shares that are drawn from "
        "Beta(alpha, alpha). 0 mixes none.",
        minimum=0,
        below=100,
        only_with=("use_distortion_for_training", True),
    )
    cutmix_alpha: float = option(
        0.0,
        "Covers a rectangle of each training image by that of another image of the batch, and mixes their "
        "labels by the area; its share is drawn from Beta(alpha, alpha). 0 covers none.",
        minimum=0,
        below=100,
        only_with=("use_distortion_for_training", True),
    )
    standardization: str = option(
        "dataset",
        "What brings pixels to mean 0 and standard deviation 1: dataset takes the statistics of each channel "
        "over the training split, per_image those of each image.",
        choices=("dataset", "per_image"),
    )
    progressive_resizing: str | None = option(
        None,
        "Trains on smaller images first. 16:0.3,24:0.7 means 16 pixels for the first 30 % of the run, 24 up "
        "to 70 %, then full size.",
        unset="full size throughout",
    )
    input_path: str = option(
        "auto",
        "How examples are read: memory holds the whole split as one array, streaming reads sharded files, "
        "auto takes memory where the split fits.",
        choices=("auto", "memory", "streaming"),
        fork=OF_THE_ORDER,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_resized_crop and not self.use_distortion_for_training:
            raise InputError(
                f"--random-resized-crop is {self.random_resized_crop}; allowed with "
                "--no-use-distortion-for-training: 0 (images are not augmented)"
            )
        if self.random_resized_crop and self.crop_size:
            raise InputError(
                f"--random-resized-crop is {self.random_resized_crop}; allowed with --crop-size: 0 "
                "(one of both decides the crop)"
            )
        if self.mixup_alpha and self.cutmix_alpha:
            raise InputError(
                f"--mixup-alpha is {self.mixup_alpha} and --cutmix-alpha {self.cutmix_alpha}; both mix "
                "pairs of images; leave one of them out"
            )
        if self.train_batch_size == 1 and (self.mixup_alpha or self.cutmix_alpha):
            raise InputError(
                "--train-batch-size is 1; allowed with --mixup-alpha or --cutmix-alpha, which mix the images "
                "of a batch: at least 2"
            )
        if self.balanced_sampling and self.input_path == "streaming":
            raise InputError(
                "--balanced-sampling is on with --input-path streaming, which reads the images in the order "
                "of their files and can't choose among all; give --input-path memory, or --class-weights "
                "balanced"
            )
        try:
            shares = [0.0, *(share for size, share in self.image_sizes if size > 0)]
        except ValueError:
            shares = []
        ascending = all(before < share <= 1 for before, share in itertools.pairwise(shares))
        if not ascending or len(shares) != 1 + (self.progressive_resizing or "").count(":"):
            raise InputError(
                f"--progressive-resizing is {self.progressive_resizing!r}; allowed: a side in pixels, a "
                "colon, a share of the run (ascending, up to 1), comma-separated, for example 16:0.3,24:0.7"
            )

    @property
    def images_per_step(self) -> int:
        """The examples of an update of the weights: those of all its passes, over all replicas."""
        return self.train_batch_size * self.accumulate_steps

    @property
    def parts_of_replica(self) -> int:
        """Into how many parts a step divides the images of a replica, each with its own statistics."""
        return self.accumulate_steps * self.ghost_batches

    @property
    def image_sizes(self) -> tuple[tuple[int, float], ...]:
        """The parts of ``progressive_resizing``: (side in pixels, share of the run up to which it holds)."""
        if self.progressive_resizing is None:
            return ()
        parts = [part.partition(":") for part in self.progressive_resizing.split(",")]
        return tuple((int(size), float(share)) for size, _, share in parts)

    def image_size_at(self, step: int, total_steps: int) -> int | None:
        """Return the side of the images of the update from ``step`` to ``step + 1``; None: as they are.

        Args:
            step: steps completed before this update, from 0 to ``total_steps - 1``.
            total_steps: steps of the whole run.
        """
        return next((size for size, share in self.image_sizes if step < share * total_steps), None)

    def resizing_steps(self, total_steps: int) -> tuple[int, ...]:
        """Return the steps completed before each update whose images have another size than the last one's.

        Args:
            total_steps: steps of the whole run.
        """
        ends = sorted({math.ceil(share * total_steps) for _, share in self.image_sizes})
        return tuple(
            step
            for step in ends
            if 0 < step < total_steps
            and self.image_size_at(step, total_steps) != self.image_size_at(step - 1, total_steps)
        )
