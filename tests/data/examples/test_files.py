"""An ``.npz`` file and the TFRecords of 2017 become the data set that the archive gives."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import labkit
from labkit.commands.main import main
from labkit.data.manifest import verify_shards
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError

OPTIONS = {"validation_size": 13, "examples_per_shard": 17}
NAMES = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("X_train", "Y_train", "X_test", "Y_test"),
)


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
def test_arrays_of_a_file_give_the_shards_of_the_archive(fake_cifar, prepared, tmp_path, names):
    data = fake_cifar
    arrays = (data.train_images, data.train_labels[:, None], data.test_images, data.test_labels)
    file = tmp_path / "cifar.npz"
    np.savez_compressed(file, **dict(zip(names, arrays, strict=True)))
    manifest = prepare(None, tmp_path / "data", npz=file, **OPTIONS).manifest
    assert manifest.dataset == "cifar" and manifest.splits == prepared.splits
    assert manifest.source["kind"] == "npz" and manifest.source["location"] == str(file)
    assert f"--npz {file} --name cifar" in manifest.prepare_command
    assert not prepare("cifar", tmp_path / "data").did_work


def test_the_validation_split_of_a_file_is_kept_and_other_arrays_are_named(fake_cifar, tmp_path):
    images, labels = fake_cifar.train_images, fake_cifar.train_labels
    file = tmp_path / "a.npz"
    np.savez(
        file, train_images=images, train_labels=labels, val_images=images[:9], val_labels=labels[:9], ids=[3]
    )
    result = prepare(None, tmp_path / "data", npz=file)
    assert (load_split(result.manifest, "validation")[0] == images[:9]).all()
    assert any("a.npz has other arrays, which are not read: ids" in line for line in result.messages)


def test_the_command_line_names_the_classes(fake_cifar, tmp_path, capsys):
    np.savez(tmp_path / "a.npz", x_train=fake_cifar.train_images, y_train=fake_cifar.train_labels % 2)
    words = [
        "data",
        "prepare",
        "--npz",
        str(tmp_path / "a.npz"),
        "--name",
        "two",
        "--class-names",
        "even,odd",
    ]
    assert main([*words, "--data-dir", str(tmp_path / "data")]) == 0
    assert "next: labkit train --dataset two" in capsys.readouterr().out
    assert main(["data", "list", "--data-dir", str(tmp_path / "data")]) == 0
    assert f"npz {tmp_path / 'a.npz'}" in capsys.readouterr().out
    assert prepare("two", tmp_path / "data").manifest.classes == ("even", "odd")


def write_2017(folder: Path, data: Any) -> Path:
    """Write a small CIFAR-10 as the script of 2017 did: the last training batch is for validation."""
    folder.mkdir(parents=True)
    batches = data.batches()
    files = {
        "train": [f"data_batch_{n}" for n in range(1, 5)],
        "validation": ["data_batch_5"],
        "eval": ["test_batch"],
    }
    for name, parts in files.items():
        with tf.io.TFRecordWriter(str(folder / f"{name}.tfrecords")) as writer:
            for part in parts:
                for planes, label in zip(*batches[part], strict=True):
                    image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[planes.tobytes()]))
                    number = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
                    features = tf.train.Features(feature={"image": image, "label": number})
                    writer.write(tf.train.Example(features=features).SerializeToString())
    return folder


def test_the_records_of_2017_keep_their_pixels_labels_and_split(fake_cifar, tmp_path):
    data = fake_cifar
    folder = write_2017(tmp_path / "old", data)
    manifest = prepare(None, tmp_path / "data", tfrecords=folder, examples_per_shard=17).manifest
    assert manifest.dataset == "old" and manifest.classes[0] == "airplane" and manifest.num_classes == 10
    images, labels = data.train_images, data.train_labels
    for split, expected in {
        "train": (images[:80], labels[:80]),
        "validation": (images[80:], labels[80:]),
        "test": (data.test_images, data.test_labels),
    }.items():
        for found, wanted in zip(load_split(manifest, split), expected, strict=True):
            assert (found == wanted).all()
    examples = {"train": (images[:80], labels[:80]), "validation": (images[80:], labels[80:])}
    examples["test"] = (data.test_images, data.test_labels)
    same = prepare("same", tmp_path / "data", examples=examples, examples_per_shard=17).manifest
    assert same.splits == manifest.splits
    manifest.shard_path(manifest.splits["train"].shards[0]).unlink()
    assert prepare("old", tmp_path / "data").did_work and verify_shards(manifest) == []


def test_damaged_records_are_refused(fake_cifar, tmp_path):
    folder = write_2017(tmp_path / "old", fake_cifar)
    path = folder / "validation.tfrecords"
    content = path.read_bytes()
    wrong = bytearray(content)
    wrong[5_000] ^= 1
    for damaged in (bytes(wrong), content[:-100], b"", b"text" * 100):
        path.write_bytes(damaged)
        _refused(
            tmp_path,
            "validation.tfrecords can't be read, is damaged or no TFRecords; write it again",
            tfrecords=folder,
        )
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\x0a\x00")
    _refused(tmp_path, "has records without image, as bytes, and label, int64", tfrecords=folder)
    path.unlink()
    _refused(tmp_path, "old lacks validation.tfrecords; give the folder that", tfrecords=folder)
    _refused(tmp_path, "--tfrecords .*train.tfrecords is not a folder", tfrecords=folder / "train.tfrecords")


def _refused(tmp_path: Path, message: str, **options: Any) -> None:
    with pytest.raises(InputError, match=message) as refused:
        prepare(None, tmp_path / "new" / "data", **options)
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()


def test_files_that_are_no_arrays_of_images_are_refused(fake_cifar, tmp_path):
    images, labels = fake_cifar.train_images, fake_cifar.train_labels
    objects = np.array([1, None], dtype=object)
    for arrays, message in (
        (
            {"x_train": objects, "y_train": labels},
            "it holds Python objects, which could run code; give",
        ),
        ({"x_test": images, "y_test": labels}, "has the arrays x_test, y_test; allowed"),
        ({"a": images, "b": labels}, "a.npz has the arrays a, b; allowed: pairs such as x_train and y_train"),
        ({"x_train": images, "y_train": labels[:-1]}, "train in a.npz has 100 images and 99 labels"),
        ({"x_train": images[..., 0, 0], "y_train": labels}, "images of train in a.npz: the shape"),
    ):
        np.savez(tmp_path / "a.npz", **arrays)
        _refused(tmp_path, message, npz=tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", images)
    _refused(tmp_path, "a.npy is no .npz file, or cut off", npz=tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[1_000] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    _refused(tmp_path, "a.npz is refused: .*CRC.*; give arrays of numbers", npz=tmp_path / "a.npz")
    _refused(tmp_path, "b.npz is not a file; give an .npz file", npz=tmp_path / "b.npz")


def test_another_file_under_the_same_name(fake_cifar, tmp_path):
    images, labels = fake_cifar.train_images, fake_cifar.train_labels
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels)
    first = prepare(None, tmp_path / "data", npz=tmp_path / "a.npz").manifest
    np.savez_compressed(tmp_path / "b.npz", train_images=images / 255, train_labels=labels)
    assert not prepare(None, tmp_path / "data", npz=tmp_path / "b.npz", name="a").did_work
    np.savez(tmp_path / "b.npz", x_train=255 - images, y_train=labels)
    with pytest.raises(InputError, match="'a' is there, made of other examples than these"):
        prepare(None, tmp_path / "data", npz=tmp_path / "b.npz", name="a")
    os.replace(tmp_path / "b.npz", tmp_path / "a.npz")
    again = prepare(None, tmp_path / "data", npz=tmp_path / "a.npz")
    assert any("preparing again: the examples in" in line for line in again.messages)
    assert again.manifest.checksum != first.checksum


def test_labkit_prepare_data_takes_them(fake_cifar, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=fake_cifar.train_images, y_train=fake_cifar.train_labels)
    manifest = labkit.prepare_data(
        npz=tmp_path / "a.npz", name="mine", data_dir=tmp_path / "data", train_examples=50
    )
    assert manifest.count("train") == 50
    with pytest.raises(InputError, match="--tfrecords together with --npz; a data set has one source"):
        labkit.prepare_data(npz="a", tfrecords="b")
