"""``labkit search``: its space, proposals and promotions, and whole searches with stand-ins for trainings."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import keras
import optuna
import pytest

import labkit
from labkit.commands import main as cli
from labkit.errors import InputError
from labkit.experiments.search import request as planning
from labkit.experiments.search import work
from labkit.experiments.search.board import _conclusion
from labkit.experiments.search.decide import decided, proposed, update
from labkit.experiments.search.files import (
    Dimension,
    Request,
    Result,
    TrialRecord,
    best_first,
    best_trial,
    equals_of_best,
)
from labkit.experiments.search.request import plan_search
from labkit.experiments.search.result import SearchResult
from labkit.experiments.search.space import parse_space, with_values
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics
from tests import own_nets
from tests.experiments import fake_search
from tests.tiny import tiny_home

FAKE = [sys.executable, fake_search.__file__]
COMMON = ["--dataset", "shapes", "--train-steps", "90", "--num-layers", "8", "--repeats", "0"]
RATE = ["--space", "learning_rate=log:0.01:1"]
HALVING = ["--halving", "successive", "--trials", "9"]


home = pytest.fixture(scope="module", autouse=True)(tiny_home)


def search(output: Path, *words: str, code: int = 0) -> SearchResult:
    """Run a search with stand-ins for trainings."""
    command = [*FAKE, "search", "--output", str(output), *COMMON, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return SearchResult(output)


def story(found: SearchResult) -> list[tuple]:
    """Return what a search decided and found, without times."""
    return [
        (
            one.number,
            one.values,
            one.state,
            [(rung.step, rung.value) for rung in one.results],
        )
        for one in sorted(found.trials, key=lambda one: one.number)
    ]


# ---- the space -----------------------------------------------------------------------------------------


def test_a_space_has_fields_networks_and_arguments_of_parts():
    own = str(Path(__file__).parents[1] / "own_nets.py") + ":mlp"
    space = parse_space(
        {
            "lr": "log:0.01:1",
            "model": ["resnet20", own],
            "train_batch_size": "log:16:64",
            "nesterov": "true,false",
            "model_arguments.width": "int:8:32",
        },
        {},
    )
    assert space["learning_rate"] == Dimension("float", 0.01, 1.0, True)
    assert space["model"].choices == ("resnet20", own)
    assert space["train_batch_size"] == Dimension("int", 16, 64, True)
    assert space["nesterov"].choices == (True, False)
    assert space["model_arguments.width"] == Dimension("int", 8, 32)
    assert with_values({"model_arguments": "depth=2"}, {"model_arguments.width": 9}) == {
        "model_arguments": "depth=2,width=9"
    }
    assert with_values({}, {"model": "resnet20"})["num_layers"] == 20
    with pytest.raises(InputError, match="--model resnet20 holds --num-layers, too"):
        with_values({"num_layers": 8}, {"model": "resnet20"})


class Unprintable:
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("space", [{"momentum": [0.5, Unprintable()]}, {"model": Unprintable()}, {7: "1,2"}])
def test_what_is_no_space_is_refused_in_one_line(space):
    with pytest.raises(InputError, match="; allowed: "):
        parse_space(space, {})


def test_choices_in_a_list_may_have_commas(tmp_path):
    nets = tmp_path / "one, two" / "nets.py"
    nets.parent.mkdir()
    nets.write_bytes(Path(own_nets.__file__).read_bytes())
    choices = {"model": ("resnet8", f"{nets}:mlp"), "metrics": ("auc,f1_macro", "f1_macro,auc")}
    found = parse_space({name: list(values) for name, values in choices.items()}, {})
    assert {name: one.choices for name, one in found.items()} == choices


BAD_INPUT = {
    "nothing to search": ([], "name settings"),
    "an unknown field": (["--space", "learning_rat=0.1,0.2"], "did you mean|see labkit train"),
    "data": (["--space", "dataset=shapes,cifar10"], "all trials need the same data"),
    "losses of two kinds": (["--space", "loss=softmax,focal", "--objective", "loss"], "two losses can't be"),
    "folds": (["--space", "fold=1/2,2/2"], "all trials need the same data"),
    "the seed": (["--space", "seed=int:0:9"], "--seeds says how many"),
    "what isn't training": (["--space", "num_gpus=0,1"], "makes no other training"),
    "no values": (["--space", "learning_rate"], "has no values"),
    "one value": (["--space", "learning_rate=0.1"], "at least two values"),
    "an inverted range": (["--space", "learning_rate=log:1:0.1"], "the lower one first"),
    "a logarithm of zero": (["--space", "learning_rate=log:0:1"], "numbers above 0"),
    "beyond the limits": (["--space", "momentum=0.5,1.5"], "momentum, value 1.5: --momentum is 1.5; allowed"),
    "no network": (["--space", "model=resnet20,resnat"], "resnat"),
    "a flag and a setting": ([*RATE, "--learning-rate", "0.1"], "given twice"),
    "a setting twice": ([*RATE, *RATE], "names a setting twice"),
    "two names of a setting": ([*RATE, "--space", "lr=0.1,0.2"], "given twice"),
    "no trials": ([*RATE, "--trials", "0"], "--trials is 0; allowed"),
    "numbers that are too large": ([*RATE, "--trials", "9" * 20], "at least 1 below 2,147,483,648"),
    "seeds that end": ([*RATE, "--seed", "2147483647", "--seeds", "2"], "allowed: below 2,147,483,648"),
    "more workers than cores": ([*RATE, "--workers", "9999"], "--workers is 9999; allowed: at most"),
    "no number of minutes": ([*RATE, "--minutes", "nan"], "nan; allowed: a number above 0"),
    "missing GPUs": ([*RATE, "--num-gpus", "7"], "--num-gpus is 7, but TensorFlow finds 0"),
    "arguments of a field": (["--space", "momentum.x=1,2"], "write momentum=VALUES\n"),
    "no minutes": ([*RATE, "--minutes", "0"], "--minutes is 0; allowed"),
    "a grid of a range": ([*RATE, "--sampler", "grid"], "list its values"),
    "too few to halve": ([*RATE, "--trials", "2", "--halving", "successive"], "at least 3"),
    "the test as objective": ([*RATE, "--objective", "test_accuracy"], "never of the test"),
    "a directory of a run": ([*RATE, "--job-dir", "x"], "name the one for all with --output"),
    "rungs without any": ([*RATE, "--rung-seconds", "1"], "needs --halving successive or asha"),
    "rungs of no time": ([*RATE, *HALVING, "--rung-seconds", "0"], "--rung-seconds is 0; allowed"),
    "early stopping": ([*RATE, "--early-stopping-patience", "2"], "use --halving"),
    "halves of what is not known": ([*RATE, *HALVING, "--validate-every-steps", "90"], "validate more often"),
    "a preset that isn't there": ([*RATE, "--preset", "gone.json"], "gone.json can't be read"),
    "too large batches": (["--space", "train_batch_size=16,1000"], "at most 180"),
}


@pytest.mark.parametrize(("words", "told"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_sentence_and_nothing_is_written(words, told, tmp_path, capsys):
    folder = tmp_path / "search"
    common = [word for word in COMMON if "model=" not in "".join(words) or word not in ("--num-layers", "8")]
    assert cli.main(["search", "--output", str(folder), *common, *words]) == 2
    said = capsys.readouterr().err
    assert re.search(told, said) and said.count("\n") == 1
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--trials", "5"], "--trials without --space"),
        (["--minutes", "-5"], "--minutes without --space"),
        (["--sampler", "grid"], "--sampler without --space"),
        (["--workers", "0"], "--workers is 0; allowed"),
        (["--patience", "0"], "--patience is 0; allowed"),
    ],
)
def test_who_joins_a_search_gives_only_what_is_its_own(words, told, tmp_path, capsys):
    """Or a setting would be ignored, and a process without workers would wait for ever."""
    (tmp_path / "search.json").write_text(json.dumps(asdict(request())))
    assert cli.main(["search", "--join", str(tmp_path), *words]) == 2
    assert told in capsys.readouterr().err


def test_a_file_is_no_folder_of_a_search(tmp_path, capsys):
    (tmp_path / "file").touch()
    for words, told in [
        (["--output", str(tmp_path / "file"), *COMMON, *RATE], "is not a directory; choose another"),
        (["--join", str(tmp_path / "file")], "has no search; give --space"),
    ]:
        assert cli.main(["search", *words]) == 2
        assert told in capsys.readouterr().err


def test_a_disk_without_room_for_a_trial_is_told_with_the_flag_of_the_search(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "TRIAL_BYTES", 2**60)
    folder = tmp_path / "search"
    assert cli.main(["search", "--output", str(folder), *COMMON, *RATE]) == 2
    assert f"--output {folder}: " in capsys.readouterr().err and not folder.exists()


def planned(folder: Path, flags: dict, **asked) -> Request:
    """Return what a search of two trials would do."""
    known = dict.fromkeys(("preset", "minutes", "patience", "in_flight", "rung_seconds", "objective"))
    known |= {"sampler": "random", "halving": "none", "eta": 3}
    known |= {"trials": 2, "repeats": 0, "seeds": 1, "workers": 1}
    return plan_search({"lr": [0.1, 0.2]}, flags, known | asked, folder, [])[1]


def test_a_metric_of_ones_own_beside_names_may_be_the_objective(tmp_path):
    flags = {"dataset": "shapes", "train_steps": 90, "metrics": f"auc,{own_nets.__file__}:among_two"}
    for objective in ("among_two", "auc"):
        found = planned(tmp_path / "a", flags, objective=objective)
        assert (found.objective, found.fixed["best_by"]) == (objective, objective)


def test_a_preset_neither_chooses_by_another_metric_nor_stops_trials_early(tmp_path):
    """Or trials would be compared by the accuracy of weights that were chosen by the loss."""
    preset = tmp_path / "preset.json"
    preset.write_text(json.dumps({"best_by": "loss", "num_layers": 8}))
    flags = {"dataset": "shapes", "train_steps": 90}
    assert planned(tmp_path / "a", flags, preset=str(preset)).fixed["best_by"] == "accuracy"
    preset.write_text(json.dumps({"early_stopping_patience": 2}))
    with pytest.raises(InputError, match="early_stopping_patience 2; .* same steps; use --halving"):
        planned(tmp_path / "b", flags, preset=str(preset))


def test_a_preset_that_was_changed_is_another_search(tmp_path):
    preset, flags = tmp_path / "preset.json", {"dataset": "shapes", "train_steps": 90}
    preset.write_text(json.dumps({"num_layers": 8}))
    first = planned(tmp_path / "a", flags, preset=str(preset))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "search.json").write_text(json.dumps(asdict(first)))
    assert planned(tmp_path / "a", flags, preset=str(preset)).created == first.created
    preset.write_text(json.dumps({"num_layers": 14}))
    with pytest.raises(InputError, match="has a search with another code or preset"):
        planned(tmp_path / "a", flags, preset=str(preset))


def test_objects_are_files_that_stay_and_the_same_call_finds_its_search(monkeypatch):
    def small(input_shape, num_classes):
        return own_nets.functional(input_shape, num_classes, width=2)

    def wide(input_shape, num_classes):
        return own_nets.functional(input_shape, num_classes, width=3)

    asked = []

    def stop(search):
        asked.append(search)
        raise KeyboardInterrupt

    monkeypatch.setattr(work.Search, "work", stop)
    settings = {"optimizer": keras.optimizers.Adam(0.5), "dataset": "shapes", "train_steps": 9, "trials": 4}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            labkit.search({"model": [small, wide, "resnet8"], "lr": [0.1, 0.2]}, **settings)
    first, again = asked
    assert first.folder == again.folder and first.request.identity() == again.request.identity()
    one, other, built_in = first.request.space["model"].choices
    assert built_in == "resnet8" and "width=2" in Path(one.removesuffix(":small")).read_text()
    assert "width=3" in Path(other.removesuffix(":wide")).read_text()
    assert first.request.fixed["optimizer"] == "adam" and "learning_rate" not in first.request.fixed
    # A class of a module needs no copy; an object with a rate of its own isn't one choice of a space.
    assert parse_space({"loss": [own_nets.plain_loss, "mse"]}, {})
    with pytest.raises(InputError, match="sets learning_rate.*too; name its class"):
        parse_space({"optimizer": [keras.optimizers.Adam(0.5), "sgd"]}, {})


@pytest.mark.long
def test_a_folder_of_another_search_and_one_without_any(tmp_path, capsys):
    search(tmp_path / "a", *RATE, "--trials", "2", "--sampler", "random")
    before = {path: path.read_bytes() for path in (tmp_path / "a").glob("*.json")}
    for words, told in [
        ([*RATE, "--seeds", "2"], "has a search with another seeds: 1 there, 2 here"),
        (
            ["--space", "learning_rate=log:0.01:2"],
            "another space: {'learning_rate': log:0.01:1.0} there, {'learning_rate': log:0.01:2.0} here",
        ),
        ([*RATE, "--learning-rate-schedule", "constant"], "another fixed"),
    ]:
        words = ["--output", str(tmp_path / "a"), *COMMON, *words, "--sampler", "random"]
        assert cli.main(["search", *words]) == 2
        assert told in capsys.readouterr().err
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").touch()
    assert cli.main(["search", "--output", str(tmp_path / "b"), *COMMON, *RATE]) == 2
    assert "thesis.tex" in capsys.readouterr().err
    assert cli.main(["search", "--join", str(tmp_path / "c")]) == 2
    assert "has no search" in capsys.readouterr().err and not (tmp_path / "c").exists()
    assert cli.main(["search", "--join", str(tmp_path / "a"), "--momentum", "0.5"]) == 2
    assert "--momentum without --space" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in (tmp_path / "a").glob("*.json")}


@pytest.mark.long
def test_a_search_of_somebody_else_runs_no_code_here(tmp_path, capsys):
    search(tmp_path / "a", *RATE, "--trials", "2", "--sampler", "random")
    asked = json.loads((tmp_path / "a" / "search.json").read_text())
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    asked["fixed"]["callbacks"] = str(tmp_path / "mine.py")
    (tmp_path / "a" / "search.json").write_text(json.dumps(asked | {"trials": 9}))
    assert cli.main(["search", "--join", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "has trainings with --callbacks" in said and "mine.py" in said and "to allow it" in said
    assert not (tmp_path / "ran").exists()


# ---- proposals and promotions --------------------------------------------------------------------------


def request(**values) -> Request:
    known = {
        "space": {"learning_rate": Dimension("float", 0.01, 1.0, True)},
        "sampler": "tpe", "halving": "successive", "eta": 3, "rungs": (10, 30, 90), "objective": "accuracy",
        "direction": "maximize", "trials": 9, "minutes": None, "seeds": 1, "seed": 0, "in_flight": 2,
        "repeats": 0, "preset": None, "fixed": {}, "data_checksum": "", "code": "", "command": "",
        "created": 0.0,
    }  # fmt: skip
    return Request(**known | values)


def record(number: int, *values: float, state: str = "paused", rate: float = 0.1) -> TrialRecord:
    results = [Result(at, value, [], 1.0, 1.0) for at, value in zip((10, 30, 90), values, strict=False)]
    return TrialRecord(number, {"learning_rate": rate}, 0, [f"{number:04}-seed0"], None, state, results)


def test_a_single_repeat_is_said_to_have_luck_of_its_own():
    best, other = record(0, 0.8, 0.8, 0.9), record(1, 0.7)
    for count in (1, 2):
        repeat = record(0)
        repeat.parts = {str(seed): {"value": 0.8, "test": 0.8} for seed in range(count)}
        told = " ".join(_conclusion(request(), [best, other], best, repeat)["words"])
        assert "The difference, 0.1, is luck" in told and "better than the median of 2 trials" in told
        assert ("a single repeat has luck of its own" in told) == (count == 1)
        alone = " ".join(_conclusion(request(), [best], best, repeat)["words"])
        assert "The difference, 0.1, is that of the seeds." in alone
        assert "luck" not in alone and "median" not in alone


def test_a_proposal_depends_on_earlier_results_alone():
    asked, rates = request(in_flight=3, trials=20), random.Random(0)
    trials = [record(number, number / 10, rate=rates.uniform(0.1, 1)) for number in range(15)]
    first = proposed(asked, trials)
    assert first == proposed(asked, trials)
    unfinished = [*trials[:-2], record(13, state="running"), record(14, state="waiting")]
    assert first == proposed(asked, unfinished)  # the last two may still train
    assert proposed(asked, [*trials[:-3], record(12, state="running"), *unfinished[-2:]]) is None
    other = [*trials[:-3], record(12, 0.0, rate=0.5), *trials[-2:]]
    assert proposed(asked, other) is not None
    assert proposed(request(seed=1, in_flight=3, trials=20), trials) != first
    assert proposed(request(trials=15), trials) is None


def test_a_grid_has_each_combination_once():
    space = {"a": Dimension("choice", choices=(1, 2)), "b": Dimension("choice", choices=("x", "y", "z"))}
    asked = request(space=space, sampler="grid", trials=6)
    found = [proposed(asked, [record(0)] * number) for number in range(6)]
    assert len({tuple(one.values()) for one in found}) == 6


def test_successive_halving_waits_for_all_and_keeps_the_best():
    asked = request()
    values = [0.3, 0.9, 0.1, 0.8, 0.2, 0.7, 0.4, 0.6, 0.5]
    trials = [record(number, value) for number, value in enumerate(values)]
    waiting = [*trials[:-1], record(8, state="running")]
    assert decided(asked, waiting) == []
    assert decided(asked, trials[:-1]) == []
    decided(asked, trials)
    assert [trial.number for trial in trials if trial.rung == 1] == [1, 3, 5]
    assert {trial.state for trial in trials if trial.rung == 0} == {"pruned"}
    assert trials[8].why == "0.5 at step 10 is number 5 of 9; 3 trials went on"
    assert decided(asked, trials) == []
    for number, value in ((1, 0.5), (3, 0.6), (5, 0.55)):
        trials[number].results.append(Result(30, value, [], 1.0, 1.0))
    decided(asked, trials)
    assert [trial.number for trial in trials if trial.rung == 2] == [3]
    assert best_trial(asked, trials).number == 3
    trials = [record(number, 0.9) for number in range(9)]
    decided(asked, trials)
    assert [trial.number for trial in trials if trial.rung == 1] == [0, 1, 2]
    assert trials[3].why == "0.9 at step 10 is number 4 of 9, equal to one that went on; 3 trials went on"


def test_a_failed_trial_is_no_rival_and_a_loss_is_minimized():
    asked = request(direction="minimize", objective="loss")
    trials = [record(number, float(number)) for number in range(8)] + [record(8, state="failed")]
    decided(asked, trials)
    assert [trial.number for trial in trials if trial.rung == 1] == [0, 1]


def test_a_trial_that_failed_after_its_first_rung_is_never_the_best():
    failed, good = record(0, 0.9, state="failed"), record(1, 0.5, state="pruned")
    assert best_trial(request(), [failed, good]) is good
    assert best_first(request(), [failed, good]) == [good, failed]
    assert best_trial(request(), [failed]) is None
    assert equals_of_best(request(), [record(2, 0.5, state="failed"), good, record(3, 0.5)]) == 1


def test_trials_with_the_same_seeds_results_in_another_order_are_equal():
    trials = [TrialRecord(number, {}, 0, [f"{number}-{seed}" for seed in range(3)]) for number in range(2)]
    for trial, values in zip(trials, ([0.3, 0.2, 0.1], [0.1, 0.2, 0.3]), strict=True):
        for run, value in zip(trial.runs, values, strict=True):
            found = {"state": "finished", "value": value, "seconds": 1.0, "at": 1.0, "step": 8}
            update(request(seeds=3), trial, run, found)
    assert best_trial(request(), trials) is trials[0]
    assert equals_of_best(request(), trials) == 1


def test_asha_goes_on_at_once():
    asked = request(halving="asha")
    trials = [record(0, 0.3), record(1, 0.5), record(2, 0.4)]
    decided(asked, trials)
    assert [trial.rung for trial in trials] == [0, 1, 0]
    assert {trial.state for trial in trials} == {"paused"}
    late = [*trials, *(record(number, 0.9) for number in range(3, 6))]
    assert [trial.number for trial in decided(asked, late)] == [3, 4]


def test_a_search_of_an_earlier_format_is_refused(tmp_path):
    (tmp_path / "search.json").write_text(json.dumps(asdict(request()) | {"format": 1}))
    with pytest.raises(InputError, match=r"search\.json can't be read: .* 1 .*format"):
        _ = SearchResult(tmp_path).request


# ---- whole searches ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> SearchResult:
    """A search of nine trials with three rungs. Not to be changed."""
    return search(tmp_path_factory.mktemp("undisturbed") / "search", *RATE, *HALVING)


def test_a_search_leaves_runs_a_table_and_optunas_journal(undisturbed):
    found = undisturbed
    assert found.progress.state == "finished"
    assert found.request.rungs == (10, 30, 90)
    assert [len(one.results) for one in found.trials] == [3, 2, 2, *[1] * 6]
    assert [one.state for one in found.trials] == ["finished", *["pruned"] * 8]
    for one in found.trials:
        run = RunDirectory(found.folder / one.runs[0])
        steps = [row["step"] for row in read_metrics(run).split("train")]
        assert steps == list(range(1, one.results[-1].step + 1))  # each row once
    study = found.study
    assert [trial.state.name for trial in study.trials].count("PRUNED") == 8
    assert study.best_trial.number == found.trials[0].number
    assert study.best_trial.intermediate_values.keys() == {10, 30, 90}
    assert found.best == found.folder / found.trials[0].runs[0]
    assert json.loads((found.folder / "preset.json").read_text())["learning_rate"] == pytest.approx(
        found.trials[0].values["learning_rate"]
    )
    report = (found.folder / "report.md").read_text()
    assert "It wasn't repeated" in report and "is number 4 of 9; 3 trials went on" in report


def test_the_same_command_returns_a_finished_search(undisturbed):
    before = [path.read_bytes() for path in sorted(undisturbed.folder.glob("*/metrics.jsonl"))]
    again = search(undisturbed.folder, *RATE, *HALVING)
    assert story(again) == story(undisturbed)
    assert [path.read_bytes() for path in sorted(undisturbed.folder.glob("*/metrics.jsonl"))] == before


def lines_of(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def kill_many_times(folder: Path, words: list[str], kills: int, chance: random.Random) -> None:
    """Kill a search at moments that follow from what it has recorded, not from the machine's speed."""
    journal = folder / "journal.log"
    for _ in range(kills):
        wanted = lines_of(journal) + chance.randrange(3)  # 0: within the start
        process = subprocess.Popen([*FAKE, "search", "--output", str(folder), *COMMON, *words])
        while lines_of(journal) < wanted:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_search_killed_at_any_moment_is_the_search_never_killed(kills, undisturbed, tmp_path):
    folder = tmp_path / "search"
    kill_many_times(folder, [*RATE, *HALVING], kills, random.Random(kills))
    found = search(folder, *RATE, *HALVING)
    assert story(found) == story(undisturbed)
    for one in found.trials:
        run, other = (RunDirectory(where / one.runs[0]) for where in (folder, undisturbed.folder))
        rows = [[row["step"] for row in read_metrics(one).split("train")] for one in (run, other)]
        assert rows[0] == rows[1]
        assert [path.read_text() for path in sorted(run.checkpoints_path.glob("*/weights"))] == [
            path.read_text() for path in sorted(other.checkpoints_path.glob("*/weights"))
        ]


