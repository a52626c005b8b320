"""Wrong labels that a run finds: marked on its pages, corrected, trained on again, compared."""

from pathlib import Path

import numpy as np
import pytest

import labkit
from app.data_set.scan import scan_data
from app.data_set.wrong_labels import _cards, _not_kept, find_suspected
from app.images import marking
from labkit.analysis.predictions import load_predictions
from labkit.analysis.results import grouped, read_results
from labkit.analysis.versus import load_on_same_images, told_of_two
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory

WRONG = 0.02  # of the labels of each split
EXAMPLES = {"train": 4000, "validation": 1000, "test": 1000}


def with_wrong_labels(folder: Path) -> tuple[Manifest, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Write a part of ``shapes`` with wrong labels; return it and, by split, right labels and wrong rows."""
    source, rng = prepare("shapes", folder / "drawn").manifest, np.random.default_rng(0)
    splits, right, wrong = {}, {}, {}
    for name, count in EXAMPLES.items():
        images, labels = (part[:count] for part in load_split(source, name))
        right[name] = labels.copy()
        wrong[name] = np.sort(rng.choice(count, round(WRONG * count), replace=False))
        labels[wrong[name]] = (labels[wrong[name]] + rng.integers(1, 10, len(wrong[name]))) % 10
        splits[name] = images, labels
    return write_derived(source, folder / "data", splits), right, wrong


def train(home: Path, name: str, dataset: str, steps: int) -> RunDirectory:
    run = labkit.train(
        job_dir=home / "runs" / name,
        dataset=dataset,
        data_dir=home / "data",
        num_layers=8,
        train_steps=steps,
        train_batch_size=64,
        learning_rate_schedule="one_cycle",
        nesterov=True,
        batch_norm_decay=0.9,
        crop_padding=2,
        num_gpus=0,
    )
    return RunDirectory(run.path)


@pytest.mark.long
def test_wrong_labels_are_found_marked_corrected_and_the_runs_are_compared(tmp_path):
    data, right, wrong = with_wrong_labels(tmp_path)
    before = train(tmp_path, "before", "shapes", 700)
    scan, changed = scan_data(data), {}
    for split in data.splits:
        labkit.evaluate(before.path, split=split)
        found = find_suspected(scan.splits[split].labels, load_predictions(before, split).probabilities)
        first = slice(0, len(wrong[split]))  # where somebody begins to look
        cards = _cards(scan, split, found, first, load_split(data, split)[0][found.index[first]])
        shown = {f"{one.split} {one.index}": one for one in cards}
        is_wrong = {place: one.index in wrong[split] for place, one in shown.items()}
        print(split, sum(is_wrong.values()), len(is_wrong))
        assert sum(is_wrong.values()) > 0.5 * len(is_wrong)
        # A person sees whether the label or the network is wrong.
        for kind, places in (
            ("label", [place for place, is_so in is_wrong.items() if is_so]),
            ("keep", [place for place, is_so in is_wrong.items() if not is_so]),
        ):
            marking.say(data, shown, {"kind": kind, "label": "", "places": places})
        changed[split] = [one.index for place, one in shown.items() if is_wrong[place]]
        kept = [one.index for place, one in shown.items() if not is_wrong[place]]
        assert not np.isin(kept, _not_kept(scan, split, found).index).any()
    made = labkit.correct_data("shapes", name="fixed", data_dir=tmp_path / "data")
    assert made.source["changed"] == {split: len(rows) for split, rows in changed.items()}
    for split, rows in changed.items():
        labels = load_split(made, split)[1]
        assert (labels[rows] == right[split][rows]).mean() > 0.8  # else the network suggested a third class
        assert np.array_equal(np.delete(labels, rows), np.delete(scan.splits[split].labels, rows))
    after = train(tmp_path, "after", "fixed", 50)
    images = load_on_same_images(before, after)
    left = len(changed["test"])
    assert images.left_out == (left, left)
    assert not set(images.first.index) & set(changed["test"])
    assert np.array_equal(images.first.index, images.second.index)
    told = " ".join(told_of_two(*grouped(read_results({"a": before, "b": after})), "test_accuracy"))
    print(told)
    assert f"{1000 - left:,} test images are the same, with the same label, in both" in told
    assert "on the test images that both have" in told
