"""Code of one's own: run by who consents to its bytes, kept with the run, and refused once it has changed."""

import os
import shutil
import subprocess
import sys

import pytest

from labkit.cluster.flags import acts
from labkit.commands import main as cli
from labkit.config import Config
from labkit.config.config import as_recorded, recorded_config
from labkit.errors import InputError
from labkit.parts import code
from labkit.parts.trust import accept, files_of, is_accepted
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.startup.child import import_path
from tests.commands.made_runs import make_run

NET = """
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()

def build(input_shape, num_classes):
    import keras
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(num_classes)])
"""


@pytest.fixture(autouse=True)
def nobody_has_consented(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(code, "_allowed", set())
    monkeypatch.setattr(code, "_modules", {})


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(NET)
    return path


@pytest.fixture
def foreign(tmp_path, net) -> RunDirectory:
    """A run of somebody else, trained with their code."""
    run = make_run(tmp_path / "runs", "foreign", state="interrupted", step=7)
    config = Config.from_flat({"model": f"{net}:build", "dataset": "shapes"})
    code.record(run, files_of(config))
    write_json_atomic(run.config_path, as_recorded(config).to_json())
    return run


def build(config: Config):
    return code.named_object("--model", config.model.model)


def test_code_runs_only_for_who_consents_to_its_bytes(foreign, net, capsys):
    config, ran = recorded_config(foreign), foreign.code_path / "nets.ran"
    assert config.model.model == f"{foreign.code_path / 'nets.py'}:build"
    with pytest.raises(InputError, match=rf"labkit trust {foreign.path}"):
        build(config)
    assert cli.main(["trust", str(foreign.path)]) == 0
    assert str(foreign.code_path / "nets.py") in capsys.readouterr().out and not ran.exists()
    assert callable(build(config)) and ran.exists()
    (foreign.code_path / "nets.py").write_text(NET + "\n# other bytes")
    with pytest.raises(InputError, match="labkit trust"):
        build(config)


@pytest.mark.parametrize(
    "text", ["{}:recall,auc,f1_macro", "auc,{}:recall,f1_macro", " auc , {}:recall , f1_macro"]
)
def test_metrics_of_ones_own_beside_names_are_recorded_and_consented_to(text, net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = code.with_whole_paths(Config.from_flat({"metrics": text.format("nets.py")}))
    assert config.run.metrics == f"{net}:recall,auc,f1_macro"
    assert list(files_of(config)) == [str(net)] and not is_accepted(config, files_of(config))
    assert acts(["labkit", "train", "--metrics", text.format("nets.py")])
    run = make_run(tmp_path / "runs", "own")
    write_json_atomic(run.config_path, as_recorded(config).to_json())
    assert run.read_config()["run"]["metrics"] == "code/nets.py:recall,auc,f1_macro"
    recorded = recorded_config(run)
    assert recorded.run.metrics == f"{run.code_path / 'nets.py'}:recall,auc,f1_macro"
    assert not recorded.differences(config)  # it is resumed


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a.py:f,b.py:g", "b.py:g"),
        ("a.py:f,f1", "f1"),
        ("f1,a.py:f", "f1"),
        ("auc,a.keras", "a.keras"),
        ("auc,", ""),
    ],
)
def test_other_metrics_are_refused_with_what_several_of_ones_own_need(text, wrong):
    with pytest.raises(InputError, match=f"--metrics has '{wrong}'; .* one FILE.py:NAME, .* NAME is a list"):
        Config.from_flat({"metrics": text})


def test_a_run_without_code_needs_no_consent(tmp_path, capsys):
    run = make_run(tmp_path / "runs", "plain")
    assert cli.main(["trust", str(run.path)]) == 0
    assert capsys.readouterr().out == "plain runs no code\n"


def test_who_trained_with_a_file_has_consented_to_its_copies(foreign, net):
    config = Config.from_flat({"model": f"{net}:build"})
    accept(config, files_of(config))
    assert callable(build(recorded_config(foreign)))


