"""Tasks that are forked from a template: the same as programs that import TensorFlow themselves."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from labkit.cluster.launch import Launch
from labkit.commands import cluster
from labkit.commands.main import main
from labkit.distributed.cpu import has_no_gpu
from labkit.experiments.trials import Trial, run_trials
from labkit.run_directory import RunDirectory
from labkit.run_directory.certificate import read_certificate
from labkit.run_directory.reader import read_metrics
from labkit.startup import template as module
from labkit.startup.child import python_command
from labkit.startup.process import Child
from labkit.startup.template import Template
from tests.properties.harness import train_arguments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_no_gpu(), reason="where a GPU may be, nothing is forked"),
]
PROBE = Path(__file__).with_name("startup_state.py")
long = functools.partial(pytest.param, marks=pytest.mark.long)
REFUSED = python_command("-m", "labkit", "train", "--num-layers", "nine")


def made() -> Template:
    template = Template(of_cluster=False)
    end = time.monotonic() + 60
    while not template.ready():
        assert time.monotonic() < end
        time.sleep(0.02)
    return template


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with closing(made()) as template:
        yield template


def until_gone(*processes: psutil.Process) -> None:
    _, left = psutil.wait_procs(processes, timeout=10)
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]


def task_of(child: Child) -> psutil.Process:
    """Return the process of a task, once its parent has forked it."""
    end = time.monotonic() + 30
    while not (found := psutil.Process(child.pid).children()):
        assert time.monotonic() < end
    return found[0]


# ---- what a task sees and writes -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(template, tmp_path_factory, shapes) -> dict[str, tuple[Path, dict, list]]:
    """The same training as a program and twice forked: its run, what it saw of its process, and chance."""
    folder = tmp_path_factory.mktemp("trained")
    job_dir = folder / "run"
    fields = {"train_steps": 4, "validate_every_steps": 2, "callbacks": PROBE}
    command = python_command("-m", "labkit", *train_arguments(job_dir, **fields))
    found = {}
    for name, source in {"program": None, "forked": template, "forked again": template}.items():
        variables = {"TF_NOTE": "é", "CUDA_VISIBLE_DEVICES": "-1"}
        with Child(command, variables, template=source) as child:
            said = list(child.lines())
            assert child.wait() == 0, said
            assert source is None or child.peak_memory_bytes is None, "a part of it is the template's"
        state, chance = json.loads((folder / "run.state.json").read_text())
        found[name] = shutil.move(job_dir, folder / name), state, chance
    return found


@pytest.mark.long
def test_a_forked_task_sees_what_a_program_sees(trained):
    _, program, _ = trained["program"]
    for name in ("forked", "forked again"):
        _, forked, _ = trained[name]
        for each in (program, forked):
            each["shown"][1].pop("LABKIT_REASON", None)
        assert forked == program


@pytest.mark.long
def test_forked_tasks_share_no_chance(trained):
    chances = [chance for _, _, chance in trained.values()]
    assert all(len(set(drawn)) == len(chances) for drawn in zip(*chances, strict=True)), chances


@pytest.mark.long
def test_a_forked_training_is_the_same_to_the_last_bit(trained):
    runs = {name: RunDirectory(path) for name, (path, *_) in trained.items()}
    certificates = [replace(read_certificate(run), rows="") for run in runs.values()]  # rows hold times
    assert certificates[1:] == certificates[:-1]
    losses = [[row["loss"] for row in read_metrics(run).rows] for run in runs.values()]
    assert losses[1:] == losses[:-1] and len(losses[0]) > 4
    files = {
        name: {
            path.relative_to(run.path): path.read_bytes()
            for path in run.checkpoints_path.rglob("*")
            if path.is_file() and path.suffix != ".json"
        }
        for name, run in runs.items()
    }
    assert len(files["program"]) > 2
    assert files["forked"] == files["program"] == files["forked again"]


@pytest.mark.long
def test_a_refusal_travels_as_from_a_program(template, tmp_path):
    ends = []
    for source in (None, template):
        with Child(REFUSED, template=source, stderr=subprocess.PIPE) as child:
            said = [stream.read().decode() for stream in child.streams]
            ends.append((child.wait(), child.reason, said))
        log = tmp_path / "log"
        with log.open("wb") as output, Child(REFUSED, template=source, stdout=output) as child:
            ends[-1] += (child.wait(), log.read_text())
    assert ends[0] == ends[1]
    assert ends[0][:2] == (2, ends[0][1]) and ends[0][1].startswith("--num-layers is 'nine'")


# ---- how a task ends -----------------------------------------------------------------------------------

STARTS_ANOTHER = """
import subprocess, sys, time
other = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(f"up {other.pid}", flush=True)
time.sleep(60)
"""


@pytest.fixture
def endless(tmp_path, shapes) -> list[str]:
    """The command of a training whose file of callbacks starts another process and never ends."""
    path = tmp_path / "endless.py"
    path.write_text(STARTS_ANOTHER)
    return python_command("-m", "labkit", *train_arguments(tmp_path / "run", callbacks=path, train_steps=1))


def family(child: Child) -> tuple[psutil.Process, psutil.Process]:
    """Return a task that runs ``endless`` and the process that it has started."""
    line = next(line for line in child.lines() if line.startswith("up "))
    return task_of(child), psutil.Process(int(line.split()[1]))


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda child, task: child.kill(), -signal.SIGKILL),
        (lambda child, task: child.terminate(), 128 + signal.SIGTERM),
        (lambda child, task: task.send_signal(signal.SIGABRT), -signal.SIGABRT),
        long(lambda child, task: child.close(), -signal.SIGKILL),
        long(lambda child, task: task.kill(), -signal.SIGKILL),
        long(lambda child, task: child.terminate(signal.SIGINT), 128 + signal.SIGINT),
    ],
    ids=["kill", "terminate", "SIGABRT of the task", "close", "SIGKILL of the task", "SIGINT"],
)
def test_all_that_a_forked_task_started_ends_with_it(template, endless, end, code):
    with Child(endless, template=template) as child:
        task, other = family(child)
        assert psutil.Process(child.pid).ppid() == os.getpid()
        end(child, task)
        assert child.wait(20) == code
        until_gone(task, other)


@pytest.mark.long
def test_a_forked_task_ends_with_its_parent(template, endless):
    with Child(endless, template=template) as child:
        task, other = family(child)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(20) == -signal.SIGKILL
        until_gone(task)
        other.kill()  # nobody is left who could


@pytest.mark.long
def test_a_task_goes_on_without_its_template_and_the_next_is_a_program(endless, capfd):
    with closing(made()) as template, Child(endless, template=template) as child:
        task, other = family(child)
        template._process.kill()
        time.sleep(0.5)
        assert task.is_running() and child.poll() is None
        with Child(REFUSED, template=template) as refused:
            assert refused.wait(60) == 2
        assert capfd.readouterr().err.count("was lost; from now on, each imports TensorFlow itself\n") == 1
        child.kill()
        assert child.wait(20) == -signal.SIGKILL
        until_gone(task, other)


@pytest.mark.long
def test_a_template_that_hangs_is_killed_and_holds_nobody_up(monkeypatch, capfd):
    monkeypatch.setattr(module, "FORK_SECONDS", 0.5)
    with closing(made()) as template:
        os.kill(template._process.pid, signal.SIGSTOP)
        with Child(REFUSED, template=template) as refused:
            assert refused.wait(60) == 2
        assert template._process.returncode == -signal.SIGKILL
    assert "was lost" in capfd.readouterr().err


LAUNCHER = """
import json, sys, time
from contextlib import closing
from labkit.startup.process import Child
from labkit.startup.template import Template
with closing(Template(of_cluster=True)) as template:
    print(template._process.pid, flush=True)
    while not template.ready(): time.sleep(0.02)
    with Child(json.loads(sys.argv[1]), template=template) as child:
        print(next(line for line in child.lines() if line.startswith("up ")), flush=True)
        time.sleep(60)
