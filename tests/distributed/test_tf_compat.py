"""TensorFlow's private parts are used in one module, and only with the versions it was checked with."""

import ast
import tomllib
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager.context import Context

from labkit.errors import InputError
from labkit.startup.tf_compat import (
    CHECKED_WITH,
    check_versions,
    local_cpu_replicas,
    without_coordination_service,
)

ROOT = Path(__file__).resolve().parents[2]
FENCE = ROOT / "labkit" / "startup" / "tf_compat.py"
MODULES = sorted(path for name in ("labkit", "app") for path in (ROOT / name).rglob("*.py"))


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def private_reads(tree: ast.AST) -> set[str]:
    """Return the private attributes that a module reads of other objects than its own classes'."""
    own = {"self", "cls", "os"}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in defined
        and not (isinstance(node.value, ast.Name) and node.value.id in own)
    }


def uses(names: set[str], *packages: str) -> set[str]:
    return {name for name in names if any(f"{name}.".startswith(f"{package}.") for package in packages)}


def test_only_tf_compat_uses_what_is_private_to_tensorflow():
    found = {}
    for path in MODULES:
        tree = ast.parse(path.read_text())
        names = imported(tree)
        private = uses(names, "tensorflow.python", "keras.src", "unittest.mock")
        if uses(names, "tensorflow", "keras"):
            private |= private_reads(tree)
        if private and path != FENCE:
            found[str(path.relative_to(ROOT))] = private
    assert MODULES and not found


def test_the_rule_sees_what_tf_compat_does():
    tree = ast.parse(FENCE.read_text())
    assert uses(imported(tree), "tensorflow.python")
    assert {"_cluster", "_context_handle", "_has_fetched_to_local"} <= private_reads(tree)
    assert uses(imported(ast.parse("from unittest import mock")), "unittest.mock")


@pytest.mark.parametrize(("package", "module"), [("tensorflow", tf), ("keras", keras)])
def test_another_version_is_refused_in_one_sentence(package, module, monkeypatch):
    check_versions()
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert any(entry.startswith(f"{package}=={CHECKED_WITH[package]}.") for entry in needed)
    monkeypatch.setattr(module, "__version__", "9.1.0")
    message = f"^{package} 9.1.0 is installed, .* install {package} {CHECKED_WITH[package]}"
    for patch in (without_coordination_service, lambda: local_cpu_replicas(2)):
        with pytest.raises(InputError, match=message) as refusal, patch():
            pass
        assert "\n" not in str(refusal.value)


def test_a_patch_ends_with_its_block():
    names = {Context: "configure_coordination_service", CollectiveAllReduceExtended: "_enable_check_health"}
    before = {owner: vars(owner)[name] for owner, name in names.items()}
    devices = CollectiveAllReduceExtended._initialize_local_devices
    with pytest.raises(ZeroDivisionError), without_coordination_service(), local_cpu_replicas(2):
        assert all(vars(owner)[name] is not before[owner] for owner, name in names.items())
        assert CollectiveAllReduceExtended._initialize_local_devices is not devices
        _ = 1 / 0
    assert {owner: vars(owner)[name] for owner, name in names.items()} == before
    assert CollectiveAllReduceExtended._initialize_local_devices is devices
