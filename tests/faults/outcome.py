"""What the runs of this folder train, what has to hold at their end, and the table of docs/reliability.md."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.config import Config
from labkit.optim.schedules import learning_rate_at
from tests.faults.launched import SMALL, Cluster, until
from tests.properties import harness

STEPS = 100
TRAIN = {"num_intra_threads": 1, "train_steps": STEPS}  # one thread: sums are made in one order
IN_STEP = TRAIN | {"sync": True}


def stepping(cluster: Cluster) -> None:
    """Wait until some steps behind a checkpoint are done."""
    until(lambda: cluster.step() >= 15, cluster.text)


def assert_whole(cluster: Cluster, steps: int = STEPS) -> None:
    """Every step once among the rows that count, the last checkpoint of the last step, nothing half done."""
    rows = cluster.metrics().split("train")
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    # Each batch has its own learning rate, in whatever order asynchronous workers report.
    config = Config.from_flat(SMALL | {"train_steps": steps}).optimizer
    expected = [
        learning_rate_at(step, config, total_steps=steps, steps_per_epoch=625) for step in range(steps)
    ]
    assert sorted((row["learning_rate"] for row in rows), reverse=True) == pytest.approx(expected, rel=1e-6)
    status = cluster.run.read_status()
    assert status is not None and (status.state, status.step) == ("finished", steps)
    assert cluster.checkpoints()[-1] == steps
    assert not list(cluster.run.checkpoints_path.glob(".*"))
    state = cluster.run.checkpoints_path / f"step-{steps:08d}" / "state.json"
    assert json.loads(state.read_text())["step"] == steps
    values = harness.checkpoint_values(cluster.run.path, steps)
    counted = [value for name, value in values.items() if name.startswith("step/")]
    assert counted == [steps]  # the updates count themselves, where the weights are


def assert_same_run(first: Cluster, second: Cluster) -> None:
    """Same losses, same weights, bit by bit."""
    last = first.checkpoints()[-1]
    assert second.checkpoints()[-1] == last
    harness.assert_same_run(first.run.path, second.run.path, last)


HEAD = ("mode", "who", "how", "when", "what happened", "noticed by", "noticed after", "trains again after")


@dataclass(frozen=True)
class Case:
    """One case of the matrix. Times in seconds since the signal; None where there is nothing to time."""

    mode: str
    who: str
    how: str
    when: str
    what: str
    noticed_by: str = ""
    noticed: float | None = None
    again: float | None = None

    def row(self) -> tuple[str, ...]:
        times = ["–" if value is None else f"{value:.1f} s" for value in (self.noticed, self.again)]
        return (self.mode, self.who, self.how, self.when, self.what, self.noticed_by or "–", *times)


def write_table(path: Path, cases: list[Case]) -> None:
    """Write the cases as a Markdown table, in the order in which they ran."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(case.row() for case in cases)]
    path.write_text("".join(f"| {' | '.join(row)} |\n" for row in rows))
