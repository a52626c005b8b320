"""A training on a fold: its predictions are those of the fold, and it is resumed to the last bit."""

import shutil

import numpy as np

import labkit as package
from labkit.data.manifest import load_manifest
from labkit.data.shards import load_split
from tests.properties.harness import assert_same_run, killed_behind, labkit
from tests.training.small import SAVED, STEPS, train


def test_it_validates_on_its_fold_and_is_resumed_to_the_last_bit(data_dir, tmp_path):
    data_dir, run = shutil.copytree(data_dir, tmp_path / "data"), tmp_path / "run"
    assert train(run, data_dir, fold="2/7") == 0
    found = package.load_run(run)
    manifest = load_manifest(data_dir, "shapes-fold-2-of-7")
    assert manifest.count("train") + manifest.count("validation") == 70
    package.evaluate(run, split="validation")
    predictions = found.predictions("validation")
    assert np.array_equal(predictions.labels, load_split(manifest, "validation")[1])
    stopped = killed_behind(run, SAVED)
    assert labkit("resume", str(stopped)) == 0
    assert_same_run(run, stopped, STEPS)
    assert train(run, data_dir, fold="2/7") == 0  # finished, and found again
    assert train(run, data_dir, fold="3/7") == 2
