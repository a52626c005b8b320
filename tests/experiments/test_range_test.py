"""The learning-rate range test: what it suggests, when it suggests nothing, and that it leaves runs alone."""

import numpy as np
import pytest

import labkit
from labkit import figures
from labkit.config import Config
from labkit.experiments.range_test import HIGHEST, LOWEST, STEPS, RangeTest
from tests.commands.in_process import answer, refused, tree
from tests.training.small import FIELDS

RATES = np.geomspace(LOWEST, HIGHEST, STEPS)


def found(losses, **fields) -> RangeTest:
    return RangeTest(Config.from_flat(fields), RATES[: len(losses)], np.asarray(losses), "the end")


def falling(middle: float, noise: float = 0.0) -> np.ndarray:
    """Losses that fall fastest at a rate, and explode at the last ones."""
    losses = 2.6 - 0.4 / (1 + (middle / RATES) ** 1.3) + np.geomspace(1e-9, 9, STEPS)
    return losses + noise * np.random.default_rng(0).standard_normal(STEPS)


@pytest.mark.parametrize("middle", [1e-3, 0.02, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_rate_at_which_the_loss_falls_fastest_is_suggested(middle, noise):
    test = found(falling(middle, noise))
    assert test.suggestion is not None
    assert abs(np.log10(test.suggestion / middle)) < 0.5
    assert test.conclusion.startswith(
        f"suggested: --learning-rate {test.suggestion}; there the smoothed loss"
    )


@pytest.mark.parametrize("slope", [0.0, 0.5])
@pytest.mark.parametrize("steps", [5, 60])
def test_nothing_is_suggested_where_the_loss_never_falls(slope, steps):
    losses = 2.3 + np.linspace(0, slope, steps) + 0.05 * np.random.default_rng(1).standard_normal(steps)
    test = found(losses)
    assert (test.suggestion, test.flags) == (None, [])
    assert test.conclusion.startswith("no learning rate is suggested: the loss doesn't fall by more than")


def test_muons_rate_is_suggested_in_proportion():
    test = found(falling(0.02), optimizer="muon", learning_rate=0.1, muon_learning_rate=0.24)
    assert test.flags == ["--muon-learning-rate", f"{2.4 * test.suggestion:.2g}", *test.flags[2:]]
    assert found(falling(0.02)).flags[0] == "--learning-rate"


def test_it_is_drawn_and_shown_as_a_table():
    test = found(falling(0.02))
    assert figures.png(figures.range_test(test))[1:4] == b"PNG"
    assert len(test.rows()) == STEPS + 1
    assert "<caption><b>Learning-rate range test" in test._repr_html_()


@pytest.mark.long
def test_a_real_one_leaves_the_run_of_its_directory_as_it_is(trained, data_dir):
    before = tree(trained)
    fields = FIELDS | {"data_dir": data_dir, "job_dir": trained}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    code, out, err = answer("train", *flags, "--find-learning-rate")
    assert (code, err) == (0, "")
    assert "suggest" in out.splitlines()[-1] and tree(trained) == before


@pytest.mark.long
def test_in_python_it_is_the_same_and_can_be_repeated(data_dir, tmp_path):
    fields = FIELDS | {"data_dir": data_dir, "job_dir": tmp_path / "run"}
    first, second = (labkit.find_learning_rate(**fields) for _ in range(2))
    assert first.rates[0] == LOWEST and len(first.rates) == len(first.losses) > 50
    assert first.losses.tolist() == second.losses.tolist()
    assert not (tmp_path / "run").exists()


def test_what_it_refuses():
    told = refused("train", "--preset", "smoke", "--find-learning-rate", "--overwrite")
    assert "leave --overwrite out" in told
    error = refused("cluster", "local", "--workers", "2", "--", "train", "--find-learning-rate")
    assert error.startswith("--find-learning-rate trains no run; use it without labkit cluster local")
