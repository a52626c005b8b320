"""``labkit runs`` and ``labkit show``: what they say of whole, damaged and missing runs."""

import json
import math
import os
import subprocess
import sys
import time

import pytest

from labkit import tables
from labkit.commands import main as cli
from tests.commands.made_runs import evaluation, make_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def three(folder):
    """Three runs; the last one made was active first."""
    make_run(folder, "good", rows=[evaluation("validation", 20, 0.75), evaluation("test", 20, 0.8)])
    make_run(folder, "half", state="interrupted", step=7, model="vgg", num_layers=11,
             rows=[evaluation("validation", 5, 0.9)])  # fmt: skip
    make_run(folder, "none", state="failed", step=1)
    for age, name in enumerate(("good", "half", "none")):
        os.utime(folder / name / "status.json", (time.time() - 7200 * age,) * 2)
    return folder


def table(capsys, *arguments):
    assert cli.main(["runs", *arguments]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "state", "step", "accuracy", "data", "set", "model", "age"]
    return [row.split() for row in rows]


def test_the_table(three, capsys):
    assert table(capsys) == [
        ["good", "finished", "20/20", "0.8000", "shapes", "resnet8", "0", "s"],
        ["half", "interrupted", "7/20", "0.9000", "val", "shapes", "vgg11", "2", "h"],
        ["none", "failed", "1/20", "-", "shapes", "resnet8", "4", "h"],
    ]


@pytest.mark.parametrize(
    ("field", "order"),
    [
        ("accuracy", ["half", "good", "none"]),
        ("step", ["good", "half", "none"]),
        ("state", ["none", "good", "half"]),
        ("age", ["good", "half", "none"]),
        ("model", ["good", "none", "half"]),
    ],
)
def test_sorted(three, capsys, field, order):
    assert [row[0] for row in table(capsys, "--sort", field)] == order


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["VGG"], ["half"]),
        (["state=finished"], ["good"]),
        (["model=resnet8", "state=failed"], ["none"]),
        (["step=7"], ["half"]),
        (["arch=vgg11"], ["half"]),
        (["model=resnet8 state=failed"], ["none"]),
        (["resnet state = failed"], ["none"]),
    ],
)
def test_filtered(three, capsys, filters, names):
    arguments = [part for text in filters for part in ("--filter", text)]
    assert [row[0] for row in table(capsys, *arguments)] == names


