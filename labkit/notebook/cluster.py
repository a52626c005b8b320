"""Which cluster the notebook starts: its parameters ``strategy``, ``num_workers`` and ``num_ps``.

The processes are those of ``labkit cluster local``. The notebook's own process never is one of them: it
starts them, follows the run directory and shows what comes out.
"""

from collections.abc import Mapping
from typing import Any

from labkit.cluster.flags import CLUSTER_FLAGS
from labkit.cluster.local import LocalCluster, own_host
from labkit.config import Config, fields_by_name
from labkit.config.fields import unknown_name_error
from labkit.errors import InputError
from labkit.training.checks import check_cluster

__all__ = ["CLUSTER_DEFAULTS", "STRATEGIES", "ClusterFailed", "check_training", "chosen_cluster"]

STRATEGIES = ("local", "multi_worker", "parameter_server")
CLUSTER_DEFAULTS: Mapping[str, Any] = {"strategy": "local", "num_workers": 2, "num_ps": 1}
COUNTS = ("num_workers", "num_ps")


class ClusterFailed(RuntimeError):
    """The processes of a cluster could not train to the end. The message is one line, and says why."""


def chosen_cluster(values: Mapping[str, Any], chosen: Mapping[str, Any]) -> LocalCluster | None:
    """Return the cluster that the parameters ask for; None for training in the notebook's process.

    Args:
        values: all parameters by name; what is missing of ``CLUSTER_DEFAULTS`` is taken from there.
        chosen: those of them that somebody decided on, which must not be without effect.

    Raises InputError for an unknown strategy, with the nearest known one, for numbers of processes that
    can't be, and for a choice that the strategy has no use for.
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
    _check_use(strategy, chosen)
    if strategy == "local":
        return None
    return LocalCluster(given["num_workers"], given["num_ps"] if strategy == "parameter_server" else 0)


def _check_use(strategy: str, chosen: Mapping[str, Any]) -> None:
    if strategy == "local":
        for name in COUNTS:
            if name in chosen:
                raise InputError(
                    f"{name} is {chosen[name]!r} with strategy 'local', which is one process; leave it out, "
                    "or give strategy 'multi_worker' or 'parameter_server' with it"
                )
        return
    if strategy == "multi_worker" and "num_ps" in chosen:
        raise InputError(
            f"num_ps is {chosen['num_ps']!r} with strategy 'multi_worker', which has no parameter servers; "
            "leave it out, or give strategy 'parameter_server'"
        )
    synchronous = strategy == "multi_worker"
    if chosen.get("sync") is (not synchronous):  # another kind of value is refused by the configuration
        kind = "synchronous" if synchronous else "asynchronous"
        other = "parameter_server" if synchronous else "multi_worker"
        raise InputError(
            f"sync is {chosen['sync']!r} with strategy {strategy!r}, which is {kind}; leave it out, or give "
            f"strategy {other!r}"
        )


def check_training(config: Config, cluster: LocalCluster | None) -> None:
    """Raise InputError where the notebook, or its ``cluster``, can't train ``config``; starts nothing."""
    values = config.flat()
    for name in CLUSTER_FLAGS:
        if values[name] is not None:
            raise InputError(
                f"{fields_by_name()[name].flag} is {values[name]!r}, but a notebook is no task of a cluster; "
                "leave it out: strategy 'multi_worker' or 'parameter_server' starts one on this machine"
            )
    if cluster is not None:
        tasks = cluster.tasks(own_host(config.distribution.bind))
        check_cluster(config, tasks[cluster.chief])