def test_a_changed_network_is_refused_with_its_first_line_and_callbacks_may_change(foreign, net, tmp_path):
    calls = tmp_path / "calls.py"
    calls.write_text("callbacks = []")
    config = Config.from_flat({"model": f"{net}:build", "callbacks": str(calls)})
    code.record(foreign, files_of(config))
    calls.write_text("callbacks = []  # changed")
    code.check_unchanged(foreign, config, files_of(config), "name another directory")
    net.write_text(NET.replace("Flatten()", "Flatten(name='flat')"))
    with pytest.raises(InputError) as refused:
        code.check_unchanged(foreign, config, files_of(config), "name another directory")
    line = str(refused.value)
    assert "2 lines: -" in line and "name another directory" in line and "\n" not in line


def test_two_files_of_one_name_are_refused(net, tmp_path):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "nets.py"
    other.write_text("callbacks = []")
    config = Config.from_flat({"model": f"{net}:build", "callbacks": str(other)})
    with pytest.raises(InputError, match="has the name of another file of code"):
        files_of(config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(:", "can't be run: SyntaxError"),
        ("import not_there", "can't be run: ModuleNotFoundError"),
        ("raise SystemExit(3)", "can't be run: SystemExit: 3"),
        ("x = 1", "has no 'build'; it has: nothing that can be called"),
        ("def biuld(): pass", "has no 'build'; did you mean 'biuld'?"),
    ],
)
def test_a_file_that_cannot_be_run_says_why(text, said, net):
    net.write_text(text)
    config = Config.from_flat({"model": f"{net}:build"})
    code.allow(files_of(config))
    with pytest.raises(InputError) as refused:
        build(config)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_imports_one_beside_it_is_told_that_a_run_keeps_one(net):
    net.with_name("helper.py").write_text("WIDTH = 8")
    net.write_text("import helper")
    config = Config.from_flat({"model": f"{net}:build"})
    code.allow(files_of(config))
    with pytest.raises(
        InputError, match=r"imports helper\.py beside it, but a run keeps one file; write what it"
    ):
        build(config)


def test_what_only_this_script_finds_is_refused_before_a_run_needs_it(tmp_path):
    (tmp_path / "helper.py").write_text("import yaml\nSCALE = 2\n")
    (tmp_path / "script.py").write_text(
        "import helper, yaml\n"
        "from labkit.parts.objects import as_files, source_of\n"
        "def good(labels, logits):\n    return yaml.dump(logits)\n"
        "def bad(labels, logits):\n    return logits * helper.SCALE\n"
        "assert 'import yaml' in source_of('loss', good)\n"
        "with as_files({'loss': bad}):\n    pass\n"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link.py").symlink_to(tmp_path / "script.py")
    (tmp_path / "folder").mkdir()
    for name, copy in {"script.py": "__main__.py", "helper.py": "helper.py"}.items():
        shutil.copy(tmp_path / name, tmp_path / "folder" / copy)
    environment = os.environ | {"PYTHONPATH": import_path()}
    for script in ("script.py", "elsewhere/link.py", "folder"):
        command = [sys.executable, tmp_path / script]
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60)
        said = "InputError: loss imports helper, which lies beside your script or notebook, but a run keeps"
        assert said in done.stderr.splitlines()[-1]


def test_what_only_a_script_or_a_type_checker_imports_may_lie_beside_it(tmp_path, monkeypatch):
    (tmp_path / "helper.py").write_text("WIDTH = 8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    guarded = "if {}:\n    from helper import WIDTH\n"
    for test in ("__name__ == '__main__'", "TYPE_CHECKING", "typing.TYPE_CHECKING"):
        code.refuse_imports_from_beside("--model", guarded.format(test))
    for text in (guarded.format("True"), guarded.format("TYPE_CHECKING") + "else:\n    import helper\n"):
        with pytest.raises(InputError, match="imports helper, which lies beside"):
            code.refuse_imports_from_beside("--model", text)


def test_a_file_that_trains_when_it_is_read_is_told_to_guard_that(tmp_path):
    path = tmp_path / "trains.py"
    again = f"from labkit.parts.code import named_object\nnamed_object('--model', '{path}:build')\n"
    path.write_text(f"def build(input_shape, num_classes):\n    pass\n\n\n{again}")
    code.allow({str(path): path.read_bytes()})
    with pytest.raises(InputError, match=r"if __name__ == '__main__'") as caught:
        code.named_object("--model", f"{path}:build")
    assert str(caught.value).count("trains.py") == 1
