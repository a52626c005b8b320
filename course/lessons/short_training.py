"""Short trainings on one device: many with labkit's own step, as in several lessons, and one in one file."""

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import course
import labkit
from labkit.config import Config, OptimizerConfig
from labkit.config.config import flags_of
from labkit.data.manifest import Manifest
from labkit.models.registry import build_model
from labkit.optim.optimizer import Optimizer
from labkit.optim.schedules import learning_rate_at
from labkit.run import Run
from labkit.startup.child import python_command
from labkit.startup.process import Child
from labkit.training.step import make_train_step

Step = Callable[[Any, Any, float], tf.Tensor]


def network_of(config: Config, manifest: Manifest) -> keras.Model:
    """Return the network of a configuration with its initial weights."""
    return build_model(
        config.model,
        num_classes=manifest.num_classes,
        image_shape=manifest.image_shape,
        seed=config.run.seed,
    )


def one_device_step(model: keras.Model, optimizer: Optimizer, batch_size: int, **options: Any) -> Step:
    """Return ``step(images, labels, learning_rate)``, compiled. It returns the metrics, the loss first.

    ``options``: further arguments of ``make_train_step``.
    """
    strategy, count = tf.distribute.get_strategy(), tf.Variable(0, dtype=tf.int64, trainable=False)
    compiled = tf.function(
        make_train_step(strategy, model, optimizer, count, global_batch_size=batch_size, **options),
        autograph=False,
    )
    return lambda images, labels, learning_rate: compiled(
        tf.convert_to_tensor(images),
        tf.convert_to_tensor(labels),
        tf.constant(learning_rate, tf.float32),
        tf.constant(0.0),
    )


def shuffled(images: Any, labels: Any, batch_size: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Give batches of images and labels without end. Each epoch has an order of its own."""
    for epoch in itertools.count():
        order = np.random.default_rng([seed, epoch]).permutation(len(labels))
        for start in range(0, len(labels) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            yield images[rows], labels[rows]


def train_steps(
    step: Step,
    batches: Iterable[tuple[Any, Any]],
    config: OptimizerConfig,
    *,
    steps: int,
    steps_per_epoch: float,
) -> NDArray[np.float64]:
    """Train on a batch, images and labels, in each step. Returns the losses before each update, [steps].

    The learning rate follows the schedule of ``config``; ``step`` is one of ``one_device_step``.
    """
    losses = []
    for number, (images, labels) in zip(range(steps), batches, strict=False):
        rate = learning_rate_at(number, config, total_steps=steps, steps_per_epoch=steps_per_epoch)
        losses.append(step(images, labels, rate)[0])
    return np.array(losses, np.float64)


def restart(model: keras.Model, optimizer: Optimizer, weights: Iterable[Any]) -> None:
    """Set all weights of ``model``, given in its order, and clear what the optimizer remembers."""
    for weight, value in zip(model.weights, weights, strict=True):
        weight.assign(value)
    for variable in optimizer.state:
        variable.assign(tf.zeros_like(variable))


def one_file_beside_labkit(
    manifest: Manifest, job_dir: Path, **flags: Any
) -> tuple[NDArray[np.float32], Run]:
    """Train ResNet-20 with ``course/one_file.py``, in a process of its own, and meanwhile with labkit here.

    Args:
        manifest: the prepared data set.
        job_dir: of labkit's run; one that is there is trained anew.
        **flags: of both programs, such as ``train_steps``.

    The process ends with this one, and two minutes after labkit's training at most. Prints its last line.
    Returns its losses, [steps], and labkit's run. Raises OSError if it has left no checkpoint.
    """
    flags |= {"dataset": manifest.dataset, "data_dir": str(manifest.directory.parent), "evaluate_test": False}
    program = Path(course.__file__).with_name("one_file.py")
    with tempfile.TemporaryDirectory() as folder:
        with Child(python_command(program, *flags_of({**flags, "job_dir": folder}))) as child:
            run = labkit.train(
                preset="resnet20_one_cycle", deterministic=True, num_gpus=0, validate_every_steps=0,
                job_dir=job_dir, overwrite=True, **flags,
            )  # fmt: skip
            child.wait(120)
            child.kill()  # of no effect if it has ended
            print(*list(child.lines())[-1:])  # before it are messages of TensorFlow
        return np.load(Path(folder) / "checkpoint.npz")["losses"], run
