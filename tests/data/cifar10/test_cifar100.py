"""CIFAR-100 is read in both layouts, with its 100 classes or the 20 groups of them."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from labkit.data.cifar10 import sources
from labkit.data.manifest import file_sha256
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError

FINE = [f"fine {number}" for number in range(100)]
COARSE = [f"coarse {number}" for number in range(20)]
RNG = np.random.default_rng(3)
PARTS = {
    name: RNG.integers(0, 256, (count, 3072), np.uint8) for name, count in (("train", 400), ("test", 200))
}
LABELS = {name: RNG.permutation(len(planes)) % 100 for name, planes in PARTS.items()}


def _files(layout: str) -> dict[str, bytes]:
    if layout == "binary":
        rows = {
            name: np.column_stack([LABELS[name] // 5, LABELS[name], planes]).astype(np.uint8).tobytes()
            for name, planes in PARTS.items()
        }
        names = {"fine": FINE, "coarse": COARSE}
        return {f"{name}.bin": content for name, content in rows.items()} | {
            f"{kind}_label_names.txt": ("\n".join(words) + "\n").encode() for kind, words in names.items()
        }
    batches = {
        name: {
            b"data": planes,
            b"fine_labels": LABELS[name].tolist(),
            b"coarse_labels": (LABELS[name] // 5).tolist(),
        }
        for name, planes in PARTS.items()
    }
    meta = {
        b"fine_label_names": [name.encode() for name in FINE],
        b"coarse_label_names": [name.encode() for name in COARSE],
    }
    return {name: pickle.dumps(content, 2) for name, content in {**batches, "meta": meta}.items()}


def _archive(tmp_path: Path, make_tar, layout: str) -> Path:
    files = {f"cifar-100-{layout}/{name}": content for name, content in _files(layout).items()}
    return make_tar(tmp_path / f"cifar-100-{layout}.tar.gz", files | {f"cifar-100-{layout}/file.txt~": b"x"})


@pytest.mark.parametrize("layout", ["python", "binary"])
@pytest.mark.parametrize(
    ("name", "classes", "in_a_class"), [("cifar100", FINE, 1), ("cifar100_coarse", COARSE, 5)]
)
def test_images_and_labels_of_both_layouts(tmp_path, make_tar, layout, name, classes, in_a_class):
    archive = _archive(tmp_path, make_tar, layout)
    manifest = prepare(name, tmp_path / "data", archive=archive).manifest
    assert manifest.classes == tuple(classes) and manifest.source["matches_published"] is False
    assert [manifest.count(split) for split in ("train", "validation", "test")] == [360, 40, 200]
    images, labels = load_split(manifest, "test")
    assert (labels == LABELS["test"] // in_a_class).all()
    assert (images.transpose(0, 3, 1, 2).reshape(200, -1) == PARTS["test"]).all()
    folder = tmp_path / "folder" / f"cifar-100-{layout}"
    folder.mkdir(parents=True)
    for file, content in _files(layout).items():
        (folder / file).write_bytes(content)
    same = prepare(name, tmp_path / "of folder", archive=tmp_path / "folder").manifest
    assert same.checksum == manifest.checksum and same.source["kind"] == "folder"


def test_the_archive_of_another_data_set_is_refused(tmp_path, make_tar, fake_cifar):
    fine = _archive(tmp_path, make_tar, "python")
    with pytest.raises(InputError, match="contains no CIFAR-10 batches; give cifar-10-python.tar.gz"):
        prepare("cifar10", tmp_path / "data", archive=fine)
    ten = fake_cifar.archive(tmp_path / "cifar.tar.gz", "python")
    with pytest.raises(InputError, match="contains no CIFAR-100 batches; give cifar-100-python.tar.gz, ci"):
        prepare("cifar100", tmp_path / "data", archive=ten)
    with pytest.raises(InputError, match="x.tar.gz does not exist; give cifar-100-python.tar.gz"):
        prepare("cifar100_coarse", tmp_path / "data", archive=tmp_path / "x.tar.gz")
    assert not (tmp_path / "data").exists()


def test_one_download_serves_both_and_no_archive_of_cifar10_does(tmp_path, make_tar, monkeypatch):
    archive = _archive(tmp_path, make_tar, "python")
    asked = []

    def fetch(url, path, timeout, announce):
        asked.append(url)
        path.write_bytes(archive.read_bytes())

    monkeypatch.setattr("labkit.data.cifar10.download.fetch", fetch)
    with pytest.raises(InputError, match="is not a published CIFAR-100 archive"):
        prepare("cifar100", tmp_path / "data")
    name, sha256 = "cifar-100-python.tar.gz", file_sha256(archive)
    published = sources.Published(sources.PUBLISHED[name].url, sha256, 1, "CIFAR-10")
    monkeypatch.setitem(sources.PUBLISHED, name, published)
    with pytest.raises(InputError, match="is not a published CIFAR-100 archive"):
        prepare("cifar100", tmp_path / "data")
    monkeypatch.setitem(sources.PUBLISHED, name, sources.Published(published.url, sha256, 1, "CIFAR-100"))
    del asked[:]
    assert prepare("cifar100", tmp_path / "data").manifest.source["matches_published"] is True
    assert prepare("cifar100_coarse", tmp_path / "data").manifest.num_classes == 20
    assert asked == ["https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"]
