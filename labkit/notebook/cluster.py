"""The cluster of the notebook: its parameters ``strategy``, ``num_workers`` and ``num_ps``.

The notebook starts the same processes as ``labkit cluster local``, follows the run directory and shows the
results. Its own process doesn't train.
"""

from collections.abc import Mapping
from typing import Any

from labkit.cluster.local import LocalCluster, own_host
from labkit.config import Config
from labkit.errors import InputError, unknown_name_error
from labkit.training.checks import check_cluster

STRATEGIES = ("local", "multi_worker", "parameter_server")
CLUSTER_DEFAULTS: Mapping[str, Any] = {"strategy": "local", "num_workers": 2, "num_ps": 1}
COUNTS = ("num_workers", "num_ps")


class ClusterFailed(RuntimeError):
    """A cluster didn't finish the training. The message is one line that gives the reason."""


def chosen_cluster(values: Mapping[str, Any], chosen: Mapping[str, Any]) -> LocalCluster | None:
    """Return the cluster that the parameters ask for; None to train in the notebook's own process.

    Args:
        values: all parameters by name; missing ones are taken from ``CLUSTER_DEFAULTS``.
        chosen: the parameters that the user set, by name. Each of them must have an effect.

    Raises InputError for an unknown strategy (with the nearest known one), for an invalid number of
    processes, and for a parameter that the strategy doesn't use.
    """
    given = {name: values.get(name, default) for name, default in CLUSTER_DEFAULTS.items()}
    strategy = given["strategy"]
    if not isinstance(strategy, str):
        raise InputError(f"strategy is {strategy!r}; allowed: {', '.join(STRATEGIES)}")
    if strategy not in STRATEGIES:
        raise unknown_name_error("strategy", strategy, STRATEGIES)
    for name in COUNTS:
        number = given[name]
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"{name} is {number!r}; allowed: a whole number of at least 1")
    _check_effect(strategy, chosen)
    if strategy == "local":
        return None
    return LocalCluster(given["num_workers"], given["num_ps"] if strategy == "parameter_server" else 0)


def _check_effect(strategy: str, chosen: Mapping[str, Any]) -> None:
    """Raise InputError for a chosen parameter that has no effect with ``strategy``, or contradicts it."""
    useless = {"local": COUNTS, "multi_worker": ("num_ps",)}.get(strategy, ())
    for name in (name for name in useless if name in chosen):
        what = "is one process" if strategy == "local" else "has no parameter servers"
        raise InputError(
            f"{name} is {chosen[name]!r} with strategy {strategy!r}, which {what}; leave it out, or choose "
            "another strategy"
        )
    synchronous = strategy == "multi_worker"
    # Config refuses values that aren't bool.
    if strategy != "local" and chosen.get("sync") is (not synchronous):
        kind = "synchronous" if synchronous else "asynchronous"
        other = "parameter_server" if synchronous else "multi_worker"
        raise InputError(
            f"sync is {chosen['sync']!r} with strategy {strategy!r}, which is {kind}; leave it out, "
            f"or choose strategy {other!r}"
        )


def check_training(config: Config, cluster: LocalCluster | None) -> None:
    """Raise InputError if the notebook, or its ``cluster``, can't train ``config``. Starts nothing."""
    values = config.flat()
    if info := config.task_field():
        raise InputError(
            f"{info.flag} is {values[info.name]!r}, but a notebook is no task of a cluster; leave it out; "
            "strategy 'multi_worker' or 'parameter_server' starts a cluster on this machine"
        )
    if cluster is not None:
        tasks = cluster.tasks(own_host(config.distribution.bind))
        check_cluster(config, tasks[cluster.chief])
