"""MNIST and Fashion-MNIST come from an ``.npz`` file or the four published files, with the same records."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from labkit.data.cifar10 import sources
from labkit.data.manifest import file_sha256
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError

RNG = np.random.default_rng(2)
COUNTS = {"train": 60, "t10k": 20}
IMAGES = {name: RNG.integers(0, 256, (count, 28, 28), np.uint8) for name, count in COUNTS.items()}
LABELS = {name: (np.arange(count) % 10).astype(np.uint8) for name, count in COUNTS.items()}


def _write_idx(folder: Path, *, packed: bool = True) -> Path:
    folder.mkdir(parents=True)
    for name, images in IMAGES.items():
        for kind, array in (("images", images), ("labels", LABELS[name])):
            content = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()
            file = folder / f"{name}-{kind}-idx{array.ndim}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return folder


def _write_npz(path: Path) -> Path:
    arrays = {"x_train": IMAGES["train"], "y_train": LABELS["train"]}
    np.savez(path, x_test=IMAGES["t10k"], y_test=LABELS["t10k"], **arrays)
    return path


def test_all_forms_give_the_same_records(tmp_path):
    archives = (
        _write_npz(tmp_path / "mnist.npz"),
        _write_idx(tmp_path / "packed"),
        _write_idx(tmp_path / "plain", packed=False),
    )
    made = [prepare("mnist", tmp_path / str(n), archive=path).manifest for n, path in enumerate(archives)]
    assert len({manifest.checksum for manifest in made}) == 1
    assert made[0].classes == tuple("0123456789") and made[0].image_shape == (28, 28, 3)
    images, labels = load_split(made[0], "test")
    assert (images == IMAGES["t10k"][..., None]).all() and (labels == LABELS["t10k"]).all()
    assert [manifest.source["kind"] for manifest in made] == ["archive", "folder", "folder"]
    again = prepare("mnist", tmp_path / "1", archive=tmp_path / "packed")
    assert not again.did_work and again.manifest == made[1]


def test_what_is_damaged_missing_or_of_another_shape_is_refused(tmp_path):
    folder = _write_idx(tmp_path / "idx")
    labels = folder / "train-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    short = gzip.compress(gzip.decompress(whole)[:-1])
    for content, message in (
        (whole[:-9], "train-labels-idx1-ubyte.gz cannot be read: .*; get it again"),
        (short, "train-labels-idx1-ubyte.gz is damaged, or no file of 1 dimensions"),
        (gzip.compress(b"text"), "train-labels-idx1-ubyte.gz is damaged"),
        ((folder / "t10k-labels-idx1-ubyte.gz").read_bytes(), r"images \[60, 28, 28\] and labels \[20\]"),
        (
            gzip.compress(struct.pack(">II", 0x801, 60) + bytes(range(60))),
            "labels up to 59; MNIST has 0 to 9",
        ),
    ):
        labels.write_bytes(content)
        _refused(tmp_path, message, folder)
    labels.unlink()
    _refused(tmp_path, "idx has no train-labels-idx1-ubyte.gz; give an .npz file", folder)
    np.savez(tmp_path / "a.npz", x_train=IMAGES["train"], y_train=LABELS["train"])
    _refused(tmp_path, "a.npz has the splits train, not train, test; give", tmp_path / "a.npz")
    three = {"x_train": IMAGES["train"], "y_train": LABELS["train"], "x_val": IMAGES["t10k"]}
    np.savez(tmp_path / "b.npz", **three, y_val=LABELS["t10k"], x_test=IMAGES["t10k"], y_test=LABELS["t10k"])
    _refused(tmp_path, "has the splits train, validation, test, not train, test", tmp_path / "b.npz")
    colours = {"x_train": IMAGES["train"][..., None].repeat(3, 3), "x_test": IMAGES["t10k"]}
    np.savez(tmp_path / "c.npz", **colours, y_train=LABELS["train"], y_test=LABELS["t10k"])
    _refused(tmp_path, r"c.npz has images \[60, 28, 28, 3\] .*MNIST has", tmp_path / "c.npz")
    _refused(tmp_path, "does not exist; give an .npz file .* MNIST's four idx files", tmp_path / "nowhere")


def _refused(tmp_path: Path, message: str, archive: Path) -> None:
    with pytest.raises(InputError, match=message) as refused:
        prepare("mnist", tmp_path / "new", archive=archive)
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()


@pytest.mark.parametrize("url", [None, "http://mirror/fashion/"])
def test_the_four_files_of_fashion_mnist_are_downloaded(tmp_path, monkeypatch, url):
    folder = _write_idx(tmp_path / "idx")
    asked = []

    def fetch(url, path, timeout, announce):
        asked.append(url)
        path.write_bytes((folder / Path(url).name).read_bytes())

    monkeypatch.setattr("labkit.data.cifar10.download.fetch", fetch)
    with pytest.raises(InputError, match="is not a published Fashion-MNIST archive"):
        prepare("fashion_mnist", tmp_path / "data", url=url)
    for name in sources.FASHION_MNIST.downloads:
        old = sources.PUBLISHED[name]
        mine = sources.Published(old.url, file_sha256(folder / name), old.bytes, old.title)
        monkeypatch.setitem(sources.PUBLISHED, name, mine)
    del asked[:]
    manifest = prepare("fashion_mnist", tmp_path / "data", url=url).manifest
    assert manifest.classes[9] == "ankle boot" and manifest.count("train") == 54
    base = url or "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    assert asked == [base + name for name in sources.FASHION_MNIST.downloads]
    manifest.shard_path(manifest.splits["test"].shards[0]).unlink()
    assert prepare("fashion_mnist", tmp_path / "data").did_work and len(asked) == 4
