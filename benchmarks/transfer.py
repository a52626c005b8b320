"""Does fine-tuning on few images of new classes give better accuracy than training from scratch?

ResNet-20 is trained on the first half of the classes, and then on few images of the other half in three
ways: fine-tuned as a whole, fine-tuned with frozen stages that are unfrozen from the head downwards, and
trained from scratch with the same recipe and number of steps. Each repeat has its own seed, which also
selects the few images. All are tested on all test images of the new classes with the weights of the last
step. Uses CIFAR-10 if it is available, else `shapes`.
"""

import argparse
import functools
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import archive_of, at_least, make_parser, prepared_data, work_folder
from benchmarks.report import Figure, Goal, Report
from benchmarks.trainings import config_of, train_to_end
from labkit.data.manifest import Manifest, find_manifest
from labkit.data.prepare import prepare

GOAL = Goal("at least", 5.0)  # points of accuracy; several times the spread over seeds
RECIPE: dict[str, Any] = {
    "model": "resnet",
    "eval_batch_size": 500,
    "learning_rate_schedule": "one_cycle",
    "nesterov": True,
    "weight_decay": 5e-4,
    "weight_decay_of": "kernels",
    "batch_norm_decay": 0.9,
    "validate_every_steps": 0,
}
SCRATCH, TUNED, GRADUAL = "from scratch", "fine-tuned", "fine-tuned, thawing stage by stage"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.set_defaults(repeats=3)  # seeds, from 0
    parser.add_argument("--num-layers", type=at_least(8), default=20, help="depth of the ResNet")
    parser.add_argument(
        "--examples-per-class", type=at_least(1), default=50, help="training images of each new class"
    )
    parser.add_argument(
        "--steps", type=at_least(1), default=500, help="steps of 128 examples on the first classes"
    )
    parser.add_argument(
        "--few-steps", type=at_least(4), default=150, help="steps of 50 examples on the new classes"
    )
    parser.add_argument("--learning-rate", type=float, default=0.2, help="learning rate on the first classes")
    parser.add_argument(
        "--few-learning-rate", type=float, default=0.05, help="learning rate on the new classes"
    )
    parser.add_argument(
        "--scratch-learning-rates",
        nargs="+",
        type=float,
        default=[0.05, 0.1, 0.2],
        help="learning rates from scratch on the new classes; the best one counts",
    )
    parser.add_argument(
        "--head-factor", type=float, default=4.0, help="factor of the learning rate for the new head"
    )
    options = parser.parse_args(arguments)
    report = Report("transfer", __doc__, vars(options))
    found: dict[str, list[float]] = {way: [] for way in ways_of(options, None)}
    with work_folder() as folder:
        source, archive = find_source(options.data_dir)
        part = functools.partial(prepare, source.dataset, archive=archive)
        classes = source.all_classes or source.classes
        known, new = classes[: len(classes) // 2], classes[len(classes) // 2 :]
        report.configuration |= {"dataset": source.dataset, "known": known, "new": new}
        before = part(folder / "known", classes=known).manifest
        few_images = {"train_examples": options.examples_per_class * len(new), "validation_size": 0}
        for seed in range(options.repeats):
            few = part(folder / f"few-{seed}", classes=new, seed=seed, **few_images).manifest
            for way, accuracy in measure(options, folder / str(seed), before, few, seed).items():
                found[way].append(accuracy)
                print(f"seed {seed}, {way}: {accuracy:.2f} %", flush=True)
    for way, values in found.items():
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        print(f"{way}: {statistics.mean(values):.2f}{spread} % of the test images of {', '.join(new)}")
    report.finish(figures(found), options.output)


def find_source(data_dir: Path) -> tuple[Manifest, Path | None]:
    """Return CIFAR-10 and its archive, if that is known or recorded in the data set, else `shapes`."""
    prepared = prepared_data(data_dir)
    archive = archive_of(prepared)
    if archive is None and prepared.dataset == "cifar10":  # it can't be prepared in parts
        prepared = find_manifest(data_dir, "shapes") or prepare("shapes", data_dir).manifest
    return prepared, archive


def measure(
    options: argparse.Namespace, folder: Path, before: Manifest, few: Manifest, seed: int
) -> dict[str, float]:
    """Return the test accuracy of each way to learn the new classes, in per cent."""
    folder.mkdir()
    first = {"train_steps": options.steps, "train_batch_size": 128, "learning_rate": options.learning_rate}
    pretrained = folder / "known"
    train(options, before, seed, pretrained, first | {"evaluate_test": False})
    then = {
        "train_steps": options.few_steps,
        "train_batch_size": min(50, few.count("train")),
        "learning_rate": options.few_learning_rate,
    }
    return {
        way: train(options, few, seed, folder / way.replace(" ", "-"), then | values)
        for way, values in ways_of(options, pretrained).items()
    }


def ways_of(options: argparse.Namespace, pretrained: Path | None) -> dict[str, dict[str, Any]]:
    """Return the changes in configuration that make each way to learn the new classes."""
    start = {"start_from": str(pretrained), "head_learning_rate_factor": options.head_factor}
    thawing = {"freeze": "stem,stage*", "unfreeze_every_steps": options.few_steps // 5}
    scratch = {
        f"{SCRATCH}, rate {rate:g}": {"learning_rate": rate} for rate in options.scratch_learning_rates
    }
    return {**scratch, TUNED: start, GRADUAL: start | thawing}


def train(
    options: argparse.Namespace, manifest: Manifest, seed: int, run: Path, values: Mapping[str, Any]
) -> float:
    """Run `labkit train`; return the test accuracy in per cent, NaN without one."""
    values = {**RECIPE, "num_layers": options.num_layers, "seed": seed, **values}
    return train_to_end(config_of(manifest, run, values)).accuracy


def figures(found: Mapping[str, list[float]]) -> list[Figure]:
    """Return each way's accuracy, and the gain of fine-tuning for each seed."""
    rows = [Figure(f"test accuracy, {way}", "%", values) for way, values in found.items()]
    # The best rate is chosen by test accuracy, which can only favor training from scratch.
    scratch = max((values for way, values in found.items() if way.startswith(SCRATCH)), key=statistics.mean)
    for way in (TUNED, GRADUAL):
        gains = [ours - theirs for ours, theirs in zip(found[way], scratch, strict=True)]
        rows.append(Figure(f"{way}: points over the best from scratch", "points", gains, GOAL))
    return rows


if __name__ == "__main__":
    main()
