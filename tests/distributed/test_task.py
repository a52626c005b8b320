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


def test_a_master_of_tensorflow_1_is_the_chief():
    cluster = {"master": ["m:1"], "worker": ["w:1"], "ps": ["p:1"]}
    task = find_task(distribution(), tf_config(cluster, "master", 0))
    assert task is not None
    assert (task.name, task.is_chief, task.asynchronous_by_default) == ("chief:0", True, True)


def test_one_process_is_no_cluster():
    assert find_task(distribution(), {}) is None
    assert find_task(distribution(), {"TF_CONFIG": " "}) is None
    assert find_task(distribution(), {"TF_CONFIG": "{}"}) is None
    for sync in (False, True):
        alone = distribution(sync=sync)
        assert find_task(alone, {"TF_CONFIG": '{"cluster": {"worker": ["w:1"]}}'}) is None
        assert find_task(alone, tf_config({"worker": ["w:1"]}, "worker", 0)) is None
        assert find_task(alone, tf_config({"master": ["m:1"]}, "master", 0)) is None


@pytest.mark.parametrize("text", ["{}", '{"cluster": {}}', '{"cluster": null, "environment": "cloud"}'])
def test_in_step_with_a_tf_config_without_a_cluster_is_refused(text):
    with pytest.raises(InputError) as caught:
        find_task(distribution(sync=True), {"TF_CONFIG": text})
    said = str(caught.value)
    assert said.startswith(f"--sync is given, but TF_CONFIG is {text!r}, without a cluster; add")
    assert "\n" not in said


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("cluster", "job", "index", "part"),
    [
        ({}, "worker", 0, "names the task worker:0, but no cluster; add"),
        ({}, "worker", 3, "names the task worker:3, but no cluster; add"),
        ({"worker": ["w:1"]}, "worker", 1, "this task is worker:1, but the cluster has 1 of job 'worker'"),
        ({"worker": ["w:1"]}, "worker", -1, "this task is worker:-1"),
        ({"worker": ["w:1"]}, "chief", 0, "this task is chief:0, but the cluster has none of job 'chief'"),
        ({"chief": ["c:1"]}, "worker", 0, "this task is worker:0"),
    ],
)
def test_a_task_that_is_not_in_the_cluster_is_refused(cluster, job, index, part, sync):
    with pytest.raises(InputError) as caught:
        find_task(distribution(sync=sync), tf_config(cluster, job, index))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_line_trains_nothing_with_an_incomplete_tf_config(monkeypatch, capsys):
    monkeypatch.setattr(train, "train_as", lambda *given: pytest.fail("it trains"))
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "worker", "index": 1}}')
    assert cli.main(["train", "--sync"]) == 2
    assert "names the task worker:1, but no cluster" in capsys.readouterr().err


def test_in_step_the_chief_and_the_workers_train_and_the_servers_are_left_out():
    numbers = []
    for job, index in (("chief", 0), ("worker", 0), ("worker", 1)):
        task = find_task(distribution(sync=True), tf_config(ASYNC, job, index))
        assert task is not None
        assert (task.num_workers, task.count("ps")) == (3, 0)
        numbers.append((task.worker_number, task.is_chief))
    assert numbers == [(0, True), (1, False), (2, False)]


def test_the_flags_of_2017_name_a_synchronous_cluster():
    task = task_from_hosts(distribution(worker_hosts="a:1, b:1", job_name="worker", task_index=1, sync=True))
    assert task == ClusterTask({"worker": ("a:1", "b:1")}, "worker", 1)


@pytest.mark.parametrize(
    ("job", "index", "name", "address"),
    [
        ("worker", 0, "chief:0", "a:1"),
        ("worker", 1, "worker:0", "b:1"),
        ("worker", 2, "worker:1", "c:1"),
        ("ps", 0, "ps:0", "d:1"),
    ],
)
def test_with_servers_the_first_worker_of_2017_coordinates(job, index, name, address):
    values = {"worker_hosts": "a:1,b:1,c:1", "ps_hosts": "d:1", "job_name": job, "task_index": index}
    task = task_from_hosts(distribution(**values))
    assert task is not None
    assert (task.name, task.address) == (name, address)


