"""How accurate is a network after how much training, on this machine?

Full trainings with the recipes of docs/results.md, each with several seeds and on all training images: none
are held out, because nothing is selected. Measured are the accuracy on all test images with the last weights,
with and without test-time augmentation, and the seconds of all training steps. Finished runs are reused. A
plot shows test accuracy against minutes of training, from checkpoints that are evaluated after the training.
Uses CIFAR-10 if it is available, else `shapes`.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.common import archive_of, make_parser, prepared_data
from benchmarks.report import Figure, Goal, Report
from benchmarks.trainings import Trained, evaluate_checkpoints, train_to_end
from labkit import home
from labkit.config import Config
from labkit.config.presets import preset_values
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare
from labkit.distributed.cpu import bfloat16_instructions

QUESTION = "How accurate is a network after how much training?"
POINTS = 12  # checkpoints of a curve


@dataclass(frozen=True)
class Recipe:
    """A preset with changed values, and its goals.

    ``accuracy`` and ``augmented`` (with test-time augmentation), in per cent, are goals for at most
    ``minutes`` of training. ``seeds``: the largest number of runs.
    """

    preset: str
    changes: dict[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    augmented: float | None = None
    minutes: float | None = None
    seeds: int = 3


RECIPES = {
    "fast": Recipe("fast", accuracy=90.0, minutes=15.0),
    "fast, an hour": Recipe(
        "fast",
        {"width_factor": 1.5, "train_steps": 540, "cutout_size": 8},  # 21.6 epochs of 50,000
        accuracy=93.0,
        augmented=94.0,
        minutes=60.0,
        seeds=1,
    ),
    "resnet20": Recipe(
        "resnet20_one_cycle",
        {"train_steps": 4688},  # 12 epochs of 50,000
        accuracy=88.0,
        seeds=1,
    ),
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.set_defaults(repeats=3)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--steps", type=int, help="steps of every training, to try the script out")
    parser.add_argument(
        "--runs", type=Path, default=home.runs_home() / "accuracy", help="folder of the runs, which are kept"
    )
    options = parser.parse_args(arguments)
    manifest = all_images(options)
    found = {name: measure(options, manifest, name) for name in options.recipes}
    chosen = {"dataset": manifest.dataset, "precision": _precision()}
    report = Report("accuracy", QUESTION, vars(options) | chosen)
    report.configuration["curves"] = {name: [run.curve for run in runs] for name, runs in found.items()}
    with_goals = manifest.dataset == "cifar10"
    rows = [row for name, runs in found.items() for row in figures(name, runs, with_goals=with_goals)]
    path = report.finish(rows, options.output)
    draw(found, path.with_suffix(".png"))


def measure(options: argparse.Namespace, manifest: Manifest, name: str) -> list[Trained]:
    """Train a recipe once for each seed."""
    recipe = RECIPES[name]
    location = {"dataset": manifest.dataset, "data_dir": str(manifest.directory.parent), "num_gpus": 0}
    values = {**preset_values(recipe.preset), **recipe.changes, **location, "precision": _precision()}
    if options.steps:
        values["train_steps"] = options.steps
    values["keep_checkpoints"] = POINTS + 1
    values["checkpoint_every_steps"] = max(1, values["train_steps"] // POINTS)
    values["checkpoint_every_seconds"] = None
    runs = []
    for seed in range(min(options.repeats, recipe.seeds)):
        job_dir = str(options.runs / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}")
        config = Config.from_flat({**values, "seed": seed, "job_dir": job_dir})
        train_to_end(config)
        runs.append(evaluate_checkpoints(config, "test"))
        row = runs[-1].test or {}
        print(f"{name}, seed {seed}: {row.get('accuracy')}, {runs[-1].seconds / 60:.1f} minutes", flush=True)
    return runs


def all_images(options: argparse.Namespace) -> Manifest:
    """Prepare the data set in the runs' folder, with no training images held out."""
    known = prepared_data(options.data_dir)
    archive = archive_of(known)
    folder = options.runs / "all_images"
    return prepare(known.dataset, folder, archive=archive, validation_size=0, progress=print).manifest


def _precision() -> str:
    return "mixed_bfloat16" if bfloat16_instructions() else "float32"


def figures(name: str, runs: list[Trained], *, with_goals: bool = True) -> list[Figure]:
    """Return a recipe's accuracies and minutes for each seed; the goals hold for CIFAR-10."""
    recipe, rows = RECIPES[name] if with_goals else Recipe(RECIPES[name].preset), []
    for key, words, goal in (
        ("accuracy", "test accuracy", recipe.accuracy),
        ("tta_accuracy", "test accuracy with test-time augmentation", recipe.augmented),
    ):
        values = tuple(100 * run.test[key] for run in runs if run.test and key in run.test)
        if values:
            bound = None if goal is None else Goal("at least", goal)
            rows.append(Figure(f"{name}: {words}", "%", values, bound))
    limit = None if recipe.minutes is None else Goal("at most", recipe.minutes)
    return [*rows, Figure(f"{name}: training", "min", tuple(run.seconds / 60 for run in runs), limit)]


def draw(found: dict[str, list[Trained]], path: Path) -> None:
    """Plot test accuracy against minutes of training: one line per seed, one color per recipe."""
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, runs) in enumerate(found.items()):
        for run in runs:
            minutes = [seconds / 60 for seconds, _ in run.curve]
            values = [100 * accuracy for _, accuracy in run.curve]
            label = name if run is runs[0] else None
            axis.plot(minutes, values, "o-", markersize=3, color=f"C{number}", label=label)
    axis.set(xlabel="minutes of training", ylabel="test accuracy (%)", title=QUESTION)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
