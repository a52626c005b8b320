"""Asynchronous steps against parameter servers: nothing is lost, staleness, packing, observation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TIME_LIMIT = 250


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_update_is_lost_and_variables_are_spread(tmp_path):
    """Two workers, two servers in one process of their own: counter, round robin and greedy placement."""
    script = Path(__file__).with_name("parameter_servers.py")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=TIME_LIMIT, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all held"
