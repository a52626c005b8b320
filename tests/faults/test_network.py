"""The network between hosts fails in many ways: it is noticed and named, and no step is lost."""

import os
import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.disturbances import (
    Network,
    disk_at,
    frozen,
    make_read_only,
    mount_again,
    other_clock,
)
from tests.faults.launched import HURTS, Cluster, Line, until
from tests.faults.outcome import IN_STEP, Case, assert_same_run, assert_whole, stepping

pytestmark = HURTS

PATIENCE = 5.0  # seconds without a step after which the tasks look for the reason
WATCHED = IN_STEP | {"hosts": True, "progress_timeout_seconds": PATIENCE, "checkpoint_every_steps": 10}
NO_PROGRESS = r"lost peer: .*no progress for "


def noticed(cluster: Cluster, since: float) -> Line:
    return until(lambda: cluster.said(NO_PROGRESS, since), cluster.text)


def case(who: str, how: str, what: str, line: Line, began: float, mode: str = "sync") -> Case:
    by = line.text.split("]")[0].strip("[")
    return Case(mode, who, how, "between steps", what, by, line.time - began)


def whole(cluster: Cluster, undisturbed: Cluster) -> None:
    assert cluster.end() == 0, cluster.text()
    assert_whole(cluster)
    assert_same_run(undisturbed, cluster)


@pytest.fixture
def launch_hosts(launch) -> Callable[..., tuple[Cluster, Network]]:
    """Start a cluster of hosts that are watched; return it with its network, behind some steps."""

    def start(**options: object) -> tuple[Cluster, Network]:
        cluster = launch(**WATCHED | options)
        network = Network(cluster)
        stepping(cluster)
        return cluster, network

    return start


def test_a_link_that_is_cut_for_five_seconds_costs_these_and_nothing_else(launch_hosts, table, undisturbed):
    cluster, network = launch_hosts(progress_timeout_seconds=60.0)
    network.cut("worker-1")
    time.sleep(5.0)
    network.join("worker-1")
    whole(cluster, undisturbed)
    assert cluster.restarts() == 0, cluster.text()
    table.append(Case("sync", "worker:1", "link cut for 5 s", "between steps", "the step goes on"))


@pytest.mark.parametrize(
    ("how", "seconds"),
    [("both ways", 10.0), ("both ways", 60.0), pytest.param("to one host", 10.0, marks=pytest.mark.core)],
)
def test_a_lasting_cut_is_noticed_and_named_and_the_run_goes_on_when_the_link_is_back(
    launch_hosts, table, undisturbed, how, seconds
):
    cluster, network = launch_hosts(rendezvous_seconds=120.0)
    began = time.monotonic()
    (network.cut if how == "both ways" else network.hear_nothing)("worker-1")
    line = noticed(cluster, began)
    assert "can't reach worker:" in line.text, cluster.text()
    time.sleep(seconds)  # the tasks start again meanwhile, and wait for each other
    (network.join if how == "both ways" else network.hear_again)("worker-1")
    whole(cluster, undisturbed)
    assert 1 <= cluster.restarts() <= 3, cluster.text()
    what = "all are restarted, and wait for the link"
    table.append(case("worker:1", f"link cut {how}, {seconds:.0f} s after that", what, line, began))


@pytest.mark.parametrize("who", ["worker:0", "worker:1"])
def test_a_host_that_is_gone_with_its_processes_and_comes_back(launch_hosts, table, undisturbed, who):
    cluster, network = launch_hosts()
    network.cut(who.replace(":", "-"))  # first: a host that loses its power says goodbye to nobody
    began = cluster.send(who, signal.SIGKILL)
    line = until(lambda: cluster.said(rf"lost peer: .*{who}", began), cluster.text)
    time.sleep(10.0)
    network.join(who.replace(":", "-"))
    whole(cluster, undisturbed)
    assert cluster.restarts() == 1, cluster.text()
    table.append(case(who, "host gone", "all are restarted, and wait for the host", line, began))


