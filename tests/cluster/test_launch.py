"""`labkit cluster local` refuses before anything is written, and tells the tasks how the data were chosen."""

import json
import os

import pytest

from labkit.cluster import launch as module
from labkit.cluster.launch import _recorded, gpu_environment, plan_launch
from labkit.commands import main as cli
from labkit.config import Config
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.training import place


@pytest.mark.parametrize(
    ("options", "fields", "part"),
    [
        (["--workers", "0"], {}, "--workers is 0"),
        (["--workers", "3"], {}, "allowed: multiples of 3"),
        (["--ps", "1"], {"num_gpus": 2, "simulate_missing_gpus": True}, "one worker for each GPU"),
        ([], {"num_gpus": 1}, "--num-gpus is 1 in each of 2 tasks that train, and 0 GPUs found here"),
        (
            ["--ps", "1"],
            {"sync_batch_norm": True},
            "--sync-batch-norm is not available in asynchronous",
        ),
        (["--ps", "1"], {"sync": True}, "--ps is 1 with --sync"),
        ([], {"bind": "203.0.113.7"}, "no port of '203.0.113.7' can be used"),
        ([], {"bind": "a..b"}, "no port of 'a..b' can be used"),
        ([], {"task_index": 1}, "--task-index is 1"),
        ([], {"worker_hosts": "a:1,b:1"}, "the launcher sets it for each task"),
        (["--max-restarts", "-1"], {}, "--max-restarts is -1"),
        ([], {"num_layers": 9}, "--num-layers is 9"),
        ([], {"job_dir": "mine"}, "neither empty nor a run"),
        (["--link", "100mbit"], {}, "--link is '100mbit' without --hosts"),
        (["--hosts", "--link", "fast"], {}, "--link is 'fast'; allowed: 10kbit to 100gbit"),
        (["--hosts", "--workers", "251"], {}, "--hosts with 251 tasks; allowed: up to 250"),
    ],
    ids=str,
)
def test_what_cannot_be_started_is_refused_in_one_line_before_anything_is_written(
    tmp_path, monkeypatch, capsys, options, fields, part
):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "has_no_gpu", lambda: True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("mine")
    values = {"dataset": "shapes", "train_batch_size": 16, "job_dir": "run"} | fields
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    assert cli.main(["cluster", "local", *options, "--", "train", *flags]) == 2
    said = capsys.readouterr()
    assert part in said.err and said.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["mine"] and os.listdir("mine") == ["letters.txt"], "no data either"


def test_the_tasks_learn_what_was_asked_for_and_why_it_is_shapes(shapes_dir, tmp_path, monkeypatch):
    config = Config.from_flat({"data_dir": str(shapes_dir), "job_dir": str(tmp_path / "run")})
    said: list[str] = []
    launch = plan_launch(config, workers=2, announce=said.append)
    given: dict[str, str] = {}

    def run(command: list[str], **options: object) -> int:
        assert command[command.index("--dataset") + 1] == "shapes"
        given.update(options["environment"](ClusterTask({"worker": ("a:1", "a:2")}, "worker", 0)))
        return 0

    monkeypatch.setattr(module, "run_local_cluster", run)
    assert launch.start() == 0
    assert "80,000 steps, made for cifar10, take hours: --dataset shapes fits them" in said[-1]
    assert json.loads(given["LABKIT_DATA_CHOICE"]) == {"asked_for": "auto", "note": said[-1]}
    monkeypatch.setenv("LABKIT_DATA_CHOICE", given["LABKIT_DATA_CHOICE"])
    assert place.launchers_choice() == ("auto", said[-1])
    monkeypatch.setenv("LABKIT_DATA_CHOICE", "[1]")
    with pytest.raises(InputError, match="LABKIT_DATA_CHOICE is"):
        place.launchers_choice()


