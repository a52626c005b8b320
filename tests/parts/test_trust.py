"""A record runs no code and opens no port that this account hasn't asked for."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import warnings

import pytest

import labkit
from app.acting import launches
from labkit.cluster.flags import making_command
from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.data.recipe import requested_config
from labkit.errors import InputError
from labkit.experiments.fork import fork
from labkit.parts.trust import accept, check_trust, digest_of, files_of, is_accepted
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import Lineage, write_lineage
from tests.app.conftest import in_cluster
from tests.commands.in_process import ends_well, refused
from tests.commands.made_runs import make_run

FILE = """
from dataclasses import dataclass
import pathlib, labkit

pathlib.Path(__file__).with_suffix(".ran").touch()

@dataclass
class Mine(labkit.Callback):
    name: "str" = "mine"

callbacks = [Mine()]
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "labkit"


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def foreign(tmp_path, **values):
    """A run that was stopped, of somebody else."""
    rows = [{"split": "train", "step": step, "loss": 1.0, "wall_time": 9.0 + step} for step in range(1, 8)]
    return make_run(tmp_path / "runs", "foreign", state="interrupted", step=7, rows=rows, **values)


@pytest.mark.parametrize("values", [{"callbacks": "{}/mine.py"}, {"bind": "0.0.0.0"}])
def test_a_record_neither_runs_a_file_nor_opens_a_port_without_consent(values, tmp_path, state, code):
    run = foreign(tmp_path, **{name: text.format(tmp_path) for name, text in values.items()})
    for words in (["resume", run.path], ["fork", run.path, "--at", "3"]):
        line = refused(*words)
        assert "your account hasn't started it like this" in line and "--trust" in line
        digest = hashlib.sha256(code.read_bytes()).hexdigest()
        assert all(word in line for word in ([str(code), digest] if "callbacks" in values else ["0.0.0.0"]))
    assert not code.with_suffix(".ran").exists()
    assert not (run.path.parent / "foreign-fork-3").exists()


@pytest.mark.parametrize(
    "words", [["show"], ["metrics"], ["evaluate"], ["replay", "--step", "3"], ["verify"], ["export"]]
)
def test_looking_at_a_run_never_runs_its_code(words, tmp_path, state, code, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = foreign(tmp_path, callbacks=str(code))
    ends_well(words[0], str(run.path), *words[1:])
    assert not code.with_suffix(".ran").exists()


def test_consent_is_for_one_configuration_and_one_content_and_lies_with_the_account(tmp_path, state, code):
    run = foreign(tmp_path, callbacks=str(code))
    config = recorded_config(run)
    check_trust(run, config, files_of(config), trust=True)
    check_trust(run, config, files_of(config))
    assert is_accepted(config.replace({"job_dir": "/elsewhere", "data_dir": "/data"}), files_of(config))
    assert not is_accepted(config.replace({"learning_rate": 0.3}), files_of(config))
    assert not is_accepted(config.replace({"bind": "0.0.0.0"}), files_of(config))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state, state / "key", state / "trusted")] == [
        0o700,
        0o600,
        0o600,
    ]
    assert not any(b"trust" in path.read_bytes() for path in run.path.rglob("*.json"))
    code.write_text(FILE + "# changed\n")
    with pytest.raises(InputError, match=r"mine\.py.* --trust$"):
        check_trust(run, config, files_of(config))


def test_a_consent_of_another_key_or_made_by_hand_is_none(tmp_path, state, code):
    config = recorded_config(foreign(tmp_path, callbacks=str(code)))
    files = files_of(config)
    accept(config, files)
    (state / "key").write_bytes(b"k" * 32)
    assert not is_accepted(config, files)
    (state / "trusted").write_text(hashlib.sha256(code.read_bytes()).hexdigest() + "\n")
    assert not is_accepted(config, files)


def test_a_consent_that_cant_be_kept_is_refused(tmp_path, monkeypatch, code):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = foreign(tmp_path, callbacks=str(code))
    config = recorded_config(run)
    with pytest.raises(InputError, match="consent can't be kept in .*XDG_STATE_HOME"):
        check_trust(run, config, files_of(config), trust=True)
    with pytest.raises(InputError, match="--trust"):
        check_trust(run, config, files_of(config))
    accept(config, files_of(config))  # as at the start of a training, which goes on


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large", "gone"])
def test_a_file_of_code_is_a_regular_file_of_bounded_size(kind, tmp_path):
    path = tmp_path / "code.py"
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "large": lambda: path.write_bytes(b"#" * (2**20 + 1)),
        "gone": lambda: None,
    }[kind]()
    line = refused("resume", foreign(tmp_path, callbacks=str(path)).path, "--trust")
    assert f"--callbacks {path} " in line


