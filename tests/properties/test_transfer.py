"""Transfer with real processes: what is frozen stays, a stop in the middle of thawing changes nothing."""

import json
import shutil

import numpy as np
import pytest

from labkit.data.prepare import prepare
from tests.properties.harness import assert_bit_equal, checkpoint_values, losses, train

STEPS, THAW, SAVED = 20, 8, 10  # stage2 thaws at 8, stage1 at 16, the stem never
FIELDS = {
    "train_steps": STEPS,
    "freeze": "stem,stage1,stage2",
    "unfreeze_every_steps": THAW,
    "head_learning_rate_factor": 4.0,
    "checkpoint_every_steps": 2,
    "keep_checkpoints": STEPS,
    "validate_every_steps": 0,
    # Shows what is rounding and what is not, in the comparison of one and two replicas.
    "precision": "float64",
    "sync_batch_norm": True,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("transfer")


@pytest.fixture(scope="module")
def few(folder):
    """The folder of a part of `shapes`: other classes, few images."""
    prepare("shapes", folder / "few", classes=["star", "ring", "bars"], train_examples=60, validation_size=30)
    return folder / "few"


@pytest.fixture(scope="module")
def tuned(folder, few):
    """A run that was fine-tuned without a stop, and whose source is gone."""
    source = folder / "source"
    train(source, train_steps=10, evaluate_test=False)
    train(folder / "tuned", data_dir=few, start_from=source, evaluate_test=False, **FIELDS)
    kept = checkpoint_values(source, 10)
    shutil.rmtree(source)
    return folder / "tuned", kept


def own(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what of a checkpoint is the model's: weights and moving averages."""
    return {name: value for name, value in values.items() if name.startswith("model/")}


def test_the_first_state_is_the_source_but_for_the_head(tuned):
    run, source = tuned
    first = own(checkpoint_values(run, 0))
    assert first.keys() == own(source).keys()
    differing = [name for name, value in first.items() if not np.array_equal(value, source[name])]
    assert len(differing) == 2 and {first[name].shape[-1] for name in differing} == {3}
    report = json.loads((run / "transfer.json").read_text())
    assert len(report["loaded"]) == len(first) - 2 and report["step"] == 10
    assert report["replaced"] == ["logits/kernel", "logits/bias"]


def test_each_stage_changes_from_its_step_on_and_the_stem_never(tuned):
    run, _ = tuned
    before, changed = checkpoint_values(run, 0), {}
    for step in range(2, STEPS, 2):  # the last step but goes back to lookahead's slow copies
        now = checkpoint_values(run, step)
        changed[step] = {name for name in now if now[name].tobytes() != before[name].tobytes()}
        before = now
    counts = [sum(name.startswith("model/") for name in changed[step]) for step in range(2, STEPS, 2)]
    # Two convolutions and two normalizations of four a stage, and two of the head.
    assert counts == [12] * 4 + [22] * 4 + [32]
    # The stem: a convolution and a normalization, of all 37.
    assert len(own(before)) - len({n for names in changed.values() for n in names if n in own(before)}) == 5


def test_going_on_in_the_middle_of_thawing_equals_no_interruption(tuned, few, folder):
    run, _ = tuned
    stopped = folder / "stopped"
    shutil.copytree(run, stopped)
    # As if it had been killed right behind this checkpoint; the source is gone as well.
    for step in range(SAVED + 2, STEPS + 1, 2):
        shutil.rmtree(stopped / "checkpoints" / f"step-{step:08d}")
    (stopped / "status.json").unlink()
    train(stopped, data_dir=few, start_from=folder / "source", evaluate_test=False, **FIELDS)
    assert_bit_equal(checkpoint_values(run, STEPS), checkpoint_values(stopped, STEPS))
    assert losses(run) == losses(stopped)


@pytest.mark.thorough
def test_two_replicas_equal_one_with_frozen_layers(tuned, few, folder):
    run, _ = tuned
    two = folder / "two"
    shutil.copytree(run, two)
    for step in range(2, STEPS + 1, 2):
        shutil.rmtree(two / "checkpoints" / f"step-{step:08d}")
    (two / "status.json").unlink()
    replicas = {"num_gpus": 2, "simulate_missing_gpus": True, "variable_strategy": "GPU"}
    train(two, data_dir=few, start_from=folder / "source", evaluate_test=False, **FIELDS | replicas)
    apart = np.abs(np.subtract(losses(run), losses(two)))
    assert 0 < apart.max() < 1e-9
    first, last = checkpoint_values(run, 0), checkpoint_values(two, STEPS)
    held = [name for name in own(first) if first[name].tobytes() == last[name].tobytes()]
    assert len(held) == 5
