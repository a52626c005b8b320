"""How large is the house? Lines and files of each room, and the circles among its imports.

``python -m tests.house`` prints a Markdown table. Lines are those of all Python files, docstrings included.
Imports for type checking and imports inside functions count as imports.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("labkit", "course", "app")
# Lines that a room may have.
BUDGETS = {
    "labkit": 31_000, "app": 12_000, "course": 8_000, "tests": 30_000, "benchmarks": 5_000,
    "labkit/parts": 500, "labkit/config": 1_400, "labkit/run_directory": 2_000, "labkit/data": 4_400,
    "labkit/models": 2_100, "labkit/optim": 600, "labkit/training": 2_900, "labkit/callbacks": 1_300,
    "labkit/distributed": 2_600, "labkit/cluster": 1_800, "labkit/experiments": 2_600,
    "labkit/analysis": 1_600, "labkit/notebook": 2_800, "labkit/commands": 2_400,
}  # fmt: skip
SMALL = 60  # lines; a smaller file belongs into its neighbour


def files_of(room: str) -> list[Path]:
    """Return the Python files that git knows below a folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", f"{room}/*.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = [ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def lines_of(paths: Iterable[Path]) -> list[int]:
    """Return the number of lines of each file."""
    return [len(path.read_bytes().splitlines()) for path in paths]


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other, each in alphabetical order."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:  # Tarjan 1972, Depth-first search and linear graph algorithms
        number[module] = lowest[module] = len(number)
        open_modules.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in number:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in open_modules:
                lowest[module] = min(lowest[module], number[imported])
        if lowest[module] == number[module]:
            place = open_modules.index(module)
            group = sorted(open_modules[place:])
            del open_modules[place:]
            if len(group) > 1:
                found.append(group)

    for module in sorted(graph.modules):
        if module not in number:
            visit(module)
    return found


def table() -> Iterator[str]:
    """Yield the lines of the table, and those of the circles."""
    yield "| room | lines | may have | files | with fewer than 60 lines |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for room, budget in BUDGETS.items():
        lines = lines_of(files_of(room))
        small = sum(count < SMALL for count in lines)
        yield f"| {room} | {sum(lines):,} | {budget:,} | {len(lines)} | {small} |"
    found = circles()
    yield ""
    yield f"circles of imports: {len(found)}"
    yield from (" ".join(group) for group in found)


def main() -> None:
    sys.setrecursionlimit(10_000)
    print("\n".join(table()))


if __name__ == "__main__":
    main()
