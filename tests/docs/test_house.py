"""The code keeps the limits that make it easy to follow (docs/decisions.md, "The size of the code")."""

import ast
import re
import subprocess
import sys

from tests.docs.blocks import ROOT

# Files with code of one training step, in order, from `labkit train` to a row in metrics.jsonl, on one CPU.
PATH = (
    "labkit/commands/main.py",
    "labkit/commands/train.py",
    "labkit/training/plan.py",
    "labkit/training/checks.py",
    "labkit/training/session.py",
    "labkit/data/pipeline.py",
    "labkit/models/registry.py",
    "labkit/models/resnet.py",
    "labkit/training/step.py",
    "labkit/training/losses.py",
    "labkit/distributed/exchange.py",
    "labkit/training/loop.py",
    "labkit/training/telemetry.py",
    "labkit/run_directory/metrics.py",
)
# Those whose name says enough to read on without opening them.
BESIDE = {
    "labkit/commands/main.py",
    "labkit/training/checks.py",
    "labkit/models/registry.py",
    "labkit/training/losses.py",
    "labkit/distributed/exchange.py",
    "labkit/training/telemetry.py",
}


def test_at_most_eight_files_lead_from_the_command_to_a_row_of_metrics() -> None:
    assert len(set(PATH) - BESIDE) <= 8
    texts: list[str] = []
    for path in PATH:
        module = path.removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        named = any(module in text or f"from {package} import {name}" in text for text in texts)
        assert named or path.startswith("labkit/commands/"), f"no file before {path} leads to it"
        texts.append((ROOT / path).read_text())


def test_the_help_is_shorter_than_all_of_it() -> None:
    brief, full = (_help(flag) for flag in ("--help", "--help-all"))
    assert 0 < len(brief.splitlines()) < len(full.splitlines()) / 2


def _help(flag: str) -> str:
    command = [sys.executable, "-m", "labkit", "train", flag]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout


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
