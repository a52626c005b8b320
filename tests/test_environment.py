"""The lock, pyproject.toml, environment.yml and what is installed agree."""

import ast
import functools
import itertools
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from labkit.commands import doctor

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ["3.11", "3.12", "3.13"]
TESTED_PYTHON = "3.11"  # of CI, environment.yml and the container image
# The dependencies and the extras that the lock holds.
PARTS = ("core", "notebook", "app", "onnx", "course", "search", "notify", "dev")


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


def dependencies_by_part(project: dict[str, Any]) -> dict[str, list[Requirement]]:
    """Return what each part of pyproject.toml asks for, but that dev asks for labkit's other extras."""
    lines = {"core": project["dependencies"], **project["optional-dependencies"]}
    parsed = {part: [Requirement(line) for line in lines[part]] for part in PARTS}
    return {
        part: [requirement for requirement in requirements if requirement.name != project["name"]]
        for part, requirements in parsed.items()
    }


def direct_dependencies(project: dict[str, Any]) -> list[Requirement]:
    return list(itertools.chain.from_iterable(dependencies_by_part(project).values()))


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


def test_every_entry_of_the_lock_is_one_version_with_sha256_hashes_and_no_address(lock):
    for name, (requirement, hashes) in lock.items():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], name
        assert "*" not in str(requirement.specifier) and requirement.url is None, name
        assert hashes, f"{name} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), name
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^\s*-(i|f|-index-url|-extra-index-url|-find-links)\b", text)


def test_every_direct_dependency_is_locked_within_its_range(project, lock):
    for dependency in direct_dependencies(project):
        name = canonicalize_name(dependency.name)
        assert name in lock, f"{name} is in pyproject.toml and not in requirements.lock: run make lock"
        requirement, _ = lock[name]
        version = pinned_version(requirement)
        assert version in dependency.specifier, f"{dependency} but {version} is locked: run make lock"
        for python in PYTHONS:
            python_version = {"python_version": python, "python_full_version": f"{python}.5"}
            assert requirement.marker is None or requirement.marker.evaluate(python_version), (name, python)


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


def test_dev_holds_every_extra_but_gpu(project):
    extras = project["optional-dependencies"]
    (ours,) = [
        requirement for line in extras["dev"] if (requirement := Requirement(line)).name == project["name"]
    ]
    assert ours.extras == extras.keys() - {"dev", "gpu"}
    assert extras.keys() == {*PARTS, "gpu"} - {"core"}


def test_the_same_pythons_everywhere(project):
    allowed = SpecifierSet(project["requires-python"])
    assert [f"3.{minor}" for minor in range(9, 17) if f"3.{minor}.5" in allowed] == PYTHONS
    assert list(doctor.PYTHONS) == PYTHONS
    makefile = (ROOT / "Makefile").read_text()
    assert sorted(set(re.findall(r"python(3\.\d+)", makefile))) == PYTHONS
    for version in ["3.10", *PYTHONS, "3.14"]:
        check = re.search(r"(?m)^PYTHON_VERSION_OK := (.*)$", makefile)[1]
        info = f"({version.replace('.', ', ')}, 5)"
        code = f"import sys; sys.version_info = {info}; {check}"
        refused = subprocess.run([sys.executable, "-S", "-c", code], check=False).returncode
        assert bool(refused) is (version not in PYTHONS), version
    (environment,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["environments"]
    for version in ["3.10", *PYTHONS, "3.14"]:
        locked_for = Marker(environment).evaluate({"python_full_version": f"{version}.5"})
        assert locked_for is (version in PYTHONS), version


def test_what_runs_one_python_runs_the_tested_one():
    conda, _ = conda_specification()
    assert conda["python"] == TESTED_PYTHON
    image = (ROOT / "deploy" / "Containerfile").read_text()
    assert set(re.findall(r"python:(3\.\d+)", image)) == {TESTED_PYTHON}
    assert set(re.findall(r"python(3\.\d+)", (ROOT / ".ci" / "run").read_text())) == {TESTED_PYTHON}
    first, *_ = re.search(r"(?m)^PYTHONS := \$\(or \$\(PYTHON\),(.*)\)$", (ROOT / "Makefile").read_text())[
        1
    ].split()
    assert first == f"python{TESTED_PYTHON}"


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


# Not in the lock: what the benchmarks compare labkit with.
OPTIONAL = {"openvino", "torch", "torchvision"}


@functools.cache
def third_party_imports() -> set[tuple[str, Path]]:
    """Return (top-level module, file) for each absolute import that isn't ours or the standard library's."""
    ours = {"labkit", "app", "course", "tests", "benchmarks"}
    found: set[tuple[str, Path]] = set()
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
                        found.add((name, path))
    return found


@pytest.mark.long
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
    rows = re.findall(r"(?m)^\| `([\w.-]+)` \| ([a-z, ]+) \| \S", section)
    documented = [(canonicalize_name(name), part) for name, parts in rows for part in parts.split(", ")]
    assert sorted(documented) == sorted(
        (canonicalize_name(dependency.name), part)
        for part, dependencies in dependencies_by_part(project).items()
        for dependency in dependencies
    )


def modules_outside_of(project: dict[str, Any], *parts: str) -> list[str]:
    """Return the top-level modules that an installation with these parts alone doesn't have."""
    installed: set[str] = set()
    found = [requirement for part in parts for requirement in dependencies_by_part(project)[part]]
    while found:
        requirement = found.pop()
        name = canonicalize_name(requirement.name)
        if name not in installed:
            installed.add(name)
            needed = [Requirement(line) for line in metadata.requires(name) or ()]
            found += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [
        module
        for module, providers in metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in providers} & (installed | {"labkit-training"})
    ]


