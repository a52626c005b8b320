"""Interactive versions of the figures of ``labkit.notebook.plots``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.notebook import plots
from labkit.notebook.widgets.static_first import live, show

if TYPE_CHECKING:
    from labkit.analysis.curves import Curves

__all__ = [
    "explore_curves",
    "explore_workers",
]

SMOOTHING = 0.9  # at first


def explore_curves(curves: "Curves") -> None:
    """Show the curves of a run and, if interactive, a slider for their smoothing."""
    show(plots.training_curves(curves, smoothing=SMOOTHING), lambda: curve_explorer(curves))


def explore_workers(workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Show the speed of each worker of a cluster and, if interactive, a choice of the horizontal axis."""
    show(plots.worker_throughput(workers), lambda: worker_explorer(workers))


def curve_explorer(curves: "Curves") -> Any:
    """Return a slider for the smoothing of ``plots.training_curves``, with the figure."""
    import ipywidgets

    weight = ipywidgets.FloatSlider(
        SMOOTHING, min=0, max=0.99, step=0.01, description="smoothing", continuous_update=False
    )
    return live(lambda: plots.training_curves(curves, smoothing=weight.value), weight)


def worker_explorer(workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Return a choice of the horizontal axis of ``plots.worker_throughput``, with the figure."""
    import ipywidgets

    over = ipywidgets.ToggleButtons(options=["time", "step"], description="over")
    return live(lambda: plots.worker_throughput(workers, over=over.value), over)
