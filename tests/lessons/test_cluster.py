"""What lesson 05 computes and draws, on rows of made runs."""

import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from course.lessons import cluster
from labkit.cluster.hosts import Hosts, why_no_hosts
from labkit.run import Run
from labkit.run_directory.metrics import MetricsWriter
from tests.commands.made_runs import make_run


def row(step: int, **values: float) -> dict:
    return {"split": "train", "step": step, "loss": 2.0 + step / 100, "wall_time": float(step), **values}


@pytest.fixture
def slow(tmp_path) -> Run:
    """Worker 1 writes every fourth update, and takes four times as long."""
    rows = [
        row(step, worker=float(step % 4 == 0), worker_seconds=4.0 if step % 4 == 0 else 1.0,
            staleness=3.0 if step % 4 == 0 else 0.0)
        for step in range(1, 21)
    ]  # fmt: skip
    return Run(make_run(tmp_path, "slow", rows=rows).path)


def interrupted(folder, at: int, resumed: int) -> Run:
    directory = make_run(folder, f"killed-{at}", rows=[row(step) for step in range(1, at + 1)])
    writer = MetricsWriter(directory.metrics_path)
    writer.mark_resume_point(resumed)
    writer.append([row(step, wall_time=float(step + 20)) for step in range(resumed + 1, 21)])
    writer.close()
    return Run(directory.path)


@pytest.fixture
def killed(tmp_path) -> Run:
    return interrupted(tmp_path, 7, 5)


def test_the_rows_of_lost_steps_are_there_and_count_once(killed, tmp_path):
    assert [one["step"] for one in cluster.every_row(killed)] == [*range(1, 8), *range(6, 21)]
    assert [one[0]["step"] for one in cluster.sessions(killed)] == [1, 6]
    assert list(killed.metrics()["step"]) == list(range(1, 21))
    axis = cluster.price_of_a_loss(killed).axes[0]
    lost = next(line for line in axis.lines if line.get_label() == "lost, made again")
    assert list(lost.get_ydata()) == [6, 7]
    assert "differ by 0 nats" in repr(cluster.loss_comparison(killed, killed))
    axis = cluster.price_of_a_loss(interrupted(tmp_path, 5, 5)).axes[0]  # it lost no step
    assert [line.get_label() for line in axis.lines] == ["before the loss", "after the restart"]
    assert len(axis.patches) == 1


def test_the_rows_of_workers_before_and_after_a_restart_are_apart(killed):
    folder = killed.path / "cluster"
    folder.mkdir()
    rows = [{"worker": "worker:0", "wall_time": time} for time in (3.0, 7.5, 26.5, 30.0)]
    (folder / "worker-0.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = cluster.worker_sessions(killed)
    times = {name: [row["wall_time"] for row in part] for name, part in found.items()}
    assert times == {"worker:0, before the loss": [3.0, 7.5], "worker:0, after the restart": [26.5, 30.0]}


def test_the_speeds_follow_from_the_steps_of_each_worker(slow):
    seconds = cluster.step_seconds(slow)
    assert list(seconds) == [1.0, 4.0]
    assert cluster.rates(seconds, 8) == (2 * 8 / 4.0, 8 + 2.0)
    assert cluster.rates(np.array([0.5, 0.5]), 8) == (32.0, 32.0)


def test_the_traffic_marks_the_updates_between_read_and_write(slow):
    assert cluster.stalest_update(slow) % 4 == 0
    figure = cluster.traffic_figure(slow, 12)
    assert "worker 1, with a staleness of 3" in repr(figure)
    colours = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert len(colours) == 10
    assert sorted(map(colours.count, set(colours))) == [1, 3, 6]
    axis = cluster.staleness_figure(slow).axes[0]
    assert sum(patch.get_height() for patch in axis.patches) == 20, "every update is counted"


def test_a_slow_network_leaves_no_time_to_compute():
    axis = cluster.bandwidth_figure({"net": (1e6, 0.1)}, [1e6, 80e6, 1e12]).axes[0]
    assert np.allclose(axis.lines[0].get_ydata(), [0.1 / 8.1, 0.5, 1.0], atol=1e-3)
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1 Mbit/s", "80 Mbit/s", "1000 Gbit/s"]


def test_the_seconds_over_links_are_those_of_the_sessions_without_their_first_steps(tmp_path):
    def rows(steps, seconds):
        return [row(step, seconds_per_step=9.0 if step in steps[:2] else seconds) for step in steps]

    directory = make_run(tmp_path, "linked", rows=rows(range(1, 8), 0.05))
    writer = MetricsWriter(directory.metrics_path)
    writer.mark_resume_point(5)
    writer.append(rows(range(6, 21), 0.3))
    writer.close()
    (directory.path / "cluster").mkdir()
    times = ({"wall_time": time, "own_seconds_per_step": 0.04, "bytes_sent_per_step": 3e5} for time in (1, 8))
    lines = (json.dumps({"worker": "worker:0"} | values) for values in times)
    (directory.path / "cluster" / "worker-0.jsonl").write_text("\n".join([*lines, ""]))
    found = cluster.seconds_over_links(Run(directory.path), ["1gbit", "10mbit"])
    assert found == {"1gbit": pytest.approx((0.05, 0.0424)), "10mbit": pytest.approx((0.3, 0.28))}
    axis = cluster.pairs_figure(found, ["measured", "expected"], title="Links", ylabel="seconds").axes[0]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1gbit", "10mbit"]
    assert [patch.get_height() for patch in axis.patches] == pytest.approx([0.05, 0.3, 0.0424, 0.28])


@pytest.mark.skipif(bool(why_no_hosts()), reason="this machine can't make network namespaces")
def test_the_links_of_a_running_cluster_get_another_rate():
    with Hosts(["worker:0", "worker:1"], "1gbit") as hosts:
        training = SimpleNamespace(
            output=["", f"[cluster] {hosts.describe()}"], workers=["worker:0", "worker:1"]
        )
        cluster.set_links(training, "10mbit")
        for port in ("worker-0", "worker-1"):
            show = [*hosts.entering(""), "tc", "qdisc", "show", "dev", port]
            assert "rate 10Mbit" in subprocess.run(show, capture_output=True, text=True, timeout=30).stdout
