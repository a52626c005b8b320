"""A command imports TensorFlow without what only Keras's extras need; a notebook imports all of it."""

import json
import subprocess
import sys

import pytest

from labkit.startup.quiet_import import EXTRAS

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
