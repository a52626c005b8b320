"""What several runs have reached: configurations over their seeds, and which of two is better."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from labkit.analysis.predictions import load_predictions
from labkit.analysis.results import (
    Group,
    differing,
    grouped,
    known_measures,
    read_results,
    result_rows,
    runs_for_images,
    told_apart,
)
from labkit.analysis.versus import (
    chance_sentence,
    images_that_count,
    left_out_sentence,
    load_on_same_images,
    told_of_two,
    versus,
)
from labkit.config.config import RECORDED_BY
from labkit.errors import InputError
from labkit.run_directory import write_json_atomic
from labkit.run_directory.notes import Lineage, write_lineage
from tests.app.conftest import rewrite_predictions, write_predictions
from tests.commands.made_runs import evaluation, make_run

DATA = {"dataset": "shapes", "checksum": "abcdef0123456789"}


def made(folder, name, accuracy=0.8, *, data=DATA, **values):
    rows = [evaluation("validation", 10, accuracy), evaluation("validation", 20, accuracy - 0.1)]
    run = make_run(folder, name, rows=[*rows, evaluation("test", 20, accuracy - 0.05)], **values)
    write_json_atomic(run.environment_path, {"data": data, "parameters": 1234})
    return run


def read(*runs):
    return read_results({run.name: run for run in runs})


@pytest.fixture
def sweep(tmp_path):
    """Two learning rates with three seeds each, of which the last is still training."""
    states = {1: "finished", 2: "finished", 3: "interrupted"}
    return [
        made(tmp_path, f"{rate}-{n}", 0.7 + rate + 0.01 * n, seed=n, learning_rate=rate, state=states[n])
        for rate in (0.1, 0.2)
        for n in states
    ]


@pytest.fixture
def two(tmp_path):
    """Two runs that differ in the learning rate, with predictions of 300 images."""
    runs = [made(tmp_path, name, seed=4, learning_rate=rate) for name, rate in (("a", 0.1), ("b", 0.2))]
    for run in runs:
        write_predictions(run, 300)
    return runs


def test_runs_that_differ_in_their_seed_and_places_alone_are_one_configuration(sweep, tmp_path):
    elsewhere = made(tmp_path, "elsewhere", seed=9, learning_rate=0.1, keep_checkpoints=7, log_every_steps=3)
    results = read(*sweep, elsewhere)
    assert list(differing(results)) == ["learning_rate"]
    groups = grouped(results)
    assert [group.name for group in groups] == ["learning_rate 0.1", "learning_rate 0.2"]
    assert [group.seeds for group in groups] == ["1, 2, 3, 9", "1, 2, 3"]
    assert groups[1].state == "2 finished, 1 interrupted"
    found = groups[1].spread("best_validation")
    assert (found.mean, found.std, found.count) == pytest.approx((0.915, np.std([0.91, 0.92], ddof=1), 2))
    assert groups[1].values("final_validation") == pytest.approx([0.81, 0.82])
    assert len(grouped(results, seeds_together=False)) == 7
    header, rows = result_rows(groups)
    assert dict(zip(header, rows[1], strict=True))["test accuracy"] == "86.50 ± 0.71 % (2)"
    assert dict(zip(header, rows[1], strict=True))["parameters"] == "1,234"


def test_what_changes_the_duration_alone_makes_another_configuration(tmp_path):
    results = read(made(tmp_path, "plain"), made(tmp_path, "compiled", xla=True, num_intra_threads=1))
    assert list(differing(results)) == ["xla", "num_intra_threads"] and len(grouped(results)) == 2


def test_losses_of_different_functions_are_not_called_better_or_worse(tmp_path):
    smooth, mse = made(tmp_path, "smooth", label_smoothing=0.1), made(tmp_path, "mse", loss="mse")
    plain, smooth, mse = grouped(read(made(tmp_path, "plain"), smooth, mse))
    other, same = versus(plain, mse, "test_loss"), versus(plain, smooth, "test_loss")
    assert "A's and B's test loss can't be compared: loss differs" in other.headline
    assert same.headline.startswith("B's test loss is the same.")
    assert told_apart([plain, smooth], "training_loss") == ["label_smoothing"]
    [mixed] = grouped(read(made(tmp_path, "mixed", cutmix_alpha=1.0)))
    assert told_apart([plain, mixed], "training_loss") == ["cutmix_alpha"]
    assert not told_apart([plain, mixed], "test_loss")


def test_runs_of_other_programs_are_no_damaged_configurations(tmp_path):
    runs = [made(tmp_path, name) for name in ("own", "theirs")]
    write_json_atomic(runs[1].config_path, {RECORDED_BY: "labkit.start_run", "settings": {"width": 3}})
    answer = versus(*grouped(read(*runs)), "test_accuracy")
    assert "can be read" not in " ".join(answer.notes)
    assert "Not every run recorded its data set" in " ".join(answer.notes)


def test_what_another_program_does_not_record_is_no_difference(sweep, tmp_path):
    theirs = [made(tmp_path, name) for name in ("theirs", "wide", "log")]
    recorded = {"learning_rate": 0.1}, {"learning_rate": 0.1, "width": 7}, {}
    for run, settings in zip(theirs, recorded, strict=True):
        write_json_atomic(run.config_path, {RECORDED_BY: "labkit.start_run", "settings": settings})
    results = read(*sweep, *theirs)
    assert set(differing(results)) == {"learning_rate", "width", "recorded_by"}
    assert [len(group.results) for group in grouped(results)] == [3, 3, 1, 1, 1]
    assert differing(results)["recorded_by"] == ["labkit"] * 6 + ["labkit.start_run"] * 3


def test_a_name_has_what_tells_configurations_apart_also_beside_other_programs(sweep, tmp_path):
    foreign = made(tmp_path, "foreign")
    settings = {f"aa{number}": number for number in range(20)}
    write_json_atomic(foreign.config_path, {RECORDED_BY: "labkit.start_run", "settings": settings})
    names = [group.name for group in grouped(read(foreign, *sweep))]
    assert names == ["foreign", "learning_rate 0.1", "learning_rate 0.2"]


def test_models_have_one_name_and_data_sets_of_one_name_are_told_apart(tmp_path):
    other = made(tmp_path, "b", data={**DATA, "checksum": "f" * 64}, num_layers=14)
    found = differing(read(made(tmp_path, "a"), other))
    assert found == {"model": ["resnet8", "resnet14"], "data": ["abcdef01", "ffffffff"]}


def test_settings_with_a_slash_keep_what_tells_them_apart(tmp_path):
    runs = [made(tmp_path, name) for name in ("a", "b")]
    for run, fold, share, code in zip(runs, ("1/5", "2/5"), ("1/8", "3/8"), "ab", strict=True):
        settings = {"fold": fold, "share": share, "loss": f"/home/me/{code}.py:own"}
        write_json_atomic(run.config_path, {RECORDED_BY: "labkit.start_run", "settings": settings})
    header, rows = result_rows(grouped(read(*runs)))
    shown = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(row["fold"], row["share"]) for row in shown] == [("1/5", "1/8"), ("2/5", "3/8")]
    assert [row["loss"] for row in shown] == ["a.py:own", "b.py:own"]


def test_a_foreign_or_damaged_configuration_breaks_nothing(tmp_path):
    foreign, damaged = made(tmp_path, "foreign"), made(tmp_path, "damaged")
    write_json_atomic(foreign.config_path, {"a": {"depth": 3, "job_dir": "/x"}, "seed": 1, "port": 80})
    damaged.config_path.write_text('{"a":' * 100_000)
    first, second = read(foreign, damaged)
    assert (first.settings, first.seed, second.settings) == ({"depth": 3}, 1, {})
    assert len(grouped([first, second])) == 2
    assert known_measures(grouped([second]))[:3] == ["test_accuracy", "best_validation", "final_validation"]


def test_two_groups_are_compared_by_welchs_interval(sweep):
    first, second = grouped(read(*sweep))
    found = versus(first, second, "test_accuracy")
    expected = stats.ttest_ind(
        second.values("test_accuracy"), first.values("test_accuracy"), equal_var=False
    ).confidence_interval()
    assert (found.difference.low, found.difference.high) == pytest.approx(tuple(expected), rel=1e-3)
    assert found.headline.startswith("B is better: B's test accuracy is 10.00 points higher (95 % interval +")
    assert "Not counted in A: 1 run unfinished" in " ".join(found.notes)
    turned = versus(second, first, "test_loss")
    assert turned.headline.startswith("B's test loss is the same. The runs of each don't differ at all")
    assert versus(first, second, "seconds").headline == "A and B have no training time."
    assert "two of 12" in " ".join(versus(first, second, "test_accuracy", candidates=12).notes)


def test_one_seed_each_says_nothing_about_seeds(sweep):
    first, second = grouped(read(sweep[0], sweep[3]))
    found = versus(first, second, "best_validation")
    assert found.difference is None
    assert "How sure that is, isn't known" in found.headline
    assert "One seed each says nothing about the spread over seeds" in found.notes[0]
    one, several = grouped(read(sweep[0], sweep[3], sweep[4]))
    mixed = versus(one, several, "test_accuracy")
    assert mixed.difference.mean == pytest.approx(0.105)
    assert mixed.difference.low < 0.105 < mixed.difference.high
    assert "A has one run" in mixed.notes[0]
    alike = [Group(name, tuple(replace(one, values={"test_accuracy": value}) for one in several.results))
             for name, value in (("a", 0.5), ("b", 0.75))]  # fmt: skip
    for pair in (alike, (one, alike[1])):
        found = versus(*pair, "test_accuracy")
        assert "so there is no interval" in found.headline
        assert "interval" not in " ".join(found.notes)
    assert versus(first, second, "test_f1_micro").headline == "A and B have no test micro F1."


def test_the_same_test_images_tell_what_one_fixed_and_broke(two):
    runs, shares = two, load_predictions(two[0]).probabilities
    rewrite_predictions(runs[1], probabilities=shares[np.r_[100:300, 0:100]])
    found = load_on_same_images(*runs)
    wrong = [load_predictions(run).wrong for run in runs]
    assert set(found.fixed) == set(np.flatnonzero(wrong[0] & ~wrong[1]))
    assert set(found.broken) == set(np.flatnonzero(~wrong[0] & wrong[1]))
    assert found.difference.mean == pytest.approx(wrong[0].mean() - wrong[1].mean())
    count = len(found.fixed) + len(found.broken)
    assert found.test.p == pytest.approx(stats.binomtest(len(found.fixed), count).pvalue)
    results = tuple(read(*runs))
    assert f"{len(found.fixed)} are right in run b of B (step 20) only" in chance_sentence(found, results)
    same = replace(found, test=replace(found.test, only_first=0, only_second=0))
    told = "On 300 test images, run a of C (step 20) and run b of D (step 20) are right and wrong on the same"
    assert chance_sentence(same, results, ("C", "D")) == f"{told} ones."
    first, second = grouped(results)
    assert told_of_two(first, second, "test_accuracy")[-1] == chance_sentence(found, results)
    answer = versus(first, second, "test_accuracy", found)
    assert answer.difference == found.difference
    assert "rests on the 300 test images alone" in answer.notes[0]
    assert [result.label for result in runs_for_images(first, second)] == ["a", "b"]


def test_images_count_only_for_the_run_and_accuracy_of_the_headline(two):
    runs = two
    images = load_on_same_images(*runs)
    right = [1 - predictions.wrong.mean() for predictions in (images.first, images.second)]
    a, b = (
        replace(result, values={**result.values, "test_accuracy": value})
        for result, value in zip(read(*runs), right, strict=True)
    )
    untested = replace(a, label="untested", values={})
    first, second = Group("a", (untested, a)), Group("b", (b,))
    assert images_that_count((first, second), (a, b), images) == (images, "")
    assert images_that_count((first, second), (untested, b), images) == (None, "")
    assert runs_for_images(first, second)[0] is a
    other = replace(b, values={"test_accuracy": right[1] - 0.01})
    counting, note = images_that_count((first, Group("b", (other,))), (a, other), images)
    assert counting is None and "another checkpoint" in note


def test_other_images_are_not_compared_and_the_reason_is_given(two, tmp_path):
    first, second = two
    assert not len(load_on_same_images(first, second).fixed)
    summary = second.predictions_path / "test.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"checkpoint_step": 10}))

    def refused(reason, first=first):
        with pytest.raises(InputError, match=reason):
            load_on_same_images(first, second)

    refused("of step 10, and the test result of b is that of step 20")
    refused("none has no predictions; labkit evaluate", made(tmp_path, "none"))
    write_predictions(second, 300)
    rewrite_predictions(second, index=np.arange(300)[::-1])
    refused("other images of the test set, or in another order")
    write_predictions(second, 300, seed=1)
    refused("the true classes of their test images differ")
    write_predictions(second, 40)
    refused("one predicted 300 test images and the other 40")
    for data, reason in (({**DATA, "checksum": "1" * 64}, "their data sets differ"), (3, "isn't recorded")):
        write_json_atomic(second.environment_path, {"data": data})
        refused(reason)


def test_runs_before_and_after_a_correction_are_compared_on_the_test_images_that_both_have(two):
    first, second = two
    steps = {"test": {"count": 300, "changed": [4, 5], "excluded": [0, 7, 299]}}
    lineage = [{"dataset": "shapes", "checksum": DATA["checksum"], "splits": steps}]
    after = {"dataset": "fixed", "checksum": "f" * 64, "counts": {"test": 297}}
    write_json_atomic(first.environment_path, {"data": {**DATA, "counts": {"test": 300}}})
    write_json_atomic(second.environment_path, {"data": {**after, "source": {"lineage": lineage}}})
    before = load_predictions(first)
    kept = np.delete(np.arange(300), [0, 7, 299])
    labels = before.labels.copy()
    labels[[4, 5]] = (labels[[4, 5]] + 1) % 3
    shares = before.probabilities[np.r_[100:300, 0:100]]
    write_predictions(second, 297)
    rewrite_predictions(second, images=before.images[kept], labels=labels[kept], probabilities=shares[kept])
    found = load_on_same_images(first, second)
    same = np.delete(np.arange(300), [0, 4, 5, 7, 299])
    wrong = before.wrong[same], shares.argmax(axis=1)[same] != before.labels[same]
    assert found.left_out == (5, 2)
    assert set(same[found.fixed]) == set(same[wrong[0] & ~wrong[1]])
    assert set(same[found.broken]) == set(same[~wrong[0] & wrong[1]])
    assert found.difference.mean == pytest.approx(wrong[0].mean() - wrong[1].mean())
    assert np.array_equal(found.first.images[found.fixed], before.images[same][found.fixed])
    assert np.array_equal(found.first.images[3], found.second.images[3])
    a, b = (
        replace(result, values={"test_accuracy": 1 - predictions.wrong.mean()})
        for result, predictions in zip(read(first, second), found.whole, strict=True)
    )
    groups = Group("a", (a,)), Group("b", (b,))
    assert images_that_count(groups, (a, b), found) == (found, "")
    answer = versus(*groups, "test_accuracy", found)
    assert answer.difference == found.difference
    assert "test accuracy on the test images that both have is" in answer.headline
    assert "trained on different data, which" in answer.notes[1]
    assert "295 test images are the same, with the same label" in left_out_sentence(found)
    assert "Not compared are 5 of 300 in A and 2 of 297 in B" in left_out_sentence(found)
    apart = versus(*groups, "test_accuracy")
    assert "each was tested on its own" in " ".join(apart.notes)
    labels[20] = (labels[20] + 1) % 3
    rewrite_predictions(second, labels=labels[kept])
    with pytest.raises(InputError, match="the true classes of their test images differ"):
        load_on_same_images(first, second)
    write_predictions(second, 290)
    with pytest.raises(InputError, match="predicted"):
        load_on_same_images(first, second)


def test_several_labels_are_exact_matches_with_their_f1(tmp_path):
    several = {"dataset": "shapes_multilabel", "loss": "sigmoid"}
    rows = [{**evaluation("test", 20, 0.4), "f1_micro": 0.8, "f1_macro": 0.7}]
    runs = [
        make_run(tmp_path, f"several-{rate}", rows=rows, learning_rate=rate, **several) for rate in (0.1, 0.2)
    ]
    groups = grouped(read(*runs))
    header, table = result_rows(groups)
    assert header[3:6] == ["test exact match", "test micro F1", "test macro F1"]
    assert table[0][3:6] == ["40.00 %", "80.00 %", "70.00 %"]
    assert "test exact match is the same" in versus(*groups, "test_accuracy").headline


def test_errors_in_the_unit_of_the_labels_keep_their_digits(tmp_path):
    runs = []
    for seed, error in ((1, 0.1234), (2, 0.1434)):
        row = {**evaluation("test", 20, 0.4), "mean_absolute_error": error}
        runs.append(make_run(tmp_path, f"seed-{seed}", rows=[row], seed=seed))
    header, [cells] = result_rows(grouped(read(*runs)))
    assert dict(zip(header, cells, strict=True))["test mean absolute error"] == "0.1334 ± 0.01414 (2)"


def test_a_fork_is_no_repetition_of_a_training_from_its_beginning(tmp_path):
    whole = [made(tmp_path, f"whole{seed}", seed=seed, learning_rate=0.5) for seed in (1, 2)]
    forks = [made(tmp_path, f"fork{seed}", seed=seed, learning_rate=0.5) for seed in (1, 2)]
    for fork in forks:
        write_lineage(fork, Lineage(str(tmp_path / f"of-{fork.name}"), 10, {"learning_rate": (0.1, 0.5)}))
    groups = grouped(read(*whole, *forks))
    assert [len(group.results) for group in groups] == [2, 2]
    assert "learning_rate 0.1 → 0.5" in str(differing(read(*whole, *forks)))
    write_lineage(forks[0], Lineage(str(whole[0].path), 10, {}))
    assert differing(read(whole[1], forks[0]))["fork"] == [None, "at step 10, the same settings"]


def test_equal_results_of_another_number_of_runs_are_equal(tmp_path):
    """The mean of four times 0.4 is 0.4; that of three, as fmean rounds it, isn't."""
    runs = [
        made(tmp_path, f"{rate}-{n}", 0.4, seed=n, learning_rate=rate)
        for rate in (0.1, 0.3)
        for n in range(4)
    ]
    first, second = grouped(read(*runs[:7]))
    assert "accuracy is the same" in " ".join(told_of_two(first, second, "best_validation"))


def test_one_and_one_point_zero_are_one_setting(tmp_path):
    runs = [made(tmp_path, name) for name in ("a", "b", "c")]
    for run, rate, seed in zip(runs, (1, 1.0, 1.5), range(3), strict=True):
        settings = {"rate": rate, "seed": seed}
        write_json_atomic(run.config_path, {RECORDED_BY: "labkit.start_run", "settings": settings})
    assert [len(group.results) for group in grouped(read(*runs))] == [2, 1]
