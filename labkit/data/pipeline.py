"""Batches for training and evaluation, with two input paths behind one interface.

The training batch of step *s* is a pure function of (data set, seed, *s*). Each epoch *e* is a permutation of
the training split that depends on (seed, e); with balanced sampling it has as many examples of each class
(``labkit.data.hashes``). The epochs form one endless stream, and with batch size B step
*s* takes samples s·B … s·B + B − 1 of it; a batch may span two epochs. The step number is therefore enough to
resume, and the global batch does not depend on the number of replicas.

The ``memory`` path keeps the split as one uint8 array and permutes its rows. The ``streaming`` path reads the
shards in an order that depends on (seed, epoch), several in parallel, through a shuffle buffer. Both are
deterministic, but their orders differ: a buffer only shuffles examples that are close together.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from labkit.data.augment import DEFAULT, Augmentation, augment
from labkit.data.hashes import (
    augmentation_key,
    balance_of,
    draws_of,
    epoch_order,
    mixed_in,
    named_key,
    order_key,
    permutation,
)
from labkit.data.inputs import WHOLE_BATCH, InputShare, choose_input_path
from labkit.data.manifest import Manifest, has_size
from labkit.data.mixup import mix, mixed_images, partners_of_step, soft_targets
from labkit.data.network_input import WHOLE_IMAGE, NetworkInput, as_input, central_crop
from labkit.data.records import parse_batch
from labkit.data.shards import damage_error, find_split, load_split, verified_paths
from labkit.errors import InputError

DEFAULT_SHUFFLE_BUFFER_SIZE = 16_384  # about 51 MB of CIFAR-10 records
_INTERLEAVED_SHARDS = 8
_INTERLEAVED_BLOCK = 16

Arrays = tuple[np.ndarray, np.ndarray]
Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
EpochReader = Callable[[tf.Tensor], tf.data.Dataset]
Fetcher = Callable[[tf.Tensor], Batch]


@tf.autograph.experimental.do_not_convert  # also what is mapped: converting takes seconds and changes nothing
def train_dataset(
    manifest: Manifest,
    *,
    global_batch_size: int,
    seed: int,
    start_step: int,
    stop_step: int,
    augmentation: Augmentation | None = DEFAULT,
    network_input: NetworkInput = WHOLE_IMAGE,
    mixup_alpha: float = 0.0,
    cutmix_alpha: float = 0.0,
    balanced: bool = False,
    standardized: bool = True,
    input_path: str = "auto",
    share: InputShare = WHOLE_BATCH,
    shuffle_buffer_size: int = DEFAULT_SHUFFLE_BUFFER_SIZE,
    arrays: Arrays | None = None,
    with_index: bool = False,
) -> tf.data.Dataset:
    """Return this process's batches of steps `start_step` … `stop_step` − 1.

    Args:
        manifest: the prepared data set; its ``train`` split is used.
        global_batch_size: examples per step over all replicas.
        seed: decides the order and the augmentation of the examples.
        start_step: the first step, counted from 0; the batch of a step does not depend on it.
        stop_step: one past the last step.
        augmentation: settings of the random crop and flip; None leaves the images unchanged.
        network_input: how to cut and standardize; an image that isn't augmented gives its middle.
        mixup_alpha: mixes each example with another of the global batch (``labkit.data.augment``)
            if it is above 0; only for standardized images.
        cutmix_alpha: covers a part of each example by that of another, if it is above 0; not with mixup.
        balanced: whether an epoch has as many examples of each class (memory path only).
        standardized: whether to standardize. Unstandardized images are uint8, a quarter of the bytes to send
            to a process that standardizes them itself; float32 if the augmentation changes their colours.
        input_path: ``memory``, ``streaming``, or ``auto`` (:func:`choose_input_path`).
        share: which replicas' slices to yield.
        shuffle_buffer_size: of the streaming path, in examples.
        arrays: the result of ``load_split(manifest, "train")`` if it was read before (memory path only).
        with_index: whether to yield each example's row within the split as well.

    Returns:
        A data set of (images, labels) with static shapes, b = global batch size / replicas: images float32
        [b, height, width, channels], of the network's input; labels int32 [b], zeros and ones
        [b, num_classes] in a multi-label data set, or float32 [b, num_classes] for numbers, mixup and CutMix;
        with ``with_index`` also index int64 [b]. The batches are ordered by step, then by replica.

    Raises:
        InputError: an argument is out of range, or the split is missing or damaged.
    """
    replica_batch = share.replica_batch_size(global_batch_size)
    if not 0 <= start_step <= stop_step:
        raise InputError(f"steps {start_step} to {stop_step} are not a range; give 0 <= start <= stop")
    if shuffle_buffer_size < 1:
        raise InputError(f"shuffle buffer size {shuffle_buffer_size} is too small; give 1 or more")
    window = _Window(
        examples=find_split(manifest, "train").count,
        seed=seed,
        global_batch_size=global_batch_size,
        replica_batch_size=replica_batch,
        start_step=start_step,
        stop_step=stop_step,
        share=share,
    )
    with tf.device("/CPU:0"):
        if choose_input_path(manifest, input_path) == "memory":
            arrays = arrays if arrays is not None else load_split(manifest, "train")
            read_epoch, fetch = _memory_epochs(window, arrays, balanced=balanced)
        elif balanced:
            raise InputError("balanced sampling needs the memory input path; give --input-path memory")
        else:
            read_epoch, fetch = _streamed_epochs(window, manifest, shuffle_buffer_size)
        key = augmentation_key(seed)
        shape = network_input.shape(manifest)

        def seen(samples: tf.Tensor, numbers: tf.Tensor) -> Batch:
            images, labels, index = fetch(samples)
            if augmentation:
                epoch = numbers // window.examples
                draws = draws_of(epoch, samples, window.examples) if balanced else epoch
                images = augment(images, manifest, augmentation, key=key, epoch=draws, index=index)
            images = central_crop(images, network_input.crop_size)
            images = as_input(images, manifest, network_input) if standardized else images
            images = tf.ensure_shape(images, [replica_batch, *shape])
            return images, tf.ensure_shape(labels, [replica_batch, *manifest.target_shape]), index

        def make_batch(step: tf.Tensor, position: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
            """Return the slice of the step's global ``batch`` that begins at ``position``."""
            own = position + tf.range(replica_batch, dtype=tf.int64)
            first = step * global_batch_size
            images, labels, index = seen(tf.gather(batch, own), first + own)
            if mixup_alpha or cutmix_alpha:
                others = tf.gather(partners_of_step(seed, step, global_batch_size), own)
                partners, their_labels, _ = seen(tf.gather(batch, others), first + others)
                alphas = {"mixup_alpha": mixup_alpha, "cutmix_alpha": cutmix_alpha}
                images, share = mixed_images(images, partners, seed=seed, step=step, **alphas)
                targets = (soft_targets(which, manifest.num_classes) for which in (labels, their_labels))
                labels = mix(share, *targets)
            return (images, labels, index) if with_index else (images, labels)

        batches = _replica_batches(window, read_epoch).map(make_batch, num_parallel_calls=tf.data.AUTOTUNE)
        return batches.prefetch(tf.data.AUTOTUNE).with_options(_options())


