"""Interactive versions of the figures of ``labkit.plots``.

Widgets don't work in a saved notebook. Each function therefore shows a static figure first, and adds controls
below it only if a user can operate them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit import plots

if TYPE_CHECKING:
    from labkit.analysis.curves import Curves
    from labkit.analysis.predictions import Predictions

__all__ = [
    "browse_predictions",
    "explore_curves",
    "explore_workers",
    "is_interactive",
    "prediction_browser",
]

PAGE_SIZE = 16
ANY = "any class"


def is_interactive() -> bool:
    """Return whether a user can operate widgets: true in JupyterLab, false in papermill or nbconvert."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    request = kernel.get_parent("shell") or {}
    return bool(request.get("content", {}).get("allow_stdin"))


def browse_predictions(predictions: "Predictions", count: int = PAGE_SIZE) -> None:
    """Show the most confident mistakes and, if interactive, controls to browse all examples."""
    _show(plots.wrong_predictions(predictions, count), lambda: prediction_browser(predictions))


def explore_curves(curves: "Curves", smoothing: float = 0.9) -> None:
    """Show the curves of a run and, if interactive, a slider for their smoothing."""
    _show(plots.training_curves(curves, smoothing=smoothing), lambda: curve_explorer(curves, smoothing))


def explore_workers(workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Show the speed of each worker of a cluster and, if interactive, a choice of the horizontal axis."""
    _show(plots.worker_throughput(workers), lambda: worker_explorer(workers))


def _show(figure: Any, make_widget: Callable[[], Any]) -> None:
    from IPython.display import display

    display(figure)
    if is_interactive():
        display(make_widget())


def curve_explorer(curves: "Curves", smoothing: float) -> Any:
    """Return a slider for the smoothing of ``plots.training_curves``, with the figure."""
    import ipywidgets

    weight = ipywidgets.FloatSlider(
        smoothing, min=0, max=0.99, step=0.01, description="smoothing", continuous_update=False
    )
    return _live(lambda: plots.training_curves(curves, smoothing=weight.value), weight)


def worker_explorer(workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Return a choice of the horizontal axis of ``plots.worker_throughput``, with the figure."""
    import ipywidgets

    over = ipywidgets.ToggleButtons(options=["time", "step"], description="over")
    return _live(lambda: plots.worker_throughput(workers, over=over.value), over)


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

    return _live(draw, true, predicted, wrong_only, page)


def _live(draw: Callable[[], Any], *controls: Any) -> Any:
    """Return ``controls`` above the figure of ``draw()``, which is redrawn when a control changes.

    The figure is hidden until the first change, because the same static figure is shown right above.
    """
    import ipywidgets

    image = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%", display="none"))

    def redraw(change: Any = None) -> None:
        figure = draw()
        image.width = str(round(figure.get_figwidth() * plots.SHOWN_PER_INCH))
        image.value = plots.png(figure)
        image.layout.display = "none" if change is None else None

    redraw()
    for control in controls:
        control.observe(redraw, names="value")
    row = ipywidgets.HBox(controls, layout=ipywidgets.Layout(flex_flow="row wrap"))
    return ipywidgets.VBox([row, image])