@pytest.mark.long
def test_rungs_by_seconds_give_slow_trainings_fewer_steps(tmp_path):
    """Those of the rows count, until the next validation; also after a kill. The last rung is the end."""
    words = ["--space", "momentum=0.55,0.8,0.9", "--sampler", "grid", "--halving", "successive"]
    words += ["--rung-seconds", "0.4", "--validate-every-steps", "6"]
    found = search(tmp_path / "a", *words)
    assert (found.request.rung_seconds, found.request.rungs) == ((0.4,), (90,))
    steps = {one.values["momentum"]: [result.step for result in one.results] for one in found.trials}
    assert steps == {0.8: [42, 90], 0.55: [6], 0.9: [42]}  # the first of a process doesn't count
    assert [result.seconds for result in found.trials[0].results] == pytest.approx([0.41, 0.47])
    assert "after 0.4 s is number 2 of 3" in found.trials[1].why
    kill_many_times(tmp_path / "b", words, 1, random.Random(1))
    again = search(tmp_path / "b", *words)
    assert story(again) == story(found)
    for one in again.trials:
        rows = read_metrics(RunDirectory(again.folder / one.runs[0])).split("train")
        assert [row["step"] for row in rows] == list(range(1, one.results[-1].step + 1))


@pytest.mark.long
def test_a_journal_with_a_torn_line_goes_on(undisturbed, tmp_path):
    folder = tmp_path / "search"
    process = subprocess.Popen([*FAKE, "search", "--output", str(folder), *COMMON, *RATE, *HALVING])
    journal = folder / "journal.log"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 8:
        time.sleep(0.02)
    process.kill()
    process.wait()
    with journal.open("ab") as file:
        file.write(b'{"op_code": 8, "wor')
    assert story(search(folder, *RATE, *HALVING)) == story(undisturbed)


