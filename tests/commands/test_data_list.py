"""``labkit data list`` and ``labkit doctor`` show what is prepared, somebody's own data sets included."""

import json

import pytest

from labkit.commands.doctor import findings
from labkit.commands.main import main
from labkit.tables import print_table
from tests.own_data import CLASSES, write_own


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    write_own(tmp_path / "data", "pets")
    return tmp_path / "data"


def test_the_list_has_a_line_for_each_data_set(data_dir, capsys):
    write_own(data_dir, "花", size=40)
    assert main(["data", "list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["name", "train"]
    assert [row.split()[:6] for row in rows] == [
        ["pets", "60", "12", "12", "3", "48×48"],
        ["花", "60", "12", "12", "3", "40×40"],
    ]
    assert "/somewhere/my pictures" in rows[0]


def test_a_damaged_data_set_is_in_the_list_which_says_what_to_do_as_doctor_does(data_dir, capsys):
    (data_dir / "pets" / "manifest.json").write_text("{")
    assert main(["data", "list", "--data-dir", str(data_dir)]) == 0  # of which doctor knows nothing
    told = capsys.readouterr()
    assert told.out.endswith("damaged\n")
    assert told.err.startswith("note: ") and "labkit data prepare --images DIR --name pets" in told.err
    [found] = [finding for finding in findings() if finding.subject == "pets"]
    assert found.level == "problem" and found.way_out == "labkit data prepare --images DIR --name pets"


def test_programs_get_all_of_it_as_json(data_dir, capsys):
    assert main(["data", "list", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["name"] == "pets" and found["classes"] == list(CLASSES)
    assert found["splits"] == {"train": 60, "validation": 12, "test": 12}
    assert found["image_shape"] == [48, 48, 3] and found["source"]["kind"] == "images"


def test_an_empty_folder_leads_to_the_command_that_fills_it(tmp_path, capsys):
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    assert "labkit data prepare --images DIR" in capsys.readouterr().out
    assert main(["data", "list", "--data-dir", str(tmp_path / "nowhere")]) == 2


@pytest.mark.long
def test_doctor_knows_the_data_sets_of_ones_own(data_dir):
    [found] = [finding for finding in findings() if finding.subject == "pets"]
    assert found.level == "ok" and "60 train" in found.text
    (data_dir / "pets" / "test-00000-of-00001.tfrecord").write_bytes(b"")
    [found] = [finding for finding in findings() if finding.subject == "pets"]
    assert found.level == "problem" and "--images '/somewhere/my pictures' --name pets" in found.way_out


def test_a_table_shows_names_that_a_terminal_would_obey(capsys):
    print_table(("class", "n"), [("\x1b[31mred\nline\u202e", "1"), ("猫猫", "2"), ("cafe\u0301", "3")])
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith(r"\x1b[31mred\nline\u202e  1")
    width = shown[1].index("  1")
    assert shown[2] == "猫猫" + " " * (width - 4) + "  2"
    assert shown[3] == "cafe\u0301" + " " * (width - 4) + "  3"
