"""``labkit stop``, ``resume`` and ``delete``: what they do to a run, and what they leave alone."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from labkit.cluster.flags import train_arguments
from labkit.commands import main as cli
from labkit.commands import manage, train
from labkit.config.config import recorded_config
from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, write_heartbeat
from labkit.parts.trust import digest_of
from labkit.run_directory import RunDirectory, RunLock
from tests.commands.in_process import answer, refused
from tests.commands.made_runs import make_run
from tests.tiny import prepare_tiny

# Holds the locks of a run as a training does; ``kind`` says what SIGTERM does.
TRAINING = """
import os, signal, sys, time
from dataclasses import replace
from labkit.run_directory import RunDirectory, RunLock
run, kind = RunDirectory(sys.argv[1]), sys.argv[2]
stopped = []
if kind != "deaf":
    signal.signal(signal.SIGTERM, lambda *given: stopped.append(1))
locks = [RunLock(run, name) for name in sys.argv[3].split(",")]
assert all([lock.acquire() for lock in locks])
run.write_status(replace(run.read_status(), state="running", pid=os.getpid(), heartbeat=time.time() + 3600))
print("ready", flush=True)
while kind == "stubborn" or not stopped:
    time.sleep(0.01)
run.write_status(replace(run.read_status(), state="interrupted", step=13))
"""


@pytest.fixture
def training():
    """Starts processes that hold a run's locks; ends those that are left."""
    started = []

    def start(run, kind="polite", locks=".launcher,.lock"):
        command = [sys.executable, "-c", TRAINING, str(run.path), kind, locks]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


# ---- stop ----------------------------------------------------------------------------------------------


def test_a_training_is_asked_to_save_and_is_waited_for(folder, training):
    run = make_run(folder, "mine")
    process = training(run)
    done = answer("stop", "mine")
    assert done.code == 0
    assert f"asked process {process.pid} to save and stop" in done.out
    assert "interrupted at step 13 of 20; labkit resume mine continues it" in done.out
    assert process.wait(10) == 0


def test_the_command_that_continues_a_run_holds_for_a_name_with_spaces(folder, training):
    training(make_run(folder, "my run"))
    assert "labkit stop 'my run' stops it" in refused("resume", "my run")
    assert "labkit stop 'my run' stops it" in refused("delete", "my run", "--yes")
    assert "labkit resume 'my run' continues it" in answer("stop", "my run").out


def test_a_launcher_is_asked_before_the_task_that_writes(folder, training):
    run = make_run(folder, "mine")
    chief = training(run, "stubborn", ".lock")
    launcher = training(run, "polite", ".launcher")
    done = answer("stop", "mine", "--wait-seconds", "5")
    assert f"asked process {launcher.pid} " in done.out
    assert chief.poll() is None


def test_waiting_is_bounded_and_a_launcher_that_is_stopping_is_not_asked_twice(folder, training):
    """A second SIGTERM makes a launcher kill its tasks."""
    run = make_run(folder, "mine")
    process = training(run, "stubborn")
    first, second = (answer("stop", "mine", "--wait-seconds", "0.2") for _ in range(2))
    assert first.code == 1 and f"process {process.pid} still trains mine" in first.out
    assert f"asked process {process.pid} to save and stop" in first.out
    assert f"process {process.pid} was asked before and is stopping" in second.out
    process.kill()
    process.wait()
    after = training(run)  # another process is asked, whatever the file says of the last one
    assert f"asked process {after.pid} to save" in answer("stop", "mine").out
    assert not run.stop_path.exists()


def test_a_process_that_would_die_without_saving_is_not_signalled(folder, training):
    process = training(make_run(folder, "mine"), "deaf")
    done = answer("stop", "mine", "--wait-seconds", "0.3")
    assert done.code == 1
    assert "takes no further request" in done.out
    assert process.poll() is None


def test_a_process_that_only_has_the_number_of_the_lost_one_is_left_alone(folder):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        make_run(folder, "mine", state="running", pid=other.pid, heartbeat=time.time())
        code, said, _ = answer("stop", "mine")
        assert code == 0 and "mine isn't running" in said
        assert other.poll() is None
        other.kill()
    make_run(folder, "done")
    assert answer("stop", "done") == (0, "done isn't running: finished at step 20 of 20\n", "")


@pytest.mark.parametrize("words", ["stop mine", "resume mine", "delete mine --yes"])
def test_a_run_that_runs_on_another_host_or_here_is_refused(folder, training, words):
    host = {"pid": os.getpid(), "host": "elsewhere", "heartbeat": time.time()}
    run = make_run(folder, "mine", state="running", **host)
    line = refused(*words.split())
    assert "running on host 'elsewhere'" in line and f"this is {socket.gethostname()!r}" in line
    if "stop" not in words:
        process = training(make_run(folder, "here"))
        line = refused(*words.replace("mine", "here").split())
        assert "here is running" in line and "labkit stop here stops it" in line
        assert words.startswith("delete") or f"in process {process.pid}" in line
    assert run.exists()