@pytest.mark.parametrize(
    ("jobs", "num_gpus", "shares"),
    [
        ({"worker": 2}, None, {"worker:0": "0,1", "worker:1": "2,3"}),
        ({"worker": 2}, 1, {"worker:0": "0", "worker:1": "1"}),
        (
            {"chief": 1, "worker": 2, "ps": 1},
            None,
            {"chief:0": "", "worker:0": "0", "worker:1": "1", "ps:0": ""},
        ),
        ({"worker": 4}, 2, {"worker:0": "0,1", "worker:1": "2,3", "worker:2": "", "worker:3": ""}),
    ],
)
def test_each_task_that_trains_has_gpus_of_its_own(monkeypatch, jobs, num_gpus, shares):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    ports = iter(range(1, 20))
    addresses = {job: tuple(f"a:{next(ports)}" for _ in range(count)) for job, count in jobs.items()}
    for name, share in shares.items():
        job, index = name.split(":")
        task = ClusterTask(addresses, job, int(index))
        assert gpu_environment(task, num_gpus) == {"CUDA_VISIBLE_DEVICES": share}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_environment(task, None) == {}, "nothing to share out"


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "told"), [("0", None, True), ("0", 0, False), ("0,1", None, False)]
)
def test_too_few_gpus_to_share_are_said_to_be_left_out(gpus, num_gpus, told, shapes, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    values = {"dataset": "shapes", "job_dir": str(tmp_path / "run"), "num_gpus": num_gpus}
    lines = []
    plan_launch(Config.from_flat(values), workers=2, announce=lines.append)
    assert ("1 GPU for 2 tasks that train: all train on the CPU" in lines) == told


def test_a_run_belongs_to_one_launcher(shapes, tmp_path, monkeypatch):
    config = Config.from_flat({"dataset": "shapes", "job_dir": str(tmp_path / "run")})
    first, second = (plan_launch(config, workers=2, announce=lambda line: None) for _ in range(2))
    started = []

    def run_second(*args, **kwargs):
        started.append(args)
        if len(started) == 1:
            with pytest.raises(InputError, match="by another launcher"):
                second.start()
        return 0

    monkeypatch.setattr(module, "run_local_cluster", run_second)
    assert first.start() == 0
    assert len(started) == 1
    assert second.start() == 0


@pytest.mark.parametrize(
    ("values", "can", "people", "is_private", "says"),
    [
        ({}, True, ["bob"], True, ""),
        ({}, False, ["bob"], False, "(no user namespaces)"),
        ({}, False, [], False, ""),
        ({"bind": "0.0.0.0"}, True, ["bob"], False, "(the training may need this machine's network)"),
    ],
)
def test_a_cluster_has_a_network_of_its_own_or_says_who_reaches_it(
    values, can, people, is_private, says, shapes, tmp_path, monkeypatch
):
    class Network:
        def __enter__(self):
            if not can:
                raise InputError("no user namespaces")
            return self

        def __exit__(self, *given):
            pass

    seen, lines = [], []
    monkeypatch.setattr(module, "PrivateNetwork", Network)
    monkeypatch.setattr(module, "other_users", lambda: people)
    monkeypatch.setattr(module, "run_local_cluster", lambda *_, hosts, **__: seen.append(hosts) or 0)
    config = Config.from_flat({"dataset": "shapes", "job_dir": str(tmp_path / "run"), **values})
    plan_launch(config, workers=2, announce=lambda line: None).start(output=lines.append)
    assert [isinstance(one, Network) for one in seen] == [is_private]
    told = [line for line in lines if "bob can connect to the ports of this cluster" in line]
    assert len(told) == bool(says) and all(line.endswith(says) for line in told)


def test_each_task_has_a_log_and_a_full_disk_ends_nothing(tmp_path):
    printed: list[str] = []
    folder = tmp_path / "cluster"
    record = _recorded(printed.append, folder)
    lines = ["[worker:1] step 1 [of 2] ", "[cluster] worker:1 was killed", "[worker:0] \udc80"]
    for line in lines:
        record(line)
    assert printed == lines
    assert (folder / "worker-1.log").read_text().endswith("  step 1 [of 2] \n")
    assert "worker:1 was killed" in (folder / "launcher.log").read_text()
    assert "\\udc80" in (folder / "worker-0.log").read_text()
    (tmp_path / "file").touch()
    _recorded(printed.append, tmp_path / "file")("[worker:0] goes on")
    assert printed[-1] == "[worker:0] goes on"
