"""What was changed in a run's files and in its data since they were written. Doesn't make a step."""

from dataclasses import dataclass
from pathlib import Path

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.data.shard_files import verify_shards
from labkit.data.shards import damaged_rows
from labkit.experiments.verify.tensors import unreadable_tensors
from labkit.plurals import listed
from labkit.run_directory import RunDirectory
from labkit.run_directory.certificate import Certificate, read_certificate
from labkit.run_directory.checkpoints import checkpoint_path

__all__ = ["CheckedFiles", "check_files"]


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
