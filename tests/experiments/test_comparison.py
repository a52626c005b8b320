"""Reading a comparison from run directories: its metrics, table, files and plot."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labkit import figures as plots
from labkit.analysis.inference import spread
from labkit.config import Config
from labkit.errors import InputError
from labkit.experiments.comparison import plan
from labkit.experiments.comparison.files import budget_of, measurements_path, request_path, run_directory
from labkit.experiments.comparison.read import WARM_UP_STEPS, Comparison, read_comparison
from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter

BATCH_SIZE = 64
MEASURED = {
    "inference_images_per_second": 1000.0,
    "peak_memory_bytes": 500 * 2**20,
    "parameters": 270_000,
    "multiply_adds": 40_500_000,
}


def write_request(folder: Path, models: list[str], seeds: int, folds: int = 0, **values: object) -> None:
    """Write the request of a comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    config = Config.from_flat(
        {"dataset": "shapes", "train_batch_size": BATCH_SIZE, "train_steps": 10, **values}
    )
    write_json_atomic(
        request_path(folder),
        {"models": models, "seeds": seeds, "budget": budget_of(config), "data_checksum": "0" * 64}
        | ({"folds": folds} if folds else {}),
    )


def write_run(
    folder: Path,
    model: str,
    seed: int,
    *,
    accuracy: float = 0.5,
    seconds: list[float] | None = None,
    state: str = "finished",
    message: str = "",
    test: bool = True,
    measured: dict | None = None,
    fold: str = "",
) -> RunDirectory:
    """Write a run with its metrics and measurements; ``seconds``: of each step; the first one compiles."""
    run = run_directory(folder, model, seed, fold)
    run.create()
    seconds = seconds or [5.0, *[0.2] * 9]
    writer = MetricsWriter(run.metrics_path)
    writer.append([train_row(step, value) for step, value in enumerate(seconds, 1)])
    if state == "finished":
        last = len(seconds)
        writer.append([{"split": "validation", "step": last // 2, "accuracy": accuracy + 0.02}])
        writer.append([{"split": "validation", "step": last, "accuracy": accuracy + 0.01}])
        if test:
            writer.append([{"split": "test", "step": last // 2, "accuracy": accuracy}])
    writer.close()
    write_json_atomic(run.environment_path, {"description": "CPU"})
    run.write_status(Status(state, step=len(seconds), total_steps=10, host="elsewhere", message=message))
    write_json_atomic(measurements_path(run), MEASURED if measured is None else measured)
    return run


def train_row(step: int, seconds: float) -> dict[str, object]:
    return {"split": "train", "step": step, "loss": 2.0, "accuracy": 0.1, "seconds_per_step": seconds}


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "comparison"


@pytest.fixture
def three_seeds(folder) -> Comparison:
    """Two models: one with three finished runs, one with two and a failed one."""
    write_request(folder, ["resnet8", "vgg11"], 3)
    for seed, accuracy in enumerate((0.5, 0.6, 0.7)):
        write_run(folder, "resnet8", seed, accuracy=accuracy)
    write_run(folder, "vgg11", 0, accuracy=0.8, measured={**MEASURED, "peak_memory_bytes": 700 * 2**20})
    write_run(folder, "vgg11", 1, accuracy=0.9)
    write_run(folder, "vgg11", 2, seconds=[5.0, 0.2], state="failed", message="loss is nan at <step> 2")
    return read_comparison(folder)


# ---- metrics -------------------------------------------------------------------------------------------


def test_spread_is_mean_and_sample_deviation():
    values = [0.91, 0.93, 0.87, 0.92]
    found = spread([None, *values])
    assert (found.mean, found.std) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert found.count == 4
    assert spread([0.5]).std is None
    assert spread([None]) is None


def test_accuracies_are_of_the_tested_weights_of_finished_runs(three_seeds):
    first, second = three_seeds.models
    assert (first.spread("test_accuracy").mean, first.spread("test_accuracy").std) == pytest.approx(
        (0.6, 0.1)
    )
    # The weights of the middle had the better validation, so they were tested.
    assert first.spread("validation_accuracy").mean == pytest.approx(0.62)
    assert second.spread("test_accuracy").mean == pytest.approx(0.85)
    assert second.spread("test_accuracy").count == 2


def test_speed_is_of_the_median_step_after_the_warm_up_of_each_session(folder):
    write_request(folder, ["resnet8"], 1)
    slow = [5.0, *[1.0] * (WARM_UP_STEPS - 1)]
    run = write_run(folder, "resnet8", 0, seconds=[*slow, 0.2, 0.4, 0.3], state="interrupted")
    at = len(slow) + 2  # the last step wasn't saved and is repeated
    writer = MetricsWriter(run.metrics_path)
    writer.mark_resume_point(at)
    again = [*slow, 0.6]
    writer.append([train_row(at + step, seconds) for step, seconds in enumerate(again, 1)])
    writer.close()
    found = read_comparison(folder).runs[0]
    # Warm steps that count: 0.2, 0.4, 0.6.
    assert found.training_images_per_second == pytest.approx(BATCH_SIZE / 0.4)
    # Two compiling steps of 5 seconds count as the median one; the superseded step doesn't count.
    by_hand = 2 * (0.4 + (WARM_UP_STEPS - 1) * 1.0) + 0.2 + 0.4 + 0.6
    assert found.training_seconds == pytest.approx(by_hand)


def test_the_images_of_a_step_are_those_of_all_its_passes(folder):
    write_request(folder, ["resnet8"], 1, accumulate_steps=4)
    write_run(folder, "resnet8", 0, seconds=[0.2] * 12)
    found = read_comparison(folder)
    assert found.runs[0].training_images_per_second == pytest.approx(4 * BATCH_SIZE / 0.2)
    assert f" of {4 * BATCH_SIZE} images" in found.notes()[0]


@pytest.mark.parametrize(
    ("values", "compiling"),
    [
        ({"progressive_resizing": "16:0.3,24:0.7"}, (7, 15)),
        ({"freeze": "stem,stage1", "unfreeze_every_steps": 8}, (9, 17)),
        ({"progressive_resizing": "16:0.5", "freeze": "stem,stage1", "unfreeze_every_steps": 10}, (11,)),
    ],
)
def test_steps_that_compile_are_counted_as_median_steps(folder, values, compiling):
    write_request(folder, ["resnet8"], 1, **{"train_steps": 20, **values})
    write_run(folder, "resnet8", 0, seconds=[8.5 if s in (1, *compiling) else 0.2 for s in range(1, 21)])
    found = read_comparison(folder).runs[0]
    assert found.training_images_per_second == pytest.approx(BATCH_SIZE / 0.2)
    assert found.training_seconds == pytest.approx(20 * 0.2)


def test_a_comparison_is_read_while_it_runs(folder):
    write_request(folder, ["resnet8", "vgg11"], 2)
    figure = plots.comparison(read_comparison(folder))
    assert [text.get_text() for text in figure.axes[0].texts] == ["no run is finished"]
    assert plots.png(figure)
    write_run(folder, "resnet8", 0, accuracy=0.9125)
    write_run(folder, "resnet8", 1, seconds=[5.0, 0.5], state="interrupted", message="SIGINT at step 2")
    found = read_comparison(folder)
    assert [run.state for run in found.runs] == ["finished", "interrupted", "not started", "not started"]
    assert found.models[1].spread("test_accuracy") is None
    assert found.runs[1].training_images_per_second is None, "it ended during its warm-up"
    assert found.runs[1].training_seconds == pytest.approx(5.5)
    assert "91.25 %" in found.table()[1] and "-" in found.table()[2]
    notes = found.notes()
    assert "resnet8, seed 1: interrupted at step 2: SIGINT at step 2" in notes
    assert "vgg11, seed 0: not started" in notes


def test_accuracy_with_augmentation_has_its_own_column_and_without_a_test_the_validation_counts(folder):
    untested = folder / "untested"
    write_request(untested, ["resnet8"], 1, evaluate_test=False)
    write_run(untested, "resnet8", 0, accuracy=0.5, test=False)
    found = read_comparison(untested)
    assert "test accuracy" not in found.table()[0] and "52.00 %" in found.table()[1]
    assert plots.comparison(found).axes[0].get_ylabel() == "validation accuracy (%)"
    write_request(folder, ["resnet8"], 1, test_time_augmentation="mirror")
    writer = MetricsWriter(write_run(folder, "resnet8", 0, accuracy=0.5, test=False).metrics_path)
    writer.append([{"split": "test", "step": 10, "accuracy": 0.5, "tta_accuracy": 0.75}])
    writer.close()
    header, cells = read_comparison(folder).table()
    shown = dict(zip(header, cells, strict=True))
    assert (shown["test accuracy"], shown["with augmentation"]) == ("50.00 %", "75.00 %")


@pytest.mark.parametrize("content", ["{", "[]", '{"models": ["resnet8"], "seeds": 1}'])
def test_the_error_for_a_damaged_request_names_the_file(folder, content):
    folder.mkdir()
    with pytest.raises(InputError, match="holds no comparison"):
        read_comparison(folder)
    request_path(folder).write_text(content)
    with pytest.raises(InputError, match=r"comparison\.json can't be read"):
        read_comparison(folder)


# ---- tables --------------------------------------------------------------------------------------------


def test_the_tables_show_runs_means_and_deviations(three_seeds):
    header, first, second = (
        dict(zip(three_seeds.table()[0], row, strict=True)) for row in three_seeds.table()
    )
    assert "with augmentation" not in header
    assert (first["test accuracy"], first["training images/s"]) == ("60.00 ± 10.00 %", "320 ± 0")
    assert (first["runs"], second["runs"]) == ("3 of 3", "2 of 3")
    assert (first["peak memory"], second["peak memory"]) == ("500 MiB", "700 MiB"), "the largest of the runs"
    assert (first["parameters"], first["multiply-adds"]) == ("0.27 M", "40.50 M")
    assert first["training seconds"] == "2.0 ± 0.0"
    assert str(three_seeds).splitlines()[1].split()[0] == "resnet8"
    shown = three_seeds._repr_html_()
    assert shown.count("<tr>") == 3 and "loss is nan at &lt;step&gt; 2" in shown
    table, notes, command = three_seeds.as_markdown().split("\n\n")
    assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "- vgg11, seed 2: failed at step 2: loss is nan at <step> 2" in notes
    assert "labkit compare --models resnet8,vgg11 --seeds 3" in command


def test_the_command_repeats_the_comparison(folder):
    write_request(folder, ["resnet8", "vgg11"], 2, nesterov=True, weight_decay_of="kernels", freeze="stage*")
    assert read_comparison(folder).command == (
        f"labkit compare --models resnet8,vgg11 --seeds 2 --output {folder} --dataset shapes "
        "--train-batch-size 64 --nesterov --weight-decay-of kernels --freeze 'stage*' --train-steps 10"
    )


def test_the_command_has_a_learning_rate_that_is_the_default_but_not_of_the_optimizer(folder):
    write_request(folder, ["resnet8"], 1, optimizer="adagrad", learning_rate=0.1)
    assert "--optimizer adagrad --learning-rate 0.1" in read_comparison(folder).command


def test_csv_and_json_hold_the_same_metrics(three_seeds):
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} isn't JSON")

    lines = list(csv.DictReader(io.StringIO(three_seeds.as_csv())))
    models = json.loads(three_seeds.as_json(), parse_constant=refuse)["models"]
    assert [line["model"] for line in lines] == [model["model"] for model in models] == ["resnet8", "vgg11"]
    assert float(lines[0]["test_accuracy_mean"]) == models[0]["test_accuracy"]["mean"] == pytest.approx(0.6)
    assert float(lines[0]["test_accuracy_std"]) == models[0]["test_accuracy"]["std"] == pytest.approx(0.1)
    assert (lines[1]["runs"], lines[1]["finished_runs"], lines[1]["parameters"]) == ("3", "2", "270000")
    assert lines[0]["tta_accuracy_mean"] == "" and models[0]["tta_accuracy"] is None
    assert [run["state"] for run in models[1]["runs"]] == ["finished", "finished", "failed"]


def test_reading_needs_no_tensorflow():
    program = (
        "import sys; from labkit import figures as plots; from labkit.experiments.comparison import read\n"
        "assert not {'tensorflow', 'keras', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# ---- folds ---------------------------------------------------------------------------------------------


def test_folds_tell_a_mean_with_an_interval_for_trainings_that_share_images(folder):
    write_request(folder, ["resnet8", "vgg11"], 2, folds=4)
    for number, accuracy in enumerate((0.5, 0.6, 0.55), 1):
        for seed in (0, 1):
            write_run(folder, "resnet8", seed, accuracy=accuracy, fold=f"{number}/4")
            write_run(folder, "vgg11", seed, accuracy=accuracy - 0.2 + 0.01 * number, fold=f"{number}/4")
    found = read_comparison(folder)
    notes = found.notes()
    # By hand: validation accuracies 52, 62, 57 % with deviation 5; t of 2 degrees of freedom is 4.3027.
    half = 4.30265 * 5 * (1 / 3 + 1 / 3) ** 0.5
    assert f"resnet8: validation accuracy 57.00 % over 3 folds, 95 % interval {57 - half:.2f} to" in notes[4]
    assert (
        "resnet8 against vgg11, fold by fold: +18.0 points, 95 % interval +14.5 to +21.5: resnet8 is"
        in (notes[6])
    )
    assert "counts as 1/4 + 1/3 of that of one fold, not as 1/4" in notes[7]
    assert "resnet8, fold 4/4, seed 1: not started" in notes
    assert "--folds 4 --seeds 2" in found.command
    assert json.loads(found.as_json())["models"][0]["runs"][1]["fold"] == "2/4"
    assert [run.name for run in found.runs[:2]] == ["resnet8, fold 1/4, seed 0", "resnet8, fold 2/4, seed 0"]


def test_models_that_no_fold_tells_apart_are_called_so(folder):
    write_request(folder, ["resnet8", "vgg11"], 1, folds=2)
    for number, difference in enumerate((0.1, -0.05), 1):
        write_run(folder, "resnet8", 0, accuracy=0.5, fold=f"{number}/2")
        write_run(folder, "vgg11", 0, accuracy=0.5 + difference, fold=f"{number}/2")
    assert any("vgg11 against resnet8, fold by fold: +2.5" in note and "neither is" in note
               for note in read_comparison(folder).notes())  # fmt: skip


def test_the_better_model_is_that_of_the_folds_of_both(folder):
    """Though the other one has the higher mean, where its difficult folds failed."""
    write_request(folder, ["resnet8", "vgg11"], 1, folds=5)
    for number, accuracy in enumerate((0.95, 0.955, 0.7, 0.7, 0.7), 1):
        write_run(folder, "resnet8", 0, accuracy=accuracy, fold=f"{number}/5")
    for number, accuracy in ((1, 0.9), (2, 0.91)):
        write_run(folder, "vgg11", 0, accuracy=accuracy, fold=f"{number}/5")
    [told] = [note for note in read_comparison(folder).notes() if "fold by fold" in note]
    assert "vgg11 against resnet8, fold by fold: -4.7" in told and told.endswith("resnet8 is better")


def test_folds_that_differ_by_the_same_dont_show_a_better_model(folder):
    write_request(folder, ["resnet8", "vgg11"], 1, folds=2)
    for number, accuracy in ((1, 0.5), (2, 0.625)):
        write_run(folder, "resnet8", 0, accuracy=accuracy, fold=f"{number}/2")
        write_run(folder, "vgg11", 0, accuracy=accuracy + 0.0625, fold=f"{number}/2")
    notes = read_comparison(folder).notes()
    assert "95 % interval 0.00 to 100.00 %" in notes[4]
    [told] = [note for note in notes if "fold by fold" in note]
    assert "all folds differ by the same" in told and "is better" not in told


def test_folds_with_the_same_accuracy_have_no_interval(folder):
    write_request(folder, ["resnet8"], 1, folds=2)
    for number in (1, 2):
        write_run(folder, "resnet8", 0, accuracy=0.5, fold=f"{number}/2")
    [told] = [note for note in read_comparison(folder).notes() if "validation accuracy" in note]
    assert "the same in each, so nothing tells" in told and "interval" not in told


# ---- plot ----------------------------------------------------------------------------------------------


def test_the_plot_shows_means_with_deviations_as_error_bars(three_seeds):
    time, compute = plots.comparison(three_seeds).axes
    for axis, cost in ((time, 2.0), (compute, 40.5)):
        mark, _, bars = axis.containers[0]
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == pytest.approx((cost, 60.0))
        lowest, highest = sorted(y for x, y in bars[-1].get_segments()[0])
        assert (lowest, highest) == pytest.approx((50.0, 70.0))
        assert [text.get_text() for text in axis.texts] == ["resnet8", "vgg11"]


def test_a_run_whose_test_result_is_lost_is_not_drawn(folder):
    write_request(folder, ["resnet8"], 2)
    write_run(folder, "resnet8", 0)
    write_run(folder, "resnet8", 1, test=False)
    time, _ = plots.comparison(read_comparison(folder)).axes
    assert len(time.lines[-1].get_xdata()) == 1


def test_labels_of_close_models_overlap_neither_each_other_nor_marks(folder):
    names = ["resnet8", "se_resnet8", "resnet14", "vgg11"]
    write_request(folder, names, 1)
    for number, name in enumerate(names):
        write_run(folder, name, 0, accuracy=0.9 + 0.001 * number)
    figure = plots.comparison(read_comparison(folder))
    for axis in figure.axes:
        boxes = [text.get_window_extent() for text in axis.texts]
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:number])
            marks = [axis.transData.transform(text.xy) for text in axis.texts]
            assert not any(box.contains(x, y) for x, y in marks)
        # The label of the best model is the highest.
        assert boxes[-1].y1 == max(box.y1 for box in boxes)


def test_a_new_flag_changes_no_folder_and_another_budget_does(monkeypatch):
    config = Config.from_flat({"train_steps": 90})
    before = plan.default_output(config)
    assert plan.default_output(config.replace({"ghost_batches": 2})) != before
    monkeypatch.setattr(plan, "budget_of", lambda config: budget_of(config) | {"new": 1})
    assert plan.default_output(config) == before
