"""An exported file says of pictures what the run's network says."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from labkit.commands import main as cli
from labkit.data.shards import load_split
from labkit.export import api
from labkit.export.output import FORMATS
from tests.properties.harness import train


@pytest.fixture(scope="module")
def pictures(shapes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number, pixels in enumerate(load_split(shapes, "test")[0][:7]):
        picture = Image.fromarray(pixels).resize((50, 40)) if number % 2 else Image.fromarray(pixels)
        picture.save(folder / f"{number}.png")
    return folder


def asked(capsys, *arguments: object) -> list[dict]:
    capsys.readouterr()
    assert cli.main(["predict", *map(str, arguments), "--json", "--top", "3"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def assert_alike(found: list[dict], wanted: list[dict]) -> None:
    assert [row["path"] for row in found] == [row["path"] for row in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        shares = ([one["probability"] for one in row["top"]] for row in (mine, theirs))
        np.testing.assert_allclose(*shares, atol=1e-5)
        assert mine["class"] == theirs["class"]


@pytest.mark.parametrize(
    "form", ["keras", *(pytest.param(form, marks=pytest.mark.long) for form in FORMATS if form != "keras")]
)
def test_each_format_gives_the_probabilities_of_the_run(smoke, pictures, tmp_path, capsys, form):
    wanted = asked(capsys, smoke, pictures)
    for probabilities in (False, True):
        file = tmp_path / f"{probabilities}{FORMATS[form].ending}"
        api.export(str(smoke), format=form, output=file, probabilities=probabilities)
        assert_alike(asked(capsys, file, pictures), wanted)


@pytest.mark.long
def test_numbers_have_their_unit(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    train(tmp_path / "run", dataset="shapes_size", loss="mse", train_steps=2)
    api.export(str(tmp_path / "run"), output=tmp_path / "size.keras")
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    [found], [wanted] = (
        asked(capsys, tmp_path / name, tmp_path / "red.png") for name in ("size.keras", "run")
    )
    assert found["numbers"] == pytest.approx(wanted["numbers"], rel=1e-4)


def test_what_is_no_export_is_one_sentence(smoke, pictures, tmp_path, capsys):
    file = tmp_path / "first.keras"
    about = tmp_path / "first.keras.json"
    api.export(str(smoke), output=file)

    def refused(*flags: str) -> str:
        assert cli.main(["predict", str(file), str(pictures), *flags]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        return told

    assert "--checkpoint and --data-dir are for a run" in refused("--checkpoint", "last")
    whole, described = file.read_bytes(), json.loads(about.read_text())
    file.write_bytes(whole[:1000])
    assert "first.keras is damaged" in refused()
    file.write_bytes(whole)
    for broken in ({}, described | {"format": "pt"}, described | {"classes": None}):
        about.write_text(json.dumps(broken))
        assert "does not describe an export of this labkit" in refused()
    about.write_text("{")
    assert "first.keras.json can't be read" in refused()
    about.write_text(json.dumps(described | {"input": described["input"] | {"values": "standardized"}}))
    assert "without --standardized-input" in refused()
    about.unlink()
    assert "first.keras" in refused()
    shutil.rmtree(tmp_path)
