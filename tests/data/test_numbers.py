"""Labels that are numbers: drawn, read from a CSV file, stored, batched, and refused where they are none."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from labkit.commands.main import main
from labkit.config import Config
from labkit.data import shapes
from labkit.data.batch_of_step import batch_of_step
from labkit.data.inputs import augmentation_of
from labkit.data.manifest import Manifest, files_of, load_manifest
from labkit.data.pipeline import train_dataset
from labkit.data.prepare import prepare
from labkit.data.shards import load_split, read_labels
from labkit.errors import InputError
from tests.multilabel import TEST, TRAIN, VALIDATION, prepare_small


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return prepare_small(tmp_path_factory.mktemp("data"), "shapes_size")


def test_records_hold_the_radius_of_each_shape(manifest):
    drawn = shapes.generate(train_count=TRAIN + VALIDATION, test_count=TEST)
    images, labels = load_split(manifest, "test")
    np.testing.assert_array_equal(images, drawn.test_images)  # those of shapes
    assert labels.dtype == np.float32 and labels.shape == (TEST, 1)
    np.testing.assert_array_equal(labels[:, 0], shapes.radii(0, TEST, 1))
    train = load_split(manifest, "train")[1]
    assert manifest.target_mean == pytest.approx(train.mean(axis=0, dtype=np.float64), rel=1e-12)
    assert manifest.target_std == pytest.approx(train.std(axis=0, dtype=np.float64), rel=1e-12)
    rows = np.array([5, 0, 200])
    np.testing.assert_array_equal(read_labels(manifest, "train", rows), train[rows])


def test_the_manifest_tells_numbers_from_classes(manifest):
    assert (manifest.targets, manifest.classes, manifest.target_shape) == ("numbers", ("radius",), (1,))
    again = load_manifest(manifest.directory.parent, "shapes_size")
    assert again == manifest and again.checksum == manifest.checksum
    content = json.loads(manifest.to_json())
    for other in (
        {"target_mean": None},
        {"target_std": [2.0]},
        {"multi_label": True},
        {"classes": ["a", "b"]},
    ):
        with pytest.raises(ValueError, match="checksum|numbers"):
            Manifest.from_json(json.dumps(content | other), manifest.directory)


@pytest.mark.parametrize("mixup", [0.0, 0.4])
@pytest.mark.parametrize("path", ["memory", "streaming"])
def test_a_batch_has_the_numbers_of_its_images(manifest, path, mixup):
    data = Config.from_flat(
        {"train_batch_size": 32, "input_path": path, "mixup_alpha": mixup, "dataset": "shapes_size"}
    ).data
    batch = batch_of_step(manifest, data, seed=3, step=2)
    np.testing.assert_array_equal(batch.labels, load_split(manifest, "train")[1][batch.index])
    assert "radius " in batch.names(0)
    [(_, labels)] = train_dataset(
        manifest,
        global_batch_size=32,
        seed=3,
        start_step=1,
        stop_step=2,
        augmentation=augmentation_of(data),
        mixup_alpha=mixup,
        input_path=path,
    )
    np.testing.assert_array_equal(labels, batch.targets)


# ---- from a CSV file ------------------------------------------------------------------------------------


@pytest.fixture
def faces(tmp_path):
    folder = tmp_path / "faces"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(20):
        Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def write(folder, header, rows):
    (folder / "faces.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "faces.csv"


def test_columns_of_a_table_are_numbers(faces, tmp_path):
    rows = [f"{number}.png,{20 + number / 4},{-number}" for number in range(20)]
    made = prepare(None, tmp_path / "data", images=write(faces, "path,Age,weight", rows)).manifest
    assert made.classes == ("Age", "weight") and made.targets == "numbers"
    files = {split: files_of(made, split) for split in made.splits}
    assert sum(map(len, files.values())) == 20
    for split, names in files.items():
        numbers = [int(name.removesuffix(".png")) for name in names]
        expected = [[20 + number / 4, -number] for number in numbers]
        np.testing.assert_array_equal(load_split(made, split)[1], np.float32(expected))


def test_a_table_gives_splits_beside_numbers(faces, tmp_path):
    rows = [f"{'test' if number < 5 else 'train'},{number},{number}.png" for number in range(20)]
    made = prepare(None, tmp_path / "data", images=write(faces, "split,size,path", rows)).manifest
    assert made.count("test") == 5 and set(load_split(made, "test")[1].ravel()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("header", "cell", "said"),
    [
        ("path,age", "old", "'old' in the column age of 3.png, which is no finite number; for classes"),
        ("path,age", "", "'' in the column age of 3.png"),
        ("path,age", "nan", "no finite number"),
        ("path,age", "1e99", "no finite number"),
        ("path,age,age", "1,2", "such as path,age"),
        ("path", "", "such as path,age"),
        ("name,age", "4", "such as path,age"),
    ],
)
def test_what_is_no_number_is_refused(faces, tmp_path, header, cell, said):
    count = header.count(",")
    rows = [f"{number}.png" + ",1" * count for number in range(20)]
    rows[3] = f"3.png,{cell}" if count else "3.png"
    with pytest.raises(InputError) as caught:
        prepare(None, tmp_path / "data", images=write(faces, header, rows))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not list((tmp_path / "data" / "faces").glob("*.tfrecord"))


def test_the_next_command_mirrors_no_image(faces, tmp_path, capsys):
    """An x that is on the other side in a mirrored image isn't learnt."""
    table = write(faces, "path,x,y", [f"{number}.png,{number},{number % 7}" for number in range(20)])
    assert main(["data", "prepare", "--images", str(table), "--data-dir", str(tmp_path / "data")]) == 0
    said = capsys.readouterr().out
    assert "\nnext: labkit train --dataset faces --preset auto --loss mse --flip none --data-dir" in said


