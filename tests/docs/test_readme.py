"""README's Python, run as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

_NUMBER = re.compile(r"\d+\.\d+")


def assert_same_output(said: str, expected: str) -> None:
    """Check the last lines: words and whole numbers are equal, decimals within 0.15 (CPUs differ)."""
    wanted = expected.splitlines()
    given = said.splitlines()[-len(wanted) :]
    assert [_NUMBER.sub("x", line) for line in given] == [_NUMBER.sub("x", line) for line in wanted]
    for left, right in zip(given, wanted, strict=True):
        numbers = [float(number) for number in _NUMBER.findall(left)]
        assert numbers == pytest.approx([float(number) for number in _NUMBER.findall(right)], abs=0.15)


EXAMPLES = [block for block in blocks("python", "text") if block.document == "README.md"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES) // 2))
def test_the_python_of_readme_prints_what_it_says(number: int, tmp_path: Path) -> None:
    code, expected = EXAMPLES[2 * number : 2 * number + 2]
    assert (code.language, expected.language) == ("python", "text")
    environment = {**os.environ, "LABKIT_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    (tmp_path / "mine.py").write_text(code.text)
    ended = subprocess.run(
        [sys.executable, "mine.py"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert_same_output(ended.stdout, expected.text)


def test_the_first_screen_has_what_it_should() -> None:
    first = (ROOT / "README.md").read_text().split("## Install")[0]
    code = next(block for block in blocks("python") if block.document == "README.md").text
    assert len([line for line in code.splitlines() if line.strip()]) == 6
    assert "make demo" in first
    assert "make test" in first
    assert first.count("![") == 1
    claims = re.findall(r"\]\((tests/[\w/]+\.py)\)", first)
    assert len(claims) == 3
    for claim in claims:
        assert (ROOT / claim).is_file()
