"""Many short trainings of one network in one process, for a comparison that takes seconds.

The network and the training step are labkit's own, compiled once. Images are halved to 16×16 pixels, and each
training starts from the initial weights of its seed.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError

if TYPE_CHECKING:
    from labkit.config import Config
    from labkit.data.manifest import Manifest


@dataclass(frozen=True)
class Trial:
    """One training and what it predicts.

    Args:
        recipe: name of the recipe, the learning-rate schedule.
        learning_rate: the highest of the training.
        seed: of the initial weights and the order of the images.
        losses: of each step, float64 [steps], in nats.
        validation_right: whether each validation image is classified correctly, bool [n].
        test_right: the same of the test images, bool [n].
    """

    recipe: str
    learning_rate: float
    seed: int
    losses: NDArray[np.float64]
    validation_right: NDArray[np.bool_]
    test_right: NDArray[np.bool_]

    @property
    def validation(self) -> float:
        """Accuracy on the validation images, 0 to 1."""
        return float(self.validation_right.mean())

    @property
    def test(self) -> float:
        """Accuracy on the test images, 0 to 1."""
        return float(self.test_right.mean())

    def __repr__(self) -> str:
        accuracy = f"validation {self.validation:.3f}, test {self.test:.3f}"
        return f"<{self.recipe}, rate {self.learning_rate:g}, seed {self.seed}: {accuracy}>"


def halved(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images uint8 [n, height, width, channels] with each 2×2 pixels averaged into one."""
    count, height, width, channels = images.shape
    blocks = images.reshape(count, height // 2, 2, width // 2, 2, channels)
    return blocks.mean((2, 4)).round().astype(np.uint8)


class Bench:
    """Trains the network of ``config`` with several recipes and seeds.

    Args:
        config: network, optimizer, steps and batch size. A recipe changes the schedule and the height of
            the learning rate alone.
        manifest: the data set; ``lesson.prepare()`` has it. 4,000 training images are
            used.
    """

    def __init__(self, config: "Config", manifest: "Manifest") -> None:
        import tensorflow as tf

        from course.lessons.short_training import one_device_step
        from labkit.data.network_input import standardize
        from labkit.data.shards import load_split
        from labkit.optim.optimizers import SGD

        self.config, self._classes = config, manifest.num_classes
        self._data = {}
        for split, count in (("train", 4000), ("validation", None), ("test", None)):
            images, labels = (values[:count] for values in load_split(manifest, split))
            self._data[split] = standardize(halved(images), manifest), labels
        self._model = self._network(seed=0)
        self._initial = functools.cache(lambda seed: self._network(seed).get_weights())
        self._trial = functools.cache(self._train)
        self._optimizer = SGD(self._model, config.optimizer)
        self._step = one_device_step(self._model, self._optimizer, config.data.images_per_step)
        self._predict = tf.function(
            lambda images: self._model(images, training=False), reduce_retracing=True, autograph=False
        )

    def _network(self, seed: int) -> Any:
        from labkit.models.registry import build_model

        return build_model(
            self.config.model,
            num_classes=self._classes,
            image_shape=self._data["train"][0].shape[1:],
            data_format="channels_last",
            seed=seed,
        )

    def train(self, recipe: str, learning_rate: float, seed: int) -> Trial:
        """Train once; a training that was made isn't made again.

        The seed decides the initial weights and the order of the images.

        Args:
            recipe: a learning-rate schedule: ``one_cycle``, ``cosine``, ``constant``.
            learning_rate: its highest value.
            seed: at least 0.
        """
        return self._trial(recipe, learning_rate, seed)

    def _train(self, recipe: str, learning_rate: float, seed: int) -> Trial:
        from course.lessons.short_training import restart, train_steps

        restart(self._model, self._optimizer, self._initial(seed))
        images, labels = self._data["train"]
        steps, batch = self.config.run.train_steps, self.config.data.images_per_step
        schedule = replace(self.config.optimizer, learning_rate_schedule=recipe, learning_rate=learning_rate)
        random = np.random.default_rng(seed)
        order = np.concatenate(
            [random.permutation(len(images)) for _ in range(-(-steps * batch // len(images)))]
        )
        losses = train_steps(
            self._step,
            ((images[rows], labels[rows]) for rows in order[: steps * batch].reshape(steps, batch)),
            schedule,
            steps=steps,
            steps_per_epoch=len(images) / batch,
        )
        return Trial(recipe, learning_rate, seed, losses, self._right("validation"), self._right("test"))

    def train_all(self, recipe: str, learning_rate: float, seeds: Sequence[int]) -> list[Trial]:
        """Train once with each seed."""
        return [self.train(recipe, learning_rate, seed) for seed in seeds]

    def _right(self, split: str) -> NDArray[np.bool_]:
        images, labels = self._data[split]
        predicted = [
            self._predict(images[start : start + 500]).numpy().argmax(1)
            for start in range(0, len(images), 500)
        ]
        return np.concatenate(predicted) == labels


@dataclass(frozen=True)
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

    def __str__(self) -> str:
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

    def __repr__(self) -> str:
        return str(self)