def test_several_processes_share_a_search_and_one_leaves(undisturbed, tmp_path):
    folder = tmp_path / "search"
    command = [*FAKE, "search", "--join", str(folder)]
    settings = [*COMMON, *RATE, *HALVING, "--in-flight", "1"]
    first = subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL)
    while not (folder / "trials.json").exists():
        time.sleep(0.02)
    others = [subprocess.Popen([*command, "--workers", str(count)]) for count in (1, 2)]
    time.sleep(1.5)
    first.kill()
    assert [other.wait(120) for other in others] == [0, 0]
    assert story(SearchResult(folder)) == story(undisturbed)


def test_a_second_search_in_the_folder_has_to_join(tmp_path):
    folder = tmp_path / "search"
    slow = [*RATE, *HALVING, "--momentum", "0.44"]  # so that the first one still works
    command = [*FAKE, "search", "--output", str(folder), *COMMON, *slow]
    first = subprocess.Popen(command)
    while not (folder / "trials.json").exists():
        time.sleep(0.02)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "to work beside it: --join" in ended.stderr
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 143
    assert SearchResult(folder).progress.state == "interrupted"


@pytest.mark.long
def test_trials_that_fail_hang_or_have_no_value_are_named_and_not_fatal(tmp_path):
    words = ["--space", "momentum=0.11,0.22,0.33,0.9", "--sampler", "grid", "--patience", "3"]
    found = search(tmp_path / "search", *words)
    why = {one.values["momentum"]: one.why for one in found.trials}
    assert why[0.11] == "loss is nan at step 3"
    assert "no sign of life for 3 s" in why[0.22]
    assert why[0.33] == "it has no finite accuracy at step 90"
    assert found.trials[0].values == {"momentum": 0.9}
    assert found.words[1] == "3 trials failed; trial 0: loss is nan at step 3."


