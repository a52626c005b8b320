"""Which data set a run uses, and the line that says so."""

import pytest

from labkit.data import shapes
from labkit.data.cifar10 import sources
from labkit.data.manifest import find_manifest
from labkit.data.prepare import prepare
from labkit.data.resolve import find_data_set, resolve
from labkit.errors import InputError
from tests.own_data import write_own

generate = shapes.generate


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch):
    """Generate only a few shapes."""
    monkeypatch.setattr(
        shapes, "generate", lambda seed, **kind: generate(seed, train_count=100, test_count=20, **kind)
    )


@pytest.fixture
def offline(monkeypatch):
    """No network: the connection check fails."""

    def fail(url, timeout):
        raise InputError(f"{url} cannot be reached: no route to host")

    monkeypatch.setattr(sources, "check_connection", fail)
    monkeypatch.setattr(sources, "download", lambda *_, **__: pytest.fail("downloaded"))


@pytest.fixture
def online(monkeypatch, fake_cifar, tmp_path):
    """A network from which the small CIFAR-10 can be downloaded."""
    archive = fake_cifar.archive(tmp_path / "net" / "cifar.tar.gz", "python")
    monkeypatch.setattr(sources, "check_connection", lambda url, timeout: None)
    monkeypatch.setattr(sources, "download", lambda *_, **__: archive)


def _resolve(dataset, data_dir, **options):
    manifest, line = resolve(dataset, data_dir, announce=lambda line: None, **options)
    assert "\n" not in line and line.startswith(f"data set: {manifest.dataset} in")
    return manifest, line


def test_auto_uses_cifar10_if_it_is_prepared(prepared, offline):
    for may_prepare in (True, False):
        manifest, line = _resolve("auto", prepared.directory.parent, may_prepare=may_prepare)
        assert manifest == prepared
        found = find_data_set("auto", prepared.directory.parent, may_prepare=may_prepare)
        assert found == (prepared, line)


@pytest.mark.parametrize("shapes_are_there", [True, False])
def test_auto_downloads_cifar10_if_it_can_and_only_auto_does(tmp_path, online, shapes_are_there):
    if shapes_are_there:
        prepare("shapes", tmp_path / "data")
        assert find_data_set("auto", tmp_path / "data", may_prepare=True) == (None, "")
    with pytest.raises(InputError, match="labkit data prepare --dataset cifar10"):
        resolve("cifar10", tmp_path / "data")
    manifest, _ = _resolve("auto", tmp_path / "data")
    assert manifest.dataset == "cifar10" and manifest.source["kind"] == "download"


def test_auto_generates_shapes_without_a_network_and_says_why(tmp_path, offline):
    manifest, line = _resolve("auto", tmp_path / "data")
    assert manifest.dataset == "shapes" and "no route to host" in line
    assert not (tmp_path / "data" / "cifar10").exists()
    assert _resolve("auto", tmp_path / "data")[0] == manifest


def test_auto_uses_only_prepared_data_in_a_folder_that_the_user_named(tmp_path, online):
    with pytest.raises(InputError, match="labkit data prepare --data-dir"):
        resolve("auto", tmp_path / "data", may_prepare=False)
    assert not (tmp_path / "data").exists()
    prepare("shapes", tmp_path / "data")
    manifest, line = _resolve("auto", tmp_path / "data", may_prepare=False)
    assert manifest.dataset == "shapes" and "cifar10 is not prepared there" in line
    assert find_data_set("auto", tmp_path / "data", may_prepare=False) == (manifest, line)


def test_shapes_are_generated_only_where_that_is_allowed(tmp_path):
    write_own(tmp_path / "data", "pets")  # which auto never takes
    with pytest.raises(InputError, match="labkit data prepare --dataset shapes"):
        resolve("shapes", tmp_path / "data", may_prepare=False)
    with pytest.raises(InputError, match="no prepared data set"):
        resolve("auto", tmp_path / "data", may_prepare=False)
    manifest, _ = _resolve("shapes", tmp_path / "data")
    assert manifest == find_manifest(tmp_path / "data", "shapes")
    assert _resolve("shapes", tmp_path / "data", may_prepare=False)[0] == manifest


def test_shapes_of_another_version_are_generated_again_in_labkits_own_folder(tmp_path, offline):
    path = prepare("shapes", tmp_path).manifest.directory / "manifest.json"
    old = path.read_text().replace('"format_version": 3', '"format_version": 2')
    for dataset in ("shapes", "auto"):
        path.write_text(old)
        with pytest.raises(InputError, match="written by another version of labkit"):
            resolve(dataset, tmp_path, may_prepare=False)
        assert resolve(dataset, tmp_path)[0] == find_manifest(tmp_path, "shapes")


def test_an_unknown_name_is_answered_with_what_is_there_and_what_to_do(tmp_path):
    write_own(tmp_path, "flowers")
    with pytest.raises(InputError) as caught:
        resolve("flwers", tmp_path)
    said = str(caught.value)
    assert "did you mean 'flowers'" in said and "prepared there: flowers" in said
    assert "cifar10, shapes, shapes_multilabel" in said and "\n" not in said
    assert f"labkit data prepare --images DIR --name flwers --data-dir {tmp_path}" in said


@pytest.mark.parametrize(
    "name", ["../shapes", "a/b", "", ".hidden", "a\nb", "downloads", "CIFAR10", "x" * 65]
)
def test_what_no_data_set_can_be_called_is_refused_before_any_folder_is_looked_at(name, tmp_path):
    with pytest.raises(InputError, match="--dataset is"):
        resolve(name, tmp_path / "nowhere")


@pytest.mark.parametrize("dataset", ["auto", "cifar10", "shapes"])
def test_an_unusable_path_is_refused_in_one_line(tmp_path, offline, dataset):
    with pytest.raises(InputError, match="^[^\n]*name too long[^\n]*$"):
        resolve(dataset, tmp_path / ("x" * 300))


def test_a_data_set_of_ones_own_is_found_by_its_own_name_however_its_accents_are_written(tmp_path):
    made = write_own(tmp_path, "caf\u00e9")
    for written in ("caf\u00e9", "cafe\u0301"):
        assert _resolve(written, tmp_path)[0] == made
    made.directory.rename(tmp_path / "cats")
    with pytest.raises(InputError, match="is of the data set 'caf"):
        resolve("cats", tmp_path)
