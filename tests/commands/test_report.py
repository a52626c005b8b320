"""``labkit report``: what it writes, and that bad input is one line and exit code 2."""

from pathlib import Path

import pytest

from labkit.commands import main as cli
from tests.commands.made_runs import evaluation, make_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("first", "second"):
        make_run(tmp_path / "runs", name, rows=[evaluation("validation", 20, 0.5)])
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_documented_commands(folder, capfd):
    assert cli.main(["report", "first"]) == 0
    assert "report.html: " in capfd.readouterr().out
    assert "<h1><bdi>first</bdi></h1>" in Path("report.html").read_text()
    assert cli.main(["report", "first", "second", "--output", "comparison.html"]) == 0
    assert "Comparison of 2 runs" in Path("comparison.html").read_text()
    assert cli.main(["metrics", "first", "--output", "first.csv"]) == 0
    assert cli.main(["metrics", "first", "--output", "first.parquet"]) == 0
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "comparison.html", "first.csv", "first.parquet", "report.html",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frist"], "did you mean first"),
        (["first", "--output", "report.pdf"], "ends with .html"),
        (["first", "--output", "folder.html"], "is a folder"),
        (["first", "--output", "/proc/nothing/report.html"], "can't be written"),
        ([], "RUN"),
    ],
)
def test_bad_input_is_one_line(folder, arguments, words, capfd):
    try:
        code = cli.main(["report", *arguments])
    except SystemExit as end:
        code = end.code
    said = capfd.readouterr().err
    assert code == 2 and words in said and said.count("\n") == 1
    assert not list(folder.glob("*.pdf"))
