"""Options that only some clusters have: every way to start a training refuses them alike."""

from types import SimpleNamespace

import pytest

from labkit.cluster.flags import check_replicas
from labkit.cluster.launch import plan_launch
from labkit.cluster.local import LocalCluster
from labkit.cluster.slurm import BatchOptions, render_batch_script
from labkit.config import Config
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.notebook.cluster import check_training
from labkit.training.checks import check_cluster
from labkit.training.plan import plan_run
from labkit.training.session import _agreement

ALONE = "^{flag} is .*, but .*; leave it out, or train with .*: labkit cluster local --workers 2"


def as_task(workers: int, ps: int):
    cluster = LocalCluster(workers, ps)
    return cluster.tasks("127.0.0.1")[cluster.chief]


WAYS = {
    "task": lambda config, workers, ps: check_cluster(config, as_task(workers, ps)),
    "launcher": lambda config, workers, ps: plan_launch(config, workers=workers, ps=ps),
    "notebook": lambda config, workers, ps: check_training(config, LocalCluster(workers, ps)),
    "slurm": lambda config, workers, ps: render_batch_script(
        config, BatchOptions(nodes=workers + ps + (ps > 0), ps=ps)
    ),
    "kubernetes": lambda config, workers, ps: check_replicas(config, workers + ps + (ps > 0), 0, ps),
}


@pytest.mark.parametrize("way", WAYS)
def test_staleness_has_a_limit_only_with_parameter_servers(way):
    config = Config.from_flat({"max_staleness": 3, "sync": way in ("slurm", "kubernetes")})
    with pytest.raises(InputError, match=ALONE.format(flag="--max-staleness")):
        WAYS[way](config, 2, 0)


@pytest.mark.parametrize("ps", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_a_slow_worker_must_be_one_of_the_cluster(way, ps):
    # With a launcher, ``sync`` follows from the number of servers.
    values = {"job_dir": "/shared/run", "sync": ps == 0 and way != "launcher"}
    there_is_none = "^--slow-worker is '3:2', but there is no worker:3; allowed: worker:0 to worker:2$"
    with pytest.raises(InputError, match=there_is_none):
        WAYS[way](Config.from_flat(values | {"slow_worker": "3:2"}), 3, ps)
    check_cluster(Config.from_flat({"slow_worker": "3:2", "sync": ps == 0}), as_task(4, ps))  # the last one
    jobs = {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",)}
    with pytest.raises(InputError, match="there is no worker:1; allowed: worker:0$"):
        check_cluster(Config.from_flat({"slow_worker": "1:2", "sync": True}), ClusterTask(jobs, "chief", 0))


@pytest.mark.parametrize("way", WAYS)
def test_no_worker_of_a_deterministic_cluster_is_slow(way):
    values = {"job_dir": "/shared/run", "sync": way != "launcher", "deterministic": True}
    WAYS[way](Config.from_flat(values), 2, 0)
    with pytest.raises(InputError, match="^--slow-worker is '1:2' with --deterministic, .*; leave one of"):
        WAYS[way](Config.from_flat(values | {"slow_worker": "1:2"}), 2, 0)


@pytest.mark.parametrize("fields", [{"max_staleness": 0}, {"slow_worker": "0:2"}])
def test_one_process_has_no_such_option(fields):
    [name] = fields
    with pytest.raises(InputError, match=ALONE.format(flag="--" + name.replace("_", "-"))):
        plan_run(Config.from_flat(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"learning_rate": 0.5},
        {"eval_batch_size": 7},
        {"checkpoint_every_steps": 3},
        {"evaluate_test": False},
        {"inspect_every_steps": 2},
        {"test_time_augmentation": "mirror"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_workers_that_would_take_part_in_other_collectives_do_not_agree(fields):
    def agreement(values: dict, code: bytes = b"") -> str:
        plan = SimpleNamespace(
            config=Config.from_flat(values),
            devices=SimpleNamespace(num_local_replicas=1),
            manifest=SimpleNamespace(checksum="0123456789"),
            files={"/somewhere/nets.py": code},
        )
        return _agreement(plan)

    assert agreement({}) == agreement({"log_every_steps": 7}) != agreement(fields)
    assert agreement({}) != agreement({}, b"other code")
