"""Widgets of the notebooks. Each shows a static figure first, which stands alone in a saved notebook."""

from labkit.widgets.compare import CompareRuns
from labkit.widgets.explore import explore_curves, explore_workers
from labkit.widgets.monitor import RunMonitor
from labkit.widgets.predictions import PredictionExplorer
from labkit.widgets.static_first import slider

__all__ = ["CompareRuns", "PredictionExplorer", "RunMonitor", "explore_curves", "explore_workers", "slider"]
