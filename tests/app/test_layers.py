"""The page that looks inside the network."""

import math

import numpy as np
import pytest

from app.charts.board import encode
from app.charts.heat import encode_heat, logarithmic, sequential
from app.charts.layer_charts import MAX_COLUMNS, QUANTITIES, Layers, heat_map, lines_chart, profile_chart
from app.views.layers import LayerStore
from labkit.run_directory.layers import QUANTITIES as NAMES
from labkit.run_directory.metrics import MetricsWriter
from tests.app import rows as rows_of
from tests.app.boards import Heat, boards, charts, decoded, decoded_heat, heats
from tests.app.pages import checked, open_page, words
from tests.app.rows import LAYERS, layer_row, train_row


def append(run, *rows) -> None:
    rows_of.append(run.layers_path, *rows)


def titles(at) -> list[str]:
    (heat,) = heats(at)
    return [heat.title, *(chart.title for chart in charts(at))]


def layers_of(run, *rows) -> Layers:
    append(run, *rows)
    return LayerStore(run.layers_path).poll(())


# ---- the page ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_quantity_is_drawn_by_layer_step_and_depth(make_run, quantity):
    run = make_run()
    append(run, layer_row(50), layer_row(100))
    at = open_page("layers", run)
    at.get("button_group")[0].set_value(quantity)
    title = QUANTITIES[quantity].title
    assert titles(checked(at.run())) == [
        f"{title} by layer and step",
        f"{title} by step",
        f"{title} by depth",
    ]
    (heat,), profile = heats(at), boards(at)[1]
    drawn = [
        name for name in LAYERS if quantity not in ("gradient_norm", "update_ratio") or "relu" not in name
    ]
    assert heat.names == drawn
    assert profile.ticks == drawn
    logarithmic = quantity in ("activation_std", "gradient_norm", "update_ratio")
    assert {chart.logarithmic for chart in charts(at)} == {logarithmic}
    named = [name for chart in charts(at) for name in chart.lines]
    assert named.count("1e-3, a usual ratio") == (2 if quantity == "update_ratio" else 0)


def test_the_profile_and_the_table_are_of_the_chosen_step_and_the_lines_of_the_chosen_layers(make_run):
    run = make_run()
    append(run, *(layer_row(step) for step in (50, 100, 150)))
    at = open_page("layers", run)
    assert "step 150" in charts(at)[1].lines
    at.selectbox(key="at").set_value("100")
    at.multiselect[0].set_value(["logits"])
    chosen, profile = charts(checked(at.run()))[:2]
    assert list(chosen.lines) == ["logits"] and "step 100" in profile.lines
    row = at.dataframe[0].value.to_dict("records")[2]
    assert row["Layer"] == "stem_relu1"
    assert row["Activation standard deviation"] == "1.1"
    assert row["Gradient norm"] == "–"
    at.get("button_group")[0].set_value("zero_fraction")
    assert checked(at.run()).multiselect[0].value == ["stem_relu1"], "the layers with zeros"


def test_new_lines_appear_damaged_ones_are_counted_and_an_unreadable_file_is_named(make_run):
    run = make_run()
    append(run, layer_row(50))
    path = run.layers_path
    with open(path, "a") as file:
        file.write('oops\n{"step": 3}\n{"step": 100, "lay')
    at = open_page("layers", run)
    assert "2 damaged lines." in words(at)
    assert heats(at)[0].columns == [50] and len(charts(at)) == 2
    append(run, layer_row(150))
    (heat,) = heats(checked(at.run()))
    assert heat.columns == [50, 150] and heat.values[0].tolist() == [1.05, 1.15]
    path.unlink()
    path.mkdir()
    assert f"`{path}` can't be read" in words(checked(at.run()))


def test_lines_of_steps_that_are_made_again_are_not_drawn(make_run):
    run = make_run()
    append(run, layer_row(50), layer_row(100))
    writer = MetricsWriter(run.metrics_path)
    writer.mark_resume_point(60)
    writer.append([train_row(61)])
    writer.close()
    assert heats(open_page("layers", run))[0].columns == [50]


