"""What processes of labkit import: never a file of the current folder, and no extras of Keras."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.startup.quiet_import import EXTRAS
from tests.listening import free_port

ROOT = Path(__file__).parents[1]
# The one function that makes the command lines, the process that runs isolated (-I), and what starts nothing.
MAY_NAME_PYTHON = {"labkit/startup/child.py", "labkit/startup/process.py", "labkit/commands/cluster.py"}
PLANTED = ("streamlit", "labkit", "tensorflow", "keras", "numpy", "json", "tempfile", "tensorboard", "app")


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


# ---- A command imports TensorFlow without what only Keras's extras need; a notebook imports all of it.

REPORT = """
import importlib, json, sys
before = [name for name in EXTRAS if name in sys.modules]
for name in EXTRAS:
    importlib.import_module(name)  # whoever needs one later can still import it
print(json.dumps(before))
"""
ARGUMENTS = ["models", "vgg11", "--json"]  # a network that has to be built
COMMAND = f"""
import sys
from labkit.commands.main import main
sys.argv[1:] = {ARGUMENTS}
assert main() == 0
assert "keras" in sys.modules
"""
NOTEBOOK = f"""
from labkit.commands.main import main
assert main({ARGUMENTS}) == 0
import keras.wrappers
"""


@pytest.mark.long
@pytest.mark.parametrize(("code", "imported"), [(COMMAND, []), (NOTEBOOK, list(EXTRAS))])
def test_only_commands_leave_out_the_extras_of_keras(code, imported):
    command = [sys.executable, "-c", f"{code}\nEXTRAS = {EXTRAS!r}\n{REPORT}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == imported
