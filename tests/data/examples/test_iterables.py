"""Whatever gives examples one after the other becomes the same data set, read once and written whole."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import labkit
from labkit.data.examples import iterables
from labkit.data.folder import check_space
from labkit.data.manifest import columns_of, verify_shards
from labkit.data.prepare import prepare
from labkit.errors import InputError

IMAGES = np.random.default_rng(1).integers(0, 256, (40, 10, 10, 3), np.uint8)
LABELS = np.tile([2, 0, 1, 0], 10)


class Tensor:
    """What NumPy reads as an array, as it does tensors of PyTorch."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._values


class OfPyTorch:
    """Has what a data set of PyTorch has: a length, examples by number, and perhaps names of classes.

    Any number is an example, so that only the length says where the end is.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: list[str] | None = None) -> None:
        self._images, self._labels = images, labels
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        row %= len(self._labels)
        return Tensor(self._images[row].transpose(2, 0, 1).astype(np.float32) / 255), int(self._labels[row])


class UntilTheEnd:
    """A sequence without a length: IndexError says where it ends."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = images, labels

    def __getitem__(self, row: int) -> list[Any]:
        return [self._images[row], self._labels[row]]


class Feature:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class OfHuggingFace:
    """Has what a Dataset of Hugging Face has: rows as dicts, a length, and features that name the classes."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: list[str]) -> None:
        self._images, self._labels = images, labels
        self.features = {"img": object(), "fine_label": Feature(classes), "coarse_label": Feature(["x"])}

    def __len__(self) -> int:
        return len(self._labels)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for image, label in zip(self._images, self._labels.tolist(), strict=True):
            yield {"img": Image.fromarray(image), "coarse_label": 0, "fine_label": label}


def _of_tensorflow(images: np.ndarray, labels: np.ndarray) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices({"image": images, "label": labels})


def _pairs(images: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    yield from zip(images, labels, strict=True)


FORMS: dict[str, Callable[..., Any]] = {
    "a generator": _pairs,
    "a function": lambda images, labels: lambda: _pairs(images, labels),
    "a list": lambda images, labels: list(zip(images, labels, strict=True)),
    "tf.data": _of_tensorflow,
    "PyTorch": OfPyTorch,
    "a sequence": UntilTheEnd,
    "Hugging Face": lambda images, labels: OfHuggingFace(images, labels, [f"class {n}" for n in range(10)]),
    "pictures": lambda images, labels: ([Image.fromarray(image) for image in images], labels.tolist()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_shards_of_the_archive(fake_cifar, prepared, tmp_path, form):
    data, make = fake_cifar, FORMS[form]
    examples = {
        "train": make(data.train_images, data.train_labels),
        "test": make(data.test_images, data.test_labels),
    }
    options = {"validation_size": 13, "examples_per_shard": 17}
    result = prepare("mine", tmp_path, examples=examples, **options)
    manifest = result.manifest
    assert manifest.splits == prepared.splits and manifest.channel_std == prepared.channel_std
    assert manifest.classes[3] == ("class 3" if form == "Hugging Face" else "3")
    arrays = {"train": (data.train_images, data.train_labels), "test": (data.test_images, data.test_labels)}
    assert not prepare("mine", tmp_path, examples=arrays).did_work


def test_names_of_classes_come_from_the_data_set_unless_they_are_given(tmp_path):
    examples = {"train": OfPyTorch(IMAGES, LABELS, ["a", "b", "c"])}
    assert prepare("mine", tmp_path / "1", examples=dict(examples)).manifest.classes == ("a", "b", "c")
    given = prepare("mine", tmp_path / "2", examples=examples, class_names=["x", "y", "z"])
    assert given.manifest.classes == ("x", "y", "z")


def test_other_names_of_the_data_set_itself_are_taken_over(tmp_path):
    class Named:
        def __init__(self, *classes):
            self.classes = list(classes)

        def __len__(self):
            return len(IMAGES)

        def __getitem__(self, row):
            return IMAGES[row], LABELS[row]

    unnamed = list(_pairs(IMAGES, LABELS))
    for train, classes in (
        (unnamed, ("0", "1", "2")),
        (Named("cat", "dog", "owl"), ("cat", "dog", "owl")),
        (unnamed, ("cat", "dog", "owl")),
        (Named("dog", "cat", "owl"), ("dog", "cat", "owl")),
    ):
        assert prepare("mine", tmp_path, examples={"train": train}).manifest.classes == classes


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("white", [1, 255])
def test_a_black_image_has_any_scale(tmp_path, place, white):
    images = IMAGES / 255 * white
    images[place] = 0
    made = [
        prepare(f"mine{number}", tmp_path, examples={"train": train}).manifest
        for number, train in enumerate((list(_pairs(images, LABELS)), (images, LABELS)))
    ]
    assert made[0].splits == made[1].splits


def test_pictures_in_the_columns_of_a_dict_are_read_as_in_pairs(tmp_path):
    """NumPy makes an array of a list of pictures in Pillow: of a palette it holds the numbers of colours."""
    pictures = [Image.fromarray(image).quantize(16) for image in IMAGES]
    columns = {"image": pictures, "label": LABELS.tolist(), "camera": ["a"] * len(pictures)}
    made = [
        prepare(f"mine{number}", tmp_path, examples={"train": train}).manifest
        for number, train in enumerate((columns, (pictures, LABELS)))
    ]
    assert made[0].splits == made[1].splits
    assert columns_of(made[0], "train") == {"camera": ["a"] * made[0].count("train")}


def test_splits_whose_numbers_are_other_classes_are_refused(tmp_path):
    """torchvision's ImageFolder numbers the folders that are there, and a class may lack test pictures."""
    few = OfPyTorch(IMAGES[:8], LABELS[:8] % 2, ["bee", "cow"])
    examples = {"train": OfPyTorch(IMAGES, LABELS, ["ant", "bee", "cow"]), "test": few}
    with pytest.raises(InputError, match="train has ant, bee, cow; test has bee, cow"):
        prepare("mine", tmp_path, examples=examples)
    named = prepare("mine", tmp_path, examples=examples, class_names=["x", "y", "z"])
    assert named.manifest.classes == ("x", "y", "z")


