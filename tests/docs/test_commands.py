"""Every command in README and docs parses, and is run here or by a named test, or has a reason not to be.

A comment before a block says which: ``<!-- run by tests/x.py::test_y -->`` or ``<!-- not run: reason -->``.
The commands of blocks without a comment are run here, in one process, in the order of the documents.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.commands.main import main, parse
from labkit.config import fields_by_name
from labkit.errors import InputError
from tests.docs.blocks import ROOT, Block, Command, blocks, commands
from tests.docs.test_readme import assert_same_output

MAKE_RUN_BY_CI = (
    "test",
    "check",
    "env",
    "demo",
)  # make test runs what demo does, tests/commands/test_demo.py


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory that is labkit's home, with ``runs/first`` as the quick start leaves it."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder))
        patch.chdir(folder)
        yield folder


def _runnable() -> list[Command]:
    chosen = f"run by tests/docs/test_commands.py::{test_documented_commands_run.__name__}"
    return [
        command
        for command in commands()
        if command.words[0] == "labkit" and command.block.mark in ("", chosen)
    ]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.place)
def test_documented_commands_are_right(command: Command) -> None:
    words = list(command.words)
    if words[0] == "labkit":
        _check_labkit(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        assert words[1] in MAKE_RUN_BY_CI or command.block.mark
    elif words[:2] == ["python", "-m"] and words[2].partition(".")[0] == "benchmarks":
        _check_benchmark(words[2].partition(".")[2] or "__main__", words[3:])
    elif words[0] == "papermill":
        assert (ROOT / words[1]).is_file() or (ROOT / "notebooks" / words[1]).is_file()
        for flag, name in zip(words[3::3], words[4::3], strict=True):
            assert flag == "-p"
            assert name in fields_by_name() or name in _notebook_parameters()
    else:
        assert command.block.mark.startswith("not run: "), "a command that nothing checks needs a reason"


def _check_labkit(words: list[str]) -> None:
    training = None
    if "--" in words:
        place = words.index("--")
        training = words[place + 1 :]
        assert training[:1] == ["train"]
    for arguments in (words, training):
        if arguments is None or arguments[-1] in ("--help", "--help-all", "--version"):
            continue
        try:
            parse(arguments)
        except (InputError, SystemExit) as error:
            pytest.fail(str(error))


def _check_benchmark(name: str, words: list[str]) -> None:
    """Find the options in the script; those that scripts share are declared in two other files."""
    sources = [name, "common", "forms"]
    text = "".join((ROOT / "benchmarks" / f"{source}.py").read_text() for source in sources)
    for word in words:
        assert f'"{word}"' in text or not word.startswith("--"), f"{name} has no {word}"


def _notebook_parameters() -> set[str]:
    import json

    cells = json.loads((ROOT / "notebooks" / "train.ipynb").read_text())["cells"]
    text = "".join(
        "".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", ())
    )
    return set(re.findall(r"^(\w+)\s*[:=]", text, re.MULTILINE))


@pytest.mark.parametrize("block", blocks("", "sh", "python"), ids=lambda block: block.place)
def test_marks_name_tests_that_exist(block: Block) -> None:
    for name in re.findall(r"tests/[\w/]+\.py", block.mark):
        assert (ROOT / name).is_file()
    if block.mark.startswith("run by "):
        file, test = block.mark.removeprefix("run by ").split("::")
        assert f"def {test}(" in (ROOT / file).read_text()


@pytest.mark.slow
def test_documented_commands_run(place: Path) -> None:
    ran = 0
    # The quick start makes the run that the other pages use.
    for command in sorted(_runnable(), key=lambda command: "quick-start" not in command.block.document):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                code = main(list(command.words[1:]))
            except SystemExit as end:  # --help
                code = int(end.code or 0)
        assert code == 0, f"{command.place}\n{said.getvalue()[-2000:]}"
        assert said.getvalue().strip()
        ran += 1
    assert ran > 8


@pytest.mark.slow
@pytest.mark.parametrize("document", ["docs/python.md", "docs/callbacks.md", "docs/data.md"])
def test_documented_python_runs(document: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    page = [block for block in blocks("python", "text") if block.document == document and not block.mark]
    for block, expected in zip(page[::2], page[1::2], strict=True):
        assert (block.language, expected.language) == ("python", "text")
        if "labkit.runs(" in block.text:  # other tests' runs are not the reader's
            for other in (place / "runs").iterdir():
                if other.name != "python":
                    other.rename(place / other.name)
        exec(compile(block.text, block.place, "exec"), names)
        said = capsys.readouterr().out.replace(f"{place}/", "")
        assert_same_output(said, expected.text)
