"""benchmarks.house counts what its table says."""

import ast
import re
from pathlib import Path

from benchmarks.house import BESIDE, PATHS, counts, options
from tests.docs.blocks import ROOT


def test_at_most_eight_files_lead_from_the_command_to_a_row_of_metrics() -> None:
    assert len(set(PATHS[0]) - BESIDE) <= 8
    texts: list[str] = []
    for path in PATHS[0]:
        module = path.removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        named = any(module in text or f"from {package} import {name}" in text for text in texts)
        assert named or path.startswith("labkit/commands/"), f"no file before {path} leads to it"
        texts.append((ROOT / path).read_text())


def test_this_checkout_keeps_its_limits() -> None:
    counted = counts(ROOT)
    assert int(str(counted["files in the largest package"]).split()[0]) <= 18
    assert int(str(counted["modules beside the packages in `labkit/`"])) <= 5
    assert int(str(counted["lines of `labkit train --help`"])) < int(
        str(counted["lines of `labkit train --help-all`"])
    )


def test_the_training_step_is_one_function_of_sixty_lines_that_knows_no_clock_and_no_server() -> None:
    text = (ROOT / "labkit/training/step.py").read_text()
    [step] = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "make_train_step"
    ]
    assert step.end_lineno - step.lineno + 1 <= 60
    code = ast.get_source_segment(text, step)
    assert not re.search(r"timestamp|perf_counter|remote|parameter server", code)


def test_an_option_with_its_negation_counts_once() -> None:
    text = """options:
  -h, --help            show this
  --steps N             Steps, as in --other.
      --indented-option
  --x, --no-x           Both.
words about --nothing
"""
    assert options(text) == 4


def test_what_stands_in_other_folders_is_not_counted(tmp_path: Path) -> None:
    for name in (
        "labkit/__init__.py",
        "labkit/commands/main.py",
        "labkit/data/a.py",
        "labkit/data/b.py",
        "x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def main():\n    print('usage\\n  --a\\n  --b')\n")
    counted = counts(tmp_path)
    assert counted["files of `labkit`"] == 4
    assert counted["lines of `labkit`"] == "8"
    assert counted["files in the largest package"] == "2 (labkit/data)"
    assert counted["options of `labkit train`"] == 2
    assert counted["files to open for one CPU step"] == "unknown"
