"""How many wrong labels does a run find, and what does correcting them give?

Some labels of a part of the data set are changed on purpose. A run is trained on it, and of each split as
many images are looked at as have wrong labels, the most suspected ones first. Those that are wrong get their
right label, as a person would give it, by marks and `labkit.correct_data`. The same run is trained on the
corrected data. Both are tested on the right labels. Validation and test labels are out of sample.
"""

import argparse
from pathlib import Path

import numpy as np

import labkit
from app.data_set.wrong_labels import find_suspected
from benchmarks.common import at_least, make_parser, measure_and_report
from benchmarks.report import Figure
from labkit.analysis.versus import load_on_same_images
from labkit.data.manifest import Manifest
from labkit.data.marks import LABEL, change_marks, marks_of
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory

Labels = dict[str, np.ndarray]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.set_defaults(repeats=3)
    parser.add_argument("--share", type=float, default=0.02, help="of the labels of each split, changed")
    parser.add_argument("--train-examples", type=at_least(100), default=15_000, help="of the training split")
    parser.add_argument("--epochs", type=at_least(1), default=5, help="of each training")
    parser.add_argument("--num-layers", type=at_least(8), default=8, help="depth of the ResNet")
    measure_and_report("corrected", __doc__, parser.parse_args(arguments), measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Return, over the seeds, what was found and what it changed."""
    found: dict[str, list[float]] = {}
    for seed in range(options.repeats):
        for name, value in of_seed(options, manifest, folder / str(seed), seed).items():
            found.setdefault(name, []).append(value)
            print(f"seed {seed}: {name} {value:.4g}", flush=True)
    return [Figure(name, "points" if "points" in name else "%", values) for name, values in found.items()]


def of_seed(options: argparse.Namespace, manifest: Manifest, folder: Path, seed: int) -> dict[str, float]:
    """Return the figures of one seed in percent, by their names."""
    data, right, wrong = spoiled(options, manifest, folder / "data", seed)
    before = trained(options, data, folder, seed)
    figures: dict[str, float] = {}
    for split, rows in wrong.items():
        if split != "test":
            labkit.evaluate(before, split=split)
        given = load_split(data, split)[1]
        probabilities = labkit.load_run(before).predictions(split).probabilities
        looked_at = find_suspected(given, probabilities).index[: len(rows)]
        hits = looked_at[np.isin(looked_at, rows)].tolist()
        figures[f"{split}: wrong labels among those looked at"] = 100 * len(hits) / len(rows)
        names = {(split, row): (data.classes[given[row]], data.classes[right[split][row]]) for row in hits}
        change_marks(data, marks_of(data, LABEL, names))
    corrected = labkit.correct_data(data.dataset, name="corrected", data_dir=folder / "data")
    after = trained(options, corrected, folder, seed)
    accuracies = []
    for name, run in (("before", before), ("after", after)):
        predicted = labkit.load_run(run).predictions("test").probabilities.argmax(axis=1)
        accuracies.append(100 * float((predicted == right["test"]).mean()))
        figures[f"test accuracy on right labels, {name}"] = accuracies[-1]
    figures["gain on right labels in points"] = accuracies[1] - accuracies[0]
    compared = load_on_same_images(RunDirectory(before), RunDirectory(after))
    figures["gain as Compare shows it in points"] = 100 * compared.difference.mean
    return figures


def spoiled(
    options: argparse.Namespace, manifest: Manifest, folder: Path, seed: int
) -> tuple[Manifest, Labels, Labels]:
    """Write a part of a data set with wrong labels; return it and, by split, right labels and wrong rows."""
    rng, splits = np.random.default_rng(seed), {}
    right: Labels = {}
    wrong: Labels = {}
    for name in manifest.splits:
        images, labels = load_split(manifest, name)
        if name == "train":
            images, labels = images[: options.train_examples], labels[: options.train_examples]
        right[name] = labels.copy()
        wrong[name] = np.sort(rng.choice(len(labels), round(options.share * len(labels)), replace=False))
        steps = rng.integers(1, manifest.num_classes, len(wrong[name]))
        labels[wrong[name]] = (labels[wrong[name]] + steps) % manifest.num_classes
        splits[name] = images, labels
    return write_derived(manifest, folder, splits), right, wrong


def trained(options: argparse.Namespace, data: Manifest, folder: Path, seed: int) -> Path:
    """Train on a data set; return the path of the run."""
    return labkit.train(
        job_dir=folder / data.dataset,
        dataset=data.dataset,
        data_dir=data.directory.parent,
        seed=seed,
        num_layers=options.num_layers,
        epochs=options.epochs,
        learning_rate_schedule="one_cycle",
        nesterov=True,
        batch_norm_decay=0.9,
        num_gpus=0,
    ).path


if __name__ == "__main__":
    main()
