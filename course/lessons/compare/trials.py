"""Many short trainings of one network in one process, for a comparison that takes seconds.

The network and the training step are labkit's own, compiled once. Images are shrunk to 8×8 pixels, and each
training starts from the initial weights of its seed.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError

if TYPE_CHECKING:
    from labkit.config import Config
    from labkit.data.manifest import Manifest


class Trial(NamedTuple):
    """One training and what it predicts.

    Args:
        recipe: name of the recipe, the learning-rate schedule.
        learning_rate: the highest of the training.
        seed: of the initial weights and the order of the images.
        losses: of each step, float64 [steps], in nats.
        validation: accuracy on the validation images, 0 to 1.
        test_right: whether each test image is classified correctly, bool [n].
    """

    recipe: str
    learning_rate: float
    seed: int
    losses: NDArray[np.float64]
    validation: float
    test_right: NDArray[np.bool_]

    @property
    def test(self) -> float:
        """Accuracy on the test images, 0 to 1."""
        return float(self.test_right.mean())

    def __repr__(self) -> str:
        accuracy = f"validation {self.validation:.3f}, test {self.test:.3f}"
        return f"<{self.recipe}, rate {self.learning_rate:g}, seed {self.seed}: {accuracy}>"


class Bench:
    """Trains the network of ``config`` with several recipes and seeds.

    Args:
        config: network, optimizer, steps and batch size. A recipe changes the schedule and the height of
            the learning rate alone.
        manifest: the data set; ``lesson.prepare()`` has it. At most 10,000 images of each split are used.
    """

    def __init__(self, config: "Config", manifest: "Manifest") -> None:
        import tensorflow as tf

        from course.lessons.resnet.networks import small_images
        from course.lessons.short_training import one_device_step
        from labkit.models.registry import build_model
        from labkit.optim.optimizers import SGD

        self.config = config
        self._data = {split: small_images(manifest, 10_000, split, size=8) for split in manifest.splits}
        shape = self._data["train"].images.shape[1:]
        network = functools.partial(
            build_model, config.model, num_classes=manifest.num_classes, image_shape=shape
        )
        self._model = network(seed=0)
        self._initial = functools.cache(lambda seed: network(seed=seed).get_weights())
        self._optimizer = SGD(self._model, config.optimizer)
        self._step = one_device_step(self._model, self._optimizer, config.data.images_per_step)
        self._predict = tf.function(
            lambda images: self._model(images, training=False), reduce_retracing=True, autograph=False
        )
        self.train = functools.cache(self._train)

    def _train(self, recipe: str, learning_rate: float, seed: int) -> Trial:
        """Train once; a training that was made isn't made again.

        Args:
            recipe: a learning-rate schedule: ``one_cycle``, ``cosine``, ``constant``.
            learning_rate: its highest value.
            seed: of the initial weights and the order of the images, at least 0.
        """
        from course.lessons.short_training import restart, shuffled, train_steps

        restart(self._model, self._optimizer, self._initial(seed))
        size, (images, labels, *_) = self.config.data.images_per_step, self._data["train"]
        losses = train_steps(
            self._step,
            shuffled(images, labels, size, seed),
            replace(self.config.optimizer, learning_rate_schedule=recipe, learning_rate=learning_rate),
            steps=self.config.run.train_steps,
            steps_per_epoch=len(images) / size,
        )
        accuracy = float(self._right("validation").mean())
        return Trial(recipe, learning_rate, seed, losses, accuracy, self._right("test"))

    def _right(self, split: str) -> NDArray[np.bool_]:
        images, labels, *_ = self._data[split]
        parts = np.array_split(images, -(-len(images) // 500))
        return np.concatenate([self._predict(part).numpy().argmax(1) for part in parts]) == labels


@dataclass(frozen=True, repr=False)
class Plan:
    """A comparison of two recipes, as it was decided before the first training.

    Args:
        question: what the comparison is to answer.
        recipes: the two recipes by name, with the learning rate of each.
        seeds: all of them are used, and no others.
        score: what decides: the field of a trial, such as ``test``.
        analysis: how it decides, in words.
    """

    question: str
    recipes: dict[str, float]
    seeds: tuple[int, ...]
    score: str
    analysis: str

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with any word of the plan."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def write(self, path: Path) -> "Plan":
        """Write the plan as JSON, with its digest. Returns it."""
        path.write_text(json.dumps({**asdict(self), "digest": self.digest}, indent=1) + "\n")
        return self

    def differences(self, trials: Sequence[Trial]) -> NDArray[np.float64]:
        """Return the first recipe's score minus the second's, one for each seed of the plan, float64 [seeds].

        Raises InputError if trials are missing, or there are some that the plan doesn't have.
        """
        expected = {(name, rate, seed) for name, rate in self.recipes.items() for seed in self.seeds}
        scores = {
            (trial.recipe, trial.learning_rate, trial.seed): getattr(trial, self.score) for trial in trials
        }
        for problem, names in (("lack", expected - set(scores)), ("add", set(scores) - expected)):
            if names:
                named = ", ".join(f"{recipe} seed {seed}" for recipe, _, seed in sorted(names))
                raise InputError(f"these trials {problem} {named}; plan {self.digest} says which seeds count")
        first, second = self.recipes.items()
        return np.array([scores[*first, seed] - scores[*second, seed] for seed in self.seeds])

    def __repr__(self) -> str:
        recipes = " and ".join(f"{name} at {rate:g}" for name, rate in self.recipes.items())
        lines = [
            f"plan {self.digest}",
            f"  question  {self.question}",
            f"  recipes   {recipes}",
            f"  seeds     {', '.join(map(str, self.seeds))}",
            f"  score     {self.score} accuracy",
            f"  analysis  {self.analysis}",
        ]
        return "\n".join(lines)
