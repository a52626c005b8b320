"""Has anything become slower? `python -m benchmarks.gate BEFORE AFTER` compares two folders of results.

Only ratios are compared (figures in `x`): seconds and images per second say more of the machine's mood than
of the code. A figure is worse where its median is beyond the tolerance and outside of what the repeats before
covered. A ratio that is no longer measured counts as one: a peer that is missing hides what it would show.
Exit code 1 where one is.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import Figure, read_figures

__all__ = ["is_worse", "main", "ratios"]


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where no ratio became worse, 1 where one did; 2 for folders without a common ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("before", type=Path, metavar="BEFORE", help="folder of earlier results")
    parser.add_argument("after", type=Path, metavar="AFTER", help="folder of later results")
    parser.add_argument(
        "--tolerance", type=float, default=0.1, help="share by which a median may be worse (default: 0.1)"
    )
    options = parser.parse_args(arguments)
    if not 0 <= options.tolerance < 1:
        parser.error(f"--tolerance is {options.tolerance}; allowed: from 0 to below 1")
    before, after = ratios(options.before), ratios(options.after)
    if not before.keys() & after.keys():
        parser.error(f"{options.before} and {options.after} have no ratio in common")
    table = Table("benchmark", "ratio", "before", "after", "")
    worse = 0
    for key, old in before.items():
        new = after.get(key)
        failed = new is None or is_worse(old, new, options.tolerance)
        worse += failed
        verdict = "[red]gone[/]" if new is None else "[red]worse[/]" if failed else "[green]as good[/]"
        table.add_row(*key, f"{old.median:.3g} x", "" if new is None else f"{new.median:.3g} x", verdict)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"{worse} of {len(before)} ratios became worse by more than {options.tolerance:.0%}, or are gone")
    return int(worse > 0)


def ratios(folder: Path) -> dict[tuple[str, str], Figure]:
    """Return the ratios with a goal in a folder of results, by benchmark and name of the figure.

    A ratio between best forms names the forms, which may be others another time; they are left out of it.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        for figure in read_figures(path):
            if figure.unit == "x" and figure.goal is not None:
                found[path.stem, _without_forms(figure.name)] = figure
    return found


def _without_forms(name: str) -> str:
    """Return a figure's name without what stands in parentheses."""
    sides = [side.partition(" (")[0] for side in name.split(" over ")]
    return " over ".join(sides)


def is_worse(before: Figure, after: Figure, tolerance: float) -> bool:
    """Return whether a ratio moved away from its goal, by more than the tolerance and the spread before."""
    assert after.goal is not None
    if after.goal.bound == "at least":
        return after.median < min(before.median * (1 - tolerance), min(before.repeats))
    return after.median > max(before.median * (1 + tolerance), max(before.repeats))


if __name__ == "__main__":
    sys.exit(main())
