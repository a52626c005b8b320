"""``labkit pull``: runs of a machine that a real sshd answers for, on loopback."""

import getpass
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import labkit
from labkit.commands import main as cli
from labkit.recording import pull as pull_module
from labkit.recording.pull import Pull
from labkit.run_directory import RunDirectory
from tests.commands.in_process import refused
from tests.listening import free_port


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """The words of an ssh that reaches this machine through a server of its own, by the name gpu7."""
    if not all(map(shutil.which, ("sshd", "rsync"))) and "CI" not in os.environ:
        pytest.skip("no sshd or rsync on this machine (Debian: apt-get install openssh-server rsync)")
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # of its privilege separation
    server = {
        "ListenAddress": "127.0.0.1", "Port": port, "HostKey": folder / "host", "PidFile": "none",
        "AuthorizedKeysFile": folder / "user.pub", "StrictModes": "no", "UsePAM": "no", "PrintMotd": "no",
    }  # fmt: skip
    asked = '"$SSH_ORIGINAL_COMMAND"'
    odd = {"hangs": "sleep 60", "greets": f"echo welcome; eval {asked}"}
    odd["bare"] = f"case {asked} in rsync*) PATH=/nowhere;; esac; eval {asked}"
    ports = {name: free_port() for name in odd}
    lines = [f"{key} {value}\n" for key, value in server.items()]
    lines += [f"Port {at}\n" for at in ports.values()]
    lines += [f"Match LocalPort {ports[name]}\n ForceCommand {command}\n" for name, command in odd.items()]
    (folder / "sshd_config").write_text("".join(lines))
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text("".join(f"[127.0.0.1]:{at} {key}" for at in (port, *ports.values())))
    (folder / "ssh_config").write_text(
        "".join(
            f"Host {name}\n HostName 127.0.0.1\n Port {at}\n User {getpass.getuser()}\n IdentitiesOnly yes\n"
            f" IdentityFile {folder}/{identity}\n UserKnownHostsFile {folder}/known\n"
            for name, at, identity in [
                ("gpu7", port, "user"),
                ("shut", free_port(), "user"),
                ("refusing", port, "host"),
                *((name, at, "user") for name, at in ports.items()),
            ]
        )
    )
    process = subprocess.Popen(
        [shutil.which("sshd"), "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL
    )
    command = f"ssh -F {folder}/ssh_config"
    give_up = time.monotonic() + 20
    while subprocess.run([*command.split(), "gpu7", "true"], capture_output=True).returncode:
        assert time.monotonic() < give_up, "sshd doesn't answer"
        time.sleep(0.2)
    yield command
    process.terminate()
    process.wait(10)


@pytest.fixture
def there(tmp_path):
    """The folder of runs of the other machine."""
    return tmp_path / "there"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def record(folder, name="first", steps=3, **settings):
    run = labkit.start_run(config=settings, total_steps=9, job_dir=folder / name)
    for step in range(1, steps + 1):
        run.log(step, loss=1 / step)
    return run


def pull(ssh, source, *words) -> int:
    return cli.main(["pull", source, "--once", "--ssh", ssh, *words])


def losses(name="first") -> list[float]:
    return labkit.load_run(name).metrics()["loss"].tolist()


def test_a_run_grows_as_its_rows_are_written_and_its_end_comes_over(ssh, there, capsys):
    run = record(there)
    run.log_text(3, "note", "hello")
    follower = Pull(f"gpu7:{there}/first", labkit.home.runs_home(), ssh.split()).follow(0.2)
    assert "first: running" in next(follower)
    assert losses() == [1, 1 / 2, 1 / 3]
    inode = (labkit.home.runs_home() / "first" / "metrics.jsonl").stat().st_ino
    run.log(4, loss=0.25)
    run.finish()
    assert next(follower).endswith("first: finished, step 4 of 9")
    assert losses() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert (labkit.home.runs_home() / "first" / "metrics.jsonl").stat().st_ino == inode  # appended to
    assert "hello" in (labkit.home.runs_home() / "first" / "media" / "index.jsonl").read_text()
    assert list(follower) == []  # a single run that has ended


def test_a_folder_of_runs_with_names_that_are_hard_to_write(ssh, there, capsys):
    record(there, "line\nbreak").finish()
    names = ["a b", "a[1]*", "a'b\"$(touch x)", "größe"]
    for name in names:
        record(there, name).finish()
    (there / "no run").mkdir()
    (there / "no run" / "secret.json").write_text("{}")
    (there / "link").symlink_to(there / "a b")
    os.symlink("/etc/passwd", there / "a b" / "evil.json")
    (there / "a b" / "notes.json").write_text(json.dumps({"note": "theirs"}))
    assert pull(ssh, f"gpu7:{there}") == 0
    copied = {path.name for path in labkit.home.runs_home().iterdir() if not path.name.startswith(".")}
    assert copied == set(names)
    assert "control character" in capsys.readouterr().out
    assert all(losses(name) == [1, 1 / 2, 1 / 3] for name in names)
    assert not (labkit.home.runs_home() / "a b" / "evil.json").exists()
    assert not (labkit.home.runs_home() / "a b" / "notes.json").exists()


def test_clocks_that_differ_stall_no_run(ssh, there, monkeypatch, capsys):
    run = record(there)
    behind = replace(run._status, heartbeat=time.time() - 5000, started=time.time() - 5010)
    run.finish()
    RunDirectory(there / "first").write_status(behind)
    monkeypatch.setattr(Pull, "_clock_ahead", lambda self: -5000.0)
    pull(ssh, f"gpu7:{there}")
    assert "first: running" in capsys.readouterr().out
    status = labkit.load_run("first").status
    assert status.liveness() == "running"
    assert status.liveness(time.time() + 60) == "stalled"
    assert abs(time.time() - 10 - status.started) < 5
    monkeypatch.setattr(Pull, "_clock_ahead", lambda self: 0.0)
    pull(ssh, f"gpu7:{there}", "--into", str(there.parent / "by the same clock"))
    assert "first: stalled" in capsys.readouterr().out  # as of a run that was killed there
    assert status.host == f"gpu7:{there}/first"  # its process id means nothing here


def test_the_clock_of_the_other_machine(ssh, there):
    record(there).finish()
    pull(ssh, f"gpu7:{there}")
    assert json.loads((labkit.home.runs_home() / "first" / "pulled.json").read_text())["clock_ahead"] == 0


def test_a_run_that_is_started_over_leaves_nothing_of_the_earlier_one(ssh, there):
    first = record(there, steps=5, rate=1)
    first.log(5, split="validation", loss=3.0)
    first.log_text(5, "note", "of the first")
    first.finish()
    pull(ssh, f"gpu7:{there}/first")
    labkit.start_run(job_dir=there / "first", config={"rate": 22}, overwrite=True).finish()
    pull(ssh, f"gpu7:{there}/first")
    run = labkit.load_run("first")
    assert not run.path.joinpath("metrics.jsonl").read_text()
    assert not (run.path / "media").exists()


@pytest.mark.long
def test_what_somebody_brought_is_never_removed(ssh, there, monkeypatch, capsys):
    record(there).finish()
    source = f"gpu7:{there}"
    pull(ssh, source)
    run = RunDirectory(labkit.home.runs_home() / "first")
    brought = run.checkpoints_path / "step-00000003" / "state.json"
    brought.parent.mkdir(parents=True)
    brought.write_text("{}")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    pull(ssh, source)
    assert brought.exists() and losses() == [1, 1 / 2, 1 / 3]
    labkit.start_run(job_dir=there / "first", config={"rate": 22}, overwrite=True).finish()
    assert pull(ssh, source) == 0
    assert "written anew there" in capsys.readouterr().out
    assert brought.exists() and losses() == [1, 1 / 2, 1 / 3]  # one run, not half of another
    brought.parent.rename(there.parent / "away")
    pull(ssh, source)
    assert not run.metrics_path.exists() or not run.metrics_path.read_text()


@pytest.mark.long
def test_runs_of_ones_own_are_never_written_over(ssh, there, capsys):
    record(there, steps=2).finish()
    record(there, "other", steps=2).finish()
    record(labkit.home.runs_home(), steps=7).finish()
    assert pull(ssh, f"gpu7:{there}") == 0
    assert "first is left out" in capsys.readouterr().out
    assert len(losses()) == 7
    assert len(losses("other")) == 2
    assert "holds something else" in refused("pull", "--once", "--ssh", ssh, f"gpu7:{there}/first")
    # A copy that goes on here is a run of one's own from then on.
    labkit.start_run("other", resume_from=2).log(3, loss=9.0)
    assert pull(ssh, f"gpu7:{there}") == 0
    assert losses("other")[-1] == 9.0
    assert pull(ssh, f"gpu7:{there}", "--into", str(there.parent / "elsewhere")) == 0
    assert losses(there.parent / "elsewhere" / "first") == [1, 1 / 2]


@pytest.mark.long
def test_a_copy_that_is_followed_is_locked(ssh, there):
    run = record(there)
    follower = Pull(f"gpu7:{there}", labkit.home.runs_home(), ssh.split()).follow(0.1)
    next(follower)
    record(there, "second").finish()
    next(follower)  # the second look has locked the first
    with pytest.raises(labkit.errors.InputError, match="written by another process"):
        labkit.start_run("first", resume_from=2)
    run.finish()
    next(follower)
    labkit.start_run("first", resume_from=2).finish()
    follower.close()


@pytest.mark.long
def test_a_line_is_lost_and_comes_back(ssh, there, monkeypatch):
    run = record(there)
    copies = Pull(f"gpu7:{there}/first", labkit.home.runs_home(), ssh.split())
    follower = copies.follow(0.1)
    next(follower)
    away = there.with_name("away")
    there.rename(away)
    assert "again in" in next(follower)
    away.rename(there)
    run.finish()
    assert any("finished" in line for line in follower)


def test_ctrl_c_ends_it(ssh, there):
    run = record(there)
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", "pull", f"gpu7:{there}", "--ssh", ssh],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "running" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    run.finish()


@pytest.mark.parametrize(
    ("source", "words", "part"),
    [
        ("gpu7", (), "HOST:FOLDER"),
        ("-oProxyCommand=touch x:runs", (), "HOST:FOLDER"),
        ("gpu7::module", (), "HOST:FOLDER"),
        ("gpu7:runs", ("--every", "0"), "--every"),
        ("gpu7:runs", ("--ssh", "'"), "--ssh"),
        ("gpu7:/nowhere/at/all", (), "No such file"),
        ("shut:runs", (), "refused"),
        ("refusing:runs", (), "Permission denied"),
        ("refusing:runs", (), "must log in without a question"),
        ("greets:runs", (), "is your shell clean?"),
        ("hangs:runs", (), "no answer within 1 s"),
        ("bare:runs", (), "bare has no rsync; install it there"),
        ("no-such-host.invalid:runs", (), "no-such-host.invalid"),
    ],
)
def test_bad_input_is_one_line(ssh, source, words, part, home, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no terminal that could be asked for a password
    if source == "hangs:runs":
        monkeypatch.setattr(pull_module, "SECONDS_OF_SILENCE", 1)
    assert part in refused(
        "pull", "--once", *(() if "--ssh" in words else ("--ssh", ssh)), *words, "--", source
    )
    assert not (home / "runs").exists()


def test_no_rsync(ssh, there, monkeypatch, tmp_path):
    record(there).finish()
    only = tmp_path / "bin"
    only.mkdir()
    (only / "ssh").symlink_to(shutil.which("ssh"))
    monkeypatch.setenv("PATH", str(only))
    assert "labkit pull needs rsync" in refused("pull", "--once", "--ssh", ssh, f"gpu7:{there}")
