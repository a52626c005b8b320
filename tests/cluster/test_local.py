"""A cluster on this machine: lost tasks are restarted if that helps, and no process is left behind."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from labkit.cluster.local_run import Patience, run_local_cluster
from labkit.distributed.heartbeat import read_heartbeats
from labkit.errors import InputError
from labkit.run_directory import process_alive
from tests.cluster.conftest import LIMIT, until


def run(script: str, folder: Path, **options: object) -> tuple[int, list[str]]:
    """Run a cluster of a short script in this process; return its code and its lines."""
    lines: list[str] = []
    code = run_local_cluster(
        [sys.executable, "-c", script], folder=folder, output=lines.append, **{"workers": 2, **options}
    )
    return code, lines


NAME = """
import json, os
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}:{task['index']}"
"""


def test_a_clean_end_is_0_and_every_line_has_a_task(start):
    cluster = start(workers=2)
    cluster.wait_for("worker:0", "worker:1")
    (cluster.state / "finish").touch()
    assert cluster.end() == 0
    assert sorted(cluster.lines()) == [
        "[worker:0] worker:0 goes on from step 0",
        "[worker:1] worker:1 is here",
    ]


def test_no_line_is_lost_or_torn_even_the_last_before_a_kill(tmp_path):
    script = NAME + (
        "import signal, sys, threading\n"
        "def write(stream, word):\n"
        "    for number in range(3000):\n"
        "        for part in (f'{word} {number} ', 'é' * (number % 90), ' end\\n'): stream.write(part)\n"
        "threads = [threading.Thread(target=write, args=(sys.stdout, 'out')), \n"
        "           threading.Thread(target=write, args=(sys.stderr, 'err'))]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "sys.stdout.write('10 %\\r100 %'); sys.stdout.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, lines = run(script, tmp_path, max_restarts=0)
    assert code == 75
    for name in ("worker:0", "worker:1"):
        own = [line.removeprefix(f"[{name}] ") for line in lines if line.startswith(f"[{name}] ")]
        for word in ("out", "err"):
            expected = [f"{word} {number} {'é' * (number % 90)} end" for number in range(3000)]
            assert [line for line in own if line.startswith(word)] == expected
        assert own[-1] == "100 %"
        assert len(own) == 6001
    assert lines[-1].endswith("was killed by SIGKILL; gave up, --max-restarts is 0")


@pytest.mark.parametrize(
    ("script", "code", "starts", "said"),
    [
        ("sys.exit(2) if name == 'worker:1' else time.sleep(1000)", 2, 1, "worker:1 failed (exit code 2)"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            75,
            3,
            "was killed by SIGSEGV; gave up, --max-restarts is 2",
        ),
    ],
    ids=["bad input", "a crash"],
)
def test_bad_input_ends_a_cluster_at_once_and_a_crash_after_its_restarts(
    script, code, starts, said, tmp_path
):
    script = f"import signal, sys, time{NAME}print('start', flush=True); {script}"
    ended, lines = run(script, tmp_path, max_restarts=2)
    assert ended == code
    assert lines.count("[worker:1] start") == starts
    assert any(said in line for line in lines)


def test_every_task_has_its_own_tf_config_and_port(tmp_path):
    script = NAME + "print(os.environ['TF_CONFIG'], os.environ['EXTRA'])"
    code, lines = run(script, tmp_path, ps=2, environment=lambda task: {"EXTRA": "more"})
    assert code == 0
    said = dict(line.split(" ", 1) for line in lines if "more" in line)
    configs = {name: json.loads(text.removesuffix(" more")) for name, text in said.items()}
    assert "[chief:0]" in configs
    cluster = configs["[chief:0]"]["cluster"]
    assert {job: len(addresses) for job, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 2}
    addresses = [address for job in cluster.values() for address in job]
    assert len(set(addresses)) == 5 and all(address.startswith("127.0.0.1:") for address in addresses)
    for name, config in configs.items():
        assert config["cluster"] == cluster
        assert name == f"[{config['task']['type']}:{config['task']['index']}]"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "--workers is 0"),
        ({"ps": -1}, "--ps is -1"),
        ({"max_restarts": -1}, "--max-restarts is -1"),
        ({"host": "203.0.113.7"}, "203.0.113.7"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused(tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        run("print('started')", tmp_path, **options)


def test_a_command_that_cannot_start_is_named(tmp_path):
    with pytest.raises(InputError, match="no-such-command"):
        run_local_cluster(["no-such-command"], workers=2, folder=tmp_path)
    broken, lines = tmp_path / "broken", []
    broken.write_text("#!/nowhere/at-all\n")
    broken.chmod(0o755)
    assert run_local_cluster([str(broken)], workers=2, folder=tmp_path, output=lines.append) == 127
    assert any("can't be started" in line for line in lines)


def test_a_killed_worker_restarts_all_from_the_last_checkpoint(start):
    cluster = start(workers=2)
    cluster.wait_for("worker:0", "worker:1")
    runs = "[worker:1] runs as process"
    until(lambda: cluster.step() > 3 and runs in cluster.text())
    before = cluster.step()
    cluster.kill("worker:1")
    cluster.wait_for("worker:0", "worker:1", life=2)
    until(lambda: cluster.text().count(runs) == 2)
    until(lambda: cluster.text().count("worker:0 goes on from step") == 2)
    (cluster.state / "finish").touch()
    assert cluster.end() == 0
    assert "[cluster] worker:1 was killed by SIGKILL; restart 1 of 3" in cluster.lines()
    announced = [line for line in cluster.lines() if line.startswith(runs)]
    assert announced == [f"{runs} {life['pid']}" for life in cluster.lives("worker:1")]
    assert any(
        line.startswith("[worker:0] labkit: lost peer: worker:1 (127.0.0.1:") and "process is gone" in line
        for line in cluster.lines()
    )
    resumed = next(line for line in reversed(cluster.lines()) if line.startswith("[worker:0] worker:0 goes"))
    assert int(resumed.split()[-1]) >= before
    for name in ("worker:0", "worker:1"):
        first, second = cluster.lives(name)
        assert first["address"] != second["address"]


@pytest.mark.long
def test_a_killed_subreaper_takes_its_task_along_and_all_restart(start):
    cluster = start(workers=2)
    cluster.wait_for("worker:0", "worker:1")
    task = cluster.lives("worker:1")[0]["pid"]
    subreaper = int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1])
    assert subreaper != cluster.launcher.pid
    os.kill(subreaper, signal.SIGKILL)
    until(lambda: not process_alive(task))
    os.kill(cluster.lives("worker:1")[0]["helper"], signal.SIGKILL)  # nobody else is left to do it
    cluster.wait_for("worker:0", "worker:1", life=2)
    (cluster.state / "finish").touch()
    assert cluster.end() == 0


def test_the_message_of_a_task_that_lost_a_peer_is_printed(tmp_path):
    script = NAME + (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, write_heartbeat\n"
        "if name == 'worker:0': time.sleep(1000)\n"
        "heartbeat = Heartbeat(name, 'b:1', 'b', os.getpid(), 'x', 1, 'lost', 0, {},\n"
        "                 'worker:0 (a:1) is mute', None)\n"
        f"write_heartbeat(heartbeat_path(Path({str(tmp_path)!r}), name), heartbeat)\n"
        "sys.exit(75)\n"
    )
    code, lines = run(script, tmp_path, max_restarts=0, patience=Patience(leave=0.3))
    assert code == 75
    quoted = "[cluster] worker:1 lost a peer (exit code 75): worker:0 (a:1) is mute"
    assert lines[-1] == f"{quoted}; gave up, --max-restarts is 0"


def test_tasks_that_do_not_notice_a_loss_are_killed(tmp_path):
    script = NAME + (
        "import signal, sys, time\n"
        f"life = os.open(os.path.join({str(tmp_path)!r}, name), os.O_CREAT | os.O_APPEND | os.O_WRONLY)\n"
        "os.write(life, b'x')\n"
        "if os.fstat(life).st_size > 1: sys.exit(0)\n"
        f"while not os.path.exists(os.path.join({str(tmp_path)!r}, 'worker:0')): time.sleep(0.01)\n"
        "if name == 'worker:1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(1000)\n"
    )
    code, lines = run(script, tmp_path, patience=Patience(leave=0.3))
    assert code == 0
    assert "[cluster] worker:1 was killed by SIGKILL; restart 1 of 3" in lines
    assert "[cluster] worker:1 was killed by SIGKILL; the others have 0 s to end" in lines


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.alone
def test_a_frozen_task_is_killed_and_all_restart(start):
    cluster = start(workers=2, stall_timeout=3.0)
    cluster.wait_for("worker:0", "worker:1")
    frozen = cluster.lives("worker:1")[0]
    until(lambda: read_heartbeats(cluster.heartbeats)["worker:1"].counter > 5)
    cluster.kill("worker:1", signal.SIGSTOP)
    cluster.wait_for("worker:0", "worker:1", life=2)
    assert not process_alive(frozen["pid"]) and not process_alive(frozen["helper"])
    (cluster.state / "finish").touch()
    assert cluster.end() == 0
    assert "[cluster] worker:1 sent no heartbeat for 3 s and was killed; restart 1 of 3" in cluster.lines()


def test_a_loss_after_the_end_of_the_run_changes_nothing(tmp_path):
    script = NAME + "import signal; name == 'worker:1' and os.kill(os.getpid(), signal.SIGKILL)"
    script += f"\nopen({str(tmp_path / 'done')!r}, 'a').write('x')"
    code, lines = run(script, tmp_path)
    assert code == 0
    assert (tmp_path / "done").read_text() == "x"
    assert lines[-1] == "[cluster] worker:1 was killed by SIGKILL, after the run was finished"


def test_a_request_to_one_task_that_stops_all_is_no_reason_to_restart(start):
    cluster = start(workers=2)
    cluster.wait_for("worker:0", "worker:1")
    cluster.kill("worker:1", signal.SIGTERM)
    assert cluster.end() == 143
    assert len(cluster.lives("worker:0")) == 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)],
)
def test_a_request_to_stop_reaches_all_tasks(start, number, code):
    cluster = start(workers=2)
    cluster.wait_for("worker:0", "worker:1")
    cluster.launcher.send_signal(number)
    assert cluster.end() == code
    told = {int(path.read_text()) for path in cluster.state.glob("asked-worker:*")}
    assert told == {signal.SIGINT if number == signal.SIGINT else signal.SIGTERM}, "as it is recorded"
    assert len(cluster.lives("worker:0")) == 1
    assert any(line.startswith("[cluster] asked to stop") for line in cluster.lines())


@pytest.mark.parametrize("asked", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_task_that_ignores_a_request_is_killed_after_a_while_or_by_a_second_one(start, asked):
    cluster = start(workers=2, patience={"stop": 0.5 if asked == 1 else 10_000.0})
    (cluster.state / "stubborn").touch()
    cluster.wait_for("worker:0", "worker:1")
    cluster.launcher.terminate()
    until(lambda: "asked to stop" in cluster.text())
    # Within a second of the first it would count as the same request.
    second = "asked to stop a second time"
    until(lambda: asked == 1 or second in cluster.text() or cluster.launcher.terminate())
    assert cluster.end() == 143


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("ps", [0, 1])
def test_nothing_outlives_the_launcher(start, number, ps):
    cluster = start(workers=2, ps=ps)
    names = ("worker:0", "worker:1", *(("chief:0", "ps:0") if ps else ()))
    cluster.wait_for(*names)
    assert all(map(process_alive, cluster.processes()))
    cluster.kill("worker:1", signal.SIGSTOP)  # a stopped process takes no signal but one
    cluster.launcher.send_signal(number)
    cluster.launcher.wait(LIMIT)
    until(lambda: not any(map(process_alive, cluster.processes())), cluster.text)
    assert len(cluster.processes()) == 2 * len(names)


def test_an_output_that_is_closed_leaves_nothing_behind(tmp_path):
    pids: list[int] = []

    def output(line: str) -> None:
        pids.append(int(line.split()[-1]))
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_local_cluster(
            [sys.executable, "-c", "import os, time; print(os.getpid()); time.sleep(1000)"],
            workers=2,
            folder=tmp_path,
            output=output,
        )
    assert pids and not any(map(process_alive, pids))


def test_a_lost_worker_is_replaced_alone_on_its_address(start):
    cluster = start(workers=2, ps=1)
    cluster.wait_for("chief:0", "worker:0", "worker:1", "ps:0")
    cluster.kill("worker:1")
    cluster.wait_for("worker:1", life=2)
    step = cluster.step()
    until(lambda: cluster.step() > step)
    (cluster.state / "finish").touch()
    assert cluster.end() == 0
    first, second = cluster.lives("worker:1")
    assert first["address"] == second["address"]
    assert [len(cluster.lives(name)) for name in ("chief:0", "worker:0", "ps:0")] == [1, 1, 1]
    wanted = "worker:1 was killed by SIGKILL; started again while training continues, restart 1 of 3"
    assert f"[cluster] {wanted}" in cluster.lines()


def test_a_worker_that_is_always_lost_ends_the_run_after_a_checkpoint(start):
    cluster = start(workers=2, ps=1, max_restarts=1, patience={"replace": 0.0})
    cluster.wait_for("chief:0", "worker:0", "worker:1", "ps:0")
    (cluster.state / "exit-worker:1").write_text("137")
    assert cluster.end() == 75
    assert len(cluster.lives("worker:1")) == 2
    assert (cluster.state / "asked-chief:0").exists()
    assert cluster.lines()[-1] == "[cluster] worker:1 was killed by SIGKILL; gave up, --max-restarts is 1"


@pytest.mark.long
@pytest.mark.parametrize("name", ["chief:0", "ps:0"])
def test_a_lost_chief_or_server_restarts_all(start, name):
    cluster = start(workers=1, ps=1)
    cluster.wait_for("chief:0", "worker:0", "ps:0")
    cluster.kill(name)
    cluster.wait_for("chief:0", "worker:0", "ps:0", life=2)
    (cluster.state / "finish").touch()
    assert cluster.end() == 0
    assert f"[cluster] {name} was killed by SIGKILL; restart 1 of 3" in cluster.lines()


@pytest.mark.parametrize(
    "code", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 143]
)
def test_the_chief_decides_how_an_asynchronous_run_ends(start, code):
    cluster = start(workers=1, ps=1)
    cluster.wait_for("chief:0", "worker:0", "ps:0")
    (cluster.state / "exit-chief:0").write_text(str(code))
    assert cluster.end() == code
    assert [len(cluster.lives(name)) for name in ("chief:0", "worker:0", "ps:0")] == [1, 1, 1]


def test_an_asynchronous_cluster_asks_its_chief_first(start):
    cluster = start(workers=1, ps=1)
    cluster.wait_for("chief:0", "worker:0", "ps:0")
    cluster.launcher.terminate()
    assert cluster.end() == 143
    asked = [(cluster.state / f"asked-{name}").stat().st_mtime_ns for name in ("chief:0", "worker:0", "ps:0")]
    assert asked[0] < min(asked[1:])
