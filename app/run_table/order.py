"""Which run stands in which row of the table, and which rows are selected.

The browser names a selected row by its number. So that a refresh never lets another run slip below the tick,
rows keep their numbers while something is selected, and the selection moves with its runs where they can't.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Rows", "arranged"]


@dataclass(frozen=True)
class Rows:
    """The runs in the order of the rows, by their paths, and the numbers of the selected rows.

    ``moved``: whether the numbers of selected rows are others than those that were given.
    """

    order: tuple[str, ...] = ()
    selected: tuple[int, ...] = ()
    moved: bool = False

    @property
    def chosen(self) -> list[str]:
        """The paths of the selected runs."""
        return [self.order[row] for row in self.selected]


def arranged(before: Sequence[str], selected: Sequence[int], wanted: Sequence[str]) -> Rows:
    """Return the rows of the next table.

    Args:
        before: paths in the order of the table that is shown.
        selected: numbers of its selected rows.
        wanted: paths of the runs to show, in their best order.
    """
    old, new = set(before), set(wanted)
    chosen = [before[row] for row in sorted(selected) if row < len(before) and before[row] in new]
    added = [path for path in wanted if path not in old]
    if old <= new:
        order = [*before, *added] if chosen else [*added, *before]
    else:  # what is left keeps its order, so that a sorted or scrolled table stays as it is
        left = [path for path in before if path in new]
        order = [*left, *added] if 2 * len(left) >= len(new) else list(wanted)
    places = {path: row for row, path in enumerate(order)}
    rows = tuple(places[path] for path in chosen)
    return Rows(tuple(order), rows, rows != tuple(sorted(selected)))
