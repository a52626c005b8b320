"""Reading ``layers.jsonl``."""

import math

import pytest
from hypothesis import example, given, settings

from labkit.run_directory.layers import LayerReader, layer_rows_that_count
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.rows import ResumePoint
from tests.fuzzing import as_file, damaged_json


def line(step, wall_time=None, layers=("conv", "relu"), **values):
    row = {
        "step": step,
        "wall_time": 1000.0 + step if wall_time is None else wall_time,
        "layers": list(layers),
        "activation_mean": [0.1, 0.2],
        "activation_std": [1.0, 2],
        "zero_fraction": [0.0, 0.5],
        "gradient_norm": [0.3, None],
        "update_ratio": [0.001, None],
    }
    return {**row, **values}


@pytest.fixture
def written(tmp_path):
    """Return a function that appends lines, and the reader of the file."""
    path = tmp_path / "layers.jsonl"

    def write(*rows):
        writer = MetricsWriter(path)
        writer.append(list(rows))
        writer.close()

    return write, LayerReader(path)


def test_only_new_lines_are_returned_with_null_and_nan_kept_apart(written):
    write, reader = written
    assert reader.poll() == []
    write(line(50), line(100, gradient_norm=[math.nan, None], update_ratio=[math.inf, None]))
    first, second = reader.poll()
    assert (first.step, first.wall_time, first.layers) == (50, 1050.0, ("conv", "relu"))
    assert first.values["gradient_norm"] == (0.3, None)
    assert math.isnan(second.values["gradient_norm"][0])
    assert second.values["update_ratio"] == (math.inf, None)
    write(line(150))
    assert [row.step for row in reader.poll()] == [150]
    assert reader.damaged_lines == 0


@settings(max_examples=30, deadline=None)
@given(damaged=damaged_json(line(7)))
@example(damaged=line(7, layers=("conv", "conv")))
@example(damaged=line(7, layers=("conv", 3)))
@example(damaged=line(7, gradient_norm=[0.3]))
@example(damaged=line(7, zero_fraction=[True, False]))
@example(damaged=line(7, zero_fraction=[10**400, 1]))
def test_a_damaged_line_is_counted_and_left_out_and_a_torn_one_waited_for(tmp_path_factory, damaged):
    path = tmp_path_factory.mktemp("run") / "layers.jsonl"
    torn, reader = as_file(line(100)) + b"\n", LayerReader(path)
    path.write_bytes(as_file(line(50)) + b"\n" + as_file(damaged).replace(b"\n", b" ") + b"\n" + torn[:40])
    first, *more = reader.poll()
    assert first.step == 50 and len(more) + reader.damaged_lines == 1
    for row in more:
        assert len(set(row.layers)) == len(row.layers) > 0 and row.step == int(row.step)
        assert {len(values) for values in row.values.values()} == {len(row.layers)}
    with open(path, "ab") as file:
        file.write(torn[40:])
    assert [row.step for row in reader.poll()] == [100]
    generation = reader.generation
    path.unlink()
    path.write_bytes(as_file(line(7)) + b"\n")
    assert [row.step for row in reader.poll()] == [7]
    assert reader.generation > generation and reader.damaged_lines == 0


def test_lines_of_steps_that_were_made_again_count_once(written):
    write, reader = written
    write(line(50), line(100), line(150), line(100, 2000.0), line(120, 2001.0))
    rows = reader.poll()
    counted = layer_rows_that_count(rows, [ResumePoint(60, 1500.0)])
    assert [(row.step, row.wall_time) for row in counted] == [(50, 1050.0), (100, 2000.0), (120, 2001.0)]
    assert [row.step for row in layer_rows_that_count(rows, [])] == [50, 100, 120, 150]