def test_pictures_of_several_sizes_become_one_and_another_size_is_asked_of_the_same_pictures(tmp_path):
    def pictures() -> Iterator[tuple[Image.Image, int]]:
        for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
            yield Image.fromarray(image).resize((20 + number % 3, 16)), label

    result = prepare("mine", tmp_path, examples={"train": pictures})
    assert result.manifest.image_shape == (16, 16, 3)
    assert any("3 sizes, from 20 × 16 to 22 × 16" in line for line in result.messages)
    larger = prepare("mine", tmp_path, examples={"train": pictures}, image_size=32)
    assert larger.did_work and larger.manifest.image_shape == (32, 32, 3)
    again = prepare("mine", tmp_path, examples={"train": pictures})
    assert not again.did_work and again.manifest == larger.manifest


def test_an_iterator_is_read_once_also_where_a_shard_is_rebuilt(tmp_path):
    manifest = prepare("mine", tmp_path, examples={"train": _pairs(IMAGES, LABELS)}).manifest
    manifest.shard_path(manifest.splits["train"].shards[0]).unlink()
    result = prepare("mine", tmp_path, examples={"train": _pairs(IMAGES, LABELS)})
    assert result.did_work and result.manifest == manifest and verify_shards(manifest) == []
    assert {path.name for path in manifest.directory.iterdir()} == {
        *(shard.file for split in manifest.splits.values() for shard in split.shards),
        *("manifest.json", ".lock"),
    }


def _failing() -> Iterator[Any]:
    yield from zip(IMAGES[:17], LABELS, strict=False)
    raise OSError("the server is gone")


def _one(image: Any, label: Any = 0, count: int = 1) -> Callable[[], list[Any]]:
    return lambda: [*itertools.islice(_pairs(IMAGES, LABELS), count), (image, label)]


def _batched() -> Any:
    return _of_tensorflow(IMAGES, LABELS).batch(8)


class Short(OfPyTorch):
    def __getitem__(self, row: int) -> Any:
        if row == 30:
            raise IndexError(row)
        return super().__getitem__(row)


