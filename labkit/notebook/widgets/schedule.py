"""Learning-rate schedules: a figure of several, and a widget that draws one as it is designed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.config import OptimizerConfig
from labkit.notebook.plots.style import OKABE_ITO, new_figure, styled
from labkit.notebook.widgets.static_first import live, show
from labkit.optim.schedules import learning_rate_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["design_schedule", "schedule_designer", "schedule_figure"]

SCHEDULES = ("constant", "steps", "cosine", "one_cycle")


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
    with styled():
        figure = new_figure(7.5, 3.0, f"Learning rate over epochs: {', '.join(configs)}")
        axis = figure.subplots()
        for (name, config), color in zip(configs.items(), OKABE_ITO, strict=False):
            rates = [
                learning_rate_at(step, config, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
                for step in steps.tolist()
            ]
            axis.plot((steps + 1) / steps_per_epoch, rates, color=color, linewidth=1.8, label=name)
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
            one_cycle_peak=peak.value,
        )
        return schedule_figure({name.value: config}, epochs * steps_per_epoch, steps_per_epoch)

    return live(draw, name, rate, warmup, peak)
