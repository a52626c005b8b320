"""What is told of runs while a page is open: once for all pages, and only what is new."""

import pytest

import labkit
from app import alerts
from app.alerts import Alerts
from labkit.errors import InputError
from tests.app.pages import checked, open_main, words
from tests.app.rows import append, evaluation_row


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 0.0)


def texts(told: Alerts) -> list[str]:
    return [one["text"] for one in told.look()]


def test_what_happens_to_a_run_is_told_once_the_newest_first_with_its_address(runs_folder, make_run):
    make_run("old")
    run = labkit.start_run("mine", total_steps=9)
    run.log(1, loss=1.0)
    told = Alerts(["training_loss>3"])
    assert texts(told) == [], "what had ended before is no news"
    run.log(2, loss=4.0)
    run._write_status()
    assert texts(told) == texts(told) == ["mine: training_loss>3 at step 2"]
    run.log(3, loss=float("nan"))
    run._write_status()
    assert texts(told)[0] == "mine: the loss is NaN at step 3"
    run.finish()
    assert texts(told)[0].startswith("mine: finished")
    assert {one["href"] for one in told.look()} == {"live?run=mine"}
    append(runs_folder / "old" / "metrics.jsonl", evaluation_row(130, loss=9.0))
    assert len(texts(told)) == 3


def test_a_condition_may_have_spaces_as_in_the_filter(make_run):
    make_run()
    assert not open_main(alert="accuracy > 0.5 state = failed").warning


@pytest.mark.parametrize("text", ["accuracy", "nonsense>3", "'accuracy>0.5"])
def test_a_text_that_is_no_condition_is_a_sentence(make_run, text):
    make_run()
    at = open_main(alert=text)
    assert "allowed" in words(at) or "unknown" in words(at) or "without its partner" in words(at)
    if "'" not in text:
        with pytest.raises(InputError):
            Alerts([text])
    at.text_input(key="alert").set_value("accuracy>0.5")
    assert "allowed: a condition" not in words(checked(at.run()))
