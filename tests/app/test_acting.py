"""Start, stop and resume from the dashboard: the form makes the command line's command."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest

from app import background, state
from app.acting import launches
from app.acting.draft import check, draft_of, expected, new_draft, with_data_set, with_preset
from app.views import start
from labkit.commands import main as cli
from labkit.commands.main import parse
from labkit.commands.train import training_of
from labkit.config import Config, fields_by_name
from labkit.config.config import recorded_config
from labkit.config.presets import PRESETS, merged_with_preset, preset_values
from labkit.errors import InputError
from labkit.home import home
from labkit.parts.trust import accept
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import WEIGHT_NOT_FINITE
from labkit.startup.child import REASON
from tests.app.conftest import change_environment, configure, in_cluster
from tests.app.pages import button, checked, commands_of, finished, open_page, press, unfold, words
from tests.app.rows import append, append_machine, layer_row, machine_row, train_row
from tests.commands.in_process import config_of
from tests.commands.test_manage import TRAINING

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def forgotten():
    """No start of another test is remembered."""
    launches._started.clear()


@pytest.fixture
def started(monkeypatch):
    """Stands for ``labkit``: notes its arguments, prints ``says``, refuses and ends as the others say."""
    noted = SimpleNamespace(arguments=[], says="", refuses="", code=None)

    def start(arguments, log, variables):
        noted.arguments.append(list(arguments))
        script = "import time; time.sleep(60)" if noted.code is None else f"raise SystemExit({noted.code})"
        log.write(noted.says.encode())
        Path(variables[REASON]).write_text(noted.refuses)
        process = subprocess.Popen([sys.executable, "-c", script])
        processes.append(process)
        return process

    processes: list[subprocess.Popen] = []
    monkeypatch.setattr(launches, "start_detached", start)
    yield noted
    for process in processes:
        process.kill()
        process.wait()


# ---- the form and its command --------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["", *PRESETS])
def test_the_command_trains_what_the_form_shows(runs_folder, preset):
    draft = new_draft(preset)
    draft.shown |= {"dataset": "shapes", "nesterov": True, "train_steps": "77", "weight_decay": "1e-3"}
    draft.shown["checkpoint_every_seconds"] = ""  # none, where the default is a number
    draft.name = "a b's <i>"
    found = check(draft)
    assert (found.errors, found.problem) == ({}, "")
    assert shlex.split(found.command) == ["labkit", *found.arguments]
    values = {"dataset": "shapes", "nesterov": True, "train_steps": 77, "weight_decay": 1e-3}
    values |= {"checkpoint_every_seconds": None, "job_dir": str(runs_folder / "a b's <i>")}
    assert config_of(found.arguments) == Config.from_flat(merged_with_preset(preset or None, values))


def test_several_numbers_and_seeds_are_a_search_that_trains_each(runs_folder, tmp_path):
    draft = new_draft("smoke")
    draft.shown |= {"learning_rate": "0.1, 0.03,0.01", "momentum": "0.8,0.9", "train_steps": "77"}
    draft.seeds, draft.at_once, draft.name = 2, 3, "rates"
    found = check(draft)
    assert (found.errors, found.problem, found.trainings) == ({}, "", 12)
    place = home() / "searches" / "rates"
    assert draft.run().path == place
    space = ["--space", "momentum=0.8,0.9", "learning_rate=0.1,0.03,0.01"]
    words = ["--seeds", "2", "--repeats", "0", "--workers", "3", "--output", str(place)]
    assert sorted(found.arguments) == sorted(
        ["search", "--preset", "smoke", "--train-steps", "77", "--sampler", "grid", *space, *words]
    )
    for name, text, told in (
        ("learning_rate", "0.1,0.1", "at least two values, each once"),
        ("learning_rate", "0.1,-3", "--learning-rate is -3"),
        ("learning_rate", "0,1", "write 0.1 for one number"),
        ("learning_rate", "0.1,", "--learning-rate"),
        ("train_steps", "10,20", "all trials need the same length"),
        ("seed", "1,2", "a seed is chance"),
    ):
        wrong = new_draft("smoke")
        wrong.shown[name] = text
        assert told in check(wrong).errors[name]
    draft.workers = 2
    assert "several workers" in check(draft).problem
    only_seeds = new_draft("smoke")
    only_seeds.seeds = 3
    assert "--space" not in check(only_seeds).arguments
    assert check(only_seeds).trainings == 3


def test_the_time_of_trainings_is_told_by_a_run_like_them(make_run):
    run = make_run("mine")
    configure(run, **preset_values("smoke"))
    run.write_status(replace(run.read_status(), examples_per_second=100.0))
    [summary] = state.summaries([run], 9.0)
    draft = new_draft("smoke")
    draft.shown |= {"train_steps": "600", "learning_rate": "0.1,0.2"}
    failed = replace(summary, name="newer", state="failed", last_active=summary.last_active + 1)
    seconds, like = expected(check(draft), draft, [summary, failed])
    assert like.name == "mine"
    assert seconds == pytest.approx(2 * 600 * 32 / 100)
    for sizes in ("64", "32, 64"):
        draft.shown["train_batch_size"] = sizes
        assert expected(check(draft), draft, [summary]) is None
    draft.shown |= {"train_batch_size": "32", "learning_rate": "0.1"}
    assert expected(check(draft), draft, [summary])
    draft.workers = 2
    assert check(draft).config is not None
    assert expected(check(draft), draft, [summary]) is None, "workers share the cores"
    draft.workers = 1
    draft.shown["progressive_resizing"] = "16:0.5"
    assert check(draft).config is not None
    assert expected(check(draft), draft, [summary]) is None, "steps of smaller images are quicker"
    del draft.shown["progressive_resizing"]
    in_cluster(run)
    assert expected(check(draft), draft, [summary]) is None, "several processes have another speed"
    shutil.rmtree(run.cluster_path)
    draft.shown |= {"block": "bottleneck", "num_layers": "20"}
    configure(run, **preset_values("smoke") | {"num_layers": 20})
    [summary] = state.summaries([run], 9.0)
    assert check(draft).config is not None
    assert expected(check(draft), draft, [summary]) is None, "another network of as many layers"


def test_the_time_counts_the_images_of_all_passes_of_a_step(make_run):
    run = make_run("mine")
    configure(run, **preset_values("smoke") | {"accumulate_steps": 4})
    run.write_status(replace(run.read_status(), examples_per_second=100.0))
    [summary] = state.summaries([run], 9.0)
    draft = new_draft("smoke")
    draft.shown |= {"train_steps": "600", "accumulate_steps": "4"}
    seconds, _ = expected(check(draft), draft, [summary])
    assert seconds == pytest.approx(600 * 4 * 32 / 100)
    draft.shown["accumulate_steps"] = "1, 4"
    assert expected(check(draft), draft, [summary]) is None


def test_no_time_is_told_of_epochs_of_data_that_are_not_there(make_run):
    run = make_run("mine")
    configure(run, **preset_values("smoke"))
    run.write_status(replace(run.read_status(), examples_per_second=100.0))
    [summary] = state.summaries([run], 9.0)
    draft = new_draft("smoke")
    draft.shown["epochs"] = "2"
    assert check(draft).config is not None
    assert expected(check(draft), draft, [summary]) is None, "nothing tells how many images an epoch has"


def test_memory_is_told_by_a_run_like_them_and_too_little_is_said(make_run, monkeypatch):
    run = make_run("mine")
    configure(run, **preset_values("smoke"))
    run.write_status(replace(run.read_status(), examples_per_second=100.0))
    said = words(open_page("start", run))
    assert "Memory" not in said, "the run didn't record any"
    assert "at the speed of mine; validations" in said
    run.write_status(replace(run.read_status(), host="big.example.org"))
    assert "at the speed of mine on big.example.org; validations" in words(open_page("start", run))
    append_machine(run, machine_row(1.0, memory_bytes=2**30), machine_row(2.0, memory_bytes=3 * 2**29))
    monkeypatch.setattr(start, "virtual_memory", lambda: SimpleNamespace(available=4 * 2**30))
    said = words(open_page("start", run))
    assert (
        "Memory: at most 1.5 GiB, as that run took. Free now: 4.0 GiB." in said and "too little" not in said
    )
    at = open_page("start", run)
    for key, value in (("seeds", 5), ("at_once", 3)):
        one = next(box for box in at.number_input if box.key.endswith(f"-{key}"))
        one.set_value(value)
        checked(at.run())
    assert "at most 3 times 1.5 GiB" in words(at) and "That is too little." in words(at)
    assert "5 trainings, 3 at a time." in words(at)
    next(box for box in at.number_input if box.key.endswith("-at_once")).set_value(9)
    assert "5 trainings, 5 at a time." in words(checked(at.run()))


def test_the_form_of_auto_fits_the_data_set_that_is_chosen(runs_folder):
    draft = with_preset(new_draft("smoke"), "auto")
    assert draft.shown["dataset"] == "shapes"
    assert check(draft).given == {"dataset": "shapes"}
    draft.shown["seed"] = "3"
    other = with_data_set(draft, "cifar10")
    assert (draft.shown["train_batch_size"], other.shown["train_batch_size"]) == ("64", "128")
    found = check(other)
    assert found.given == {"dataset": "cifar10", "seed": 3}
    assert found.arguments[:3] == ["train", "--preset", "auto"]


def test_weights_that_are_not_finite_after_a_finite_loss_are_a_divergence_too(make_run):
    message = f"{WEIGHT_NOT_FINITE} after step 120; there is no checkpoint yet; lower --learning-rate (9)"
    at = open_page("live", make_run("mine", state="failed", status={"message": message}))
    assert "A weight isn't finite after step 120." in words(at)
    assert "Again with a tenth of the rate" in [link.proto.label for link in at.get("page_link")]
    assert "Resume" not in [button.label for button in at.button]
    others = open_page("live", make_run("other", state="failed", status={"message": "the disk is full"}))
    assert "Resume" in [button.label for button in others.button]


def test_a_tenth_of_the_rate_is_one_of_each_learning_rate(make_run):
    run = make_run("mine", state="failed", loss=float("nan"))
    append(run.layers_path, layer_row(100))
    at = open_page("live", run.name)
    links = {link.proto.label: link.proto for link in at.get("page_link")}
    assert "is NaN." in words(at)
    assert links["Layers before it"].query_string == "run=mine", "the sidebar's name of the run, not its path"
    assert "rates=0.1" in links["Again with a tenth of the rate"].query_string
    run.layers_path.write_text("")  # it failed before the first look
    assert "Layers before it" not in [link.proto.label for link in open_page("live", run).get("page_link")]
    for values, muon in (({"optimizer": "muon", "muon_learning_rate": 0.03}, 0.003), ({}, 0.24)):
        configure(run, **values, learning_rate=0.2, train_steps=9)
        at = open_page("start", run, again=str(run.path), rates="0.1")
        made = config_of(shlex.split(commands_of(at)[0])[1:])
        assert (made.optimizer.learning_rate, made.optimizer.muon_learning_rate) == (0.02, muon)
        assert made.run.train_steps == 9
    at = press(open_page("live", run), "The batch of that step")
    assert at.query_params["batch"]
    at = open_page("live", make_run("other", state="failed"))
    assert "is NaN." not in words(at)


def test_only_what_differs_from_the_preset_is_in_the_command(runs_folder, monkeypatch):
    draft = new_draft("smoke")
    assert check(draft).arguments == ["train", "--preset", "smoke", "--job-dir", str(runs_folder / "smoke")]
    draft.shown["train_steps"] = " 20 "
    assert check(draft).given == {}
    assert with_preset(draft, "fast").shown["model"] == "fast"
    monkeypatch.setenv("LABKIT_ALLOW_CODE", "1")
    draft.shown["callbacks"] = "mine.py"
    assert check(draft).given == {"callbacks": str(Path("mine.py").absolute())}


def test_a_run_fills_the_form_with_its_own_configuration(make_run):
    values = {"model": "vgg", "num_layers": 13, "train_steps": 9, "use_distortion_for_training": False}
    run = make_run("mine-2")
    recorded = configure(run, **values, input_path="memory")
    found = check(draft_of(run))
    assert config_of(found.arguments).identity() == recorded.replace({"input_path": "auto"}).identity()
    assert found.arguments[-1] == str(run.path.parent / "mine-3")
    configure(run, **preset_values("smoke"))
    assert check(draft_of(run)).arguments[1:3] == ["--preset", "smoke"]


def test_several_processes_become_a_cluster_on_this_machine(make_run):
    run = make_run()
    configure(run)
    in_cluster(run, ("chief:0", "ps:0", "worker:0", "worker:1"))
    arguments = check(draft_of(run)).arguments
    assert arguments[:7] == ["cluster", "local", "--workers", "2", "--ps", "1", "--"]
    assert training_of(parse(arguments).keywords["training"], "labkit")[0].run.job_dir == arguments[-1]
    draft = draft_of(run)
    draft.shown["optimizer"] = "muon"
    assert "allowed in asynchronous training: sgd" in check(draft).problem


REFUSED = {"train_batch_size": "x", "train_steps": "0", "learning_rate": "nan", "num_layers": "9"}
REFUSED |= {"loss": "sigmoid", "data_dir": "gs://bucket", "profile_steps": "9", "slow_worker": "1:3"}


@pytest.mark.parametrize(("name", "text"), [*REFUSED.items(), ("learning_rate", "")])
def test_a_mistake_is_refused_with_the_sentence_of_the_command_line(runs_folder, capsys, name, text):
    draft = new_draft("smoke")
    draft.shown[name] = text
    assert cli.main(["train", "--preset", "smoke", f"--{name.replace('_', '-')}={text}"]) == 2
    assert capsys.readouterr().err == f"labkit: error: {check(draft).errors[name]}\n"


def test_a_name_that_isnt_one_folder_is_refused(runs_folder):
    draft = new_draft("smoke")
    for name in ("../x", "a/b", "/etc/x", ".hidden", "..", "x\ny", "x" * 300):
        draft.name = name
        assert "the name is" in check(draft).problem


def test_the_browser_knows_what_each_widget_holds_from_its_default(runs_folder):
    """A value that only the session holds is lost where the reader is quicker than the drawing."""
    at = open_page("start", "")
    shown, drawn = at.session_state["start-draft"].shown, 0
    for widget in (*at.checkbox, *at.text_input, *at.selectbox):
        if name := widget.key.partition("-field-")[2]:
            held = widget.index if hasattr(widget, "index") else shown[name]
            assert widget.proto.default == held, name
            drawn += 1
    assert drawn > 40


# ---- the page that starts ------------------------------------------------------------------------------


def test_the_page_starts_once_and_opens_the_run(runs_folder, started):
    at = open_page("start", "")
    at.text_input(key="start-1-name").set_value("mine").run()
    at.text_input(key="start-1-field-train_steps").set_value("7").run()
    checked(at)
    command = ["train", "--preset", "smoke", "--train-steps", "7", "--job-dir", str(runs_folder / "mine")]
    assert shlex.join(["labkit", *command]) in words(at)
    press(at, "Start")
    launches.start(command, RunDirectory(runs_folder / "mine"))  # what a second click does
    assert started.arguments == [command]
    assert "Starting: it checks" in words(open_page("live", "mine"))


def test_a_form_that_a_run_has_filled_says_so_until_the_preset_is_taken(make_run):
    run = make_run("mine")
    configure(run, **preset_values("smoke"), seed=7)
    at = open_page("start", run, again=str(run.path))
    for _ in range(2):
        assert "The configuration of mine." in words(at)
        assert "--seed 7" in commands_of(at)[0]
        at = checked(at.run())  # as after a visit to another page
    at = press(at, "The preset alone")
    assert "The configuration of mine." not in words(at)
    assert "--seed" not in commands_of(at)[0]


@pytest.mark.long
def test_a_fork_is_made_by_a_form_and_opened_by_its_link(trained_home, tmp_path):
    run = RunDirectory(shutil.copytree(trained_home.path, tmp_path / "a b"))
    at = open_page("live", run)
    step = at.number_input(key=f"fork-{run.path}-at").value
    assert step == max(step for step in run.checkpoint_steps() if step < run.read_status().total_steps)
    checked(at.text_input(key=f"fork-{run.path}-set").set_value("callbacks=mine.py:Mine").run())
    press(at, "Make the fork")
    assert "--allow-code" in words(at) and not list(tmp_path.glob("*fork*"))
    checked(at.text_input(key=f"fork-{run.path}-set").set_value(f"train_steps={step}").run())
    finished(press(at, "Make the fork"))
    assert "the fork would end" in words(at)
    checked(at.text_input(key=f"fork-{run.path}-set").set_value("nonsense=1").run())
    press(at, "Make the fork")
    assert "nonsense" in words(at) and "the fork would end" not in words(at)
    example = at.text_input(key=f"fork-{run.path}-set").placeholder.split()
    assert not any(fields_by_name()[one.partition("=")[0]].fork for one in example)
    checked(at.text_input(key=f"fork-{run.path}-set").set_value("lr=0.02").run())
    assert f"labkit fork '{run.path}' --at {step} --set lr=0.02" in words(at)
    finished(press(at, "Make the fork"))
    fork = RunDirectory(tmp_path / f"a b-fork-{step}")
    assert recorded_config(fork).optimizer.learning_rate == 0.02
    [link] = [one.proto for one in at.get("page_link") if one.proto.label == "Open the fork"]
    assert parse_qs(link.query_string.lstrip("?"))["run"] == [str(fork.path)]
    background._jobs.clear()  # as when other work has taken its place
    shutil.rmtree(fork.path)
    finished(checked(at.run()))
    assert not fork.exists()  # nobody asked for it again


def test_the_best_trial_again_is_tested_as_no_trial_was(make_run):
    run = make_run("mine")
    configure(run, evaluate_test=False)
    assert "--no-evaluate-test" in commands_of(open_page("start", run, again=str(run.path)))[0]
    (run.path.parent / "search.json").touch()
    assert "evaluate-test" not in commands_of(open_page("start", run, again=str(run.path)))[0]


def test_several_trainings_open_the_page_of_their_search(runs_folder, started):
    at = open_page("start", "")
    at.text_input(key="start-1-field-learning_rate").set_value("0.1, 0.03").run()
    at.number_input(key="start-1-seeds").set_value(2).run()
    assert "4 trainings, one after the other" in words(at)
    press(at, "Start")
    place = home() / "searches" / "smoke"
    [command] = started.arguments
    assert command[-2:] == ["--output", str(place)]
    assert "Starting: it checks" in words(open_page("search", "", search="smoke"))


@pytest.mark.parametrize("state", ["", "failed"])
def test_what_a_start_and_a_resume_refuse_is_shown_and_can_be_tried_again(
    make_run, runs_folder, started, state
):
    started.says, started.refuses, started.code = "noise\n", "--num-gpus is 9; <b>here</b> are none", 2
    run, act = RunDirectory(runs_folder / "smoke"), lambda: launches.start(["train"], run)
    if state:
        run, act = make_run("smoke", state), lambda: launches.resume(run)
        configure(run)
    act()
    at, end = open_page("live", "smoke"), time.monotonic() + 30
    while "started: --num-gpus is 9; <b>here</b> are none" not in words(at):
        assert time.monotonic() < end
        checked(at.run())
    if not state:
        assert at.get("page_link") and not run.path.exists()
    act()
    assert len(started.arguments) == 2


def test_a_folder_that_holds_something_is_refused(make_run, runs_folder, started):
    run = make_run("taken")
    at = open_page("start", "")
    at.text_input(key="start-1-name").set_value("taken").run()
    assert "taken is there already; choose another name" in words(checked(at))
    assert button(at, "Start").disabled
    (runs_folder / "other").mkdir()
    (runs_folder / "other" / "letter.txt").write_text("mine")
    for held in (run, RunDirectory(runs_folder / "other")):
        with pytest.raises(InputError, match="choose another name"):
            launches.start(["train", "--job-dir", str(held.path)], held)
    assert started.arguments == []
    assert check(new_draft("smoke")).arguments[-1] == str(runs_folder / "smoke")


def test_the_search_finds_settings_and_keeps_what_was_typed(runs_folder):
    at = open_page("start", "")
    at.text_input(key="start-1-field-momentum").set_value("0.5").run()
    at.text_input(key="start-find").set_value("label smoothing").run()
    fields = [one.key for one in at.text_input if one.key.startswith("start-1-field-")]
    assert "start-1-field-label_smoothing" in fields
    assert "start-1-field-momentum" not in fields
    at.text_input(key="start-find").set_value("").run()
    assert "--momentum 0.5" in words(checked(at))
    at.selectbox(key="start-1-preset").set_value("fast").run()
    assert "--momentum" not in words(checked(at))
    assert at.text_input(key="start-2-field-learning_rate").value == "1.66"


# ---- stop and resume -----------------------------------------------------------------------------------


@pytest.fixture
def training():
    """Holds a run's locks in another process, as a training does, until SIGTERM."""
    started = []

    def start(run):
        command = [sys.executable, "-c", TRAINING, str(run.path), "polite", ".launcher,.lock"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_training_is_stopped_after_a_question(make_run, training):
    run = make_run()
    process = training(run)
    at = open_page("live", run)
    assert button(at, "Resume") is None
    press(at, "Save and stop")
    assert process.wait(20) == 0
    assert run.read_status().state == "interrupted"
    assert button(checked(at.run()), "Resume") is not None


def test_a_run_that_stops_or_that_another_machine_trains_is_not_stopped_from_here(make_run):
    run = make_run(state="running", status={"heartbeat": time.time()})
    (run.path / ".stop").write_text(str(os.getpid()))
    at = open_page("live", run)
    assert "Stopping: it saves first" in words(at)
    assert button(at, "Save and stop") is None
    far = make_run("far", state="running", status={"heartbeat": time.time(), "host": "elsewhere"})
    assert button(open_page("live", far), "Save and stop") is None
    with pytest.raises(InputError, match="running on host 'elsewhere'"):
        launches.stop(far)


def test_resume_continues_as_the_command_does(make_run, started):
    run = make_run(state="interrupted")
    configure(run)
    at = open_page("live", run)
    assert f"labkit resume {run.path}" in words(at)
    press(at, "Resume")
    launches.resume(run)  # a second click
    assert started.arguments == [["resume", str(run.path)]]
    assert "Resuming" in words(checked(at))
    other = make_run("cluster", state="interrupted")
    configure(other)
    in_cluster(other)
    with pytest.raises(InputError, match="start 2 processes that listen on ports"):
        launches.resume(other)  # somebody else may have written it
    accept(recorded_config(other), {}, (2, 0))  # as a training does at its start
    launches.resume(other)
    options = parse(started.arguments[1]).keywords
    config, _ = training_of(options["training"], "", asynchronous=options["ps"] > 0)
    assert (options["workers"], config.run.job_dir) == (2, str(other.path))


def test_a_page_of_one_run_leaves_what_is_known_of_the_others(make_run):
    runs = [make_run(name, state) for name, state in (("first", "finished"), ("second", "failed"))]
    assert all(one.complete for one in state.summaries(runs, 60))
    assert "There is no checkpoint" in words(open_page("live", runs[1]))
    assert all(one.complete for one in state.summaries(runs, 0)), "nothing is read again"


def test_a_resume_makes_again_what_a_killed_run_did_after_its_last_status(make_run):
    run = make_run("first", status={"state": "running", "pid": 2**22 + 1, "step": 100})
    configure(run)
    (run.checkpoints_path / "step-00000100").mkdir(parents=True)
    append(run.metrics_path, train_row(131))
    assert "The last checkpoint is of step 100 of 200. A resume makes 31 steps again." in words(
        open_page("live", run)
    )


@pytest.mark.parametrize("state", ["failed", "interrupted", "lost"])
def test_what_ended_early_shows_its_log_and_how_it_continues(make_run, state):
    status = {"state": "running", "pid": 2**22 + 1} if state == "lost" else {}
    run = make_run(state="failed" if state == "lost" else state, status=status)
    configure(run)
    (run.checkpoints_path / "step-00000100").mkdir(parents=True)
    in_cluster(run)
    (run.cluster_path / "worker-1.log").write_text("<script>out of memory</script>\n")
    run.log_path.write_bytes(b"first\n\xff\xfelast \x1b[31mline\n")
    at = open_page("live", run)
    assert "The last checkpoint is of step 100 of 200. A resume makes 20 steps again." in words(at)
    if state == "interrupted":
        unfold(at, "Log", run)
    assert "line" in words(at)
    at.selectbox(key=f"log-{run.path}").select("worker:1").run()
    assert "<script>out of memory</script>" in words(checked(at))
    command = shlex.split(launches.resumption(run).command)
    assert shlex.join(command) in words(at)
    parse(command[1:])  # works as printed
    shutil.rmtree(run.checkpoints_path)
    run.log_path.unlink()
    run.config_path.write_text("[]")
    text = words(unfold(open_page("live", run), "Log", run))
    for sentence in ("There is no checkpoint", "isn't a JSON object", "The log is empty."):
        assert sentence in text


def test_the_command_of_a_run_is_the_recorded_one(make_run):
    run = make_run()
    assert "labkit train --preset smoke --job-dir 'a b'" in words(open_page("live", run))
    configure(run, train_steps=9)
    change_environment(run, command=["/x/ipykernel_launcher.py", "-f", "kernel.json"])
    command = f"labkit train --dataset shapes --job-dir {run.path} --train-steps 9"
    assert command in words(open_page("live", run))
    assert config_of(shlex.split(command)[1:]) == recorded_config(run)


# ---- who may act ---------------------------------------------------------------------------------------


def test_a_read_only_dashboard_acts_on_nothing(make_run, monkeypatch, started, training):
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    ended, running = make_run("ended", state="interrupted"), make_run("running")
    configure(ended)
    process = training(running)
    pages = [open_page("live", ended), open_page("live", running), open_page("start", "")]
    labels = {one.label for at in pages for one in at.button}
    assert labels.isdisjoint({"Resume", "Save and stop", "Start", "Cancel"})
    assert not any(at.get("page_link") for at in pages)
    new = RunDirectory(ended.path.parent / "new")
    acts = [lambda: launches.start(["train"], new), lambda: launches.resume(ended)]
    for act in (*acts, lambda: launches.stop(running), lambda: launches.cancel(ended)):
        with pytest.raises(InputError, match="read-only"):
            act()
    assert started.arguments == []
    assert not new.path.exists()
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
