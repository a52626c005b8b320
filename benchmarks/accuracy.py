"""How accurate is a network after how much training, on this machine?

Full trainings with the recipes of docs/results.md, each with several seeds and on all training images: none
are held out, because nothing is selected. Measured are the accuracy on all test images with the last weights,
with and without test-time augmentation, and the seconds of all training steps. Where a recipe has a peer in
PyTorch (torch_recipes.py), each seed of the one is followed by a seed of the other, on the same images.
Finished runs are reused. A plot shows test accuracy against minutes of training, from checkpoints that are
evaluated after the training. Recipes that are not named keep their figures and curves from the result that is
already in the output folder, if it was measured under the same conditions: the hours may be spread over days.
So may be the seeds of a recipe without a peer: `--recipes NAME --first-seed 1 --repeats 2` adds two.
Uses CIFAR-10 if it is available, else `shapes`.
"""

import argparse
import datetime
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.common import (
    add_runs_flag,
    archive_of,
    at_least,
    fast_precisions,
    make_parser,
    missing,
    prepared_data,
)
from benchmarks.report import Figure, Goal, Report, describe_machine, ratios, read_figures
from benchmarks.trainings import TorchTrainings, Trained, config_of, evaluate_checkpoints, train_to_end
from labkit.config.presets import merged_with_preset
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare

POINTS = 12  # checkpoints of a curve
TESTED = {"accuracy": "test accuracy", "tta_accuracy": "test accuracy with test-time augmentation"}
# What has to be equal for earlier results to be kept.
CONDITIONS = {
    "configuration": ("dataset", "precision", "steps"),
    "hardware": ("cpu", "cpu_family_model_stepping", "instruction_sets", "cores_allowed"),
    "versions": ("python", "tensorflow", "keras", "torch"),
}