def test_no_run_fits(three, capsys):
    assert cli.main(["runs", "--filter", "xyzzy"]) == 0
    assert "none of the 3 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sort", "accurcy"], "unknown field of --sort 'accurcy'; did you mean 'accuracy'?"),
        (["--filter", "sate=x"], "unknown field of --filter 'sate'; did you mean 'state'?"),
        (["--runs-dir", "/nowhere"], "--runs-dir /nowhere is not a directory"),
    ],
)
def test_mistakes(three, capsys, arguments, words):
    assert cli.main(["runs", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_no_runs_says_where_it_looked(folder, capsys):
    assert cli.main(["runs"]) == 0
    assert f"no runs in {folder}" in capsys.readouterr().out
    assert cli.main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_json(three, capsys):
    assert cli.main(["runs", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["name"], first["step"], first["total_steps"]) == ("good", 20, 20)
    assert (first["accuracy"], first["accuracy_split"]) == (0.8, "test")
    assert first["path"] == str(three / "good")


def test_nan_is_shown_and_is_null_in_json(folder, capsys):
    make_run(folder, "nan", rows=[evaluation("test", 20, math.nan, loss=math.inf)])
    assert table(capsys)[0][3] == "nan"
    assert cli.main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)[0]["accuracy"] is None
    assert cli.main(["show", "nan", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown["results"]["test"]["loss"] is None
    assert cli.main(["show", "nan"]) == 0
    assert "accuracy nan" in capsys.readouterr().out


@pytest.mark.parametrize("damaged", ["config.json", "status.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"split": "test"', None])
def test_a_damaged_run_is_listed_and_shown(folder, capsys, damaged, content):
    run = make_run(folder, "hurt", rows=[evaluation("test", 20, 0.5)])
    make_run(folder, "whole")
    if content is None:
        (run.path / damaged).unlink()
    else:
        (run.path / damaged).write_bytes(content)
    names = {row[0] for row in table(capsys)}
    assert "whole" in names
    assert ("hurt" in names) is (damaged != "config.json" or content is not None)
    if "hurt" in names:
        assert cli.main(["show", "hurt"]) == 0
        assert cli.main(["show", "hurt", "--json"]) == 0


def test_a_reader_that_goes_away_is_no_error(folder):
    for number in range(50):
        make_run(folder, f"run{number}")
    done = subprocess.run(
        f"{sys.executable} -m labkit runs | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split()[0] == "name"
    assert done.stderr == ""
    assert done.returncode in (0, 141)


@pytest.mark.parametrize("width", [200, 70, 40, 20, 8, 1])
def test_a_narrow_terminal_gets_whole_columns(width, capsys):
    rows = [("a-long-name-of-a-run" * 2, "finished", "0.8000"), ("b", "interrupted", "0.1")]
    tables.print_table(("name", "state", "accuracy"), rows, right=("accuracy",), width=width)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    if width >= 20:
        assert max(map(len, lines)) <= width
    assert lines[0].startswith("name"[:width]) or width == 1
    assert ("finished" in lines[1]) is (width >= 40)


# ---- show ----------------------------------------------------------------------------------------------


def test_show(folder, capsys):
    run = make_run(folder, "mine", learning_rate=0.5, rows=[evaluation("test", 20, 0.8)])
    for step in (10, 20):
        (run.checkpoints_path / f"step-{step:08d}").mkdir()
    (run.checkpoints_path / ".step-00000030.1.tmp").mkdir()
    (run.environment_path).write_text(json.dumps({"description": "one CPU"}))
    assert cli.main(["show", "mine"]) == 0
    shown = capsys.readouterr().out
    for words in ("finished", "20 of 20", "resnet8", "shapes", "accuracy 0.8000  (step 20)",
                  "--learning-rate 0.5", "--num-layers 8", "at step 10, 20", "one CPU",
                  str(run.path)):  # fmt: skip
        assert words in shown
    assert "--momentum" not in shown
    assert cli.main(["show", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["learning_rate"] == 0.5
    assert found["checkpoints"] == [10, 20]


def test_a_run_that_is_not_found_gets_the_nearest_names(folder, capsys):
    for name in ("resnet8-shapes-1a2b", "vgg11-shapes-3c4d"):
        make_run(folder, name)
    assert cli.main(["show", "resnet8-shapes-1a3b"]) == 2
    assert "did you mean resnet8-shapes-1a2b" in capsys.readouterr().err
    assert cli.main(["show", "vgg11"]) == 2
    assert "did you mean vgg11-shapes-3c4d?" in capsys.readouterr().err
    assert cli.main(["show", "zz"]) == 2
    assert "the newest runs" in capsys.readouterr().err


# ---- damaged files ---------------------------------------------------------------------------------------


def train_rows(count):
    return [{"split": "train", "step": step, "loss": 1.0} for step in range(1, count + 1)]


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        (b"\x93\xf2\x00\xff garbage\n", 1),
        (b'{"split": "train", "step": 21, "lo\n', 1),
        (b'{"split": "train", "step": 21, "loss": \xe9}\n', 1),
        (b"no row\n\n[1, 2]\n", 2),
    ],
)
def test_damaged_rows_are_counted_wherever_the_run_is_shown(folder, capsys, damage, count):
    run = make_run(folder, "mine", rows=train_rows(20))
    run.metrics_path.write_bytes(run.metrics_path.read_bytes() + damage)
    said = f"left out of metrics.jsonl: {count} damaged line{'s' if count > 1 else ''}"
    assert cli.main(["runs"]) == 0
    assert f"note: mine: {said}" in capsys.readouterr().err
    assert cli.main(["show", "mine"]) == 0
    assert said in capsys.readouterr().out
    assert cli.main(["metrics", "mine", "--output", str(folder / "m.csv")]) == 0
    assert "left out: " + said.partition(": ")[2] in capsys.readouterr().out


def test_metrics_without_a_readable_row_are_an_error(folder, capsys):
    run = make_run(folder, "mine")
    run.metrics_path.write_bytes(os.urandom(5000).replace(b"{", b"x") + b"\n")
    assert cli.main(["metrics", "mine", "--output", str(folder / "m.csv")]) == 2
    assert "none is a row, so nothing was written" in capsys.readouterr().err
    assert not (folder / "m.csv").exists()
    run.metrics_path.write_bytes(b"")
    assert cli.main(["metrics", "mine", "--output", str(folder / "m.csv")]) == 0
    assert f"note: {run.metrics_path} has no rows" in capsys.readouterr().out


def test_a_damaged_status_leaves_the_number_of_steps(folder, capsys):
    run = make_run(folder, "mine", rows=train_rows(6))
    run.status_path.write_text('{"state"')
    assert cli.main(["show", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "6 of 20" in shown and "status.json is damaged" in shown
    assert table(capsys)[0][:3] == ["mine", "unknown", "6/20"]


def test_a_damaged_environment_is_named(folder, capsys):
    run = make_run(folder, "mine")
    run.environment_path.write_text("[1")
    assert cli.main(["show", "mine"]) == 0
    assert "environment.json is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["show"], ["evaluate"], ["resume"], ["metrics"], ["export"]])
def test_a_run_without_its_configuration_is_not_said_to_be_no_run(folder, capsys, command):
    run = make_run(folder, "mine", rows=train_rows(6))
    run.config_path.unlink()
    assert cli.main([*command, "mine"]) == 2
    error = capsys.readouterr().err
    assert "config.json is missing" in error and str(run.path) in error
    assert "no run" not in error and "remove" not in error
    assert cli.main(["runs"]) == 0
    assert f"not shown: {run.path}, config.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["\0", "", "none"])
def test_any_name_that_is_no_run_is_refused_in_a_line(folder, capsys, name):
    assert cli.main(["show", name]) == 2
    assert "no run at" in capsys.readouterr().err
