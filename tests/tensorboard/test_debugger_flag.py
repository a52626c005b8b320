"""Where ``--debugger-dump`` can't work, it is refused."""

import pytest

from labkit.config import Config
from labkit.errors import InputError
from labkit.training.checks import check_together


def test_the_dump_is_refused_where_it_sees_nothing():
    with pytest.raises(InputError, match="--debugger-dump can't see into steps that --xla compiles"):
        Config.from_flat({"debugger_dump": True, "xla": True})
    config = Config.from_flat({"debugger_dump": True})
    for asynchronous in (False, True):
        with pytest.raises(InputError, match="--debugger-dump is for a single process"):
            check_together(config, num_workers=2, asynchronous=asynchronous)