@dataclass(frozen=True)
class Recipe:
    """A preset with changed values, and its goals.

    ``accuracy`` and ``augmented`` (with test-time augmentation), in per cent, are goals for at most
    ``minutes`` of training. ``peer``: a recipe of torch_recipes.py; ``share`` of its minutes is another goal.
    """

    preset: str
    changes: dict[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    augmented: float | None = None
    minutes: float | None = None
    peer: str | None = None
    share: float | None = None


RECIPES = {
    "fast": Recipe("fast", {"train_steps": 230}, peer="airbench94_muon", share=0.75),  # 9.2 epochs of 50,000
    "fast, an hour": Recipe(
        "fast_residual",
        {"train_steps": 850},  # 34 epochs of 50,000
        accuracy=91.5,
        minutes=60.0,
    ),
    "resnet20": Recipe(
        "resnet20_one_cycle",
        {"train_steps": 4688},  # 12 epochs of 50,000
        peer="resnet20",
    ),
    "resnet20, muon": Recipe(
        "resnet20_muon",
        {"train_steps": 7812},  # 20 epochs of 50,000
        accuracy=88.0,
        minutes=10.0,
    ),
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.set_defaults(repeats=3)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument(
        "--first-seed", type=at_least(0), default=0, help="lower seeds keep their earlier results"
    )
    parser.add_argument("--steps", type=int, help="steps of every training, to try the script out")
    add_runs_flag(parser, "accuracy")
    options = parser.parse_args(arguments)
    manifest = all_images(options)
    chosen = {"dataset": manifest.dataset, "precision": fast_precisions()[-1]}
    report = Report("accuracy", __doc__, vars(options) | chosen)
    path = options.output / "accuracy.json"
    rows, details = earlier(path, report.configuration)  # before the hours
    kept = {name: lower_seeds(options, name, rows, details) for name in options.recipes}
    found: dict[str, list[Trained]] = {}
    for name in options.recipes:
        measured = measure(options, manifest, name)
        found |= measured | {name: kept[name] + measured[name]}
    with_goals = manifest.dataset == "cifar10"
    rows = [row for row in rows if side_of(row) not in found]
    rows += [row for name in options.recipes for row in figures(name, found, with_goals=with_goals)]
    details |= {side: details_of(runs) for side, runs in found.items()}
    for name in options.recipes:
        details[name]["recipe"] = values_of(options, name)
    order = [side for name in RECIPES for side in (name, peer_name(name)) if side in details]
    report.configuration["details"] = {side: details[side] for side in order}
    report.finish([row for side in order for row in rows if side_of(row) == side], options.output)
    draw({side: details[side]["curves"] for side in order}, path.with_suffix(".png"))


def side_of(row: Figure) -> str:
    """Return the recipe or peer that a figure is about."""
    return row.name.partition(": ")[0]


def details_of(runs: list[Trained]) -> dict[str, Any]:
    """Return the day of the last training, the form of a peer, and the curve of each seed."""
    form = {} if runs[0].form is None else {"form": runs[0].form}
    return {"date": str(max(run.date for run in runs)), **form, "curves": [run.curve for run in runs]}


def earlier(path: Path, conditions: dict[str, Any]) -> tuple[list[Figure], dict[str, dict[str, Any]]]:
    """Return figures and details in a result that was measured under the same conditions.

    If it is of another data set, precision, number of steps, CPU or version of a package, nothing is returned
    and a line says so.
    """
    if not path.exists():
        return [], {}
    before, now = json.loads(path.read_text()), {**describe_machine(), "configuration": conditions}
    for part, names in CONDITIONS.items():
        for name in names:
            if before[part].get(name) != now[part].get(name):
                said = f"{name} was {before[part].get(name)} and is {now[part].get(name)}"
                print(f"{path} will be replaced: {said}", flush=True)
                return [], {}
    return read_figures(path), before["configuration"]["details"]


def lower_seeds(
    options: argparse.Namespace, name: str, rows: list[Figure], details: dict[str, dict[str, Any]]
) -> list[Trained]:
    """Return the earlier results of a recipe for the seeds below ``--first-seed``.

    Ends the program where these are other seeds or of another recipe, and where the recipe has a peer, with
    which it is trained in turn. The code may have changed since: see the dates.
    """
    known, first = details.get(name, {"curves": []}), options.first_seed
    if not first:
        if known["curves"]:
            print(f"{name!r} is measured again: its {len(known['curves'])} earlier seeds leave the result")
        return []
    if RECIPES[name].peer:
        sys.exit(f"{name!r} and its peer are trained in turn; leave --first-seed out")
    if len(known["curves"]) != first:
        seeds = len(known["curves"])
        sys.exit(f"the earlier result of {name!r} has {seeds} seeds, so --first-seed must be {seeds}")
    if known.get("recipe") != values_of(options, name):
        sys.exit(
            f"the earlier seeds of {name!r} had another recipe, or none is recorded; leave --first-seed out"
        )
    found = {row.name.partition(": ")[2]: row.repeats for row in rows if side_of(row) == name}
    return [
        Trained(
            {key: found[words][seed] / 100 for key, words in TESTED.items() if words in found},
            found["training"][seed] * 60,
            known["curves"][seed],
            datetime.date.fromisoformat(known["date"]),
        )
        for seed in range(first)
    ]


def measure(options: argparse.Namespace, manifest: Manifest, name: str) -> dict[str, list[Trained]]:
    """Train a recipe, and its peer if it has one, once for each seed."""
    peer = RECIPES[name].peer
    theirs = None
    if peer is not None and (reason := missing("torch")):
        print(f"without {peer}: {reason}", flush=True)
    elif peer is not None:
        theirs = TorchTrainings(peer, options.runs, manifest, options.steps)
    found: dict[str, list[Trained]] = {name: []}
    for seed in range(options.first_seed, options.first_seed + options.repeats):
        found[name].append(train(options, manifest, name, seed))
        if theirs is not None:
            found.setdefault(peer_name(name), []).append(theirs.train(seed))
        for side, runs in found.items():
            row = runs[-1].test or {}
            print(f"{side}, seed {seed}: {row.get('accuracy')}, six views {row.get('tta_accuracy')}, "
                  f"{runs[-1].seconds / 60:.1f} minutes", flush=True)  # fmt: skip
    return found


def peer_name(name: str) -> str:
    """Return what the peer of a recipe is called in figures."""
    return f"{RECIPES[name].peer} in PyTorch"


def train(options: argparse.Namespace, manifest: Manifest, name: str, seed: int) -> Trained:
    """Train a recipe of labkit with a seed."""
    values = values_of(options, name)
    values["keep_checkpoints"] = POINTS + 1
    values["checkpoint_every_steps"] = max(1, values["train_steps"] // POINTS)
    values["checkpoint_every_seconds"] = None
    job_dir = options.runs / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    config = config_of(manifest, job_dir, {**values, "seed": seed})
    train_to_end(config)
    return evaluate_checkpoints(config, "test")


def values_of(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the configuration of a recipe, without its seed and its checkpoints."""
    recipe = RECIPES[name]
    values = merged_with_preset(recipe.preset, {**recipe.changes, "precision": fast_precisions()[-1]})
    return values | ({"train_steps": options.steps} if options.steps else {})


def all_images(options: argparse.Namespace) -> Manifest:
    """Prepare the data set in the runs' folder, with no training images held out."""
    known = prepared_data(options.data_dir)
    folder, archive = options.runs / "all_images", archive_of(known)
    return prepare(known.dataset, folder, archive=archive, validation_size=0, progress=print).manifest


def figures(name: str, found: dict[str, list[Trained]], *, with_goals: bool = True) -> list[Figure]:
    """Return accuracies and minutes of a recipe and its peer; the goals hold for CIFAR-10."""
    recipe = RECIPES[name] if with_goals else Recipe(RECIPES[name].preset)
    rows = figures_of(name, found[name], recipe)
    theirs = found.get(peer_name(name), [])
    if not theirs:
        return rows
    pairs = list(zip(found[name], theirs, strict=True))
    share = None if recipe.share is None else Goal("at most", recipe.share)
    minutes = ratios((run.seconds for run in found[name]), (run.seconds for run in theirs))
    rows.append(Figure(f"{name}: minutes over those of {peer_name(name)}", "x", minutes, share))
    key, words = ("accuracy", "plain") if recipe.share is None else ("tta_accuracy", "with six views")
    points = [100 * (ours.test[key] - their.test[key]) for ours, their in pairs if ours.test and their.test]
    goal = None if recipe.share is None else Goal("at least", 0.0)
    rows.append(Figure(f"{name}: points over {peer_name(name)}, {words}", "points", points, goal))
    return rows + figures_of(peer_name(name), theirs, Recipe(recipe.preset))


def figures_of(name: str, runs: list[Trained], recipe: Recipe) -> list[Figure]:
    """Return accuracies and minutes for each seed, with the goals of ``recipe``."""
    rows = []
    for (key, words), goal in zip(TESTED.items(), (recipe.accuracy, recipe.augmented), strict=True):
        values = [100 * run.test[key] for run in runs if run.test and key in run.test]
        if values:
            bound = None if goal is None else Goal("at least", goal)
            rows.append(Figure(f"{name}: {words}", "%", values, bound))
    limit = None if recipe.minutes is None else Goal("at most", recipe.minutes)
    return [*rows, Figure(f"{name}: training", "min", [run.seconds / 60 for run in runs], limit)]


def draw(found: dict[str, list[list[tuple[float, float]]]], path: Path) -> None:
    """Plot test accuracy against minutes of training: one line per seed, one color per recipe."""
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, curves) in enumerate(found.items()):
        for curve in curves:
            minutes = [seconds / 60 for seconds, _ in curve]
            values = [100 * accuracy for _, accuracy in curve]
            label = name if curve is curves[0] else None
            axis.plot(minutes, values, "o-", markersize=3, color=f"C{number}", label=label)
    axis.set(xlabel="minutes of training", ylabel="test accuracy (%)", title=__doc__.partition("\n")[0])
    axis.set_xscale("log")  # recipes take from ten minutes to an hour
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
