"""What was changed in a run's files and in its data since they were written. Doesn't make a step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.data.manifest import Manifest, verify_shards
from labkit.data.shards import damaged_rows
from labkit.plurals import listed
from labkit.run_directory import RunDirectory
from labkit.run_directory.certificate import Certificate, read_certificate
from labkit.run_directory.checkpoints import checkpoint_path
from labkit.startup.quiet_import import import_tensorflow

__all__ = ["CheckedFiles", "check_files", "unreadable_tensors"]


@dataclass(frozen=True)
class CheckedFiles:
    """``certificate``: the run's, or None. ``changes``: a sentence for each thing that was changed."""

    certificate: Certificate | None
    changes: tuple[str, ...]


def check_files(run: RunDirectory, config: Config, manifest: Manifest) -> CheckedFiles:
    """Compare a run with its certificate, and its data with their manifest.

    Raises InputError if the certificate is damaged.
    """
    certificate = read_certificate(run)
    changes = certificate.changes(run, config.identity(), manifest.checksum) if certificate else []
    changes += [_described(manifest, file) for file in verify_shards(manifest)]
    for step in run.checkpoint_steps():
        changes += _damaged_weights(checkpoint_path(run.checkpoints_path, step))
    return CheckedFiles(certificate, tuple(changes))


def _described(manifest: Manifest, file: str) -> str:
    """Return what was changed in a shard: the images, if the checksums of its records show them."""
    path = manifest.directory / file
    if not path.exists():
        return f"data: {path} is missing"
    split, rows = damaged_rows(manifest, file)
    if not rows:
        return f"data: {path} was changed"
    images = "image" if len(rows) == 1 else "images"
    return f"data: {images} {listed([str(row) for row in rows])} of {split!r} in {path} was changed"


def _damaged_weights(folder: Path) -> list[str]:
    names = unreadable_tensors(folder / "variables")
    return [f"{folder.parent.name}/{folder.name}: {listed(names, 5)} was changed"] if names else []


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
