"""Which test result a run stands for. Standard library only."""

from collections.abc import Iterable, Mapping
from typing import Any

from labkit.run_directory.digest import MetricsDigest, number
from labkit.run_directory.directory import RunDirectory
from labkit.run_directory.metrics import selection_metric

__all__ = ["own_test", "own_test_step", "own_test_step_of"]

Row = Mapping[str, Any]


def own_test_step(rows: Iterable[Row]) -> int | None:
    """Return the step of the checkpoint whose test result is the run's own; None: the newest one's.

    That is the one that the training reported. A training that reported none would have chosen the
    checkpoint that is best on validation, or the newest if it validated nothing. Whoever chooses another one
    by its test result makes that result too good, so it never counts as the run's.

    Args:
        rows: of ``metrics.jsonl`` that count, in the order written.
    """
    steps: dict[str, list[Row]] = {"test": [], "validation": []}
    for row in rows:
        if row.get("split") in steps and number(row.get("step")) is not None:
            steps[row["split"]].append(row)
    if steps["test"]:
        return int(steps["test"][-1]["step"])
    if steps["validation"]:  # the first of equally good ones, as in the training loop
        return int(max(steps["validation"], key=selection_metric)["step"])
    return None


def own_test(rows: Iterable[Row], beside: Iterable[Row]) -> Row | None:
    """Return the run's own test result; None if it has none.

    Args:
        rows: of ``metrics.jsonl`` that count, in the order written.
        beside: of ``evaluations.jsonl`` that count. One of them is taken only if the training reported none.
    """
    rows = list(rows)
    reported = [row for row in rows if row.get("split") == "test"]
    if reported:
        return reported[-1]
    step = own_test_step(rows)
    tests = [row for row in beside if row.get("split") == "test"]
    if step is not None:
        return next((row for row in tests if row.get("step") == step), None)
    return max(tests, key=lambda row: number(row.get("step")) or 0, default=None)


def own_test_step_of(run: RunDirectory) -> int | None:
    """Return ``own_test_step`` of a run, from its files."""
    digest = MetricsDigest(run.metrics_path)
    digest.poll()
    return own_test_step(digest.evaluations)