class Gives(OfHuggingFace):
    def __len__(self) -> int:
        return 30


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (lambda: _failing(), "train failed after 17 examples, with OSError: the server is gone"),
    "raises at once": (lambda: lambda: 1 // 0, "failed after 0 examples, with ZeroDivisionError"),
    "no length": (
        lambda: itertools.cycle(_pairs(IMAGES, LABELS)),
        "more than 100 examples, and may be endless",
    ),
    "repeat": (lambda: _of_tensorflow(IMAGES, LABELS).repeat(), r"train is endless; give it without .repeat"),
    "batches": (_batched, r"example 0 of train has the shape \[8, 10, 10, 3\].*with .unbatch\(\)"),
    "batches of grey": (
        _one(IMAGES[:16, ..., 0]),
        r"example 1 of train has the shape \[16, 10, 10\].*unbatch",
    ),
    "early end": (lambda: Short(IMAGES, LABELS), "train failed after 30 examples, with IndexError: 30"),
    "late end": (lambda: Gives(IMAGES, LABELS, ["a", "b", "c"]), "30 examples by its length, and gives more"),
    "empty": (list, "train has no examples; an iterator can be used once"),
    "used up": (lambda: iter(()), "train has no examples; an iterator can be used once"),
    "no iterable": (lambda: 5, "train is 5; allowed: a pair of arrays"),
    "a text": (lambda: "train", "example 0 of train is of the type str; allowed: a pair"),
    "images alone": (lambda: IMAGES, "example 0 of train is of the type ndarray; allowed: a pair"),
    "entries": (lambda: [{"picture": 1, "label": 2}], "entries picture, label; allowed: .*image or img"),
    "an image that is none": (_one(None), r"image of example 1 of train: object \[\]; allowed: numbers"),
    "a label that is none": (_one(IMAGES[0], "cat"), r"label of example 1 of train: <U3 \[\].*number the"),
    "labels of two shapes": (_one(IMAGES[0], [1, 0]), r"the shape \[2\], those before \[\]; give all"),
    "a negative label": (_one(IMAGES[0], -1, 30), "the labels of train: from -1 to 2; allowed"),
    "two scales": (
        lambda: [(IMAGES[0] / 255, 0), (IMAGES[1].astype(float), 1)],
        "example 1 of train: floats up to 25., others to 1; give all as uint8",
    ),
    "two scales, the larger one first": (
        lambda: [(IMAGES[0].astype(float), 0), (IMAGES[1] / 255, 1)],
        "example 1 of train: floats up to 1, others to 255; give all as uint8",
    ),
    "16 bits": (_one(Image.fromarray(np.full((9, 9), 4000, "u2"))), "example 1 of train: uint16 from 4000"),
    "beyond 8 bits": (_one(Image.fromarray(np.full((9, 9), 256.5, "f4"))), "float32 from 256.5 to 256.5"),
    "NaN": (_one(np.full((9, 9), np.nan)), "example 1 of train: float64 from nan to nan; allowed"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_examples_are_refused_in_one_sentence_and_nothing_is_written(tmp_path, monkeypatch, case):
    monkeypatch.setattr(iterables, "MOST", 100)
    make, message = BAD[case]
    with pytest.raises(InputError, match=message) as refused:
        prepare("mine", tmp_path / "new" / "data", examples={"train": make()})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 330
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_said_before_and_while_pixels_are_kept(tmp_path, monkeypatch):
    def full(folder: Path, needed: int) -> None:
        check_space(folder, 10**18)

    monkeypatch.setattr(iterables, "_BLOCK_BYTES", 500)
    monkeypatch.setattr(iterables, "check_space", full)
    with pytest.raises(InputError, match="--data-dir .* MiB free"):
        prepare("mine", tmp_path / "new", examples={"train": _pairs(IMAGES, LABELS)})
    monkeypatch.undo()

    def fail(self: object, pixels: np.ndarray) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(iterables._Waiting, "add", fail)
    with pytest.raises(InputError, match="cannot be written to: .*full; choose another --data-dir"):
        prepare("mine", tmp_path / "new", examples={"train": _pairs(IMAGES, LABELS)})
    assert not (tmp_path / "new").exists()


def test_labkit_prepare_data_takes_them(tmp_path, capsys):
    manifest = labkit.prepare_data(
        "mine", train=_pairs(IMAGES, LABELS), data_dir=tmp_path, class_names=("a", "b", "c")
    )
    assert manifest.classes == ("a", "b", "c")
    assert "mine is prepared in" in capsys.readouterr().out.splitlines()[-1]