@dataclass(frozen=True)
class _Window:
    """Which samples of the endless stream to yield, and the batch sizes."""

    examples: int
    seed: int
    global_batch_size: int
    replica_batch_size: int
    start_step: int
    stop_step: int
    share: InputShare


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # Its thread sleeps for up to a minute between two looks, and the end of a training waited for it.
    options.autotune.enabled = False
    options.deterministic = True
    # Rewriting the graph copies every captured tensor, on the memory path the whole split. What the rewrites
    # would add (parallel maps, prefetching) is already in the pipeline.
    options.experimental_optimization.apply_default_optimizations = False
    # Each process already yields only its own share; sharding again would lose examples.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _replica_batches(window: _Window, read_epoch: EpochReader) -> tf.data.Dataset:
    """Yield each step of the window once for each of this process's replicas.

    Yields (step int64, position int64, samples [global batch]): the first position in the global batch of the
    replica's slice, and the samples of the whole global batch.
    """
    start = window.start_step * window.global_batch_size
    epochs = tf.data.Dataset.range(
        start // window.examples, window.stop_step * window.global_batch_size // window.examples + 1
    )
    samples = epochs.flat_map(read_epoch).skip(start % window.examples)
    steps = samples.batch(window.global_batch_size, drop_remainder=True)
    steps = steps.take(window.stop_step - window.start_step).enumerate(window.start_step)
    share = window.share
    replicas = tf.data.Dataset.range(share.first_replica, share.first_replica + share.num_local_replicas)

    def for_each_replica(step: tf.Tensor, batch: tf.Tensor) -> tf.data.Dataset:
        return replicas.map(lambda replica: (step, replica * window.replica_batch_size, batch))

    return steps.flat_map(for_each_replica)