@pytest.mark.long
def test_ones_own_run_is_resumed_and_forked_without_a_question(tmp_path, state, code, shapes):
    settings = {"preset": "smoke", "dataset": "shapes", "train_steps": 4, "evaluate_test": False}
    run = labkit.train(callbacks=str(code), job_dir=tmp_path / "own", **settings)
    config = recorded_config(RunDirectory(run.path))
    assert is_accepted(config, files_of(config))
    moved = run.path.rename(tmp_path / "moved")
    made = fork(RunDirectory(moved), 4, {"train_steps": 6}, tmp_path / "fork")
    code.with_suffix(".ran").unlink()
    resume = [sys.executable, "-m", "labkit", "resume", str(made.path)]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert code.with_suffix(".ran").exists()
    code.write_text(FILE + "# changed\n")
    more = fork(RunDirectory(moved), 4, {"train_steps": 6, "callbacks": None}, tmp_path / "without")
    assert more.exists()
    with pytest.raises(InputError, match="--trust"):
        fork(RunDirectory(moved), 4, {"train_steps": 6}, tmp_path / "with")


def test_a_configuration_read_from_a_record_leaves_out_what_nobody_consented_to(tmp_path, state, code):
    run = foreign(tmp_path, callbacks=str(code), bind="0.0.0.0")
    with pytest.warns(UserWarning, match="left out of its configuration: .*callbacks="):
        config = labkit.load_run(run.path).config
    assert (config.run.callbacks, config.distribution.bind) == (None, "127.0.0.1")
    accept(recorded_config(run), files_of(recorded_config(run)))
    assert labkit.load_run(run.path).config.run.callbacks == str(code)


def test_a_file_of_settings_runs_only_what_this_account_has_trained_with(tmp_path, state, code):
    preset = tmp_path / "best.json"
    preset.write_text(json.dumps({"callbacks": str(code), "num_layers": 8}))
    with pytest.raises(InputError, match="--callbacks .*mine.py', which this account hasn't trained with"):
        requested_config(str(preset), {})
    assert requested_config(str(preset), {"callbacks": str(code)}).run.callbacks == str(code)
    config = Config.from_flat({"callbacks": str(code)})
    accept(config, files_of(config))
    assert requested_config(str(preset), {}).model.num_layers == 8
    preset.write_text(json.dumps({"bind": "0.0.0.0"}))
    with pytest.raises(InputError, match="give --bind yourself"):
        requested_config(str(preset), {})


@pytest.mark.parametrize("checked", [True, False])
def test_files_are_those_that_the_starter_of_this_process_has_checked(
    tmp_path, state, code, monkeypatch, checked
):
    config = recorded_config(foreign(tmp_path, callbacks=str(code)))
    accept(config, files_of(config))
    monkeypatch.setenv("LABKIT_APPROVED", digest_of(files_of(config) if checked else {}))
    if checked:
        code.write_text(FILE + "# swapped after the look\n")
    settings = ["--preset", "smoke", "--dataset", "shapes", "--job-dir", tmp_path / "other"]
    assert "has changed since it was checked" in refused("train", *settings, "--callbacks", code)
    assert not code.with_suffix(".ran").exists()


def test_a_cluster_needs_consent_although_its_settings_are_harmless(tmp_path, state):
    run = foreign(tmp_path)
    config = recorded_config(run)
    check_trust(run, config, {})
    with pytest.raises(InputError, match="would start 3 processes that listen on ports"):
        check_trust(run, config, {}, (2, 1))
    accept(config, {}, (2, 1))
    check_trust(run, config, {}, (2, 1))
    with pytest.raises(InputError, match="would start 300 processes"):
        check_trust(run, config, {}, (300, 0))


def test_ones_own_cluster_with_a_file_of_code_is_ones_own_everywhere(tmp_path, state, code, shapes):
    run = foreign(tmp_path, callbacks=str(code), bind="10.0.0.1")
    in_cluster(run)
    config = recorded_config(run)
    accept(config, files_of(config), (2, 0))  # as the chief does
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labkit.load_run(run.path).config.run.callbacks == str(code)
    assert "labkit cluster local --workers 2" in refused("resume", run.path)
    assert fork(RunDirectory(run.path), 3, {}, tmp_path / "fork").exists()


def test_a_command_to_copy_asks_for_consent(tmp_path, state, code, capsys):
    run = foreign(tmp_path, callbacks=str(code))
    (run.path / "environment.json").write_text(
        json.dumps({"command": ["labkit", "train", f"--callbacks={code}"]})
    )
    assert launches.resumption(run).command == f"labkit resume {run.path}"
    other = foreign(tmp_path / "harmless")
    (other.path / "environment.json").write_text(
        json.dumps({"command": ["labkit", "train", "--callbacks", str(code)]})
    )
    assert "callbacks" not in " ".join(making_command(other))
    for number, (changes, said) in enumerate(
        (
            ({"learning_rate": (0.1, 0.5)}, "--set learning_rate=0.5"),
            ({"optimizer": ("sgd", "adam")}, "--set optimizer=adam"),
            ({"callbacks": ("", str(code))}, ""),
        )
    ):
        forked = foreign(tmp_path / f"fork{number}")
        write_lineage(forked, Lineage(str(other.path), 3, changes))
        words = " ".join(making_command(forked))
        begin = f"labkit fork {other.path} --at 3 --job-dir {forked.path} {said}"
        assert words == begin if said else "callbacks" not in words and words.startswith("labkit train")
