"""The tensors of a checkpoint's files, by names that a reader knows."""

from pathlib import Path
from typing import Any

from labkit.startup.quiet_import import import_tensorflow

__all__ = ["unreadable_tensors"]

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # under which TensorFlow stores how the tensors belong together


def unreadable_tensors(prefix: Path) -> list[str]:
    """Return the tensors of a checkpoint whose checksum is wrong; its files if none of it can be read."""
    import_tensorflow()
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        keys = sorted(reader.get_variable_to_shape_map())
        names = _names(reader)
    except (tf.errors.OpError, ValueError) as error:
        return [f"{prefix.name}.* ({str(error).splitlines()[0][:120]})"]
    damaged = []
    for key in keys:
        try:
            reader.get_tensor(key)
        except (tf.errors.OpError, RuntimeError, ValueError):
            damaged.append(names.get(key, key))
    return damaged


def _names(reader: Any) -> dict[str, str]:
    """Return the variables' own names, such as ``conv2d/kernel``, by their keys in the checkpoint."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph.FromString(reader.get_tensor(GRAPH))
    names = {}
    for node in graph.nodes:
        for attribute in node.attributes:
            key = attribute.checkpoint_key
            average = "average of " if key.startswith("averaged/") else ""
            names[key] = average + (attribute.full_name or key)
    return names