"""


@pytest.mark.long
@pytest.mark.parametrize("when", ["while it imports", "while a task runs", "behind its template"])
def test_all_ends_with_the_launcher(endless, when):
    launcher = psutil.Popen(
        [sys.executable, "-c", LAUNCHER, json.dumps(endless)], stdout=subprocess.PIPE, text=True
    )
    with launcher.stdout as output:
        processes = [psutil.Process(int(output.readline()))]
        if when != "while it imports":
            processes.append(psutil.Process(int(output.readline().split()[1])))
            processes += launcher.children(recursive=True)
        if when == "behind its template":
            processes[0].kill()
        launcher.kill()
        launcher.wait(10)
        until_gone(*processes)
    assert when == "while it imports" or len(set(processes)) == 4, "template, parent, task and its own"


# ---- who forks -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_trials_begin_once_the_template_can_fork(tmp_path):
    trial, forked, ends = Trial(REFUSED, log=tmp_path / "log"), [], []
    with closing(Template(of_cluster=False)) as template:
        run_trials(
            [trial] * 3,
            [],
            lambda number, end: ends.append(end.reason),
            meanwhile=lambda running: forked.extend(child._popen is None for child in running.values()),
            template=template,
        )
    assert len(ends) == 3 and all(end.startswith("--num-layers is 'nine'") for end in ends)
    assert forked and all(forked)


@pytest.mark.long
@pytest.mark.parametrize(
    ("callbacks", "no_gpu", "forks"), [(None, True, True), (PROBE, True, False), (None, False, False)]
)
def test_a_cluster_forks_unless_code_or_a_gpu_may_need_a_new_program(
    monkeypatch, tmp_path, shapes, callbacks, no_gpu, forks
):
    given: list[Template | None] = []
    monkeypatch.setattr(Launch, "start", lambda self, *, output, template: given.append(template) or 0)
    monkeypatch.setattr(cluster, "has_no_gpu", lambda: no_gpu)
    words = train_arguments(tmp_path / "run", callbacks=callbacks, sync=True, num_gpus=None)
    words.remove("True")
    assert main(["cluster", "local", "--", *words]) == 0
    assert [isinstance(each, Template) for each in given] == [forks]


# ---- where it runs -------------------------------------------------------------------------------------

IN_A_NETWORK = """
import os, sys, time
from contextlib import closing
from labkit.cluster.hosts import PrivateNetwork
from labkit.startup.child import python_command
from labkit.startup.process import Child
from labkit.startup.template import Template
with PrivateNetwork() as network, closing(Template(of_cluster=True)) as template:
    while not template.ready(): time.sleep(0.02)
    names = network.namespaces("")
    command = python_command("-m", "labkit", "train", "--num-layers", "nine")
    with Child(command, namespaces=names, template=template) as child:
        seen = set()
        while child.poll() is None:
            try:
                links = [f"/proc/{child.pid}/ns/" + name[name.rfind("/"):] for name in names]
                seen.add(tuple(map(os.readlink, links)))
            except OSError:
                pass
        # As nobody it can't read this Python any more, which may be root's.
        assert child.poll() == 2 or os.geteuid(), list(child.lines())
        assert child._popen is None, "it was forked"
        assert tuple(os.readlink(name) for name in names) in seen, seen
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("user", ["nobody", long("root")])
def test_a_forked_task_runs_in_its_network(user, tmp_path):
    tmp_path.chmod(0o777)
    # An ordinary user, who sees the folder of this Python wherever it is.
    capability = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *capability]
    subprocess.run(
        [*(become if user == "nobody" else []), sys.executable, "-c", IN_A_NETWORK],
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=120,
        check=True,
    )
