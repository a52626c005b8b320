"""A plan that is written down before the trainings, and a result that keeps to it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course.lessons.compare.trials import Trial
from labkit.errors import InputError

__all__ = ["Plan"]


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