@pytest.mark.long
def test_a_search_whose_trials_all_fail_fails_with_the_first_reason(tmp_path):
    words = ["--space", "momentum=0.11,0.33", "--sampler", "grid"]
    found = search(tmp_path / "search", *words, code=1)
    assert found.progress.state == "failed"
    assert "the first failed: loss is nan at step 3" in found.progress.message


@pytest.mark.long
def test_a_full_disk_ends_the_search_and_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(work, "TRIAL_BYTES", 2**60)
    words = ["search", "--output", str(tmp_path / "search"), *COMMON, *RATE, "--trials", "2"]
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert "MiB free" in said and "then the same command goes on" in said
    assert search(tmp_path / "search", *RATE, "--trials", "2").progress.state == "finished"


@pytest.mark.long
def test_the_time_is_up_and_more_time_goes_on(tmp_path):
    words = [*RATE, "--sampler", "random", "--repeats", "1", "--momentum", "0.44"]
    found = search(tmp_path / "search", *words, "--minutes", "0.06")
    ended = [one for one in found.trials if one.state == "finished"]
    count, repeat = len(found.trials), found.progress.repeat
    assert 0 < len(ended) < 20 and repeat.state == "finished"
    steps = [row["step"] for row in read_metrics(RunDirectory(found.folder / repeat.runs[0])).split("train")]
    assert steps == list(range(1, 91))
    # The seconds of the repeat count, too, and are many on a busy machine.
    minutes = found.progress.seconds / 60 + 0.1
    more = search(tmp_path / "search", *words, "--minutes", f"{minutes:.3f}")
    assert len(more.trials) > count