def test_distributions_are_bands_over_the_steps_and_unreadable_ones_are_none(make_run):
    run = make_run()
    spread = [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    weights = [spread, None, None, spread, spread]
    for step in (50, 100):
        append(run, layer_row(step, activation_quantiles=[spread] * 5, weight_quantiles=weights))
    at = open_page("layers", run)
    drawn = {chart.title: chart.lines for chart in charts(at)}
    lines = ["highest", "99 %", "95 %", "75 %", "median", "25 %", "5 %", "1 %", "lowest"]
    assert list(drawn["Weights of stem_conv1"]) == lines
    assert drawn["Weights of stem_conv1"]["95 %"].y.tolist() == [2, 2]
    assert "Outputs of stem_conv1" in drawn and "Gradients of stem_conv1" not in drawn
    at.selectbox(key=f"distribution-{run.path}").set_value("stem_norm1")
    assert "Weights of stem_norm1" not in titles(checked(at.run()))
    for damaged in (None, 3, [1], [[1.0] * 8] * 5, [["x"] * 9] * 5, [{}] * 5):
        run.layers_path.unlink()
        append(run, layer_row(50, weight_quantiles=damaged))
        at = open_page("layers", run)
        assert "recorded no distributions" in words(at), damaged
        assert len(charts(at)) == 2


# ---- reading and drawing -------------------------------------------------------------------------------


def test_a_line_with_other_layers_is_matched_by_name(make_run):
    before = layer_row(50, ["logits", "gone"], gradient_norm=[0.7, 0.1])
    layers = layers_of(make_run(), before, layer_row(100))
    assert layers.names == tuple(LAYERS)
    number, place = NAMES.index("gradient_norm"), LAYERS.index("logits")
    assert layers.values[:, number, place].tolist() == [0.7, 0.1]
    assert layers.present[0].sum() == len(NAMES)


def test_values_that_are_not_finite_are_red_cells_and_marks(make_run):
    rows = [layer_row(50), layer_row(100, gradient_norm=[math.nan, math.inf, None, 0.0, 0.2])]
    layers = layers_of(make_run(), *rows)
    heat = decoded_heat(heat_map(layers, "gradient_norm"))
    np.testing.assert_array_equal(red(heat), [[False, True]] * 2 + [[False, False]] * 2)
    assert heat.colors[2, 1].tolist() == [0x44, 0x01, 0x54, 255], "zero is below all others"
    assert math.isnan(heat.values[0, 1]) and heat.values[1, 1] == math.inf
    lines = decoded(encode([lines_chart(layers, "gradient_norm", LAYERS)], axis="step")).charts[0].lines
    assert lines["stem_conv1"].marks == {"NaN": (1, [100])}
    assert lines["stage1_block1_conv1"].marks == {"≤ 0": (1, [100])}
    profile = decoded(encode([profile_chart(layers, "gradient_norm", 1)], axis="name")).charts[0]
    count, (place,) = profile.lines["step 100"].marks["+Infinity"]
    having, _, _ = layers.of("gradient_norm")
    assert (count, layers.names[having[int(place)]]) == (1, "stem_norm1")
    assert LAYERS.index("stem_relu1") not in having


def test_a_long_run_is_drawn_with_few_columns_that_keep_its_nan_and_its_last_step(make_run):
    rows = [layer_row(step) for step in range(1, 3001)]
    rows[1234]["activation_std"] = [math.nan, *[1.0] * 4]
    heat = decoded_heat(heat_map(layers_of(make_run(), *rows), "activation_std"))
    assert len(heat.columns) == MAX_COLUMNS
    assert heat.columns[-1] == 3000
    assert red(heat).sum() == 1


def red(heat: Heat) -> np.ndarray:
    """Return which cells are of values that aren't finite."""
    return (heat.colors == [0xD9, 0x2D, 0x43, 255]).all(axis=-1)


def test_colours_follow_the_values():
    values = np.array([[0.0, 1.0, 2.0, math.nan]])
    drawn = encode_heat("t", ["a"], np.arange(4.0), values, np.isfinite(values), sequential(0.0, 2.0))
    first, _, last, missing = decoded_heat(drawn).colors[0].tolist()
    assert (first, last, missing[3]) == ([0x44, 0x01, 0x54, 255], [0xFD, 0xE7, 0x25, 255], 0)
    powers = ["0.001", "0.01", "0.1", "1"]
    assert [text for _, text in logarithmic(-3.0, 0.0).ticks if text in powers] == powers
    assert len(logarithmic(-30.0, 8.0).ticks) < 10