PARTS_BY_EXTRA = {
    "app": ("app", "labkit/analysis"),
    "notebook": ("course/lessons", "labkit/notebook"),
}


@pytest.mark.parametrize("extra", PARTS_BY_EXTRA)
def test_an_extra_alone_has_what_its_part_imports(extra, project):
    folders = PARTS_BY_EXTRA[extra]
    imported = [(module, path.relative_to(ROOT)) for module, path in third_party_imports()]
    needed = {module for module, path in imported if path.as_posix().startswith(folders)}
    assert needed & {"streamlit", "matplotlib"}
    assert not needed & set(modules_outside_of(project, "core", extra))


RUN_COMMANDS = """
import json, sys
commands, missing = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(missing))  # None: importing it fails as if it were not installed
from labkit.commands import main as cli
for command in commands:
    code = cli.main(command)
    if code:
        sys.exit(f"{command} exited with {code}")
"""


@pytest.mark.long
@pytest.mark.slow
def test_train_evaluate_and_export_need_no_extra(project, tmp_path):
    missing = modules_outside_of(project, "core")
    assert {"IPython", "matplotlib", "pandas", "streamlit", "tf2onnx", "pytest"} <= set(missing)
    run = str(tmp_path / "run")
    short = ["--num-layers", "8", "--train-steps", "2", "--train-batch-size", "8", "--no-evaluate-test"]
    commands = [
        ["train", "--dataset", "shapes", *short, "--job-dir", run],
        ["evaluate", run],
        ["export", run, "--output", str(tmp_path / "network.keras")],
        ["runs"],
    ]
    ended = subprocess.run(
        [sys.executable, "-c", RUN_COMMANDS],
        input=json.dumps([commands, missing]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert (tmp_path / "network.keras").is_file()


def test_no_text_sends_people_to_somebody_elses_package():
    """``labkit`` on the public index is another project."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wrong = re.compile(r"""(pip|uv|pipx|conda) (install|add)( -[\w=-]+)* \\?["']?labkit(\[|["'\s]|$)""")
    suffixes = (".py", ".md", ".ipynb", ".toml", ".yml", ".yaml", ".json", "file", "Build")
    files = [
        name for name in listed.splitlines() if name.endswith(suffixes) and not name.startswith("tests/")
    ]
    assert len(files) > 300
    found = {name: match[0] for name in files if (match := wrong.search((ROOT / name).read_text()))}
    assert not found
    assert wrong.search("pip install 'labkit[app]'") and wrong.search('%pip install -q \\"labkit[app]')


def test_what_is_installed_from_an_index_is_pinned_by_hash_and_never_built():
    files = ("Makefile", "deploy/Containerfile", "postBuild", ".ci/run")
    lines = [
        line for name in files for line in joined_lines(ROOT / name) if re.search(r"pip\"? install ", line)
    ]
    assert len(lines) >= 6
    for line in lines:
        local = "--no-deps" in line and ("--no-index" in line or "--no-build-isolation" in line)
        assert local or ("--require-hashes" in line and "--only-binary :all:" in line), line
    for name in ("requirements.lock", "benchmarks/peers.lock", ".ci/uv.txt"):
        pinned = [line for line in joined_lines(ROOT / name) if "==" in line and not line.startswith("#")]
        assert pinned and all("--hash=sha256:" in line for line in pinned)


def joined_lines(path):
    """Return the lines of a file, those that a backslash continues as one."""
    return path.read_text().replace("\\\n", " ").splitlines()