def test_numbers_that_float32_would_round_are_refused(faces, tmp_path):
    """Seconds since 1970 became multiples of 128, and errors were measured against these."""
    taken = 1.7e9 + np.arange(20)
    table = write(faces, "path,taken", [f"{number}.png,{taken[number]:.0f}" for number in range(20)])
    words = "from 1700000000 to 1700000019; in float32, most of them become equal to others; subtract"
    with pytest.raises(InputError, match=words):
        prepare(None, tmp_path / "data", images=table)
    images = np.zeros((20, 8, 8, 3), np.uint8) + np.arange(20, dtype=np.uint8)[:, None, None, None] + 100
    with pytest.raises(InputError, match=f"the labels of train: {words}"):
        prepare("mine", tmp_path / "data", examples={"train": (images, taken)})
    made = prepare("mine", tmp_path / "data", examples={"train": (images, taken - taken.min())}).manifest
    assert made.targets == "numbers"
    for few in ([123456.78], [123456.78, 123456.79]):  # whose own range says nothing
        wide = {"train": (images, np.arange(20) * 1e4), "test": (images[: len(few)] // 2, np.array(few))}
        assert prepare(f"few{len(few)}", tmp_path / "data", examples=wide).manifest.count("test") == len(few)


def test_classes_of_numbers_cant_be_chosen(faces, tmp_path):
    table = write(faces, "path,age,size", [f"{number}.png,1,2" for number in range(20)])
    with pytest.raises(InputError, match="one label per image"):
        prepare(None, tmp_path / "data", images=table, classes=["size", "age"])


def test_a_number_that_is_always_the_same_has_a_spread_of_one(faces, tmp_path):
    table = write(faces, "path,age", [f"{number}.png,7" for number in range(20)])
    made = prepare(None, tmp_path / "data", images=table).manifest
    assert (made.target_mean, made.target_std) == ((7.0,), (1.0,))
    assert replace(made, target_std=(2.0,)).checksum != made.checksum
