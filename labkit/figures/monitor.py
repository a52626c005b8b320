"""A panel that shows a run while it trains, with buttons that stop it or kill a worker.

It works while a cell is running, too: JupyterLab delivers clicks on a subshell of the kernel, and a thread
writes what is shown.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

import numpy as np

from labkit.analysis.curves import read_curves
from labkit.errors import InputError
from labkit.figures.runs import training_curves
from labkit.figures.style import GREY, MARK, TRAIN, VALIDATION
from labkit.figures.widgets import follow, is_interactive, run_directory_of
from labkit.run_directory import ACTIVE_STATES, RunDirectory
from labkit.run_directory.reader import MetricsReader
from labkit.run_directory.rows import result_name
from labkit.run_directory.stop import ask_to_stop, training_process

POLL_SECONDS = 0.5
MAX_POINTS = 400
AVERAGED = 10  # rows in the shown examples per second
WIDTH, HEIGHT = 400, 150  # of one curve, in SVG units
LEFT, BOTTOM, TOP = 34, 30, 18  # for its axes and title


class Training(Protocol):
    """What the monitor needs of ``labkit.notebook.background.BackgroundTraining``."""

    cluster: Any
    output: list[str]
    run: Any
    running: bool
    stopping: bool
    workers: list[str]

    def stop(self) -> str: ...

    def kill_task(self, name: str) -> None: ...


class RunMonitor:
    """Shows a run: its curves so far as a figure and, in JupyterLab, a live panel with a Stop button.

    Display it as the last expression of a cell, or with ``show()``.

    Args:
        run: a run, its path or name, or what ``labkit.start`` returned. For a cluster that was started so,
            there is a button for each worker that kills it.

    Raises InputError where there is no such run, and for anything else.
    """

    def __init__(self, run: Any) -> None:
        self._training: Training | None = None
        if hasattr(run, "running"):
            self._training, run = run, run.run
        allowed = "a run, its path or name, or what start returned"
        self.run = run_directory_of(run, allowed=allowed)

    def __repr__(self) -> str:
        return f"<monitor of {self.run.name}: {_state(self.run)}>"

    def show(self) -> None:
        """Display the figure and, in JupyterLab, the panel."""
        from IPython.display import display

        curves = read_curves(self.run)
        if any(row.get("split") == "train" for row in curves.rows):
            display(training_curves(curves))
        elif not is_interactive():  # the panel says it, too, and goes on
            print(f"{self.run.name}: {_state(self.run)}, no steps yet")
        if is_interactive():
            panel = Panel(self.run, self._training)
            display(panel.box)
            panel.start()

    _ipython_display_ = show


def _state(run: RunDirectory) -> str:
    status = run.read_status()
    return status.liveness() if status else "unknown"


class Panel:
    """The widgets of a monitor. ``update`` reads the run and shows it; ``start`` does so from a thread."""

    def __init__(self, run: RunDirectory, training: Training | None = None) -> None:
        import ipywidgets

        self._run, self._training = run, training
        self._reader = MetricsReader(run.metrics_path)
        self._said = self._trouble = ""
        self.view, self.note = ipywidgets.HTML(), ipywidgets.HTML()
        self.stop = ipywidgets.Button(description="Stop", icon="stop", tooltip="Save a checkpoint and stop")
        self.stop.on_click(lambda button: self._say(self._ask))
        self.kill: dict[str, Any] = {}
        for name in training.workers if training is not None and training.cluster is not None else ():
            title = f"kill {name.replace(':', ' ')}"
            button = ipywidgets.Button(description=title, button_style="danger", tooltip="SIGKILL, at once")
            button.on_click(lambda button, name=name: self._say(lambda: self._lose(name)))
            self.kill[name] = button
        for button in (self.stop, *self.kill.values()):
            _click_on_subshell(button)
        row = ipywidgets.HBox([self.stop, *self.kill.values()], layout={"flex_flow": "row wrap"})
        self.box = ipywidgets.VBox([self.view, row, self.note])
        self.update()

    def start(self) -> None:
        """Update the panel from a thread until the run has been inactive for a minute."""
        follow("labkit monitor", self.update, self._fail, POLL_SECONDS)

    def update(self) -> bool:
        """Show the run as it is now. Returns whether it is active."""
        self._reader.poll()
        status = self._run.read_status()
        state = status.liveness() if status else "unknown"
        running = self._training is not None and self._training.running
        if self._training is not None and self._training.stopping:
            state = "stopping"
        elif running and state not in (*ACTIVE_STATES, "finished"):
            state = "restarting" if len(self._reader.train) else "starting"
        active = running or state in (*ACTIVE_STATES, "stalled")
        total = status.total_steps if status else 0
        resumed = [point.step for point in self._reader.resume_points]
        html = panel_html(self._run.name, state, _thinned(self._reader), total, resumed)
        if html != self.view.value:
            self.view.value = html
        _enable(self.stop, active and state != "finished")  # its process needs a moment to end
        for button in self.kill.values():  # a training that goes on may be another one of the same run
            _enable(button, running and state != "finished")
        self._trouble = ""
        self._show_note()
        return active

    def _fail(self, said: str) -> None:
        self._trouble = said
        self._show_note()

    def _show_note(self) -> None:
        lines = [] if self._training is None else self._training.output
        cluster = [line.partition("[cluster] ")[2] for line in lines if "[cluster] " in line][-2:]
        html = "<br>".join(escape(text) for text in (*cluster, self._said, self._trouble) if text)
        if html != self.note.value:
            self.note.value = html

    def _say(self, action: Any) -> None:
        try:
            self._said = action()
        except (InputError, OSError) as error:
            self._said = str(error)
        self._show_note()

    def _ask(self) -> str:
        if self._training is not None and self._training.running:
            return self._training.stop()
        process = training_process(self._run)
        if process is None:
            return f"no process on this machine trains {self._run.name}"
        return ask_to_stop(self._run, process)

    def _lose(self, name: str) -> str:
        assert self._training is not None
        self._training.kill_task(name)
        return f"killed {name}"


def _enable(button: Any, enabled: bool) -> None:
    if button.disabled == enabled:
        button.disabled = not enabled


def _click_on_subshell(button: Any) -> None:
    """Let clicks be handled on the subshell to which JupyterLab sends them, also while a cell runs.

    ipykernel 7.4 hands a message of a widget to the thread that wrote to the widget last: that of the cells,
    which is busy. Without this function it takes the sender's choice, as earlier versions do.
    """
    if button.comm is not None:
        button.comm._reply_subshell_for = None


# ---- what is shown -------------------------------------------------------------------------------------


def _thinned(reader: MetricsReader) -> list[dict[str, Any]]:
    """Return rows of ``train``, evenly spread, and the last ones, which the speed is of."""
    count = len(reader.train)
    spread = np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(np.int64)
    places = np.union1d(spread, np.arange(max(0, count - AVERAGED), count))
    return reader.train.select(places).rows("train")


def panel_html(
    name: str, state: str, rows: Sequence[Mapping[str, Any]], total: int, resumed: Sequence[int]
) -> str:
    """Return state, progress, the last values and two curves of a run as HTML.

    Args:
        name, state: of the run.
        rows: of the split ``train``, in order of steps; some may be left out.
        total: steps of the whole run; 0: not known yet.
        resumed: steps after which the training went on from a checkpoint.
    """
    last = rows[-1] if rows else {}
    step = last.get("step", 0)
    share = min(step / total, 1.0) if total else 0.0
    rates = [row["examples_per_second"] for row in rows[-AVERAGED:] if row.get("examples_per_second")]
    result = result_name(last)
    facts = [f"<b>{escape(name)}</b>", f"<b class='labkit-state'>{escape(state)}</b>"]
    facts.append(f"step <b class='labkit-step'>{step}</b> of {total or '–'}")
    facts += [f"{what} <b>{_number(last, what):.3f}</b>" for what in ("loss", result) if what in last]
    facts += [f"<b>{len(rates) / sum(1 / rate for rate in rates):,.0f}</b> images/s"] if rates else []
    bar = (
        f"<div role='progressbar' aria-valuenow='{share:.0%}' aria-label='steps done' "
        "style='background:#8883;border-radius:4px;height:10px;margin:4px 0'>"
        f"<div style='background:{TRAIN};border-radius:4px;height:10px;width:{share:.1%}'></div></div>"
    )
    curves = "".join(
        curve_svg(what, unit, rows, resumed, colour)
        for what, unit, colour in (("loss", "", TRAIN), (result, "of the batch", VALIDATION))
    )
    return (
        f"<div style='max-width:820px;line-height:1.5'>{' · '.join(facts)}{bar}"
        f"<div style='display:flex;flex-wrap:wrap'>{curves}</div></div>"
    )


def _number(row: Mapping[str, Any], name: str) -> float:
    """Return a metric of a row; NaN where it has none or holds None."""
    value = row.get(name)
    return math.nan if value is None else float(value)


def curve_svg(
    name: str, unit: str, rows: Sequence[Mapping[str, Any]], resumed: Sequence[int], colour: str
) -> str:
    """Return one metric by step as SVG: from step 0 to the last, and from 0, or less, to the highest value.

    A dotted line marks each step of ``resumed``.
    """
    every = -(-len(rows) // MAX_POINTS) or 1
    points = [(row["step"], row[name]) for row in rows[::every] if math.isfinite(_number(row, name))]
    values = [0.0, *(value for _, value in points)]
    lowest = min(values)
    highest = 1.0 if name == "accuracy" else max(values) or float(not lowest)
    end = max(rows[-1]["step"], 1) if rows else 1
    width, height = WIDTH - LEFT - 8, HEIGHT - BOTTOM - TOP

    def x(step: float) -> float:
        return LEFT + width * step / end

    def text(x: float, y: float, words: str, anchor: str) -> str:
        return (
            f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}' font-size='11' fill='currentColor'>"
            f"{words}</text>"
        )

    floor = TOP + height
    shares = [(step, min((value - lowest) / (highest - lowest), 1)) for step, value in points]
    line = " ".join(f"{x(step):.1f},{floor - height * share:.1f}" for step, share in shares)
    marks = "".join(
        f"<line x1='{x(step):.1f}' x2='{x(step):.1f}' y1='{TOP}' y2='{floor}' stroke='{MARK}' "
        "stroke-dasharray='2 3'/>"
        for step in resumed
    )
    words = [
        text(LEFT, 12, f"training {name}, {unit}", "start"),
        text(LEFT - 4, TOP + 9, f"{highest:.3g}", "end"),
        text(LEFT - 4, floor, f"{lowest:.3g}", "end"),
        text(LEFT, floor + 14, "0", "middle"),
        text(LEFT + width, floor + 14, str(end), "end"),
        text(LEFT + width / 2, floor + 14, "step", "middle"),
    ]
    words += [text(LEFT + width, 12, "┆ continued from a checkpoint", "end")] if resumed else []
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' style='width:{WIDTH}px;max-width:100%' role='img' "
        f"aria-label='training {name}, steps 0 to {end}'>"
        f"<path d='M{LEFT} {TOP}V{floor}H{LEFT + width}' fill='none' stroke='{GREY}'/>"
        f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='1.5'/>{marks}{''.join(words)}"
        "</svg>"
    )