def test_the_holder_of_a_lock_is_who_took_it(tmp_path, training):
    run = make_run(tmp_path, "mine")
    lock = RunLock(run)
    assert lock.holder() is None
    assert lock.acquire()
    assert RunLock(run).holder() == os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # has the file open too, and didn't take the lock
        os.read(reader, 1)
        os._exit(0)
    assert RunLock(run).holder([child]) is None
    os.write(writer, b"x")
    os.waitpid(child, 0)
    lock.release()
    assert RunLock(run).holder() is None


# ---- resume --------------------------------------------------------------------------------------------


@pytest.fixture
def resumed(monkeypatch):
    seen = []

    def train_as(task, config, overwrite, *, approved, accept_changed_code):
        assert approved == digest_of({})
        seen.append((task, config, overwrite))
        return 0

    monkeypatch.setattr(train, "train_as", train_as)
    return seen


def test_a_run_is_continued_with_its_own_configuration_where_it_lies_now(folder, resumed):
    run = make_run(folder, "before", state="interrupted", step=7, learning_rate=0.3)
    run.path.rename(folder / "after")
    assert answer("resume", "after").code == 0
    [(task, config, overwrite)] = resumed
    assert (task, overwrite) == (None, False)
    assert config.run.job_dir == str(folder / "after")
    assert (config.optimizer.learning_rate, config.run.train_steps) == (0.3, 20)


def test_a_run_is_continued_with_the_data_set_that_is_named(folder, resumed, tmp_path):
    prepare_tiny(tmp_path / "there")
    make_run(folder, "mine", state="interrupted", step=7, data_dir=str(tmp_path / "gone" / "data"))
    assert answer("resume", "mine", "--data-dir", str(tmp_path / "there")).code == 0
    assert resumed[0][1].data.data_dir == str(tmp_path / "there")


def test_a_run_is_continued_with_the_same_data_of_todays_home(folder, resumed, tmp_path):
    prepare_tiny(tmp_path / "data")
    make_run(folder, "mine", state="interrupted", step=7, data_dir=str(tmp_path / "gone" / "data"))
    done = answer("resume", "mine")
    assert f"shapes in {tmp_path / 'data' / 'shapes'}" in done.out
    assert resumed[0][1].data.data_dir is None, "nobody chose it"


def test_a_run_that_was_pulled_without_checkpoints_doesnt_begin_anew(folder, tmp_path):
    prepare_tiny(tmp_path / "data")
    run = make_run(folder, "mine", state="interrupted", step=7, input_path="memory")
    run.pulled_path.write_text('{"from": "gpu7:runs/mine"}')
    for words in (
        ["resume", "mine"],
        train_arguments(recorded_config(run).replace({"job_dir": str(run.path)})),
    ):
        assert "copy the folder of this name from 'gpu7:runs/mine'" in refused(*words)


@pytest.mark.parametrize("host", ["gpu7", "me@gpu7", "[fe80::1]", "me@[fe80::1]"])
def test_of_a_run_that_is_pulled_the_folder_there_is_named(folder, host):
    run = make_run(folder, "mine", state="running", heartbeat=time.time())
    run.pulled_path.write_text(f'{{"from": "{host}:my runs/mine"}}')
    assert refused("stop", "mine").rstrip().endswith("there: labkit stop 'my runs/mine'")


@pytest.mark.parametrize("words", ["", "--train-steps 200", "--steps 200 --lr=0.5"])
def test_a_finished_run_and_other_settings_are_answered_with_the_command_that_goes_on(words, folder, resumed):
    run = make_run(folder, "mine")
    if not words:
        assert "its checkpoints are gone, so it can't go on" in answer("resume", "mine")[1]
        run.pulled_path.write_text('{"from": "gpu7:runs/mine"}')
        assert "to go on, copy their folder from 'gpu7:runs/mine'" in answer("resume", "mine")[1]
        (run.checkpoints_path / "step-00000020").mkdir(parents=True)
    code, out, err = answer("resume", "mine", *words.split())
    assert not resumed
    if not words:
        assert code == 0 and f"{run.path} is finished at step 20" in out and "labkit fork" in out
        return
    assert code == 2 and "mine --at 20 --set train_steps=200" in err
    assert ("learning_rate=0.5" in err) == ("--lr" in words)
    command = err.split("labkit ")[-1].split()
    assert command[0] == "fork" and cli.parse(command).keywords["at"] == 20


