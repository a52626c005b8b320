"""Check that N replicas train like one: compare the losses of one training on several layouts of devices.

Doesn't import TensorFlow: each layout trains in its own processes.
"""

from labkit.experiments.replicas.compare import compare_replicas
from labkit.experiments.replicas.result import LAYOUTS, Layout, LayoutLosses, ReplicaComparison

__all__ = ["LAYOUTS", "Layout", "LayoutLosses", "ReplicaComparison", "compare_replicas"]
