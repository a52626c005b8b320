"""Who is who in a cluster: TF_CONFIG, the flags of 2017, and what is refused."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.commands import main as cli
from labkit.commands import train
from labkit.config import Config
from labkit.distributed.task import (
    ClusterTask,
    bypass_proxy,
    find_task,
    make_tf_config,
    parse_tf_config,
    split_address,
    task_from_hosts,
)
from labkit.errors import InputError
from labkit.training.checks import check_cluster
from labkit.training.follow import FollowResult
from labkit.training.plan import plan_run
from tests.fuzzing import damaged_bytes, damaged_json, json_values, value_or_line

ASYNC = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}


def distribution(**values: object):
    return Config.from_flat(values).distribution


def tf_config(cluster: dict, job: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


@given(
    counts=st.fixed_dictionaries(
        {"chief": st.integers(0, 1), "worker": st.integers(1, 5), "ps": st.integers(0, 3)}
    ).filter(lambda counts: sum(counts.values()) > 1),
    data=st.data(),
)
def test_tf_config_says_what_it_was_made_from(counts, data):
    ports = iter(range(1, 100))
    jobs = {job: tuple(f"host:{next(ports)}" for _ in range(count)) for job, count in counts.items() if count}
    job = data.draw(st.sampled_from(sorted(jobs)))
    task = ClusterTask(jobs, job, data.draw(st.integers(0, len(jobs[job]) - 1)))
    assert parse_tf_config(make_tf_config(task)) == task


GOOD = {"cluster": ASYNC, "task": {"type": "worker", "index": 1}, "environment": "cloud"}


@settings(max_examples=400, deadline=None)
@given(
    text=st.one_of(
        damaged_json(GOOD).map(json.dumps),
        damaged_json(GOOD).map(json.dumps),
        damaged_bytes(json.dumps(GOOD).encode()).map(lambda data: data.decode(errors="replace")),
        json_values.map(json.dumps),
        st.text(max_size=30),
    ),
    sync=st.booleans(),
)
@example(text=json.dumps({"cluster": {"worker": ["a:1", "b:" + "9" * 5000]}}), sync=False)
@example(text=json.dumps({"cluster": {"worker": ["a\nb:1", "a\nb:1"]}}), sync=False)
@example(text=json.dumps({"cluster": ASYNC, "task": {"type": "a\nb"}}), sync=False)
@example(text=json.dumps({"task": {"type": "a\nb"}}), sync=False)
@example(text=json.dumps({"cluster": {"worker": {"a": "b" * 5000}}}), sync=False)
@example(text="[" * 100_000, sync=False)
def test_any_tf_config_is_a_task_or_refused_in_one_line(text, sync):
    task, line = value_or_line(lambda: parse_tf_config(text))
    assert task is None or parse_tf_config(make_tf_config(task)) == task
    assert len(line) < 1000, "it fits on a screen"
    found, _ = value_or_line(lambda: find_task(distribution(sync=sync), {"TF_CONFIG": text}))
    if found is not None:
        assert found.job_name == "evaluator" or found.address in found.addresses().values()
        bypass_proxy(found, {})


def test_one_process_is_no_cluster():
    assert find_task(distribution(), {}) is None
    assert find_task(distribution(), {"TF_CONFIG": " "}) is None
    assert find_task(distribution(), {"TF_CONFIG": "{}"}) is None
    for sync in (False, True):
        alone = distribution(sync=sync)
        assert find_task(alone, {"TF_CONFIG": '{"cluster": {"worker": ["w:1"]}}'}) is None
        assert find_task(alone, tf_config({"worker": ["w:1"]}, "worker", 0)) is None
        assert find_task(alone, tf_config({"master": ["m:1"]}, "master", 0)) is None


def test_in_step_the_chief_and_the_workers_train_and_the_servers_are_left_out():
    numbers = []
    for job, index in (("chief", 0), ("worker", 0), ("worker", 1)):
        task = find_task(distribution(sync=True), tf_config(ASYNC, job, index))
        assert task is not None
        assert (task.num_workers, task.count("ps")) == (3, 0)
        numbers.append((task.worker_number, task.is_chief))
    assert numbers == [(0, True), (1, False), (2, False)]


def test_the_flags_of_2017_name_a_cluster_and_come_before_the_environment():
    task = task_from_hosts(distribution(worker_hosts="a:1, b:1", job_name="worker", task_index=1, sync=True))
    assert task == ClusterTask({"worker": ("a:1", "b:1")}, "worker", 1)
    given_by_flags = distribution(worker_hosts="a:1,b:1", job_name="worker", task_index=0)
    task = find_task(given_by_flags, tf_config({"worker": ["x:1", "y:1"]}, "worker", 1))
    assert task is not None and task.address == "a:1"
    # With servers the first worker coordinates.
    found = []
    for job, index in (("worker", 0), ("worker", 1), ("worker", 2), ("ps", 0)):
        hosts = distribution(worker_hosts="a:1,b:1,c:1", ps_hosts="d:1", job_name=job, task_index=index)
        task = task_from_hosts(hosts)
        assert task is not None
        found.append(f"{task.name} {task.address}")
    assert found == ["chief:0 a:1", "worker:0 b:1", "worker:1 c:1", "ps:0 d:1"]
    task = find_task(
        distribution(), tf_config({"master": ["m:1"], "worker": ["w:1"], "ps": ["p:1"]}, "master", 0)
    )
    assert task is not None, "of TensorFlow 1"
    assert (task.name, task.is_chief, task.asynchronous_by_default) == ("chief:0", True, True)


AB = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": %s}'


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "TF_CONFIG is '{'"),
        ("[1]", "TF_CONFIG is '[1]'"),
        ('{"cluster": {"worker": ["a:1", "b"]}}', "'b' is not the address"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}}', "a:1 twice"),
        ('{"cluster": {"worker": "a:1"}}', "allowed: a list of host:port"),
        ('{"cluster": {"workers": ["a:1", "b:1"]}}', "job 'workers'"),
        (AB % '{"type": "worker", "index": 2}', "0 to 1"),
        (AB % '{"type": "ps"}', "allowed: worker:0 to 1"),
        *((AB % task, "allowed: a JSON object") for task in ('{"type": []}', '{"index": Infinity}')),
        (AB % '{"index": 0.5}', "allowed: a JSON object"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}}', "not which of them this is"),
        ('{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps"}}', "no chief"),
        ('{"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps"}}', "no worker"),
        ('{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief"}}', "2 chiefs"),
        ('{"task": {"type": "worker", "index": 3}}', "names the task worker:3, but no cluster; add"),
        (
            '{"cluster": {"worker": ["w:1"]}, "task": {"type": "worker", "index": -1}}',
            "this task is worker:-1",
        ),
        (
            '{"cluster": {"worker": ["w:1"]}, "task": {"type": "chief"}}',
            "but the cluster has none of job 'chief'",
        ),
        ('{"cluster": {"chief": ["c:1"]}, "task": {"type": "worker"}}', "this task is worker:0"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_in_one_line(text, part):
    for sync in [False] if '"ps":' in text else [False, True]:  # in step, servers have nothing to do
        task, line = value_or_line(lambda: find_task(distribution(sync=sync), {"TF_CONFIG": text}))  # noqa: B023
        assert task is None and part in line


@pytest.mark.parametrize("text", ["{}", '{"cluster": {}}', '{"cluster": null, "environment": "cloud"}'])
def test_in_step_with_a_tf_config_without_a_cluster_is_refused(text):
    _, line = value_or_line(lambda: find_task(distribution(sync=True), {"TF_CONFIG": text}))
    assert line.startswith(f"--sync is given, but TF_CONFIG is {text!r}, without a cluster; add")


PS_OF_2017 = {"ps_hosts": "p:1", "job_name": "ps", "task_index": 0}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"worker_hosts": "a:1,b:1"}, "--job-name is missing"),
        ({"job_name": "worker", "task_index": 0}, "--worker-hosts is missing"),
        ({"worker_hosts": "a:1", **PS_OF_2017}, "at least 2"),
        ({"worker_hosts": "a:1,b:1", "job_name": "worker", "task_index": 5}, "0 to 1"),
        ({"worker_hosts": "a:1,b:1", "sync": True, **PS_OF_2017}, "training has no parameter servers"),
    ],
)
def test_flags_that_describe_no_cluster_are_refused(values, part):
    with pytest.raises(InputError, match=part):
        task_from_hosts(distribution(**values))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "--sync"], "names the task worker:1, but no cluster"),
        (
            ["cluster", "slurm", "--nodes", "2", "--", "train", "--list-presets"],
            "--list-presets trains no run",
        ),
    ],
    ids=["an incomplete TF_CONFIG", "presets behind dashes"],
)
def test_the_command_line_trains_nothing_with_what_is_refused(command, said, monkeypatch, capsys):
    monkeypatch.setattr(train, "train_as", lambda *given, **settings: pytest.fail("it trains"))
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "worker", "index": 1}}')
    assert cli.main(command) == 2
    assert said in capsys.readouterr().err


def test_addresses_may_be_written_as_tensorflows_examples_write_them():
    cluster = {"worker": ["grpc://a:1", "GRPC://b:1"]}
    task = find_task(distribution(sync=True), tf_config(cluster, "worker", 1))
    assert task == ClusterTask({"worker": ("a:1", "b:1")}, "worker", 1)
    hosts = {"worker_hosts": "grpc://a:1, grpc://b:1,c:1", "ps_hosts": "grpc://d:1"}
    task = task_from_hosts(distribution(**hosts, job_name="worker", task_index=1))
    assert task == ClusterTask({"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)}, "worker", 0)


@pytest.mark.parametrize("bind", ["grpc://10.0.0.1:2222", "http://a", "10.0.0.1:2222", "a:1", "[::1]:22"])
def test_bind_takes_an_address_without_scheme_and_port(bind):
    with pytest.raises(InputError, match="allowed: a host's address or name, without a scheme and a port"):
        distribution(bind=bind)
    for allowed in ("::1", "fe80::1%eth0", "0.0.0.0", "node-1"):
        assert distribution(bind=allowed).bind == allowed


@pytest.mark.parametrize("sync", [False, True])
def test_an_evaluator_is_no_part_of_the_cluster_that_trains(sync):
    cluster = ASYNC | {"evaluator": ["e:1"]}
    for job in ("chief", "worker", "ps"):
        task = find_task(distribution(sync=sync), tf_config(cluster, job, 0))
        assert task is not None
        if job != "ps" or not sync:
            assert "e:1" not in task.addresses().values()
    for named in (cluster, ASYNC, {"worker": ["w:1"]}, {}):
        task = find_task(distribution(sync=sync), tf_config(named, "evaluator", 0))
        assert task is not None and task.name == "evaluator:0"


@pytest.mark.parametrize(
    "address", ["host", "host:", ":1", "host:0", "host:65536", "host:x", "http://host:1"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="not the address"):
        split_address(address)
    assert split_address("[::1]:22") == ("::1", 22)


TWO = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
SERVED = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}


def test_overwriting_in_a_cluster_is_refused():
    task = ClusterTask({"worker": ("127.0.0.1:1", "127.0.0.1:2")}, "worker", 0)
    with pytest.raises(InputError, match="at every restart"):
        plan_run(Config(), task=task, overwrite=True)


@pytest.mark.parametrize(
    ("values", "cluster", "part"),
    [
        ({"sync": True, "train_batch_size": 15}, TWO, "multiples of 2"),
        ({"sync": True}, {"worker": ["node1:1", "node2:1"]}, "--bind is 127.0.0.1"),
        ({"num_gpus": 2}, SERVED, "one worker for each GPU"),
        ({"sync_batch_norm": True}, SERVED, "--sync-batch-norm is not available in asynchronous training"),
        ({"ema_decay": 0.9}, SERVED, "--ema-decay 0.9 is not available in asynchronous training"),
    ],
)
def test_trainings_that_a_cluster_cannot_do_are_refused(values, cluster, part):
    config = Config.from_flat(values)
    task = find_task(config.distribution, tf_config(cluster, next(iter(cluster)), 0))
    assert task is not None
    with pytest.raises(InputError, match=part):
        check_cluster(config, task)


def test_a_parameter_server_of_a_synchronous_cluster_ends_well(monkeypatch, capsys):
    for name, value in tf_config(ASYNC, "ps", 0).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "--sync"]) == 0
    assert "synchronous training needs no parameter servers; ps:0" in capsys.readouterr().out


def test_sync_without_a_cluster_is_said(monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(train, "train_as", lambda *given, **settings: 0)
    assert cli.main(["train"]) == 0
    assert not capsys.readouterr().out
    assert cli.main(["train", "--sync"]) == 0
    assert capsys.readouterr().out.startswith("note: --sync without a cluster")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (FollowResult("finished", "", 3), 0),
        (FollowResult("failed", "", 3), 1),
        (FollowResult("stopped", "", 3, signal_number=10), 138),
        (FollowResult("lost", "", 3), 75),
        (InputError("no run"), 75),
    ],
    ids=str,
)
def test_an_evaluator_follows_the_run_of_the_same_flags(result, code, monkeypatch, capsys, tmp_path):
    followed = []

    def follow(run, **settings):
        followed.append(run)
        if isinstance(result, InputError):
            raise result
        return result

    monkeypatch.setattr("labkit.training.follow.follow", follow)
    run = SimpleNamespace(path=tmp_path / "run", exists=lambda: False)
    planned = SimpleNamespace(run=run, config=Config())
    monkeypatch.setattr("labkit.training.plan.plan_run", lambda config, **settings: planned)
    for name, value in tf_config({"worker": ["w:1", "w:2"]}, "evaluator", 0).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "--sync"]) == code
    assert followed == [str(tmp_path / "run")]


def test_the_tasks_are_reached_without_a_proxy():
    task = ClusterTask({"worker": ("a:1", "a:2"), "ps": ("[::1]:3",)}, "worker", 0)
    environment = {"https_proxy": "http://p:9", "no_proxy": "intranet"}
    bypass_proxy(task, environment)
    assert environment["no_grpc_proxy"] == "intranet,a,::1"
    assert environment["https_proxy"] == "http://p:9"
