"""The checks of the projects pass a program that does what is asked, and say what another one lacks."""

from pathlib import Path

import numpy as np
import pytest

from course.lessons import data_parallel, link_times
from course.lessons.workers import workers_of
from labkit.commands import main as cli

SOLUTION = Path(__file__).parent / "projects" / "data_parallel.py"
WRONG = {
    "losses are not shared": (
        "np.array_split(batch(step), count)[place]",
        "batch(step)[: BATCH // count]",
        "with 3 workers, the loss of step 1 is",
    ),
    "no checkpoint is read": (
        "if not path.exists():",
        "if True:",
        "it began with step 1; load the checkpoint",
    ),
    "a kill ends all": (
        "if lost:",
        "if lost:\n            raise SystemExit('somebody is lost')",
        "worker 0 of 3 ended with exit code 1",
    ),
    "a fault is shown": ("parser = ", "parser = nowhere", "its last words: NameError"),
}
PREDICTS = Path(__file__).parent / "projects" / "link_times.py"
PEEKS = """
from course.lessons.link_times import ring
from course.lessons.workers import Workers

def predict(worker, cases):
    with Workers(4) as workers:
        return [max(workers.run(ring, array).seconds) for array in cases]
"""
WAITS = """
import time
from pathlib import Path

def predict(worker, cases):
    while not Path("measured.json").exists():
        time.sleep(0.1)
    return Path("measured.json").read_text()
"""
POOR = {
    "it starts what it has to predict": (PEEKS, "predict starts a process; measure messages between"),
    "it waits for the measurement": (
        WAITS,
        "no predictions came, and nothing was measured: after 4 s",
    ),
    "it hangs": (
        "def predict(worker, cases):\n    worker.receive(1 - worker.rank)",
        "worker 0 still waits for",
    ),
    "one number": ("def predict(worker, cases):\n    return [0.15] * len(cases)", "is the same number"),
    "too few": ("def predict(worker, cases):\n    return [0.15]", "has the shape [1]; expected [3]"),
    "nothing to call": ("predict_it = 3", "the program defines no predict(worker, cases)"),
    "below 0": ("def predict(worker, cases):\n    return [-0.1, 1, 2]", "a prediction is -0.1 s"),
}


def check(program, capsys, project="project.1", *words):
    code = cli.main(["lesson", "check", project, "--program", str(program), *words])
    return code, capsys.readouterr().out


# ---- project 1 -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_program_that_survives_passes(capsys):
    code, said = check(SOLUTION, capsys)
    assert code == 0, said
    assert "✓ exercise project.1: the losses are those of one process" in said


@pytest.mark.long
@pytest.mark.parametrize("name", WRONG)
def test_what_a_program_lacks_is_said(name, capsys, tmp_path):
    before, after, hint = WRONG[name]
    source = SOLUTION.read_text()
    assert before in source
    program = tmp_path / "train.py"
    program.write_text(source.replace(before, after))
    code, said = check(program, capsys)
    assert (code, hint in said) == (1, True), said


def test_a_seed_draws_another_step_for_the_kill(monkeypatch):
    steps = []

    def run(program, folder, workers, kill=(), kill_at=None):
        steps.extend([kill_at] if kill else [])
        return [(10, 0.0)] * (1 + len(steps) + (not kill))

    monkeypatch.setattr(data_parallel, "STEP_SECONDS", 0)
    monkeypatch.setattr(data_parallel, "_compare", lambda *_: None)
    monkeypatch.setattr(data_parallel, "_run", run)
    for seed in (0, 7):
        data_parallel.check_program(Path("train.py"), seed)
    one, all_of_them, *others = steps
    assert one == all_of_them and others == [others[0]] * 2 and one != others[0]
    assert all(10 < step < data_parallel.STEPS - 20 for step in steps)


# ---- project 2 -----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("why", [None, "not allowed here"])
def test_a_program_that_measures_and_predicts_passes(why, capsys, monkeypatch):
    if why:
        monkeypatch.setattr(link_times, "why_no_hosts", lambda: why)
    code, said = check(PREDICTS, capsys, "project.2")
    assert code == 0, said
    assert "✓ exercise project.2: 9 times of 4 workers, predicted by two of them" in said
    assert ("over loopback that wait as on a link of a drawn rate: not allowed here" in said) is bool(why)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "hint"),
    [
        ("messages * alpha", "0", "it is the time of the bytes alone; each message has its α as well"),
        ("arrays * num_bytes * beta", "0", "it is the time of the messages alone; their bytes count as well"),
        ("begin) / 2", "begin)", "a message there and back is two messages"),
        ("* beta)", "* beta * 8)", "a byte has 8 bits"),
    ],
)
def test_what_a_prediction_leaves_out_is_said(before, after, hint, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(link_times, "why_no_hosts", lambda: "not allowed here")
    monkeypatch.setattr(link_times, "ROUNDS", (2, 4))
    source = PREDICTS.read_text()
    assert before in source
    program = tmp_path / "predict.py"
    program.write_text(source.replace(before, after))
    code, said = check(program, capsys, "project.2")
    assert (code, hint in said) == (1, True), said


@pytest.mark.long
@pytest.mark.parametrize("name", POOR)
def test_a_program_without_predictions_of_its_own_fails_before_anything_is_measured(
    name, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(link_times, "why_no_hosts", lambda: "not allowed here")
    monkeypatch.setattr(link_times, "SECONDS", 4.0)
    monkeypatch.setattr(link_times, "_measured", lambda *_: pytest.fail("measured"))
    source, hint = POOR[name]
    program = tmp_path / "predict.py"
    program.write_text(source)
    code, said = check(program, capsys, "project.2")
    assert (code, hint in said) == (1, True), said


@pytest.mark.parametrize("algorithm", link_times.ALGORITHMS)
def test_what_is_timed_is_an_all_reduce(algorithm):
    arrays = np.random.default_rng(0).normal(size=(4, 24))
    found = workers_of(4).run(link_times.ALGORITHMS[algorithm], each=[(array,) for array in arrays])
    for result in found.results:
        np.testing.assert_allclose(result, arrays.sum(0))


def test_a_seed_draws_other_links_and_bytes(capsys, monkeypatch):
    asked = []

    def predicted(program, link, cases, shaped):
        asked.append((link, cases))
        return 1.0 + np.arange(len(cases))

    monkeypatch.setattr(link_times, "_predicted", predicted)
    monkeypatch.setattr(link_times, "_measured", lambda link, cases, predicted, shaped: predicted * 0.8)
    for seed in ("0", "7"):
        code, said = check(PREDICTS, capsys, "project.2", "--seed", seed)
        assert (code, "off by at most 25%" in said) == (0, True)
    near, far, other_near, other_far = asked
    assert near[0] != other_near[0] and far[0] != other_far[0]
    assert near[1] != other_near[1] and far[1] != other_far[1]
    sizes = {case.num_bytes for _, cases in asked for case in cases}
    assert all(size % 32 == 0 for size in sizes), "an array of float64 that four workers can share evenly"


@pytest.mark.parametrize("project", ["project.1", "project.2"])
def test_without_a_program_the_flag_is_named(project, capsys, tmp_path):
    assert cli.main(["lesson", "check", project]) == 2
    assert "name your program with --program" in capsys.readouterr().err
    assert cli.main(["lesson", "check", project, "--program", str(tmp_path / "no.py")]) == 2
    assert "there is no" in capsys.readouterr().err
