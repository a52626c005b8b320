"""Columns of a table that are made without pandas."""

import math
import subprocess
import sys

import pyarrow as pa
import pytest

from app.run_table.arrow import FLAG, NUMBER, TEXT, TIME, column


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], TEXT),
        ([None], NUMBER),
        (["a", None, "", "€ 日本"], TEXT),
        ([1.5, None, -math.inf, 3], NUMBER),
        ([True, None, False] * 5, FLAG),
        ([0, None, 1_700_000_000_000_000], TIME),
        ([["x"], None, [], ["y", "", None]], pa.list_(TEXT)),
        ([None, []], pa.list_(NUMBER)),
        ([[1.0, None], [], [2.0]], pa.list_(NUMBER)),
    ],
)
def test_a_column_is_what_pyarrow_makes(values, kind):
    made = column(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


def test_nan_is_a_number():
    assert column([math.nan, None], NUMBER).is_null().to_pylist() == [False, True]


def test_the_table_of_runs_needs_no_pandas():
    """Pandas takes a quarter of a second to import, while somebody waits for the first page."""
    code = (
        "import sys, app.views.runs\n"
        "from app.run_table.columns import DEFAULT, table\n"
        "assert table([], DEFAULT).num_rows == 0\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
