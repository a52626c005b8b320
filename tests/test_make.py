"""``make env``, ``make test`` and .ci/run: which Python they take, and that nothing is left out silently."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ["3.11", "3.12", "3.13"]


def make_env(
    folder: Path, python: str | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``make env`` in ``folder``, as from a shell even where make started the tests.

    ``path``: a folder whose programs hide those of the machine that have the same names.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    if path is not None:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    return subprocess.run(
        ["make", "env", *([f"PYTHON={python}"] if python else [])],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what ``make env`` reads before it installs."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def put_program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


NOT_SELECTED = "echo 'pyenv: command not found' >&2; exit 127"  # what a shim of pyenv does


NAMES = [*(f"python{version}" for version in PYTHONS), "python3", "python"]


def test_make_refuses_another_python_and_says_how_to_get_one(checkout):
    other = put_program(checkout / "python9", "exit 1")
    result = make_env(checkout, str(other))
    assert result.returncode != 0
    first, second, *rest = result.stderr.splitlines()
    assert first.startswith("labkit needs Python 3.11, 3.12 or 3.13; none among: ")
    assert str(other) in first
    assert "uv python install 3.11" in second
    assert all(line.startswith("make: ***") for line in rest)
    assert not (checkout / ".venv").exists()


def test_make_test_runs_all_stages_and_fails_at_the_end(checkout):
    put_program(checkout / "bin" / "python", 'echo "$@" >>called; case "$*" in *no-loadscope*) exit 1; esac')
    put_program(checkout / "notebooks" / "n.ipynb", "")
    command = ["make", "-o", "env", "test", f"BIN={checkout / 'bin'}"]
    result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "make test: failed: the tests, the notebooks\n" in result.stderr
    assert len((checkout / "called").read_text().splitlines()) == 2, "tests, notebooks"
    command[3] = "test-long"
    result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60)
    assert "make test-long: failed: the tests that run two at a time\n" in result.stderr
    assert len((checkout / "called").read_text().splitlines()) == 4, "two at a time, alone"
    put_program(checkout / "bin" / "python", "")
    assert subprocess.run(command, cwd=checkout, timeout=60).returncode == 0


@pytest.fixture
def unselected(tmp_path_factory) -> Path:
    """A folder of programs that are called as every Python is, and don't run."""
    folder = tmp_path_factory.mktemp("shims")
    for name in NAMES:
        put_program(folder / name, NOT_SELECTED)
    return folder


# Runs, and stops make before it installs anything: make names the interpreter that it chose.
WITHOUT_VENV = f'case "$2" in *ensurepip*) exit 1;; esac; exec "{sys.executable}" "$@"'


@pytest.mark.parametrize("name", [*NAMES, "uv", None])
def test_make_takes_whichever_python_runs_or_uv_has_and_says_if_there_is_none(name, checkout, unselected):
    put_program(unselected / "uv", "exit 2")
    python = name
    if name == "uv":
        python = str(put_program(checkout / "uvs" / "python", WITHOUT_VENV))
        put_program(unselected / "uv", f'echo "$@" > {checkout}/asked; echo {python}')
    elif name:
        put_program(unselected / name, WITHOUT_VENV)
    stopped = make_env(checkout, path=unselected)
    assert stopped.returncode != 0
    if name is None:
        assert "none among: python3.11 python3.12 python3.13 python3 python. " in stopped.stderr
        assert not (checkout / ".venv").exists()
        return
    assert f"{python} can't make virtual environments: " in stopped.stderr
    assert f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in stopped.stderr
    if name == "uv":
        asked = (checkout / "asked").read_text()
        assert asked == "python find --system --no-python-downloads >=3.11,<3.14\n"


def test_make_leaves_a_foreign_environment_alone(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").write_text("kept")
    result = make_env(checkout, sys.executable)
    assert result.returncode != 0
    assert "was not made by make" in result.stderr
    assert (checkout / ".venv" / "mine").read_text() == "kept"


@pytest.mark.long
def test_an_interrupted_installation_does_not_look_complete(checkout):
    # A file that isn't there stands for an installation that ends half-way.
    (checkout / "requirements.lock").write_text(f"./absent.whl --hash=sha256:{'0' * 64}\n")
    for _ in range(2):
        result = make_env(checkout, sys.executable)
        assert result.returncode != 0
        assert "run make env again" in result.stderr
        assert (checkout / ".venv" / "bin" / "python").exists()
        assert not list((checkout / ".venv").glob(".locked-*"))


@pytest.mark.parametrize(("ci", "goes_on"), [("true", False), ("", True)])
def test_ci_ends_where_what_the_tests_need_cannot_be_installed(ci, goes_on, tmp_path):
    programs = tmp_path / "bin"
    for name, text in (("apt-get", "exit 100"), ("id", "echo 0"), ("sleep", ""), ("make", "echo make $*")):
        put_program(programs / name, text)
    for name in ("bash", "dirname", "timeout"):
        (programs / name).symlink_to(shutil.which(name))
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    ended = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={"PATH": str(programs), "CI": ci},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "could not install chromium" in ended.stderr
    assert (ended.returncode == 0) is goes_on
    assert ("make test" in ended.stdout) is goes_on


# ---- in CI, no test is skipped for want of something that .ci/run installs

CONFTEST = Path(__file__).with_name("conftest.py")
SKIPPING = """
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


@pytest.mark.long
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
    (tmp_path / "test_some.py").write_text(SKIPPING.format(reason=reason))
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
