"""A file in the current folder never stands in for a module of a child process."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.listening import free_port

ROOT = Path(__file__).parents[1]
# The one function that makes the command lines, the process that runs isolated (-I), and what starts nothing.
MAY_NAME_PYTHON = {"labkit/startup/child.py", "labkit/startup/process.py", "labkit/commands/cluster.py"}
PLANTED = (
    "streamlit",
    "labkit",
    "tensorflow",
    "keras",
    "numpy",
    "json",
    "tempfile",
    "tensorboard",
    "nbclient",
    "app",
)


def test_one_function_makes_the_command_lines():
    found = set()
    for path in (path for part in ("labkit", "app", "course") for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List | ast.Tuple) and "sys.executable" in map(ast.unparse, node.elts):
                found.add(str(path.relative_to(ROOT)))
    assert found <= MAY_NAME_PYTHON
    assert "labkit/startup/child.py" in found, "the test sees what it looks for"


@pytest.fixture
def planted(tmp_path) -> Path:
    """A folder where modules lie that leave a file behind when they are run."""
    for name in PLANTED:
        (tmp_path / name).mkdir()
        for module in ("__init__.py", "__main__.py"):
            (tmp_path / name / module).write_text(f"open({str(tmp_path / 'RUN')!r}, 'a').write({name!r})\n")
    return tmp_path


def test_a_plain_command_would_run_what_is_planted(planted):
    subprocess.run([sys.executable, "-m", "streamlit"], cwd=planted, timeout=60, check=True)
    assert (planted / "RUN").read_text() == "streamlit" * 2


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        ["cluster", "local", "--", "train", "--sync", "--preset", "smoke", "--train-steps", "2"],
        ["replicas", "--layouts", "1 replica,2 logical devices", "--steps", "1"],
        ["dashboard", "--port"],
        ["tensorboard", "--port"],
    ],
    ids=lambda command: command[0],
)
def test_commands_leave_alone_what_is_planted(command, planted, shapes):
    is_server = command[-1] == "--port"
    process = subprocess.Popen(
        [Path(sys.executable).with_name("labkit"), *command, *([str(free_port())] if is_server else [])],
        cwd=planted,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        if is_server:
            assert any("http://" in line for line in process.stdout)
            process.terminate()
        said, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert not (planted / "RUN").exists(), said
    assert is_server or process.returncode == 0, said
