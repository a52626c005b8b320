"""The tensors of a checkpoint's files, by names that a reader knows."""

import re
from pathlib import Path
from typing import Any

from labkit.quiet_import import import_tensorflow

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
    names = {
        attribute.checkpoint_key: attribute.full_name or attribute.checkpoint_key
        for node in graph.nodes
        for attribute in node.attributes
    }
    return {key: _name(key, names) for key in names}


def _name(key: str, names: dict[str, str]) -> str:
    if key.startswith("averaged/"):
        return f"average of {names[key]}"
    # The optimizer numbers its state, such as velocities, as the weights.
    slot = re.fullmatch(r"optimizer/\w+/(\d+)(/.*)", key)
    weight = names.get(f"optimizer/_variables/{slot[1]}{slot[2]}") if slot else None
    if weight and weight != names[key]:
        return f"{names[key].rpartition('_')[0]} of {weight}"
    return names[key]
