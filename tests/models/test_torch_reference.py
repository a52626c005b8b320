"""The files in ``reference/`` are what PyTorch computes here."""

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "reference"
NAMES = np.load(FOLDER / "logits.npz").files

pytestmark = pytest.mark.peer("torch")


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_in_the_file_are_those_of_pytorch(name):
    from tests.models import make_reference

    kept, found = np.load(FOLDER / "logits.npz")[name], make_reference.logits(name)
    assert list(make_reference.NETWORKS) == NAMES
    assert np.abs(found - kept).max() < 1e-5 * np.abs(found).max()


def test_the_logits_of_taken_weights_are_those_of_pytorch():
    pytest.importorskip("torchvision")
    from tests.models import make_reference

    kept, found = np.load(FOLDER / "taken.npz"), make_reference.taken()
    assert set(kept) == set(found)
    for name, values in found.items():
        assert np.abs(values - kept[name]).max() < 1e-5 * np.abs(values).max(), name


def test_the_training_in_the_file_is_that_of_pytorch():
    from tests.models import make_reference

    kept, found = np.load(FOLDER / "training.npz"), make_reference.training()
    assert set(kept) == set(found)
    for name, values in found.items():
        assert np.abs(values - kept[name]).max() < 1e-3 * np.abs(values).max(), name
