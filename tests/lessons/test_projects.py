"""The check of project 1 passes a program that survives kills, and says what another one lacks."""

from pathlib import Path

import pytest

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
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


def check(program, capsys):
    code = cli.main(["lesson", "check", "project.1", "--program", str(program)])
    return code, capsys.readouterr().out


def test_a_program_that_survives_passes(capsys):
    code, said = check(SOLUTION, capsys)
    assert code == 0, said
    assert "✓ exercise project.1: the losses are those of one process" in said


@pytest.mark.parametrize("name", WRONG)
def test_what_a_program_lacks_is_said(name, capsys, tmp_path):
    before, after, hint = WRONG[name]
    source = SOLUTION.read_text()
    assert before in source
    program = tmp_path / "train.py"
    program.write_text(source.replace(before, after))
    code, said = check(program, capsys)
    assert (code, hint in said) == (1, True), said


def test_without_a_program_the_flag_is_named(capsys, tmp_path):
    assert cli.main(["lesson", "check", "project.1"]) == 2
    assert "name your program with --program" in capsys.readouterr().err
    assert cli.main(["lesson", "check", "project.1", "--program", str(tmp_path / "no.py")]) == 2
    assert "there is no" in capsys.readouterr().err
