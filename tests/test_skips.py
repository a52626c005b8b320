"""In CI no test is skipped for want of something that .ci/run installs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="{reason}")
def test_marked():
    pass

def test_inside():
    pytest.skip("{reason}")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False
"""


@pytest.mark.parametrize(
    ("ci", "reason", "skipped"),
    [
        ("true", "no Chromium on this machine", False),
        ("true", "this machine has no IPv6 loopback address", True),
        ("", "no Chromium on this machine", True),
    ],
)
def test_skips_for_want_of_a_package_fail_in_ci(ci, reason, skipped, tmp_path):
    (tmp_path / "conftest.py").write_bytes(CONFTEST.read_bytes())
    (tmp_path / "test_some.py").write_text(TESTS.format(reason=reason))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)],
        env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert bool(ended.returncode) is not skipped, ended.stdout
    assert ("2 skipped, 1 xfailed" in ended.stdout) is skipped
    assert ended.stdout.count("CI must not skip this test: ") == (0 if skipped else 4)
