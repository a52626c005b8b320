"""Widgets of notebooks: a static figure comes first, and the controls below it.

Widgets of ipywidgets don't work in a saved notebook. Sliders over pre-drawn frames do, also in an HTML page
that is opened from a file.
"""

import base64
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.config import OptimizerConfig
from labkit.config.fields import argument
from labkit.errors import InputError
from labkit.figures import runs
from labkit.figures.style import SHOWN_PER_INCH, drawing, png
from labkit.optim.schedules import learning_rate_at
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import run_to_read
from labkit.run_directory.worker_metrics import read_worker_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.analysis.curves import Curves

IDLE_SECONDS = 60.0  # a thread ends when nothing has been active for so long
SMOOTHING = 0.9  # of the curves, at first
SCHEDULES = ("constant", "steps", "cosine", "one_cycle")


def run_directory_of(run: Any, name: str = "run", allowed: str = "a run, its path or name") -> RunDirectory:
    """Return the directory of a run that is given as a ``labkit.Run``, a directory, a path or a name.

    Raises InputError where there is no such run, and for anything else, with ``allowed``.
    """
    path = getattr(run, "path", None)
    if not isinstance(path, Path):
        path = argument(name, run, os.PathLike, allowed=allowed)
    return run_to_read(os.fspath(path))


def is_interactive() -> bool:
    """Return whether a user can operate widgets: true in JupyterLab, false in papermill or nbconvert."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    request = kernel.get_parent("shell") or {}
    return bool(request.get("content", {}).get("allow_stdin"))


def follow(name: str, update: Callable[[], bool], trouble: Callable[[str], None], seconds: float) -> None:
    """Call ``update()`` every ``seconds`` from a thread, until it has returned False for a minute.

    An update that fails says nothing of what is active: what the last good one returned still holds.

    Args:
        name: of the thread.
        update: shows the newest state; returns whether anything is still active.
        trouble: shows what went wrong in an update; the next one may succeed.
        seconds: between two updates.
    """
    Thread(target=_follow, args=(update, trouble, seconds), name=name, daemon=True).start()


def _follow(update: Callable[[], bool], trouble: Callable[[str], None], seconds: float) -> None:
    active, last_active = True, time.monotonic()
    while time.monotonic() - last_active < IDLE_SECONDS:
        time.sleep(seconds)
        try:
            active = update()
        except Exception as error:  # such as a file that is being replaced; the next round reads it
            with suppress(Exception):
                trouble(f"not updated: {type(error).__name__}: {error}")
        if active:
            last_active = time.monotonic()


def show(figure: Any, make_widget: Callable[[], Any]) -> None:
    """Display ``figure`` and, if interactive, the widget that ``make_widget()`` returns."""
    from IPython.display import display

    display(figure)
    if is_interactive():
        display(make_widget())


def live(draw: Callable[[], Any], *controls: Any) -> Any:
    """Return ``controls`` above the figure of ``draw()``, which is redrawn when a control changes.

    The figure is hidden until the first change, because the same static figure is shown right above.
    """
    import ipywidgets

    image = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%", display="none"))

    def redraw(change: Any = None) -> None:
        figure = draw()
        image.width = str(round(figure.get_figwidth() * SHOWN_PER_INCH))
        image.value = png(figure)
        image.layout.display = "none" if change is None else None

    redraw()
    for control in controls:
        control.observe(redraw, names="value")
    row = ipywidgets.HBox(controls, layout=ipywidgets.Layout(flex_flow="row wrap"))
    return ipywidgets.VBox([row, image])


def explore_curves(curves: "Curves") -> None:
    """Show the curves of a run and, if interactive, a slider for their smoothing."""
    show(runs.training_curves(curves, smoothing=SMOOTHING), lambda: curve_explorer(curves))


def show_workers(run: RunDirectory) -> None:
    """Show the speed of each worker of a cluster and how it spent its time, or say that there is none.

    If interactive, the horizontal axis can be chosen.
    """
    workers = read_worker_metrics(run.cluster_path)
    if workers:
        show(runs.worker_throughput(workers), lambda: worker_explorer(workers))
    elif run.cluster_path.is_dir():
        print("This run was too short to measure its workers: their first step compiles and isn't counted.")
    else:
        print(
            "One process trained this run. With another strategy, this cell shows the speed of each worker."
        )


def curve_explorer(curves: "Curves") -> Any:
    """Return a slider for the smoothing of ``training_curves``, with the figure."""
    import ipywidgets

    weight = ipywidgets.FloatSlider(
        SMOOTHING, min=0, max=0.99, step=0.01, description="smoothing", continuous_update=False
    )
    return live(lambda: runs.training_curves(curves, smoothing=weight.value), weight)


def worker_explorer(workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Return a choice of the horizontal axis of ``worker_throughput``, with the figure."""
    import ipywidgets

    over = ipywidgets.ToggleButtons(options=["time", "step"], description="over")
    return live(lambda: runs.worker_throughput(workers, over=over.value), over)