def test_a_cluster_is_answered_with_its_command(folder, training, resumed):
    run = make_run(folder, "mine", state="interrupted", step=7)
    for name in ("chief:0", "worker:0", "worker:1", "ps:0"):
        path = heartbeat_path(run.cluster_path, name)
        path.parent.mkdir(exist_ok=True)
        write_heartbeat(path, Heartbeat(name, "a:1", "host", 1, "x", 1, "training", 7, {}, "", None))
    line = refused("resume", "mine")
    command = line.partition("with: ")[2].split()
    assert command[:9] == ["labkit", "cluster", "local", "--workers", "2", "--ps", "1", "--", "train"]
    assert f"--job-dir {run.path}" in line
    cli.parse(command[1:])
    assert not resumed
    training(run)
    said = answer("stop", "mine").out
    assert "labkit cluster local --workers 2 --ps 1 -- train" in said and "labkit resume" not in said


def test_tasks_that_were_started_by_hand_and_a_damaged_configuration_are_not_resumed(folder, resumed):
    make_run(folder, "mine", state="interrupted", worker_hosts="a:1,b:1", job_name="worker", task_index=0)
    assert "--worker-hosts" in refused("resume", "mine")
    (make_run(folder, "hurt", state="interrupted").config_path).write_text("{")
    assert "can't be read" in refused("resume", "hurt")
    assert not resumed


# ---- delete --------------------------------------------------------------------------------------------


def test_a_deleted_run_is_gone_and_its_neighbours_and_what_the_training_did_not_write_stay(folder):
    run, other = make_run(folder, "mine"), make_run(folder, "other")
    (run.checkpoints_path / "step-00000020").mkdir()
    (run.path / ".config.json.99999999.1.tmp").write_text("")
    assert answer("note", "mine", "--tag", "x").code == 0
    assert answer("delete", "mine", "--yes")[:2] == (0, "deleted mine\n")
    assert not run.path.exists()
    (other.path / "thesis.tex").write_text("mine")
    assert "kept thesis.tex" in answer("delete", other.path, "--yes").out
    assert [path.name for path in other.path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("yes", 0), ("n", 1), ("", 1), (None, 2)])
def test_it_asks_and_where_nobody_can_be_asked_yes_is_needed(folder, monkeypatch, typed, code):
    run = make_run(folder, "mine")
    monkeypatch.setattr(manage.sys, "stdin", SimpleNamespace(isatty=lambda: typed is not None))
    monkeypatch.setattr("builtins.input", lambda question: typed)
    done = answer("delete", "mine")
    assert done.code == code
    assert "add --yes" in done.err if typed is None else "finished at step 20 of 20" in done.out
    assert run.exists() is bool(code)


# ---- all of it, with real trainings --------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_run_is_stopped_resumed_shown_and_deleted(folder):
    prepare_tiny(folder.parent / "data")
    command = ["train", "--preset", "smoke", "--train-steps", "4000", "--no-evaluate-test", "--job-dir"]
    path = folder / "mine"
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", *command, str(path)], stdout=subprocess.DEVNULL
    )
    try:
        run = RunDirectory(path)
        give_up = time.monotonic() + 120
        while not ((status := run.read_status()) and status.step > 2):
            assert time.monotonic() < give_up
            assert process.poll() is None
            time.sleep(0.1)
        done = answer("stop", "mine")
        assert done.code == 0, done.out
        assert process.wait(30) == 128 + signal.SIGTERM
        stopped = run.read_status().step
        assert 2 < stopped < 4000
        assert run.checkpoint_steps()[-1] == stopped
        assert run.read_status().message.startswith(f"stop requested at step {stopped};")
    finally:
        process.kill()
        process.wait()
    text = run.config_path.read_text().replace('"train_steps": 4000', f'"train_steps": {stopped + 5}')
    run.config_path.write_text(text)
    done = answer("resume", "mine")
    assert done.code == 0, done.err
    assert run.read_status().state == "finished"
    assert f"{stopped + 5} of {stopped + 5}" in answer("show", "mine").out
    assert answer("delete", "mine", "--yes").code == 0
    assert not path.exists()


@pytest.mark.parametrize("words", [["stop"], ["resume"], ["show"], ["delete", "--trash"], ["runs"]])
def test_a_name_with_escape_sequences_is_shown_not_obeyed(words, folder):
    run = make_run(folder, "\x1b]0;title\x07\x9b31mred")
    _, out, err = answer(words[0], *([] if words == ["runs"] else [run.path]), *words[1:])
    said = out + err
    assert "\\x1b]0;title\\x07\\x9b31mred" in said
    assert not any(mark in said for mark in "\x1b\x07\x9b")
