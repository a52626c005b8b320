"""A real Slurm on this host: one controller and two nodes, in a temporary folder, ended after the tests.

Uses Debian's packages ``slurm-wlm`` and ``munge`` without their services: every daemon is started here with
its own configuration, key and free ports, as the user who runs the tests.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "squeue", "sinfo")
LIFETIME = 900  # seconds; `timeout` ends the daemons then even where the tests were killed
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])

CONFIGURATION = """\
ClusterName=labkit
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
AuthType=auth/munge
# A requeued job waits until its old credential has expired: two minutes, unless told otherwise; 5 s is least.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
ReturnToService=2
KillWait=15
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
NodeName=n[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=n[0-1] Default=YES MaxTime=1:00:00 State=UP OverSubscribe=FORCE:4
"""


def missing() -> str | None:
    """Return why no Slurm can be started here, or None."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if absent:
        return (
            f"{absent[0]} is not installed (Debian: apt-get install --no-install-recommends slurm-wlm munge)"
        )
    return None


class SlurmHost:
    """A running Slurm. ``folder`` is on the shared file system of its two nodes, n0 and n1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str, check: bool = True, timeout: float = 30) -> str:
        """Run one of Slurm's commands and return its output."""
        result = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or result.returncode == 0, f"{command}: {result.stderr}{result.stdout}"
        return result.stdout

    def submit(self, script: Path, *options: str, environment: dict[str, str] | None = None) -> str:
        """Submit a batch script from its own folder and return the job's id."""
        result = subprocess.run(
            ["sbatch", "--parsable", *options, str(script)],
            env={**self.environment, **(environment or {})},
            cwd=script.parent,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """Return what ``scontrol show job`` says of a job: JobState, ExitCode, Restarts, …"""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", "--oneliner", job)))

    def wait(self, job: str, *states: str, timeout: float) -> dict[str, str]:
        """Wait until a job is in one of ``states``, and return its description."""
        return wait_for(
            lambda: (found := self.job(job))["JobState"] in states and found,
            timeout,
            lambda: f"job {job} did not reach {states}: {self.job(job)}\n{self.logs()}",
        )

    def logs(self) -> str:
        """Return the ends of the daemons' logs, for a test that fails."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:])
            for path in sorted(self.folder.glob("*.log"))
        )


def wait_for(condition: Callable, timeout: float, explain: Callable[[], str] = str):
    """Return the first true value of ``condition()``; fail with ``explain()`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {explain()}"
        time.sleep(0.1)
    return value


def free_ports(count: int) -> list[int]:
    """Return ``count`` neighbouring ports that are free now: Slurm takes those of the nodes as a range."""
    for first in range(17100 + os.getpid() % 1000, 32000, count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return list(range(first, first + count))
    raise AssertionError("no free ports")


@contextlib.contextmanager
def slurm_host(folder: Path) -> Iterator[SlurmHost]:
    """Start a Slurm in ``folder``, and end everything that it started."""
    # munged refuses a socket in a folder that others may write to.
    folder.chmod(0o755)
    ports = free_ports(3)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname(),
            user=psutil.Process().username(),
            controller_port=ports[0],
            node_ports=f"{ports[1]}-{ports[2]}",
        )
    )
    host = SlurmHost(folder)
    daemons: list[subprocess.Popen] = []
    try:
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        socket_path = folder / "munge.socket"
        daemons += [_start(host, "munge", "munged", "-F", "--force", f"--key-file={key}",
                           f"--socket={socket_path}", *files)]  # fmt: skip
        wait_for(socket_path.exists, 20, host.logs)
        daemons += [_start(host, "controller", "slurmctld", "-D")]
        daemons += [_start(host, name, "slurmd", "-D", "-N", name) for name in ("n0", "n1")]
        idle = ("sinfo", "-h", "-t", "idle", "-o", "%N")
        wait_for(lambda: "n[0-1]" in host.run(*idle, check=False), 60, host.logs)
        yield host
    finally:
        with contextlib.suppress(Exception):
            host.run("scancel", "--state=RUNNING", "--signal=KILL", "--full", check=False)
            host.run("scancel", "--user", psutil.Process().username(), check=False)
        _end(daemons)
        _end_what_is_left(host)


def _start(host: SlurmHost, name: str, *command: str) -> subprocess.Popen:
    with (host.folder / f"{name}.out.log").open("w") as output:
        return subprocess.Popen(
            ["timeout", "--kill-after=5", str(LIFETIME), *command],
            env=host.environment,
            cwd=host.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _end(daemons: Sequence[subprocess.Popen]) -> None:
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(daemon.pid).children(recursive=True), daemon]:
                with contextlib.suppress(psutil.Error, OSError):
                    process.kill()
            daemon.wait(10)


def _end_what_is_left(host: SlurmHost) -> None:
    """Kill what still runs with this Slurm's configuration: step daemons, and tasks of theirs."""
    ours = host.environment["SLURM_CONF"]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == ours:
                process.kill()
                process.wait(5)