def design_schedule() -> None:
    """Show four of labkit's schedules over a run and, if interactive, controls to design one."""
    peak, epochs, steps_per_epoch = 0.1, 350, 100
    four = {name: OptimizerConfig(learning_rate=peak, learning_rate_schedule=name) for name in SCHEDULES}
    figure = schedule_figure(four, epochs * steps_per_epoch, steps_per_epoch)
    show(figure, lambda: schedule_designer(peak, epochs, steps_per_epoch))


def schedule_figure(
    configs: Mapping[str, OptimizerConfig], total_steps: int, steps_per_epoch: float
) -> "Figure":
    """Draw the learning rate of each configuration, by its name, over the epochs of a run."""
    steps = np.unique(np.linspace(0, total_steps - 1, 500).astype(int))
    with drawing(7.5, 3.0, f"Learning rate over epochs: {', '.join(configs)}") as figure:
        axis = figure.subplots()
        for name, config in configs.items():
            rates = [
                learning_rate_at(step, config, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
                for step in steps.tolist()
            ]
            axis.plot((steps + 1) / steps_per_epoch, rates, linewidth=1.8, label=name)
        axis.set(title="Learning-rate schedules", xlabel="epoch", ylabel="learning rate")
        axis.set_ylim(0, 1.2 * max(config.learning_rate for config in configs.values()))
        axis.grid(axis="y")
        axis.legend(loc="upper right", ncols=4)
    return figure


def schedule_designer(learning_rate: float, epochs: int, steps_per_epoch: int) -> Any:
    """Return controls for schedule, peak, warm-up and the position of the peak, with the figure."""
    import ipywidgets

    name = ipywidgets.Dropdown(options=SCHEDULES, value="one_cycle", description="schedule")
    rate = ipywidgets.FloatLogSlider(learning_rate, min=-4, max=1, step=0.1, description="rate")
    warmup = ipywidgets.IntSlider(0, min=0, max=epochs // 2, description="warm-up")
    peak = ipywidgets.FloatSlider(0.25, min=0, max=0.95, step=0.05, description="peak at")

    def draw() -> "Figure":
        config = OptimizerConfig(
            learning_rate=rate.value,
            learning_rate_schedule=name.value,
            warmup_steps=warmup.value * steps_per_epoch,
            **({"one_cycle_peak": peak.value} if name.value == "one_cycle" else {}),
        )
        return schedule_figure({name.value: config}, epochs * steps_per_epoch, steps_per_epoch)

    return live(draw, name, rate, warmup, peak)


def slider(draw: "Callable[[Any], Figure]", values: Sequence[Any], label: str, *, start: int = 0) -> None:
    """Display ``draw(values[start])`` and below it a slider over the figures of all values, drawn now.

    The slider needs neither a kernel nor a network: it also works in the exported page. Its figure is
    hidden until it is moved.

    Args:
        draw: makes the figure of one value; its alternative text should contain the value.
        values: at most about 15, since each adds a picture to the notebook.
        label: what the slider changes, such as ``"step"``; a value is shown as ``step 3``.
        start: the number of the value that is shown first.

    Raises InputError for no values, and for a ``start`` that is the number of none.
    """
    from IPython.display import HTML, display

    if not len(values):
        raise InputError("values is empty; give at least one")
    if not 0 <= argument("start", start, int) < len(values):
        raise InputError(f"start is {start} of {counted(len(values), 'value')}; allowed: 0 to one below that")
    figures = [draw(value) for value in values]
    display(figures[start])
    display(HTML(_slider_html(figures, [f"{label} {value}" for value in values], label, start)))


# Shows the frame that the slider selects, and its caption. `hidden` keeps the others out of the page.
_MOVED = (
    "const frames = this.closest('.labkit-frames');"
    "frames.querySelectorAll('figure').forEach((frame, number) => {"
    "  frame.hidden = number !== +this.value; });"
    "this.nextElementSibling.textContent = this.dataset.captions.split('|')[this.value];"
)


def _slider_html(figures: "Sequence[Figure]", captions: Sequence[str], label: str, start: int) -> str:
    shown = []
    for figure, caption in zip(figures, captions, strict=True):
        picture = base64.b64encode(png(figure)).decode()
        width = round(figure.get_figwidth() * SHOWN_PER_INCH)
        shown.append(
            f'<figure hidden style="margin:0"><img alt="{escape(repr(figure)[1:-1])}, {escape(caption)}" '
            f'width="{width}" style="max-width:100%" src="data:image/png;base64,{picture}"></figure>'
        )
    captions = [caption.replace("|", "/") for caption in captions]
    return (
        '<div class="labkit-frames"><label>'
        f'<input type="range" min="0" max="{len(figures) - 1}" value="{start}" step="1" '
        f'aria-label="{escape(label)}" style="width:20em;vertical-align:middle" '
        f'data-captions="{escape("|".join(captions))}" oninput="{escape(_MOVED)}"> '
        f"<span>{escape(captions[start])}</span></label>{''.join(shown)}</div>"
    )
