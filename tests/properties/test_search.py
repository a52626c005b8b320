"""A trial that pauses at a rung and goes on is the trial that never paused; so is a search that is killed."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.experiments.search.result import SearchResult
from labkit.run_directory import RunDirectory
from labkit.startup.child import UNTIL_STEP
from tests.properties.harness import (
    SMALL,
    assert_bit_equal,
    assert_same_run,
    checkpoint_values,
    labkit,
    losses,
    metrics,
    train_arguments,
)
from tests.tiny import tiny_home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SHORT = {"train_steps": 12, "validate_every_steps": 4, "keep_checkpoints": 9}


home = pytest.fixture(scope="module", autouse=True)(tiny_home)


def test_a_training_that_pauses_and_goes_on_is_the_one_that_never_paused(tmp_path, monkeypatch):
    straight, paused = tmp_path / "straight", tmp_path / "paused"
    assert labkit(*train_arguments(straight, **SHORT)) == 0
    monkeypatch.setenv(UNTIL_STEP, "4")
    assert labkit(*train_arguments(paused, **SHORT)) == 143
    status = RunDirectory(paused).read_status()
    assert (status.state, status.step, status.total_steps) == ("interrupted", 4, 12)
    assert status.message == "paused by a search at step 4; the same command continues"
    monkeypatch.setenv(UNTIL_STEP, "12")
    assert labkit(*train_arguments(paused, **SHORT)) == 0
    assert RunDirectory(paused).read_status().state == "finished"
    assert_same_run(straight, paused, 12)
    validations = [
        [row["accuracy"] for row in metrics(run).split("validation")] for run in (straight, paused)
    ]
    assert validations[0] == validations[1] and len(validations[0]) == 3


def search(folder: Path, *, limit: float | None = None) -> bool:
    """Run a search of real trainings; kill it after ``limit`` seconds. Returns whether it ended by itself."""
    flags = SMALL | {"train_steps": 36, "train_batch_size": 8, "validate_every_steps": None}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()
             if name not in ("deterministic", "learning_rate") and value is not None]  # fmt: skip
    words += ["--space", "learning_rate=log:0.001:0.1", "--trials", "4", "--eta", "2", "--repeats", "0"]
    command = [sys.executable, "-m", "labkit", "search", "--halving", "successive", "--deterministic"]
    with folder.with_suffix(".txt").open("ab") as output:
        process = subprocess.Popen([*command, *words, "--output", str(folder)], stdout=output, stderr=output)
        try:
            assert process.wait(limit or 600) == 0, folder.with_suffix(".txt").read_text()[-3000:]
        except subprocess.TimeoutExpired:
            assert limit is not None
            return False
        finally:
            process.kill()
            process.wait()
    return True


@pytest.mark.long
def test_a_search_killed_at_random_moments_has_the_same_promotions_and_weights(tmp_path):
    straight, killed, chance, kills = tmp_path / "straight", tmp_path / "killed", random.Random(0), 0
    assert search(straight)
    while kills < 20 and not search(killed, limit=chance.uniform(1, 11)):
        kills += 1
    assert search(killed) and kills >= 10
    first, second = SearchResult(straight), SearchResult(killed)
    for one, other in zip(first.trials, second.trials, strict=True):
        for name in ("number", "values", "state", "why", "step"):
            assert one[name] == other[name]
        results = [[(rung["step"], rung["value"]) for rung in trial["results"]] for trial in (one, other)]
        assert results[0] == results[1]
        (run,), last = one["runs"], one["results"][-1]["step"]
        assert losses(straight / run) == losses(killed / run)
        assert len(losses(killed / run)) == last
        assert_bit_equal(checkpoint_values(straight / run, last), checkpoint_values(killed / run, last))
    # A trial that was promoted twice is the training that never paused.
    config = first.best_config.replace({"job_dir": str(tmp_path / "alone"), "evaluate_test": False})
    from labkit.cluster.flags import train_arguments as command_of

    assert labkit(*command_of(config)) == 0
    assert_same_run(tmp_path / "alone", first.best, 36)
