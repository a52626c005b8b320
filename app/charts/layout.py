"""Which charts of the live page are shown, in which order, and the file that keeps it for all runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from app import state
from app.charts.board import Size
from labkit.errors import InputError, reason_of, short
from labkit.home import runs_home
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json

VERSION = 1  # of the file


@dataclass(frozen=True)
class Layout:
    """How charts are arranged: formulas, one a line; titles of charts that come first, and of hidden ones.

    ``find``: a regular expression that all shown charts fit; it isn't kept for all runs.
    """

    formulas: str = ""
    first: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    size: Size = "medium"
    find: str = ""
    version: int = VERSION

    def arranged(self, titles: Mapping[str, str]) -> list[str]:
        """Return the keys of the charts that are shown, in order, given the title of each by its key.

        Raises InputError for an expression that can't be read.
        """
        found = _fitting(self.find, titles) if self.find else set(titles)
        places = {title: place for place, title in enumerate(self.first)}
        ordered = sorted(titles, key=lambda key: places.get(titles[key], len(places)))
        return [key for key in ordered if key in found and titles[key] not in self.hidden]


def _fitting(expression: str, titles: Mapping[str, str]) -> set[str]:
    # Arrow searches with RE2, whose time grows with the text alone: no expression can stop the server. It is
    # imported here, because its first array imports pandas, for which the first page would have to wait.
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array([*titles, *titles.values()], pa.string())
    try:
        fits = pc.match_substring_regex(texts, expression, ignore_case=True).to_pylist()
    except pa.ArrowInvalid as error:
        why = str(error).removeprefix("Invalid regular expression: ")
        raise InputError(f"the regular expression {short(expression)} can't be read: {why}") from None
    return {key for key, fit in zip([*titles, *titles], fits, strict=True) if fit}


def kept_path() -> Path:
    """Return the file of what is kept for all runs."""
    return runs_home() / ".charts.json"


def read_kept() -> Layout:
    """Return what is kept for all runs. Raises InputError if the file is damaged or of another version."""
    try:
        kept: Layout = read_json(kept_path(), Layout)
    except FileNotFoundError:
        return Layout()
    if kept.version != VERSION:
        raise InputError(f"{kept_path()} has version {kept.version}; allowed: {VERSION}")
    return kept


def keep(layout: Layout | None) -> None:
    """Keep this for all runs; None removes the file.

    Raises InputError where the page may not, and where the file can't be written.
    """
    state.check_may_act()
    try:
        if layout:
            kept_path().parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(kept_path(), asdict(replace(layout, find="")))
        else:
            kept_path().unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{kept_path()} can't be written: {reason_of(error)}") from None
