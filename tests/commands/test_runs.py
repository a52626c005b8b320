"""``labkit runs``, ``show`` and ``report``: what they say of whole, damaged and missing runs."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import tables
from labkit.commands import main as cli
from tests.commands.in_process import answer, ends_well, refused, tree
from tests.commands.made_runs import evaluation, make_run, whole_run
from tests.fuzzing import as_file, damaged_bytes, damaged_json


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


def table(*arguments):
    code, out, _ = answer("runs", *arguments)
    assert code == 0
    header, *rows = out.splitlines()
    assert header.split() == ["name", "state", "step", "accuracy", "data", "set", "model", "age"]
    return [row.split() for row in rows]


def test_the_table_and_json(three):
    assert table() == [
        ["good", "finished", "20/20", "0.8000", "shapes", "resnet8", "0", "s"],
        ["half", "interrupted", "7/20", "0.9000", "val", "shapes", "vgg11", "2", "h"],
        ["none", "failed", "1/20", "-", "shapes", "resnet8", "4", "h"],
    ]
    first = json.loads(answer("runs", "--json").out)[0]
    assert (first["name"], first["step"], first["total_steps"]) == ("good", 20, 20)
    assert (first["accuracy"], first["accuracy_split"]) == (0.8, "test")
    assert first["path"] == str(three / "good")
    code, out, _ = answer("runs", "--filter", "xyzzy")
    assert code == 0 and "none of the 3 runs" in out


def test_a_run_without_an_accuracy_names_no_split(folder):
    make_run(folder, "loss", rows=[{"split": "validation", "step": 20, "loss": 0.5}])
    assert table()[0][:4] == ["loss", "finished", "20/20", "-"] and "val" not in table()[0]


@pytest.mark.parametrize(
    ("field", "order"),
    [
        ("accuracy", "half good none"),
        ("step", "good half none"),
        ("state", "none good half"),
        ("age", "good half none"),
        ("model", "good none half"),
    ],
)
def test_sorted(three, field, order):
    assert [row[0] for row in table("--sort", field)] == order.split()


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
def test_filtered(three, filters, names):
    arguments = [part for text in filters for part in ("--filter", text)]
    assert [row[0] for row in table(*arguments)] == names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "--sort", "accurcy"], "unknown field of --sort 'accurcy'; did you mean 'accuracy'?"),
        (["runs", "--filter", "sate=x"], "unknown field of a condition 'sate'; did you mean 'state'?"),
        (["runs", "--runs-dir", "/nowhere"], "--runs-dir /nowhere is not a directory"),
        (["show", "goood"], "did you mean good"),
        (["show", "zz"], "the newest runs"),
        (["show", "\0"], "no run at"),
        (["show", ""], "no run at"),
        (["show", "none"], "no run at"),
    ],
)
def test_mistakes(folder, arguments, words):
    make_run(folder, "good")
    assert words in refused(*arguments)


def test_no_runs_says_where_it_looked(folder):
    assert f"no runs in {folder}" in answer("runs").out
    assert json.loads(answer("runs", "--json").out) == []
    for setting in ("optimizer=sgd", "lr>0.1"):  # is one, though no run is there to have it
        assert f"no runs in {folder}" in answer("runs", "--filter", setting).out


def test_nan_is_shown_and_is_null_in_json(folder):
    make_run(folder, "nan", rows=[evaluation("test", 20, math.nan, loss=math.inf)])
    assert table()[0][3] == "nan"
    listed = json.loads(answer("runs", "--json").out, parse_constant=pytest.fail)
    assert listed[0]["accuracy"] is None
    shown = json.loads(answer("show", "nan", "--json").out, parse_constant=pytest.fail)
    assert shown["results"]["test"]["loss"] is None
    assert "accuracy nan" in answer("show", "nan").out


FILES = ("config.json", "status.json", "metrics.jsonl", "environment.json")


@pytest.fixture(scope="module")
def hurt(tmp_path_factory):
    """A run with each of the files that a run can have, to be damaged; there is a whole one beside it."""
    folder = tmp_path_factory.mktemp("runs")
    whole_run(folder, "whole")
    return whole_run(folder, "hurt")


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(data=st.data(), name=st.sampled_from(FILES))
def test_a_damaged_run_is_listed_and_shown(hurt, data, name):
    good = (hurt.path / name).read_bytes()
    kinds = [damaged_bytes(good), st.sampled_from([b"", b"[]", b"\xff\xfe", b"[1", None])]
    if name.endswith(".json"):  # values of another kind, too
        kinds.append(damaged_json(json.loads(good)).map(as_file))
    content = data.draw(st.one_of(kinds))
    try:
        if content is None:
            (hurt.path / name).unlink()
        else:
            (hurt.path / name).write_bytes(content)
        names = {row[0] for row in table("--runs-dir", hurt.path.parent)}
        assert "whole" in names
        assert ("hurt" in names) is (name != "config.json" or content is not None)
        for words in (["show"], ["show", "--json"], ["metrics", "--output", hurt.path.parent / "m.csv"]):
            ends_well(words[0], str(hurt.path), *map(str, words[1:]))
        if "hurt" in names:
            assert answer("show", hurt.path).code == 0
    finally:
        (hurt.path / name).write_bytes(good)


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


def test_show(folder):
    run = make_run(folder, "mine", learning_rate=0.5, rows=[evaluation("test", 20, 0.8)])
    for step in (10, 20):
        (run.checkpoints_path / f"step-{step:08d}").mkdir()
    (run.checkpoints_path / ".step-00000030.1.tmp").mkdir()
    (run.environment_path).write_text(json.dumps({"description": "one CPU"}))
    shown = answer("show", "mine").out
    for words in ("finished", "20 of 20", "resnet8", "shapes", "accuracy 0.8000  (step 20)",
                  "--learning-rate 0.5", "--num-layers 8", "at step 10, 20", "one CPU",
                  str(run.path)):  # fmt: skip
        assert words in shown
    assert "--momentum" not in shown
    found = json.loads(answer("show", run.path, "--json").out)
    assert found["settings"]["learning_rate"] == 0.5
    assert found["checkpoints"] == [10, 20]


def train_rows(count):
    return [{"split": "train", "step": step, "loss": 1.0} for step in range(1, count + 1)]


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        (b"\x93\xf2\x00\xff garbage\n", 1),
        (b'{"split": "train", "step": 21, "lo\n', 1),
        (b'{"split": "train", "step": 21, "loss": \xe9}\n', 1),
        (b"no row\n\n[1, 2]\n", 2),
        (b'{"splat": "train", "step": 21, "loss": 1.0}\n', 1),
    ],
)
def test_damaged_rows_are_counted_wherever_the_run_is_shown(folder, damage, count):
    run = make_run(folder, "mine", rows=train_rows(20))
    run.metrics_path.write_bytes(run.metrics_path.read_bytes() + damage)
    said = f"left out of metrics.jsonl: {count} damaged line{'s' if count > 1 else ''}"
    make_run(folder, "other")
    for words in (["runs"], ["compare", "mine", "other"]):
        assert f"note: mine: {said}" in answer(*words).err
    assert said in answer("show", "mine").out
    written = answer("metrics", "mine", "--output", folder / "m.csv").out
    assert "left out: " + said.partition(": ")[2] in written


def test_metrics_without_a_readable_row_are_an_error(folder):
    run = make_run(folder, "mine")
    run.metrics_path.write_bytes(os.urandom(5000).replace(b"{", b"x") + b"\n")
    command = ("metrics", "mine", "--output", folder / "m.csv")
    assert "none is a row, so nothing was written" in refused(*command)
    assert not (folder / "m.csv").exists()
    run.metrics_path.write_bytes(b"")
    assert f"note: {run.metrics_path} has no rows" in answer(*command).out


def test_a_damaged_status_and_environment_are_named_and_leave_the_number_of_steps(folder):
    run = make_run(folder, "mine", rows=train_rows(6))
    run.status_path.write_text('{"state"')
    run.environment_path.write_text("[1")
    shown = answer("show", "mine").out
    assert "6 of 20" in shown and "status.json is damaged" in shown and "environment.json is damaged" in shown
    assert table()[0][:3] == ["mine", "unknown", "6/20"]
    run.config_path.write_text("[1")
    assert "6 of" not in answer("show", "mine").out, "a number of steps that nobody knows"


@pytest.mark.parametrize("command", ["show", "evaluate", "resume", "metrics", "export"])
def test_a_run_without_its_configuration_is_not_said_to_be_no_run(folder, command):
    run = make_run(folder, "mine", rows=train_rows(6))
    run.config_path.unlink()
    error = refused(command, "mine")
    assert "config.json is missing" in error and str(run.path) in error
    assert "no run" not in error and "remove" not in error
    assert f"not shown: {run.path}, config.json is missing" in answer("runs").err


# ---- report ------------------------------------------------------------------------------------------------


@pytest.fixture
def two(folder, monkeypatch):
    """Two runs; the current folder is labkit's home, in which a folder is in the way."""
    for name in ("first", "second"):
        make_run(folder, name, rows=[evaluation("validation", 20, 0.5)])
    (folder.parent / "folder.html").mkdir()
    monkeypatch.chdir(folder.parent)
    return folder.parent


def test_the_documented_commands_of_reports_and_metrics(two, capfd):
    assert cli.main(["report", "first"]) == 0
    assert "report.html: " in capfd.readouterr().out
    assert "<h1><bdi>first</bdi></h1>" in Path("report.html").read_text()
    assert cli.main(["report", "first", "second", "--output", "comparison.html"]) == 0
    assert "Comparison of 2 runs" in Path("comparison.html").read_text()
    assert cli.main(["metrics", "first", "--output", "first.csv"]) == 0
    assert cli.main(["metrics", "first", "--output", "first.parquet"]) == 0
    files = {path.name for path in two.iterdir() if path.is_file()}
    assert files == {"comparison.html", "first.csv", "first.parquet", "report.html"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("frist", "did you mean first"),
        ("first --output report.pdf", "ends with .html"),
        ("first --output folder.html", "is a folder"),
        ("first --output /proc/nothing/report.html", "can't be written"),
        ("", "RUN"),
    ],
)
def test_bad_input_of_reports_is_one_line(two, arguments, words, capfd):
    before = tree(two)
    code, _, err = answer("report", *arguments.split())
    said = err + capfd.readouterr().err  # a process of its own may say it
    assert code == 2 and words in said and said.count("\n") == 1
    assert tree(two) == before
