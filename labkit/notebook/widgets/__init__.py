"""Widgets of the notebooks. Each shows a static figure first, which stands alone in a saved notebook."""

from labkit.notebook.widgets.compare import CompareRuns
from labkit.notebook.widgets.explore import explore_curves, explore_workers
from labkit.notebook.widgets.monitor import RunMonitor
from labkit.notebook.widgets.predictions import PredictionExplorer
from labkit.notebook.widgets.static_first import slider

__all__ = ["CompareRuns", "PredictionExplorer", "RunMonitor", "explore_curves", "explore_workers", "slider"]