@pytest.mark.long
def test_a_grid_of_nothing_is_one_trial_of_several_seeds_which_are_tested(tmp_path):
    found = search(tmp_path / "seeds", "--sampler", "grid", "--seeds", "3")
    [trial] = found.trials
    assert (trial.values, trial.state, len(trial.runs)) == ({}, "finished", 3)
    assert found.progress.conclusion["words"][0] == "3 trainings with other seeds."
    assert found.progress.conclusion["test_mean"] is not None
    again = search(tmp_path / "chosen", "--sampler", "grid", "--space", "momentum=0.8,0.9")
    assert again.progress.conclusion["test_mean"] is None  # who chooses hasn't seen the test set
    assert cli.main(["search", *COMMON, "--sampler", "grid", "--output", str(tmp_path / "none")]) == 2


@pytest.mark.long
def test_the_words_say_how_many_trials_are_as_good_as_the_best(tmp_path, capsys):
    words = ["--space", "momentum=0.5,0.6,0.7", "--sampler", "grid"]
    found = search(tmp_path / "search", *words)
    told = "2 other trials have the same accuracy: the first of the 3 is taken; --objective loss may"
    assert found.words[0].startswith("Trial 0 of 3 is best") and found.words[1].startswith(told)
    assert told in (found.folder / "report.md").read_text()
    assert cli.main(["search", "--output", str(found.folder), *COMMON, *words]) == 0
    said = capsys.readouterr().out
    assert told in said and "best settings of the first of 3 equal trials: labkit train --preset" in said


