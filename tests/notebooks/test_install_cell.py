"""The cell that installs labkit on Colab, and the files for Binder and dev containers."""

import importlib.util
import json
import os
import shlex
import stat
from pathlib import Path

import nbformat
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import labkit
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


def test_the_cell_installs_a_tag_with_the_versions_of_the_lock(hidden, monkeypatch):
    monkeypatch.setenv("LABKIT_SOURCE", "git+file:///somewhere/labkit@v1")
    alone, rest = run(install_cell(), monkeypatch)
    assert alone == 'install --quiet --no-deps "labkit-training @ git+file:///somewhere/labkit@v1"'
    words = shlex.split(rest)
    assert words[-1] == "labkit-training[notebook] @ git+file:///somewhere/labkit@v1"
    pins = Path(words[words.index("--constraint") + 1]).read_text().splitlines()
    locked = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    assert len(pins) == len(locked) > 100
    assert not any("--hash" in line or line.endswith("\\") for line in pins)
    assert any(line.startswith("tensorflow==") for line in pins)


@pytest.mark.parametrize("source", ["git+https://host/labkit", "https://user:pass@host/labkit"])
def test_an_address_without_a_tag_is_refused(hidden, source, monkeypatch):
    monkeypatch.setenv("LABKIT_SOURCE", source)
    with pytest.raises(SystemExit, match="no tag or commit; write ADDRESS@TAG") as refused:
        run(install_cell(), monkeypatch)
    assert "pass" not in str(refused.value)


def test_without_an_address_the_cell_asks_and_the_notebook_keeps_no_answer(hidden, monkeypatch, capsys):
    monkeypatch.delenv("LABKIT_SOURCE", raising=False)
    monkeypatch.setattr("getpass.getpass", lambda question: "https://user:hidden@host/labkit@abc123")
    words = run(install_cell(), monkeypatch)
    assert all("https://user:hidden@host/labkit@abc123" in one for one in words)
    assert "hidden" not in install_cell() + "".join(capsys.readouterr())


def test_the_address_in_pyproject_and_the_tag_of_this_version_are_the_default(hidden, monkeypatch, tmp_path):
    project = '[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/labkit"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.setattr(module, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.delenv("LABKIT_SOURCE", raising=False)
    assert f"git+https://example.org/labkit@v{labkit.__version__}" in run(install_cell(), monkeypatch)[0]


def test_the_cell_comes_first_and_is_put_once():
    notebook = new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell("1")])
    assert put_install_cell(notebook)
    assert not put_install_cell(notebook)
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "code"]
    assert notebook.cells[1].source == install_cell()
    lines = [line for line in install_cell().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 13


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
    assert not (ROOT / "binder").exists() and not (ROOT / ".binder").exists()
    *conda, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert "python=3.11" in conda
    # A local file among pip's lines makes repo2docker copy the checkout before it installs.
    assert pip == {"pip": ["-r requirements.lock"]} and (ROOT / "requirements.lock").is_file()
    script = ROOT / "postBuild"
    assert script.read_text().startswith("#!/bin/bash\n") and os.stat(script).st_mode & stat.S_IXUSR
    assert "pip install --quiet --no-deps --no-build-isolation --editable ." in script.read_text()


def test_the_dev_container_uses_the_environment_of_make():
    found = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert "python:" in found["image"] and "3.11" in found["image"]
    assert found["postCreateCommand"] == "make env"
    assert set(map(str, found["forwardPorts"])) == set(found["portsAttributes"]) == {"8888", "8501"}
    python = found["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert Path(python).parts[-3:] == (".venv", "bin", "python")
    assert f"{Path(python).parent}:" in found["remoteEnv"]["PATH"]
