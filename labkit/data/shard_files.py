"""The shards of a prepared data set on the disk: whether they are there, and as the manifest says.

Needs neither TensorFlow nor NumPy, so quick commands and the dashboard can check them.
"""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from labkit.data.manifest import Manifest, Shard
from labkit.run_directory.files import open_regular

__all__ = ["file_sha256", "has_size", "verify_shards"]


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_size(manifest: Manifest, shard: Shard) -> bool:
    """Return whether a shard exists and has the size recorded in the manifest."""
    try:
        return manifest.shard_path(shard).stat().st_size == shard.bytes
    except OSError:
        return False


def verify_shards(manifest: Manifest, splits: Iterable[str] | None = None) -> list[str]:
    """Return the file names of shards that are missing or whose checksum is wrong.

    Reads every shard, in parallel threads because hashing releases the interpreter lock.

    Args:
        manifest: the data set.
        splits: the splits to check; None checks all.
    """
    names = list(manifest.splits) if splits is None else list(splits)
    shards = [shard for name in names for shard in manifest.splits[name].shards]

    def is_intact(shard: Shard) -> bool:
        try:
            return has_size(manifest, shard) and file_sha256(manifest.shard_path(shard)) == shard.sha256
        except OSError:
            return False

    with ThreadPoolExecutor(max_workers=4) as pool:
        intact = list(pool.map(is_intact, shards))
    return [shard.file for shard, ok in zip(shards, intact, strict=True) if not ok]