def _memory_epochs(window: _Window, arrays: Arrays, *, balanced: bool) -> tuple[EpochReader, Fetcher]:
    """Return a function that lists an epoch's samples (row indices) and one that fetches a batch of them."""
    # identity: a tensor converted from an array keeps a second copy of the array (seen in TensorFlow 2.21).
    images, labels = tf.identity(arrays[0]), tf.identity(arrays[1])
    if images.shape[0] != window.examples:
        raise InputError(
            f"arrays have {images.shape[0]} examples, but the training split has {window.examples}; "
            "pass the arrays that load_split returns for it"
        )
    key, balance = order_key(window.seed), balance_of(arrays[1]) if balanced else None

    def read_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(epoch_order(window.examples, key, epoch, balance))

    def fetch(shown: tf.Tensor) -> Batch:
        index = shown % window.examples
        return tf.gather(images, index), tf.gather(labels, index), index

    return read_epoch, fetch


def _streamed_epochs(
    window: _Window, manifest: Manifest, shuffle_buffer_size: int
) -> tuple[EpochReader, Fetcher]:
    """Return a function that reads an epoch's samples (serialized records) and one that parses a batch.

    Every process reads all records but parses only its share.
    """
    shards = find_split(manifest, "train").shards
    # Check only the sizes: hashing a large data set would delay the first step, and records have checksums.
    damaged = [shard.file for shard in shards if not has_size(manifest, shard)]
    if damaged:
        raise damage_error(manifest, damaged)
    paths = [os.fspath(manifest.shard_path(shard)) for shard in shards]
    shard_key = named_key(window.seed, "shard")
    buffer_key = named_key(window.seed, "buffer")

    def read_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        # Dataset.shuffle also uses the graph's seed; fix it so that tf.random.set_seed has no effect here.
        tf.compat.v1.set_random_seed(1)
        order = permutation(len(paths), shard_key, epoch)
        records = tf.data.Dataset.from_tensor_slices(tf.gather(tf.constant(paths), order)).interleave(
            tf.data.TFRecordDataset,
            cycle_length=min(_INTERLEAVED_SHARDS, len(paths)),
            block_length=_INTERLEAVED_BLOCK,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        buffer_seed = tf.bitcast(mixed_in(buffer_key, epoch), tf.int64)
        return records.shuffle(shuffle_buffer_size, seed=buffer_seed, reshuffle_each_iteration=False)

    return read_epoch, lambda serialized: parse_batch(serialized, manifest)


@tf.autograph.experimental.do_not_convert
def eval_dataset(
    manifest: Manifest,
    split: str,
    *,
    global_batch_size: int,
    network_input: NetworkInput = WHOLE_IMAGE,
    share: InputShare = WHOLE_BATCH,
) -> tf.data.Dataset:
    """Return this process's standardized batches of a split, in order and with every example exactly once.

    The last batch is padded with examples of weight 0 and index −1, so that all replicas get the same number
    of batches of the same size.

    Args:
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        global_batch_size: examples per step over all replicas.
        network_input: which part of an image to yield, and how to standardize.
        share: which replicas' slices to yield.

    Returns:
        A data set of (images, labels, index, weight), b = global batch size / replicas: images float32
        [b, height, width, channels], labels as in `train_dataset`, index int64 [b], weight float32 [b].
        The batches are ordered by step, then by replica.

    Raises:
        InputError: there is no such split, a shard is missing or damaged, or the batch cannot be split
            equally among the replicas.
    """
    replica_batch = share.replica_batch_size(global_batch_size)
    paths = verified_paths(manifest, split)

    def parse_slice(serialized: tf.Tensor, replica: tf.Tensor):
        count = tf.size(serialized, out_type=tf.int64)
        rows = replica * replica_batch + tf.range(replica_batch, dtype=tf.int64)
        images, labels, index = parse_batch(tf.gather(serialized, tf.minimum(rows, count - 1)), manifest)
        real = rows < count
        images = as_input(images, manifest, network_input)
        images = tf.ensure_shape(images, [replica_batch, *network_input.shape(manifest)])
        index = tf.where(real, index, tf.constant(-1, tf.int64))
        labels = tf.ensure_shape(labels, [replica_batch, *manifest.target_shape])
        return images, labels, index, tf.cast(real, tf.float32)

    replicas = tf.data.Dataset.range(share.first_replica, share.first_replica + share.num_local_replicas)
    with tf.device("/CPU:0"):
        steps = tf.data.TFRecordDataset(paths).batch(global_batch_size)
        pairs = steps.flat_map(lambda batch: replicas.map(lambda replica: (batch, replica)))
        dataset = pairs.map(parse_slice, num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.prefetch(tf.data.AUTOTUNE).with_options(_options())