def test_flags_come_before_the_environment():
    given_by_flags = distribution(worker_hosts="a:1,b:1", job_name="worker", task_index=0)
    task = find_task(given_by_flags, tf_config({"worker": ["x:1", "y:1"]}, "worker", 1))
    assert task is not None
    assert task.address == "a:1"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "TF_CONFIG is '{'"),
        ("[1]", "TF_CONFIG is '[1]'"),
        ('{"cluster": {"worker": ["a:1", "b"]}}', "'b' is not the address"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}}', "a:1 twice"),
        ('{"cluster": {"worker": "a:1"}}', "allowed: a list of host:port"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}', "0 to 1"),
        ('{"cluster": {"workers": ["a:1", "b:1"]}}', "job 'workers'"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "ps"}}', "allowed: worker:0 to 1"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": []}}', "allowed: a JSON object"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": Infinity}}', "allowed: a JSON object"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 0.5}}', "allowed: a JSON object"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}}', "not which of them this is"),
        ('{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps"}}', "no chief"),
        ('{"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps"}}', "no worker"),
        ('{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief"}}', "2 chiefs"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(text, part):
    with pytest.raises(InputError, match="(?s).*") as caught:
        find_task(distribution(), {"TF_CONFIG": text})
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"worker_hosts": "a:1,b:1"}, "--job-name is missing"),
        ({"job_name": "worker", "task_index": 0}, "--worker-hosts is missing"),
        ({"worker_hosts": "a:1", "ps_hosts": "p:1", "job_name": "ps", "task_index": 0}, "at least 2"),
        ({"worker_hosts": "a:1,b:1", "job_name": "worker", "task_index": 5}, "0 to 1"),
        (
            {"worker_hosts": "a:1,b:1", "ps_hosts": "p:1", "job_name": "ps", "task_index": 0, "sync": True},
            "synchronous training has no parameter servers",
        ),
    ],
)
def test_flags_that_describe_no_cluster_are_refused(values, part):
    with pytest.raises(InputError) as caught:
        task_from_hosts(distribution(**values))
    assert part in str(caught.value)


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


def test_an_address_of_ipv6_loses_its_brackets():
    assert split_address("[::1]:22") == ("::1", 22)


@pytest.mark.parametrize(
    ("values", "cluster", "part"),
    [
        (
            {"sync": True, "train_batch_size": 15},
            {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
            "multiples of 2",
        ),
        ({"sync": True}, {"worker": ["node1:1", "node2:1"]}, "--bind is 127.0.0.1"),
        (
            {"num_gpus": 2},
            {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]},
            "one worker for each GPU",
        ),
        (
            {"sync_batch_norm": True},
            {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]},
            "--sync-batch-norm is not available in asynchronous training",
        ),
        *(
            (
                values,
                {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]},
                f"{flag} is not available in asynchronous training",
            )
            for flag, values in (
                ("--ema-decay 0.9", {"ema_decay": 0.9}),
                ("--dropout-rate 0.5", {"dropout_rate": 0.5}),
            )
        ),
    ],
)
def test_trainings_that_a_cluster_cannot_do_are_refused(values, cluster, part):
    config = Config.from_flat(values)
    job = "chief" if "chief" in cluster else "worker"
    task = find_task(config.distribution, tf_config(cluster, job, 0))
    assert task is not None
    with pytest.raises(InputError) as caught:
        check_cluster(config, task)
    assert part in str(caught.value)


def test_overwriting_in_a_cluster_is_refused():
    task = ClusterTask({"worker": ("127.0.0.1:1", "127.0.0.1:2")}, "worker", 0)
    with pytest.raises(InputError, match="at every restart"):
        plan_run(Config(), task=task, overwrite=True)


def test_a_parameter_server_of_a_synchronous_cluster_ends_well(monkeypatch, capsys):
    for name, value in tf_config(ASYNC, "ps", 0).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "--sync"]) == 0
    assert "synchronous training needs no parameter servers; ps:0" in capsys.readouterr().out


def test_sync_without_a_cluster_is_said(monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(train, "train_as", lambda *given: 0)
    assert cli.main(["train"]) == 0
    assert not capsys.readouterr().out
    assert cli.main(["train", "--sync"]) == 0
    assert capsys.readouterr().out.startswith("note: --sync without a cluster")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (FollowResult("finished", "", 3), 0),
        (FollowResult("failed", "", 3), 1),
        (FollowResult("interrupted", "", 3), 143),
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


def test_list_presets_behind_dashes_is_refused(capsys):
    assert cli.main(["cluster", "slurm", "--nodes", "2", "--", "train", "--list-presets"]) == 2
    assert "--list-presets trains nothing" in capsys.readouterr().err


def test_the_tasks_are_reached_without_a_proxy():
    task = ClusterTask({"worker": ("a:1", "a:2"), "ps": ("[::1]:3",)}, "worker", 0)
    environment = {"https_proxy": "http://p:9", "no_proxy": "intranet"}
    bypass_proxy(task, environment)
    assert environment["no_grpc_proxy"] == "intranet,a,::1"
    assert environment["https_proxy"] == "http://p:9"
