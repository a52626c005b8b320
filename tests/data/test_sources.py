"""CIFAR-10 in whatever form becomes the same shards, and the same run to the last bit."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from tests.data.conftest import EXAMPLES_PER_SHARD, FakeCifar
from tests.data.examples.test_files import write_2017
from tests.data.examples.test_iterables import FORMS
from tests.properties.harness import assert_same_run, train

STEPS = 3


def picture_table(manifest: Manifest, folder: Path) -> Path:
    """Write a data set as PNG files with a table of path, label and split, and return the table."""
    folder.mkdir()
    lines = ["path,label,split"]
    for split in manifest.splits:
        for number, (image, label) in enumerate(zip(*load_split(manifest, split), strict=True)):
            Image.fromarray(image).save(folder / f"{split}{number:05}.png")
            lines.append(f"{split}{number:05}.png,{manifest.classes[label]},{split}")
    (folder / "table.csv").write_text("\n".join(lines))
    return folder / "table.csv"


def test_a_table_with_mixed_classes_gives_the_shards_of_the_archive_in_the_order_of_its_paths(
    prepared, pets, tmp_path
):
    table = picture_table(prepared, tmp_path / "pictures")
    manifest = prepare(None, tmp_path / "data", images=table, examples_per_shard=EXAMPLES_PER_SHARD).manifest
    assert manifest.splits == prepared.splits
    paths = sorted(path.relative_to(pets) for path in pets.rglob("*.png"))
    (pets / "blocks.csv").write_text("path,label\n" + "".join(f"{path},{path.parent}\n" for path in paths))
    labels = load_split(prepare(None, tmp_path / "data", images=pets / "blocks.csv").manifest, "train")[1]
    assert np.count_nonzero(np.diff(labels)) > len(labels) / 4


@pytest.mark.long
def test_each_source_gives_the_run_of_the_archive(fake_cifar: FakeCifar, prepared, tmp_path):
    given, data_dir = fake_cifar, tmp_path / "data"
    splits = {
        "train": (given.train_images, given.train_labels),
        "test": (given.test_images, given.test_labels),
    }
    for name, form in (("tf", "tf.data"), ("torch", "PyTorch"), ("hub", "Hugging Face")):
        examples = {split: FORMS[form](*pair) for split, pair in splits.items()}
        prepare(name, data_dir, examples=examples, validation_size=13)
    prepare("arrays", data_dir, examples=dict(splits), validation_size=13)
    named = {f"x_{split}": images for split, (images, _) in splits.items()}
    named |= {f"y_{split}": labels for split, (_, labels) in splits.items()}
    np.savez(tmp_path / "npz.npz", **named)
    prepare(None, data_dir, npz=tmp_path / "npz.npz", validation_size=13)
    prepare(None, data_dir, name="pictures", images=picture_table(prepared, tmp_path / "pictures"))
    fields = {"train_steps": STEPS, "train_batch_size": 16, "eval_batch_size": 16}
    train(tmp_path / "runs" / "archive", dataset="cifar10", data_dir=prepared.directory.parent, **fields)
    for name in ("arrays", "npz", "tf", "torch", "hub", "pictures"):
        train(tmp_path / "runs" / name, dataset=name, data_dir=data_dir, **fields)
        assert_same_run(tmp_path / "runs" / "archive", tmp_path / "runs" / name, STEPS)
    # The records of 2017 have their own split, and give the run of arrays with that split.
    prepare(None, data_dir, tfrecords=write_2017(tmp_path / "old", given))
    splits["validation"] = tuple(array[80:] for array in splits["train"])
    splits["train"] = tuple(array[:80] for array in splits["train"])
    prepare("same", data_dir, examples=dict(splits))
    for name in ("old", "same"):
        train(tmp_path / "runs" / name, dataset=name, data_dir=data_dir, **fields)
    assert_same_run(tmp_path / "runs" / "old", tmp_path / "runs" / "same", STEPS)