def test_the_best_trial_is_repeated_with_fresh_seeds(tmp_path):
    words = ["--space", "learning_rate=0.1,0.3", "--sampler", "grid", "--seeds", "2", "--repeats", "2"]
    found = search(tmp_path / "search", *words)
    best = found.trials[0]
    assert best.values["learning_rate"] == 0.3
    assert best.runs == ["0001-seed0", "0001-seed1"]
    assert best.results[0].value == pytest.approx(0.9 + 0.0905)
    repeat = found.progress.repeat
    assert repeat.runs == ["0001-seed2", "0001-seed3"]
    assert [part["test"] for part in repeat.parts.values()] == pytest.approx([0.502, 0.503])
    conclusion = found.progress.conclusion
    assert conclusion["repeated_mean"] == pytest.approx(0.9 + 0.0925)
    assert conclusion["test_mean"] == pytest.approx(0.5025)
    assert "On the test images" in " ".join(found.words)
    assert optuna.load_study(study_name="search", storage=found.study._storage).trials


def test_a_repeat_that_failed_is_told_beside_those_that_did_not(tmp_path):
    words = ["--space", "learning_rate=0.1,0.3", "--sampler", "grid", "--repeats", "2", "--momentum", "0.66"]
    found = search(tmp_path / "search", *words)
    assert "But of its 2 repeats one failed: loss is nan at step 3." in found.words
    assert any(sentence.startswith("Trained again with 1 fresh seed") for sentence in found.words)
