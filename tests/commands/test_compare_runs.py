"""``labkit compare RUN RUN``: what is said of runs; and how a comparison measures its trainings."""

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from labkit.experiments.comparison.child import REPEATS, WARM_UP_BATCHES, images_per_second
from labkit.experiments.comparison.files import add_peak_memory, read_measurements
from labkit.experiments.trials import Trial, run_trial
from labkit.run_directory import RunDirectory
from tests.commands.in_process import answer, refused, tree
from tests.commands.made_runs import evaluation, make_run

MEGABYTE = 2**20


@pytest.fixture
def two_runs(folder):
    """Two finished runs in labkit's home that differ in their learning rate; they have no predictions."""
    for name, rate, accuracy in (("first", 0.1, 0.5), ("second", 0.2, 0.75)):
        rows = [evaluation("validation", 20, accuracy), evaluation("test", 20, accuracy)]
        make_run(folder, name, rows=rows, learning_rate=rate)
    return folder


def test_two_single_runs_are_compared_without_naming_a_better_recipe(two_runs):
    before = tree(two_runs)
    code, said, _ = answer("compare", "first", two_runs / "second")
    assert code == 0
    assert "B's test accuracy is 25.00 points higher. How sure that is, isn't known." in said
    assert "another seed may reverse the order" in said
    assert "is better" not in said
    header, *rows = said.splitlines()[:3]
    assert header.endswith("learning_rate")
    assert [row.split()[-1] for row in rows] == ["0.1", "0.2"]
    assert tree(two_runs) == before


def test_runs_that_differ_in_their_seed_alone_are_one_configuration(two_runs):
    make_run(two_runs, "third", rows=[evaluation("test", 20, 0.6)], learning_rate=0.1, seed=1)
    said = answer("compare", "first", "third").out
    assert "55.00 ± 7.07 % (2)" in said
    assert "differ in nothing but their seed" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("first", "1 run to compare; allowed: 2 to 26"),
        ("first runs/first", "first is named twice"),
        ("first secnd", "did you mean second?"),
        ("resnet20 vgg11", "to train models, write --models resnet20,vgg11"),
        ("first second --models resnet20", "--models belongs to trainings"),
        ("first second --lr 0.1", "--learning-rate belongs to trainings"),
        ("--models resnet8 --dataset shapes --seeds 0 1", "--seeds is how many, and '1' follows it"),
        ("", "nothing to compare; name runs, or models to train"),
    ],
)
def test_what_is_no_two_runs_is_refused(words, said, two_runs, monkeypatch):
    monkeypatch.chdir(two_runs.parent)
    assert said in refused("compare", *words.split())


def test_a_run_where_settings_are_wanted_is_no_data_set(two_runs):
    for command in ("train", "profile"):
        said = refused(command, "first")
        assert "'first', a run: labkit resume first continues it, labkit show first has its settings" in said
        assert "--dataset" not in said


@pytest.mark.parametrize("kind", ["wrong type", "cut"])
def test_a_configuration_that_cannot_be_read_is_not_called_other_data(two_runs, kind):
    config = json.loads((two_runs / "second" / "config.json").read_text())
    config["run"]["seed"] = []
    (two_runs / "second" / "config.json").write_text(json.dumps(config) if kind == "wrong type" else "{")
    code, said, _ = answer("compare", "first", "second")
    assert code == 0
    assert "Not every configuration can be read" in said
    assert "different data" not in said


class Once(list):
    """Signals that come when ``happened`` says so."""

    def __init__(self, happened: Callable[[], bool], *numbers: int) -> None:
        self._happened, self._numbers = happened, numbers

    def __len__(self) -> int:
        if not super().__len__() and self._happened():
            self.extend(self._numbers)
        return super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0


def test_a_second_request_kills(tmp_path):
    ready = tmp_path / "ready"
    deaf = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    signals = Once(ready.exists, signal.SIGINT, signal.SIGINT)
    assert run_trial(Trial([sys.executable, "-c", deaf]), signals).code == -signal.SIGKILL


@pytest.mark.long
def test_peak_memory_is_that_of_the_process_alone():
    def program(megabytes: int) -> list[str]:
        return [sys.executable, "-c", f"held = b'x' * ({megabytes} << 20)"]

    peaks = "from labkit.experiments.trials import Trial, run_trial\n" + "".join(
        f"print(run_trial(Trial({program(megabytes)}), []).peak_memory_bytes)\n" for megabytes in (300, 400)
    )
    done = subprocess.run([sys.executable, "-c", peaks], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert 300 * MEGABYTE < first < 360 * MEGABYTE
    assert 98 * MEGABYTE < second - first < 102 * MEGABYTE

    hidden = "held = b'x' * (500 << 20)\n" + peaks  # a parent's memory is never given as a child's
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "None"]


def test_the_largest_session_of_a_training_counts(tmp_path):
    run = RunDirectory(tmp_path / "resnet8-seed0")
    for session in (700, 900, None, 800):
        add_peak_memory(run, session)
    assert read_measurements(run) == {"peak_memory_bytes": 900}


def test_inference_is_timed_behind_the_compiling_batch_in_repeats_of_half_a_second():
    seconds = itertools.chain([9.0, 0.3], itertools.repeat(0.2))
    now, calls = 0.0, 0

    def predict() -> None:
        nonlocal now, calls
        now += next(seconds)
        calls += 1

    assert images_per_second(predict, 100, clock=lambda: now) == pytest.approx([500.0] * REPEATS)
    assert calls == WARM_UP_BATCHES + 3 * REPEATS