def test_a_shared_folder_that_stalls_holds_the_run_up_and_loses_nothing(tmp_path, launch, table, undisturbed):
    with disk_at(tmp_path / "disk") as disk:
        cluster = launch(disk / "run", **WATCHED)
        stepping(cluster)
        with frozen(disk):
            time.sleep(15.0)  # three times the peer timeout
        whole(cluster, undisturbed)
    what = f"{cluster.restarts()} restarts; it waits for the folder"
    table.append(Case("sync", "all", "shared folder stalled for 15 s", "between steps", what))


def test_a_shared_folder_that_becomes_read_only_ends_the_run_and_the_same_command_goes_on(
    tmp_path, launch, table, undisturbed
):
    with disk_at(tmp_path / "disk") as disk:
        failed = launch(disk / "run", **IN_STEP, hosts=True)
        stepping(failed)
        began = time.monotonic()
        make_read_only(disk)
        assert failed.end() == 1, failed.text()
        line = failed.said("Read-only file system", began)
        assert line and failed.restarts() == 0, failed.text()
        mount_again(disk)
        whole(launch(disk / "run", **IN_STEP, hosts=True), undisturbed)
    what = "the run fails; the same command goes on"
    table.append(case("all", "shared folder read-only", what, line, began))


@pytest.mark.parametrize("hours", [1, -1])
def test_clocks_an_hour_apart_change_nothing(tmp_path, launch, monkeypatch, table, undisturbed, hours):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other_clock(tmp_path, hours)), os.getcwd()]))
    cluster = launch(**IN_STEP)
    whole(cluster, undisturbed)
    assert cluster.restarts() == 0, cluster.text()
    assert cluster.said("a clock of its own"), cluster.text()
    table.append(Case("sync", "worker:1", f"clock {hours:+} h", "from the start", "nothing"))


def test_two_of_three_hosts_that_cannot_reach_each_other_are_named(launch_hosts, table):
    cluster, network = launch_hosts(workers=3, train_batch_size=15, eval_batch_size=99)
    began = time.monotonic()
    network.part("worker-1", "worker-2")
    line = noticed(cluster, began)
    until(lambda: cluster.said(r"\[cluster\].*; restart ", began), cluster.text)
    lines = [each.text for each in cluster.lines if "can't reach" in each.text]
    network.part("worker-1", "worker-2", apart=False)
    assert cluster.end() == 0, cluster.text()
    assert_whole(cluster)
    assert not [text for text in lines if "can't reach worker:0" in text], cluster.text()
    assert [
        text
        for text in lines
        if re.search("worker:1 can't reach worker:2|worker:2 can't reach worker:1", text)
    ]
    how = "unreachable from worker:2 alone"
    table.append(case("worker:1", how, "all are restarted", line, began))


@pytest.mark.parametrize("who", ["worker:1", "ps:0"])
def test_an_asynchronous_cluster_starts_again_when_a_host_cannot_be_reached(launch_hosts, table, who):
    cluster, network = launch_hosts(ps=1, sync=False)
    began = time.monotonic()
    network.cut(who.replace(":", "-"))
    line = noticed(cluster, began)
    assert f"chief:0 can't reach {who} (" in line.text, cluster.text()
    time.sleep(10.0)
    network.join(who.replace(":", "-"))
    assert cluster.end() == 0, cluster.text()
    assert_whole(cluster)
    assert 1 <= cluster.restarts() <= 3, cluster.text()
    what = "all are restarted, and wait for the link"
    table.append(case(who, "link cut both ways", what, line, began, mode="async"))


def test_a_slow_link_makes_slow_steps_and_nothing_else(launch_hosts, table, undisturbed):
    cluster, network = launch_hosts(progress_timeout_seconds=60.0)
    network.slow_down("worker-1", "1mbit")
    until(lambda: cluster.step() >= 30, cluster.text)
    network.hear_again("worker-1")
    whole(cluster, undisturbed)
    assert cluster.restarts() == 0, cluster.text()
    table.append(Case("sync", "worker:1", "link at 1 Mbit/s", "between steps", "steps take longer"))
