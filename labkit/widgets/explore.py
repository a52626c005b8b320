"""Interactive versions of the figures of ``labkit.plots``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit import plots
from labkit.widgets.static_first import live, show

if TYPE_CHECKING:
    from labkit.analysis.curves import Curves
    from labkit.analysis.predictions import Predictions

__all__ = [
    "browse_predictions",
    "explore_curves",
    "explore_workers",
    "prediction_browser",
]

PAGE_SIZE = 16
ANY = "any class"


def browse_predictions(predictions: "Predictions", count: int = PAGE_SIZE) -> None:
    """Show the most confident mistakes and, if interactive, controls to browse all examples."""
    show(plots.wrong_predictions(predictions, count), lambda: prediction_browser(predictions))


def explore_curves(curves: "Curves", smoothing: float = 0.9) -> None:
    """Show the curves of a run and, if interactive, a slider for their smoothing."""
    show(plots.training_curves(curves, smoothing=smoothing), lambda: curve_explorer(curves, smoothing))


def explore_workers(workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Show the speed of each worker of a cluster and, if interactive, a choice of the horizontal axis."""
    show(plots.worker_throughput(workers), lambda: worker_explorer(workers))


def curve_explorer(curves: "Curves", smoothing: float) -> Any:
    """Return a slider for the smoothing of ``plots.training_curves``, with the figure."""
    import ipywidgets

    weight = ipywidgets.FloatSlider(
        smoothing, min=0, max=0.99, step=0.01, description="smoothing", continuous_update=False
    )
    return live(lambda: plots.training_curves(curves, smoothing=weight.value), weight)


def worker_explorer(workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Return a choice of the horizontal axis of ``plots.worker_throughput``, with the figure."""
    import ipywidgets

    over = ipywidgets.ToggleButtons(options=["time", "step"], description="over")
    return live(lambda: plots.worker_throughput(workers, over=over.value), over)


def prediction_browser(predictions: "Predictions") -> Any:
    """Return controls for classes, mistakes and page of ``plots.prediction_grid``, with the figure."""
    import ipywidgets

    choices = [(ANY, None), *((name, number) for number, name in enumerate(predictions.classes))]
    true = ipywidgets.Dropdown(options=choices, description="true")
    predicted = ipywidgets.Dropdown(options=choices, description="predicted")
    wrong_only = ipywidgets.Checkbox(True, description="mistakes only", indent=False)
    page = ipywidgets.BoundedIntText(1, min=1, max=1, description="page")

    def draw() -> Any:
        indices = predictions.select(true.value, predicted.value, wrong_only.value)
        page.max = max(1, -(-len(indices) // PAGE_SIZE))
        page.description = f"page / {page.max}"
        shown = indices[(page.value - 1) * PAGE_SIZE : page.value * PAGE_SIZE]
        if not len(shown):
            return plots.message("No example matches this selection.")
        return plots.prediction_grid(predictions, shown)

    return live(draw, true, predicted, wrong_only, page)
