"""Shares of a batch, and the choice of the input path."""

import pytest

from labkit.data import inputs
from labkit.data.inputs import InputShare, choose_input_path
from labkit.errors import InputError


@pytest.mark.parametrize("share", [(0, 0, 1), (2, 2, 1), (2, -1, 1), (2, 0, 0), (2, 1, 2)])
def test_invalid_shares_are_refused(share):
    with pytest.raises(InputError):
        InputShare(*share)


@pytest.mark.parametrize("batch", [0, -4, 6, 1])
def test_a_batch_that_replicas_do_not_divide_is_refused(batch):
    with pytest.raises(InputError, match=f"batch size {batch} .*multiple of 4"):
        InputShare(4, 0, 4).replica_batch_size(batch)


def test_auto_chooses_memory_only_if_the_images_fit_easily(prepared, monkeypatch):
    needed = prepared.count("train") * 3072
    monkeypatch.setattr(inputs, "_available_memory", lambda: 4 * needed)
    assert choose_input_path(prepared) == "memory"
    monkeypatch.setattr(inputs, "_available_memory", lambda: 4 * needed - 4)
    assert choose_input_path(prepared) == "streaming"
    assert choose_input_path(prepared, "memory") == "memory"


def test_the_containers_limit_counts(prepared, monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("100000\n")
    monkeypatch.setattr(inputs, "_CGROUP_LIMITS", (str(tmp_path / "memory.max"),))
    assert choose_input_path(prepared) == "streaming"
    (tmp_path / "memory.max").write_text("max\n")
    assert choose_input_path(prepared) == "memory"


def test_an_unknown_path_is_refused(prepared):
    with pytest.raises(InputError, match="auto, memory, streaming"):
        choose_input_path(prepared, "disk")
