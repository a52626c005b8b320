"""Reading ``layers.jsonl``."""

import json
import math

import pytest

from labkit.run_directory.layers import LayerReader, layer_rows_that_count
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.rows import ResumePoint


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


@pytest.mark.parametrize(
    "damaged",
    [
        {"step": 7},
        {**line(7), "step": 7.5},
        line(7, layers=("conv", "conv")),
        line(7, layers=("conv", 3)),
        line(7, layers=()),
        line(7, gradient_norm=[0.3]),
        line(7, gradient_norm=["0.3", None]),
        line(7, zero_fraction=[True, False]),
        line(7, zero_fraction={"conv": 0.1}),
        line(7, zero_fraction=[10**400, 1]),
    ],
)
def test_damaged_lines_are_counted_and_left_out(written, damaged):
    write, reader = written
    write(line(50), damaged, line(100))
    assert [row.step for row in reader.poll()] == [50, 100]
    assert reader.damaged_lines == 1


def test_a_torn_line_waits_until_it_is_complete(written):
    write, reader = written
    write(line(50))
    path = reader.path
    text = json.dumps(line(100)) + "\n"
    with open(path, "a") as file:
        file.write("nonsense\n" + text[:40])
    assert [row.step for row in reader.poll()] == [50]
    assert reader.damaged_lines == 1
    with open(path, "a") as file:
        file.write(text[40:])
    assert [row.step for row in reader.poll()] == [100]
    assert reader.damaged_lines == 1


def test_a_missing_quantity_is_null_for_every_layer(written):
    write, reader = written
    row = line(50)
    del row["update_ratio"]
    write(row)
    assert reader.poll()[0].values["update_ratio"] == (None, None)


def test_a_replaced_file_is_read_again(written):
    write, reader = written
    write(line(50), {"step": None})
    reader.poll()
    generation = reader.generation
    reader.path.unlink()
    write(line(7))
    assert [row.step for row in reader.poll()] == [7]
    assert reader.generation > generation
    assert reader.damaged_lines == 0


def test_lines_of_steps_that_were_made_again_count_once(written):
    write, reader = written
    write(line(50), line(100), line(150), line(100, 2000.0), line(120, 2001.0))
    rows = reader.poll()
    counted = layer_rows_that_count(rows, [ResumePoint(60, 1500.0)])
    assert [(row.step, row.wall_time) for row in counted] == [(50, 1050.0), (100, 2000.0), (120, 2001.0)]
    assert [row.step for row in layer_rows_that_count(rows, [])] == [50, 100, 120, 150]
