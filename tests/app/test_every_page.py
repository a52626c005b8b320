"""What every page does for every kind of run: it opens in time, names it, says what it can't read."""

import json
import os
import shutil
import time
from importlib import import_module
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import address, state
from app.charts.store import SPLITS
from app.markup import plain
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import Lineage, change_notes, write_lineage
from labkit.run_directory.stop import move_to_trash, restore
from tests.app.conftest import configure, in_cluster, write_predictions, write_several
from tests.app.pages import PAGES, checked, open_main, open_page, rows_of, words
from tests.app.rows import append, append_machine, append_worker, layer_row, machine_row
from tests.run_directory.test_foreign_files import FILES, KINDS, SECONDS, replace

ODD = "*a* _b_ $c$ :smile: [d](e)"
OWN = Path(__file__).parents[1] / "own_nets.py"


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import what the pages import once: that takes longer than they do."""
    for page in ("runs", *PAGES):
        import_module(f"app.views.{page}")


def open_in_time(page: str, run: RunDirectory) -> AppTest:
    began = time.monotonic()
    at = open_main(run=run.name) if page == "runs" else open_page(page, run)
    assert time.monotonic() - began < SECONDS, page
    return at


def whole(run: RunDirectory) -> RunDirectory:
    """Give a made run each file that the pages read."""
    write_predictions(run)
    append(run.layers_path, layer_row(50), layer_row(100))
    append_machine(run, machine_row(1), machine_row(2))
    change_notes(run, add=["paper"], note="two\nlines")
    write_lineage(run, Lineage(str(run.path.with_name("parent")), 5, {"learning_rate": (0.1, 0.01)}))
    in_cluster(run, ("worker:0",))
    append_worker(run, "worker:0", 100.0)
    (run.path / "evaluations.jsonl").write_text('{"split": "test", "step": 10, "loss": 0.3}\n')
    return run


# Live has the run's name alone, and Compare several runs.
@pytest.mark.parametrize("page", [page for page in PAGES if page not in ("live", "compare")])
def test_a_page_is_called_what_the_navigation_calls_it(make_run, page):
    title = {name: title for name, title, *_ in address.PAGES}[page]
    assert open_page(page, make_run("first")).subheader[0].value == f"{title} · first"


def test_splits_stand_in_the_order_of_the_curves(make_run):
    write_predictions(make_run("first"))
    for page in ("predictions", "image"):
        [control] = [one for one in open_page(page, "first").get("button_group") if one.label == "Split"]
        assert (control.options, control.value) == ([*SPLITS], "test"), page


# ---- every kind of run ---------------------------------------------------------------------------------


def own_network(run: RunDirectory) -> None:
    (run.path / "code").mkdir()
    shutil.copy(OWN, run.path / "code")
    configure(run, model=f"{OWN}:functional")


def by_another_program(run: RunDirectory) -> None:
    write_predictions(run)
    settings = {"learning_rate": 0.1, "width": 7, "odd": [1, None]}
    run.config_path.write_text(json.dumps({"recorded_by": "labkit.start_run", "settings": settings}))


RUNS_OF = {
    "finished": ({}, lambda run: configure(run, num_layers=20, train_steps=200)),
    "running": ({"state": "running"}, whole),
    "failed": ({"state": "failed", "loss": float("nan")}, whole),
    "of a cluster": (
        {"state": "running"},
        lambda run: in_cluster(run, ("chief:0", "worker:1"), phase="lost"),
    ),
    "without metrics": ({"state": "starting"}, lambda run: run.metrics_path.unlink()),
    "with several labels": ({}, write_several),
    "of the user's own network": ({}, own_network),
    "of another program": ({}, by_another_program),
    "half written": ({}, lambda run: [file.unlink() for file in run.path.iterdir() if file.is_file()]),
}
# What the page of a finished run says that has nothing but a configuration and metrics.
SENTENCES = {
    "runs": "1 run",
    "live": "Step 120 of 200",
    "layers": "every 50 steps, train with:",
    "predictions": "labkit evaluate",
    "image": "no prepared 'shapes' data set",
    "data": "no prepared 'shapes' data set",
    "image_map": "no prepared 'shapes' data set",
    "compare": "Choose a second run",
    "configuration": "labkit train --preset smoke --job-dir 'a b'",
}


@pytest.mark.parametrize("kind", RUNS_OF)
@pytest.mark.parametrize("page", SENTENCES)
def test_every_page_opens_for_every_kind_of_run(make_run, page, kind):
    made, change = RUNS_OF[kind]
    run = make_run(ODD, **made)
    change(run)
    if kind == "half written":
        run.config_path.write_text("{")
    at = open_in_time(page, run)
    assert not at.error or kind in ("half written", "failed", "of the user's own network"), words(at)
    if kind == "finished":
        assert SENTENCES[page] in words(at)
        headings = " ".join(heading.value for heading in (*at.title, *at.subheader))
        assert page in ("runs", "compare", "image_map") or plain(ODD) in headings


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("live", "another program makes its steps"),
        ("layers", "Another program recorded this run"),
        ("predictions", "Confusion matrix"),
        ("image", "can't ask its network"),
        ("data", "neither its network nor its data"),
        ("configuration", "width"),
    ],
)
def test_a_run_of_another_program_has_what_its_files_allow(make_run, page, sentence):
    run = make_run("theirs", state="interrupted")
    by_another_program(run)
    at = open_page(page, run)
    assert sentence in words(at), words(at)
    assert "--inspect-every-steps" not in words(at)
    assert not any(one.label == "Resume" for one in at.button)


@pytest.mark.parametrize("page", PAGES)
def test_a_name_of_any_characters_breaks_no_page(make_run, page):
    for name in ("a__b", "bad-\udcff", "~nosuch", "x" * 200, "a%20&c=d#e?"):
        run = make_run(name)
        write_predictions(run)
        append(run.layers_path, layer_row(50))
        text = words(open_main(page, run=state.clean(name)))
        if page != "compare" or name == "bad-\udcff":  # Compare begins with the run before, too
            assert ("Rename the folder" in text) is (name == "bad-\udcff")


def test_without_runs_the_page_says_how_to_make_one(runs_folder):
    for page in (open_main(), open_main("live"), open_page("compare", "")):
        assert "labkit train --preset smoke" in words(page)


# ---- files that anybody may have put there ----------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if path.is_file() else b"{")


# Things in the place of a file: what a foreign run may hold, and damage.
THINGS = {kind: lambda path, kind=kind: replace(path, kind) for kind in KINDS} | {
    "gone": lambda path: path.unlink(missing_ok=True) if not path.is_dir() else shutil.rmtree(path),
    "cut": lambda path: None if path.is_dir() else _cut(path),
    "no text": lambda path: None if path.is_dir() else path.write_bytes(b"\xff\x00"),
    "no object": lambda path: None if path.is_dir() else path.write_bytes(b"[]\n"),
    "other types": lambda path: None if path.is_dir() else path.write_text('{"data": 3, "step": NaN}\n'),
}


def put(run: RunDirectory, name: str, thing: str) -> None:
    folder = (run.path / name).parent
    if folder.is_dir() and not folder.is_symlink():
        THINGS[thing](run.path / name)


@pytest.fixture
def mine(tmp_path):
    """A file of the user, which a link of the run leads to. It stays as it is."""
    (tmp_path / "mine").write_text("mine")
    yield
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("thing", [*KINDS, *range(len(THINGS))])
@pytest.mark.parametrize("page", SENTENCES)
def test_every_page_answers_whatever_all_files_of_a_run_are(page, thing, make_run):
    """All files and folders are things of one kind; or each file another one, and the folders stay."""
    run, things = whole(make_run("bad")), list(THINGS)
    for number, name in enumerate(FILES):
        if name == "config.json":  # without it there is no run
            continue
        if thing in KINDS:
            put(run, name, thing)
        elif not (run.path / name).is_dir():
            put(run, name, things[(number + thing) % len(things)])
    open_in_time(page, run)


# make test has each file once, and each thing many times.
CASES = [
    pytest.param(name, thing, marks=() if number % len(THINGS) == at else pytest.mark.long)
    for number, name in enumerate(FILES)
    for at, thing in enumerate(THINGS)
]


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(("name", "thing"), CASES)
def test_pages_that_are_open_all_day_answer_whatever_a_file_is_and_show_the_other_runs(name, thing, make_run):
    run = whole(make_run("bad"))
    put(run, name, thing)
    make_run("whole")
    assert "whole" in [row["name"] for row in rows_of(open_in_time("runs", run))]
    if run.exists():
        open_in_time("live", run)


def test_settings_are_found_and_compared_with_those_of_another_run(make_run):
    one, other = make_run("one"), make_run("my_other")
    configure(one, learning_rate=0.2)
    configure(other, learning_rate=0.3, momentum=0.8)
    at = open_page("configuration", one)
    checked(at.text_input(key="setting").set_value("Decay").run())
    shown = words(at)
    assert "weight_decay" in shown and "batch_norm_decay" in shown and "train_batch_size" not in shown
    checked(at.text_input(key="setting").set_value("*no such").run())
    assert "No setting has `*no such`" in words(at)
    checked(at.text_input(key="setting").set_value("").run())
    assert "train_batch_size" in words(at)
    checked(at.selectbox(key="configuration-beside").set_value("my_other").run())
    assert at.expander[0].label == "Differs from the other run"  # names keep their underscores
    assert "optimizer.learning_rate 0.2 (there: 0.3)" in words(at)
    assert "optimizer.momentum 0.9 (there: 0.8)" in words(at)


def test_damaged_results_and_checkpoints_leave_the_head_of_a_page(make_run):
    run = make_run("mine", state="interrupted")
    append(run.metrics_path, {"split": "validation", "step": 120, "mean_absolute_error": 10**400})
    (run.checkpoints_path / "step-00000000").mkdir(parents=True)
    assert "Step 120 of 200" in words(open_page("configuration", run))


@pytest.mark.parametrize("page", [name for name in PAGES if name != "compare"])
def test_progress_figures_and_buttons_of_a_run_are_on_each_of_its_pages(make_run, page):
    run = make_run("mine", state="interrupted")
    configure(run)
    at = open_page(page, run)
    said, buttons = words(at), [one.label for one in at.button]
    assert "Step 120 of 200" in said and "Training loss" in said and "Validation accuracy" in said
    assert "Resume" in buttons and "Make the fork" in buttons
    assert "Again" in [one.proto.label for one in at.get("page_link")]


@pytest.mark.parametrize(
    "content", ['{"data": ', "[]", "", '{"a":' * 900 + "1" + "}" * 900, '{"a":' * 100_000]
)
def test_a_damaged_configuration_is_named_and_breaks_no_page(make_run, content):
    make_run("second")
    run = make_run("first")
    run.config_path.write_text(content)
    for page in PAGES:
        text = words(open_in_time(page, run))
        # 900 levels may fit the stack and be shown; 100,000 never do.
        if page in ("compare", "configuration") and content.count("{") != 900:
            assert "config.json" in text, page
    assert "config.json" in words(open_page("start", "", again=str(run.path)))
    assert open_main(run="first").selectbox(key="run").value == "first"


# ---- while a page is open ------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["live", "image", "configuration"])
def test_a_run_that_goes_away_while_its_page_is_open_is_named_with_the_way_back(make_run, page, monkeypatch):
    run = make_run()
    at = open_main(page, run="first")
    trashed = move_to_trash(run, [run.path.parent])
    text = words(checked(at.run()))
    assert "moved to the trash. *Restore*, below the table of the page *Runs*, brings it back" in text
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    assert f"`labkit restore {run.path}` brings it back" in words(checked(at.run()))
    restore(trashed)
    assert "brings it back" not in words(checked(at.run()))
    run.path.rename(run.path.with_name("second"))
    assert "any more: it was deleted, moved or renamed" in words(checked(at.run()))


def test_every_page_is_drawn_again_when_its_run_is_started_over_or_goes_away(make_run, tmp_path, monkeypatch):
    looks = {}
    monkeypatch.setattr(state, "watch", lambda name, look, *times, **seen: looks.update({name: look}))
    elsewhere = make_run().path.rename(tmp_path / "elsewhere")  # in no listed folder
    open_main("configuration", run=str(elsewhere))
    seen = [looks["runs"]()]
    os.utime(elsewhere / "config.json", (1, 1))
    seen.append(looks["runs"]())
    elsewhere.rename(tmp_path / "moved")
    seen.append(looks["runs"]())
    assert len(set(seen)) == 3


def test_no_name_in_a_record_is_read_as_markdown(make_run):
    image = "![x](http://127.0.0.1:1/x)"
    run = make_run()
    environment = json.loads(run.environment_path.read_text()) | {image: {"a": 1}, "theirParts": {"a": 1}}
    run.environment_path.write_text(json.dumps(environment))
    labels = [one.label for one in open_page("configuration", run).expander]
    assert any("127" in label for label in labels) and not any(image in label for label in labels)
    assert "TheirParts" in labels
    run.config_path.write_text("{")
    bad = run.path.rename(run.path.with_name(f"bad {image.replace('/', ':')}"))
    assert not any("![x](" in one.value for one in open_page("configuration", RunDirectory(bad)).error)
