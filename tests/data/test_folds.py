"""Folds: which image validates where, that a fold is a data set like any other, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from labkit.config.data import DataConfig
from labkit.config.data_sets import checked_fold, fold_name, fold_of_name
from labkit.data.batch_of_step import batch_of_step
from labkit.data.folds import folds_of
from labkit.data.manifest import columns_of, files_of, load_manifest, verify_shards, write_columns
from labkit.data.pipeline import train_dataset
from labkit.data.prepare import prepare
from labkit.data.related import common_images
from labkit.data.shards import load_split, read_stored
from labkit.errors import InputError
from labkit.training.place import place_run, prepared_data_set
from labkit.training.plan import plan_data
from tests.data.test_corrected import recorded
from tests.multilabel import prepare_small

COUNT = 5


def fold(base, number, count=COUNT):
    return prepare(fold_name(base.dataset, f"{number}/{count}"), base.directory.parent).manifest


def images_of(manifest, *splits):
    """Return each image with its label, as bytes, of some splits together."""
    found = []
    for images, labels in (load_split(manifest, split) for split in splits):
        found += [image.tobytes() + label.tobytes() for image, label in zip(images, labels, strict=True)]
    return found


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=60),
    count=st.integers(2, 7),
    seed=st.integers(0, 2**31),
)
def test_folds_differ_by_one_image_and_so_does_each_class_in_them(labels, count, seed):
    found = folds_of(np.array(labels), 4, count, seed)
    assert np.array_equal(found, folds_of(np.array(labels), 4, count, seed))
    assert np.ptp(np.bincount(found, minlength=count)) <= 1
    for label in range(4):
        own = found[np.array(labels) == label]
        assert np.ptp(np.bincount(own, minlength=count)) <= 1


def test_another_seed_gives_other_folds_and_several_labels_are_parted_as_sets():
    labels = np.repeat([[1, 0], [0, 1], [1, 1]], 20, axis=0)
    first, second = (folds_of(labels, 2, 4, seed) for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert all(np.bincount(first[labels.sum(axis=1) == 2]) == 5)


def test_each_image_validates_once_and_the_test_images_stay(copy):
    pooled = sorted(images_of(copy, "train", "validation"))
    folds = [fold(copy, number) for number in range(1, COUNT + 1)]
    validating = [images_of(each, "validation") for each in folds]
    assert sorted(image for own in validating for image in own) == pooled
    for each, own in zip(folds, validating, strict=True):
        assert sorted(images_of(each, "train") + own) == pooled
        assert images_of(each, "test") == images_of(copy, "test")
        pixels = load_split(each, "train")[0] / 255
        np.testing.assert_allclose(each.channel_mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
        assert each.source["location"] == "cifar10" and each.validation_size == 20
    assert len({each.checksum for each in folds}) == COUNT
    assert load_manifest(copy.directory.parent, "cifar10").checksum == copy.checksum


@pytest.mark.parametrize("dataset", ["shapes_multilabel", "shapes_size"])
def test_several_labels_and_numbers_are_parted_too(tmp_path, dataset):
    base = prepare_small(tmp_path, dataset)
    pooled = sorted(images_of(base, "train", "validation"))
    validating = []
    for number in (1, 2, 3):
        own = fold(base, number, 3)
        validating += images_of(own, "validation")
        assert sorted(images_of(own, "train", "validation")) == pooled
        assert images_of(own, "test") == images_of(base, "test")
    assert sorted(validating) == pooled


def test_pictures_that_validate_and_are_trained_on_are_counted(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
    given = np.concatenate([images, images[:20]]), np.arange(50) % 2
    labkit.prepare_data(
        "twice", train=given, test=(255 - images, given[1][:30]), validation_size=0, data_dir=tmp_path
    )
    lines = []
    made = prepare(fold_name("twice", "1/3"), tmp_path, progress=lines.append).manifest
    trained = {image.tobytes() for image in load_split(made, "train")[0]}
    both = sum(image.tobytes() in trained for image in load_split(made, "validation")[0])
    assert 0 < both < 17
    assert any(
        line.startswith(f"warning: {both} pictures of fold 1/3 with the same pixels") for line in lines
    )


def test_a_fold_without_a_class_tells_it(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (21, 8, 8, 3), np.uint8), np.arange(21) // 10
    examples = {"train": (images, labels), "test": (images[:2] // 2, labels[:2])}
    prepare("rare", tmp_path, examples=examples, validation_size=0)
    lines = [prepare(f"rare-fold-{number}-of-3", tmp_path).messages for number in (1, 2, 3)]
    learnt = "warning: no train pictures of 2; the network can't learn these classes"
    judged = "warning: no validation pictures of 2; results on them say nothing of these classes"
    assert sorted((learnt in said, judged in said) for said in lines) == [(False, True)] * 2 + [(True, False)]


def test_columns_that_change_reach_folds_and_corrections(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8), np.arange(40) % 2
    for camera in ("old", "new"):
        given = {"image": images, "label": labels, "camera": [camera] * 40}
        labkit.prepare_data("seen", train=given, test=given | {"image": 255 - images}, data_dir=tmp_path)
        base = load_manifest(tmp_path, "seen")
        mark = {"mark": "exclude", "old": str(load_split(base, "train")[1][0])}
        (tmp_path / "m.json").write_text(
            json.dumps({"dataset": "seen", "checksum": base.checksum, "marks": {"train": {"0": mark}}})
        )
        corrected = labkit.correct_data("seen", name="right", marks=tmp_path / "m.json", data_dir=tmp_path)
        trained = labkit.Config.from_flat(
            {"dataset": "seen", "fold": f"1/{COUNT}", "data_dir": str(tmp_path)}
        )
        own = prepared_data_set(trained, may_prepare=True)[0]
        for made in (fold(base, 2), own, corrected):
            assert set(columns_of(made, "train")["camera"]) == {camera}
    assert not prepare(fold_name("seen", f"2/{COUNT}"), tmp_path).did_work


@pytest.mark.parametrize("path", ["memory", "streaming"])
def test_both_input_paths_show_the_images_that_dont_validate(copy, path):
    made = fold(copy, 2)
    (images, _), batch = load_split(made, "train"), 16
    settings = DataConfig(train_batch_size=batch, use_distortion_for_training=False, input_path=path)
    seen, count = [], made.count("train")
    shown = train_dataset(
        made, global_batch_size=batch, seed=3, start_step=0, stop_step=count // batch,
        augmentation=None, standardized=False, input_path=path, with_index=True,
    )  # fmt: skip
    for step, (pixels, labels, index) in enumerate(shown, 1):
        assert np.array_equal(pixels, images[index.numpy()])
        without = batch_of_step(made, settings, seed=3, step=step)
        assert np.array_equal(without.images, pixels) and np.array_equal(without.labels, labels)
        seen += index.numpy().tolist()
    assert len(set(seen)) == count == 80
    assert not set(images_of(made, "train")) & set(images_of(made, "validation"))


def test_jpegs_are_copied_byte_by_byte_and_files_and_columns_follow(pets, tmp_path):
    base = prepare(images=pets, data_dir=tmp_path / "data", image_size=72).manifest
    numbers = {name: [f"{name} {row}" for row in range(split.count)] for name, split in base.splits.items()}
    order = ["number", *"hgfedcba"]
    write_columns(base, {name: dict.fromkeys(order, values) for name, values in numbers.items()})
    before = {}
    for split in base.splits:
        stored = read_stored(base, split, np.arange(base.count(split)))
        before |= dict(zip(numbers[split], zip(stored, files_of(base, split), strict=True), strict=True))
    made = fold(base, 1)
    for split in ("train", "validation", "test"):
        names = columns_of(made, split)["number"]
        stored = read_stored(made, split, np.arange(made.count(split)))
        assert [before[name] for name in names] == list(zip(stored, files_of(made, split), strict=True))
        assert list(columns_of(made, split)) == order
    assert made.source["resize"] == base.source["resize"]


def test_test_images_of_folds_are_the_same_and_validation_images_are_not(copy):
    first, second = recorded(fold(copy, 1)), recorded(fold(copy, 2))
    common = common_images(first, second, "test")
    assert common.left_out == (0, 0) and len(common.first) == copy.count("test")
    assert common_images(first, recorded(copy), "test").left_out == (0, 0)
    assert common_images(first, second, "validation") is None


def test_a_fold_follows_its_data_set_and_outlives_it(copy, tmp_path):
    made = fold(copy, 2)
    (made.directory / made.splits["train"].shards[0].file).unlink()
    assert made.prepare_command.startswith("labkit data prepare --dataset cifar10-fold-2-of-5")
    again = labkit.prepare_data("cifar10-fold-2-of-5", data_dir=made.directory.parent)
    assert (again.checksum, verify_shards(again)) == (made.checksum, [])
    labkit.prepare_data("cifar10", data_dir=made.directory.parent, train_examples=50)
    changed = fold(copy, 2)
    assert changed.count("train") == 63 * 4 // 5 and changed.checksum != made.checksum
    for path in copy.directory.iterdir():
        path.unlink()
    assert fold(copy, 2).checksum == changed.checksum


def test_a_training_takes_the_fold_and_finds_its_run_again(copy, tmp_path):
    config = labkit.Config.from_flat(
        {"dataset": "cifar10", "data_dir": str(copy.directory.parent), "fold": "3/5", "epochs": 2.0}
        | {"train_batch_size": 16, "job_dir": str(tmp_path / "run")}
    )
    planned, manifest, note = plan_data(config)
    assert (planned.data.dataset, planned.data.fold) == ("cifar10-fold-3-of-5", "3/5")
    assert planned.run.train_steps == 10 and "; fold 3/5 in " in note
    by_name = config.replace({"dataset": "cifar10-fold-3-of-5", "fold": None})
    runs = [place_run(each, manifest)[0] for each in (planned, plan_data(by_name)[0])]
    assert not runs[0].differences(runs[1])
    other, _, _ = plan_data(config.replace({"fold": "1/5"}))
    assert {"--fold is '3/5' there, '1/5' here"} < set(planned.differences(other))


@pytest.mark.parametrize("text", ["2", "0/5", "6/5", "1/1", "1/51", "02/5", "2/5/5", "a/b", "2 / 5", ""])
def test_other_texts_are_no_folds(text):
    with pytest.raises(
        InputError, match="--fold is .*allowed: the number of the fold, from 1, .*such as 2/5"
    ):
        labkit.Config.from_flat({"fold": text})


@pytest.mark.parametrize("text", ["1/2", "2/5", "50/50", "10/12"])
def test_a_fold_has_a_name(text):
    assert fold_of_name(fold_name("my-pets", checked_fold(text))) == ("my-pets", text)
    assert fold_of_name(f"my-pets-{text}") is None


def test_what_cannot_be_parted_is_refused(copy, pets):
    folder = copy.directory.parent
    settings = {"data_dir": str(folder), "train_batch_size": 8}
    made = fold(copy, 1, 2)
    config = labkit.Config.from_flat(settings | {"dataset": made.dataset, "fold": "2/3"})
    with pytest.raises(InputError, match="is fold 1/2 itself; leave --fold out, or give --dataset cifar10$"):
        plan_data(config)
    prepare(images=pets, name="cifar10-fold-1-of-4", data_dir=folder)
    config = labkit.Config.from_flat(settings | {"dataset": "cifar10", "fold": "1/4"})
    with pytest.raises(InputError, match="--fold 1/4 would be .*, which holds other data; rename those"):
        plan_data(config)
    with pytest.raises(InputError, match="--validation-size is given with --dataset cifar10-fold-1-of-3"):
        prepare("cifar10-fold-1-of-3", folder, validation_size=5)
    with pytest.raises(InputError, match="svhn.* prepare"):
        prepare("svhn-fold-1-of-3", folder)
    with pytest.raises(InputError, match="to make it: labkit data prepare --dataset cifar10-fold-1-of-3"):
        load_manifest(folder, "cifar10-fold-1-of-3")
