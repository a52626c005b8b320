"""The monitor shows a run as it is, and its buttons ask what trains it."""

import os
import signal
import time

import pytest

from labkit.errors import InputError
from labkit.figures import monitor, widgets
from labkit.figures.monitor import RunMonitor
from labkit.run_directory import RunLock
from labkit.run_directory.metrics import MetricsWriter
from tests.commands.made_runs import make_run


def row(step: int, loss: float = 2.0) -> dict:
    return {"split": "train", "step": step, "loss": loss, "accuracy": 0.5, "examples_per_second": 100.0}


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, "mine", rows=[row(step) for step in range(1, 6)], step=5, state="interrupted")


def test_a_static_figure_comes_first_and_one_line_without_steps(run, tmp_path, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    RunMonitor(run.path).show()
    assert len(shown) == 1
    RunMonitor(make_run(tmp_path, "new", state="interrupted", step=0).path)._ipython_display_()
    assert capsys.readouterr().out == "new: interrupted, no steps yet\n"


def test_the_panel_shows_the_run_and_new_rows(run):
    panel = monitor.Panel(run)
    assert not panel.update()
    assert panel.stop.disabled
    for words in (
        "interrupted",
        "class='labkit-step'>5</b> of 20",
        "loss <b>2.000</b>",
        "<b>100</b> images/s",
    ):
        assert words in panel.view.value
    writer = MetricsWriter(run.metrics_path)
    writer.mark_resume_point(3)
    writer.append([row(4, 1.5), row(5, 1.25)])
    writer.close()
    panel.update()
    assert "loss <b>1.250</b>" in panel.view.value
    assert panel.view.value.count("continued from a checkpoint") == 2


def test_the_curve_reaches_from_the_first_step_to_the_last():
    svg = monitor.curve_svg("loss", "nats", [row(0, 4.0), row(10, 2.0), row(20, 0.0)], [], "#000")
    assert "steps 0 to 20" in svg
    assert "points='34.0,18.0 213.0,69.0 392.0,120.0'" in svg
    below = monitor.curve_svg("loss", "nats", [row(0, -1.0), row(10, -2.0), row(20, -4.0)], [], "#000")
    assert "points='34.0,43.5 213.0,69.0 392.0,120.0'" in below and ">-4</text>" in below
    many = monitor.curve_svg("loss", "nats", [row(step) for step in range(5000)], [], "#000")
    assert many.count(",") < 1000
    assert "points=''" in monitor.curve_svg("loss", "nats", [row(1, float("nan"))], [], "#000")
    assert "loss <b>nan</b>" in monitor.panel_html("mine", "running", [row(1), row(2, None)], 9, [])
    assert "width:100.0%" in monitor.panel_html("mine", "running", [row(12)], 9, [])  # beyond its end
    assert "<script>" not in monitor.panel_html("<script>", "running", [], 0, [])


class Cluster:
    """Stands for a training in the background."""

    cluster, running, stopping, workers = "two", True, False, ["worker:0", "worker:1"]

    def __init__(self, run):
        self.run, self.output, self.killed = run, ["[worker:0] step 1", "[cluster] worker:1 was killed"], []

    def stop(self):
        return "asked"

    def kill_task(self, name):
        if name == "worker:0":
            raise InputError("no task 'worker:0' of this training runs")
        self.killed.append(name)


@pytest.mark.parametrize("ended", [None, Cluster], ids=["of another", "continued by another"])
def test_stop_asks_the_process_that_trains(run, ended):
    asked = []
    before = signal.signal(signal.SIGTERM, lambda *given: asked.append(1))
    training, lock = ended and ended(run), RunLock(run)
    panel = monitor.Panel(run, training)
    if training:
        training.running = False
    try:
        panel.stop.click()
        assert ended or "no process on this machine trains mine" in panel.note.value
        assert lock.acquire()
        panel.stop.click()
        assert f"asked process {os.getpid()} to save and stop" in panel.note.value
        panel.stop.click()
        assert "was asked before" in panel.note.value
        time.sleep(0.01)
        assert asked == [1]
    finally:
        lock.release()
        signal.signal(signal.SIGTERM, before)


def test_each_worker_of_a_cluster_has_a_button_that_kills_it(run, tmp_path):
    assert not monitor.Panel(run).kill, "a training of one process has none"
    training = Cluster(run)
    assert RunMonitor(training).run.path == training.run.path
    panel = monitor.Panel(training.run, training)
    assert "restarting" in panel.view.value
    assert panel.note.value == "worker:1 was killed"
    panel.kill["worker:1"].click()
    assert training.killed == ["worker:1"]
    panel.kill["worker:0"].click()
    assert "no task &#x27;worker:0&#x27;" in panel.note.value
    panel.stop.click()
    assert panel.note.value.endswith("asked")
    training.stopping = True
    panel.update()
    assert "stopping" in panel.view.value
    done = make_run(tmp_path, "done", rows=[row(step) for step in range(1, 21)], step=20, state="finished")
    ending = monitor.Panel(done, Cluster(done))
    assert ">finished<" in ending.view.value, "it doesn't restart while its processes end"
    assert ending.update(), "its processes are still there"
    training.running = training.stopping = False
    panel.update()
    for one in (panel, ending):
        assert all(button.disabled for button in (one.stop, *one.kill.values()))


@pytest.mark.parametrize("given", [None, 3, "no/where"])
def test_what_is_no_run_is_an_input_error(given):
    with pytest.raises(InputError, match=f"run is {given}; allowed: a run, its path or name|no run"):
        RunMonitor(given)


def test_a_run_that_trains_is_followed_however_long_it_can_not_be_read(monkeypatch):
    monkeypatch.setattr(widgets, "IDLE_SECONDS", 0.05)
    looks: list[float] = []

    def update() -> bool:
        looks.append(time.monotonic())
        if len(looks) > 1 and looks[-1] - looks[0] < 0.3:
            raise OSError("the disk is away")
        return len(looks) == 1

    widgets._follow(update, lambda said: None, 0.01)
    assert looks[-1] - looks[0] >= 0.3


def test_the_panel_goes_on_after_an_error_and_says_it(run, monkeypatch):
    panel = monitor.Panel(run)
    update, notes = panel.update, []

    def fails_once():
        notes.append(panel.note.value)
        if len(notes) == 1:
            raise KeyError("loss")
        return update()

    monkeypatch.setattr(panel, "update", fails_once)
    monkeypatch.setattr(widgets, "IDLE_SECONDS", 0.3)
    widgets._follow(panel.update, panel._fail, 0.01)
    assert "not updated: KeyError" in notes[1]
    assert "not updated" not in notes[2]
