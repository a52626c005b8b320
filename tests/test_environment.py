"""The lock, pyproject.toml, environment.yml and what is installed agree."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PYTHON_BUILT_FOR = "3.11"


def read_lock(text: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Return canonical name → (requirement, hashes) of a requirements file with hashes."""
    entries: dict[str, tuple[Requirement, list[str]]] = {}
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text)).splitlines()
    for line in filter(str.strip, lines):
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        parsed = Requirement(requirement)
        name = canonicalize_name(parsed.name)
        assert name not in entries, f"{name} is locked twice"
        entries[name] = (parsed, hashes)
    return entries


def pinned_version(requirement: Requirement) -> Version:
    (specifier,) = requirement.specifier
    return Version(specifier.version)


@pytest.fixture(scope="module")
def lock() -> dict[str, tuple[Requirement, list[str]]]:
    return read_lock((ROOT / "requirements.lock").read_text())


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def direct_dependencies(project: dict[str, Any]) -> list[Requirement]:
    return [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["dev"]]


def conda_specification() -> tuple[dict[str, str], list[str]]:
    """Return environment.yml's conda packages (name → version prefix) and its pip lines."""
    conda: dict[str, str] = {}
    pip: list[str] = []
    for entry in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]:
        if isinstance(entry, dict):
            pip += entry["pip"]
        else:
            name, _, version = entry.partition("=")
            conda[name] = version.lstrip("=")
    return conda, pip


def test_every_entry_of_the_lock_is_one_version_with_sha256_hashes(lock):
    for name, (requirement, hashes) in lock.items():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], name
        assert "*" not in str(requirement.specifier), name
        assert hashes, f"{name} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), name


def test_the_lock_names_no_index_and_no_address(lock):
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^\s*-(i|f|-index-url|-extra-index-url|-find-links)\b", text)
    assert all(requirement.url is None for requirement, _ in lock.values())


def test_every_direct_dependency_is_locked_within_its_range(project, lock):
    for dependency in direct_dependencies(project):
        name = canonicalize_name(dependency.name)
        assert name in lock, f"{name} is in pyproject.toml and not in requirements.lock: run make lock"
        version = pinned_version(lock[name][0])
        assert version in dependency.specifier, f"{dependency} but {version} is locked: run make lock"


def test_environment_yml_installs_what_is_locked(lock):
    conda, pip = conda_specification()
    installed: dict[str, Requirement] = {}
    for line in pip:
        if match := re.fullmatch(r"(?:-r|--requirement)\s+(\S+)", line):
            entries = read_lock((ROOT / match[1]).read_text())
            installed |= {name: requirement for name, (requirement, _) in entries.items()}
        else:
            requirement = Requirement(line)
            installed[canonicalize_name(requirement.name)] = requirement
    assert {name: str(requirement.specifier) for name, requirement in installed.items()} == {
        name: str(requirement.specifier) for name, (requirement, _) in lock.items()
    }
    both = {canonicalize_name(name) for name in conda} & set(lock)
    assert not both, f"conda and pip would both install {sorted(both)}"


def test_one_python_everywhere(project):
    conda, _ = conda_specification()
    allowed = SpecifierSet(project["requires-python"])
    assert conda["python"] == PYTHON_BUILT_FOR
    neighbours = {minor: f"3.{minor}.5" in allowed for minor in range(9, 16)}
    assert [f"3.{minor}" for minor, fits in neighbours.items() if fits] == [PYTHON_BUILT_FOR]
    assert f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON_BUILT_FOR
    for name in ("Makefile", ".ci/run"):
        named = set(re.findall(r"python(3\.\d+)", (ROOT / name).read_text()))
        assert named == {PYTHON_BUILT_FOR}, f"{name} names {sorted(named)}"


def test_what_is_installed_is_what_is_locked(lock):
    wrong = []
    for name, (requirement, _) in lock.items():
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "nothing"
        if found == "nothing" or Version(found) != pinned_version(requirement):
            wrong.append(f"{name}: {found} installed, {pinned_version(requirement)} locked")
    assert not wrong, f"{sys.prefix} is not what the lock says (run make env): " + "; ".join(wrong)


# Not in the lock: a peer of the benchmarks, and converters that labkit export asks for where they miss.
OPTIONAL = {"torch", "tf2onnx", "onnx", "onnxruntime"}


def third_party_imports() -> Iterator[tuple[str, Path]]:
    """Yield (top-level module, file) for each absolute import that isn't ours or the standard library's."""
    ours = {"labkit", "app", "tests", "benchmarks"}
    for folder in sorted(ours):
        for path in sorted((ROOT / folder).rglob("*.py")):
            local = {neighbour.stem for neighbour in path.parent.iterdir()} | {"conftest"}
            for node in ast.walk(ast.parse(path.read_text(), str(path))):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names = [node.module]
                else:
                    continue
                for name in {name.partition(".")[0] for name in names}:
                    if name not in ours and name not in sys.stdlib_module_names and name not in local:
                        yield name, path


def test_every_import_is_a_declared_dependency(project):
    declared = {canonicalize_name(dependency.name) for dependency in direct_dependencies(project)}
    providers = metadata.packages_distributions()
    undeclared = {
        f"{module} ({path.relative_to(ROOT)})"
        for module, path in third_party_imports()
        if module not in OPTIONAL
        and not declared & {canonicalize_name(name) for name in providers.get(module, [])}
    }
    assert not undeclared, f"imported, and not in pyproject.toml: {', '.join(sorted(undeclared))}"


def test_docs_justify_each_direct_dependency(project):
    decisions = (ROOT / "docs" / "decisions.md").read_text()
    section = decisions.partition("\n## Dependencies\n")[2].partition("\n## ")[0]
    rows = {canonicalize_name(name) for name in re.findall(r"(?m)^\| `([\w.-]+)` \| \S", section)}
    assert rows == {canonicalize_name(dependency.name) for dependency in direct_dependencies(project)}


def make_env(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run ``make env`` in ``folder``, as from a shell even where make started the tests."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", "env", f"PYTHON={python}"],
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


def test_make_refuses_another_python_in_one_line(checkout):
    other = checkout / "python9"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    result = make_env(checkout, str(other))
    assert result.returncode != 0
    first, *rest = result.stderr.splitlines()
    assert first.startswith("labkit needs Python 3.11; none among: ")
    assert str(other) in first
    assert all(line.startswith("make: ***") for line in rest)
    assert not (checkout / ".venv").exists()


def test_make_leaves_a_foreign_environment_alone(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").write_text("kept")
    result = make_env(checkout, sys.executable)
    assert result.returncode != 0
    assert "was not made by make" in result.stderr
    assert (checkout / ".venv" / "mine").read_text() == "kept"


def test_an_interrupted_installation_does_not_look_complete(checkout):
    # A file that isn't there stands for an installation that ends half-way.
    (checkout / "requirements.lock").write_text(f"./absent.whl --hash=sha256:{'0' * 64}\n")
    for _ in range(2):
        result = make_env(checkout, sys.executable)
        assert result.returncode != 0
        assert "run make env again" in result.stderr
        assert (checkout / ".venv" / "bin" / "python").exists()
        assert not list((checkout / ".venv").glob(".locked-*"))
