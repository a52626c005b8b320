"""The cell that installs labkit on Colab, and the files for Binder and dev containers."""

import importlib.util
import json
import os
import stat
from pathlib import Path

import nbformat
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.notebook import install_cell as module
from labkit.notebook.files import NOTEBOOKS
from labkit.notebook.install_cell import install_cell, put_install_cell

ROOT = NOTEBOOKS.parent


def run(code: str, monkeypatch) -> list[str]:
    """Run the cell as a notebook does. Returns the arguments of ``%pip``."""
    installed: list[str] = []
    shell = InteractiveShell()
    shell.register_magic_function(installed.append, "line", "pip")
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)
    shell.run_cell(code).raise_error()
    return installed


@pytest.fixture
def hidden(monkeypatch):
    """Make labkit a package that can't be found."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "labkit" else find(name))


def test_the_cell_does_nothing_where_labkit_is(monkeypatch):
    assert run(install_cell(), monkeypatch) == []


def test_the_cell_installs_from_the_named_source(hidden, monkeypatch):
    monkeypatch.setenv("LABKIT_SOURCE", "git+file:///somewhere")
    assert run(install_cell(), monkeypatch) == [
        'install --quiet "labkit-training[notebook] @ git+file:///somewhere"'
    ]


def test_without_an_address_the_cell_says_what_to_type(hidden, monkeypatch):
    monkeypatch.delenv("LABKIT_SOURCE", raising=False)
    with pytest.raises(SystemExit, match="run %env LABKIT_SOURCE=git"):
        run(install_cell(), monkeypatch)


def test_the_address_in_pyproject_is_the_default(hidden, monkeypatch, tmp_path):
    project = '[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/labkit"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.setattr(module, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.delenv("LABKIT_SOURCE", raising=False)
    [words] = run(install_cell(), monkeypatch)
    assert words == 'install --quiet "labkit-training[notebook] @ git+https://example.org/labkit"'


def test_the_cell_comes_first_and_is_put_once():
    notebook = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("1")])
    assert put_install_cell(notebook)
    assert not put_install_cell(notebook)
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "code"]
    assert notebook.cells[1].source == install_cell()
    lines = [line for line in install_cell().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 7


def test_every_notebook_with_the_cell_has_the_present_one():
    cells = [
        cell
        for path in NOTEBOOKS.rglob("*.ipynb")
        for cell in nbformat.read(path, 4).cells
        if cell.get("id") == "install"
    ]
    assert cells
    assert all(cell.source == install_cell() for cell in cells), "run python -m labkit.notebook.install_cell"


# ---- Binder and dev containers -------------------------------------------------------------------------


def test_binder_finds_its_files_at_the_root():
    # repo2docker reads no other folder if one of these exists, so environment.yml would be left out.
    assert not (ROOT / "binder").exists()
    assert not (ROOT / ".binder").exists()
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert "python=3.11" in conda
    # A local file among pip's lines makes repo2docker copy the checkout before it installs.
    assert pip == {"pip": ["-r requirements.lock"]}
    assert (ROOT / "requirements.lock").is_file()


def test_binders_post_build_is_an_executable_script():
    path = ROOT / "postBuild"
    assert path.read_text().startswith("#!/bin/bash\n")
    assert os.stat(path).st_mode & stat.S_IXUSR
    comment = (ROOT / "environment.yml").read_text()
    assert "pip install --no-deps --no-build-isolation -e ." in comment  # the same, by hand
    assert "pip install --quiet --no-deps --no-build-isolation --editable ." in path.read_text()


# Of https://containers.dev/implementors/json_reference, those that we use.
DEV_CONTAINER = {
    "name": str,
    "image": str,
    "hostRequirements": dict,
    "postCreateCommand": str,
    "waitFor": str,
    "remoteEnv": dict,
    "forwardPorts": list,
    "portsAttributes": dict,
    "customizations": dict,
}


def test_the_dev_container_has_documented_keys_and_uses_the_environment_of_make():
    found = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert {name: type(value) for name, value in found.items()} == DEV_CONTAINER
    assert "python:" in found["image"]
    assert "3.11" in found["image"]
    assert found["postCreateCommand"] == "make env"
    assert set(map(str, found["forwardPorts"])) == set(found["portsAttributes"]) == {"8888", "8501"}
    python = found["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert Path(python).parts[-3:] == (".venv", "bin", "python")
    assert f"{Path(python).parent}:" in found["remoteEnv"]["PATH"]
