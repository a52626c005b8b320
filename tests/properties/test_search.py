"""A trial that pauses at a rung and goes on is the trial that never paused; so is a search that is killed."""

import random
import subprocess
import sys
import time
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


@pytest.mark.long
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


def rows_in(folder: Path) -> int:
    """Return the bytes of all metrics of a search's runs."""
    return sum(path.stat().st_size for path in folder.glob("*/metrics.jsonl"))


def search(folder: Path, *, kill: str = "", pause: float = 0.0) -> bool:
    """Run a search of real trainings. Returns whether it ended by itself.

    It is killed ``pause`` seconds after its ``start``, or after a training's next ``row``.
    """
    flags = SMALL | {"train_steps": 36, "train_batch_size": 8, "validate_every_steps": None}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()
             if name not in ("deterministic", "learning_rate") and value is not None]  # fmt: skip
    words += ["--space", "learning_rate=log:0.001:0.1", "--trials", "4", "--eta", "2", "--repeats", "0"]
    command = [sys.executable, "-m", "labkit", "search", "--halving", "successive", "--deterministic"]
    with folder.with_suffix(".txt").open("ab") as output:
        process = subprocess.Popen([*command, *words, "--output", str(folder)], stdout=output, stderr=output)
        before = rows_in(folder)
        try:
            while kill == "row" and rows_in(folder) == before and process.poll() is None:
                time.sleep(0.005)
            code = process.wait(pause if kill else 600)
            assert code == 0, folder.with_suffix(".txt").read_text()[-3000:]
        except subprocess.TimeoutExpired:
            assert kill, "it didn't end"
            return False
        finally:
            process.kill()
            process.wait()
    return True


@pytest.mark.long
def test_a_search_killed_at_random_moments_has_the_same_promotions_and_weights(tmp_path):
    straight, killed, chance, kills = tmp_path / "straight", tmp_path / "killed", random.Random(0), 0
    assert search(straight)
    for number in range(10):  # each second one within the start, so that they don't get far
        kill, longest = ("start", 8) if number % 2 else ("row", 1)
        if search(killed, kill=kill, pause=chance.uniform(0, longest)):
            break
        kills += 1
    assert search(killed) and kills >= 5
    first, second = SearchResult(straight), SearchResult(killed)
    for one, other in zip(first.trials, second.trials, strict=True):
        for name in ("number", "values", "state", "why", "rung"):
            assert getattr(one, name) == getattr(other, name)
        results = [[(rung.step, rung.value) for rung in trial.results] for trial in (one, other)]
        assert results[0] == results[1]
        (run,), last = one.runs, one.results[-1].step
        assert losses(straight / run) == losses(killed / run)
        assert len(losses(killed / run)) == last
        assert_bit_equal(checkpoint_values(straight / run, last), checkpoint_values(killed / run, last))
    # A trial that was promoted twice is the training that never paused.
    config = first.best_config.replace({"job_dir": str(tmp_path / "alone"), "evaluate_test": False})
    from labkit.cluster.flags import train_arguments as command_of

    assert labkit(*command_of(config)) == 0
    assert_same_run(tmp_path / "alone", first.best, 36)
