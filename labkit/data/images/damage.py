"""Tell which files cannot be used, and either refuse all or leave these out."""

import os
import tempfile
from collections.abc import Callable, Collection, Sequence

from labkit.data.images.check import Fact
from labkit.data.images.layouts import Listing
from labkit.data.images.names import shown
from labkit.errors import InputError

__all__ = ["check_damage"]

_SHOWN = 20


def check_damage(
    listing: Listing,
    facts: Sequence[Fact],
    announce: Callable[[str], None],
    *,
    skip: bool,
    accepted: Collection[str],
) -> dict[str, str]:
    """Return what is wrong with each file that cannot be used, by its path.

    Args:
        listing: the pictures.
        facts: of each.
        announce: called with a line for each of the first twenty, unless the error names the only one.
        skip: whether such files are left out.
        accepted: paths of those that are left out anyway.

    Raises:
        InputError: there are such files and they are not to be left out, or nothing else is there.
    """
    damaged = {path: fact.problem for path, fact in zip(listing.paths, facts, strict=True) if fact.problem}
    if not damaged:
        return {}
    lines = [f"{shown(path)}: {shown(problem)}" for path, problem in damaged.items()]
    none_left = len(lines) == len(facts)
    refused = none_left or (not skip and not damaged.keys() <= set(accepted))
    are, such = f"{len(lines):,} pictures", f"such as {lines[0]}"
    if len(lines) == 1:
        are, such = "1 picture", lines[0]
    if not refused or len(lines) > 1:  # the error names a single one
        for line in lines[:_SHOWN]:
            announce(f"cannot be used: {line}")
    if len(lines) > _SHOWN:
        announce(f"and {len(lines) - _SHOWN:,} more")
    if none_left:
        raise InputError(f"none of the {len(facts):,} files in {shown(listing.location)} can be used, {such}")
    if refused:
        listed = f", all listed in {_written(lines)}" if len(lines) > _SHOWN else ""
        raise InputError(
            f"{are} of {len(facts):,} in {shown(listing.location)} cannot be used, {such}{listed}; "
            "repair or remove them, or leave them out with --skip-damaged"
        )
    announce(f"{are} left out, listed in the manifest")
    return damaged


def _written(lines: Sequence[str]) -> str:
    """Write lines to a file outside the data set, which does not exist yet, and return its path."""
    handle, path = tempfile.mkstemp(prefix="labkit-damaged-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path
