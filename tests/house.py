"""How large is the house? Lines and files of each room, and the circles among its imports.

``python -m tests.house`` prints a Markdown table. Lines are those of all Python files, docstrings included.
Imports for type checking and imports inside functions count as imports.
``python -m tests.house --picture docs/images/architecture.svg`` draws the rooms and who imports whom.
"""

import argparse
import subprocess
import sys
import tomllib
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
    "labkit/analysis": 1_600, "labkit/figures": 1_200, "labkit/notebook": 1_600, "labkit/commands": 2_400,
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


# ---- the picture -------------------------------------------------------------------------------------------

WIDE, HIGH, GAP, FLOOR = 128, 34, 22, 76  # of a box and the spaces between, in pixels


def floors() -> list[list[str]]:
    """Return the rooms of each floor, the highest floor first, from the contract in ``pyproject.toml``."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [layer.replace("|", " ").replace(":", " ").replace("(", "").replace(")", "").split()
              for layer in contract["layers"]]  # fmt: skip
    packages = {path.parent.name for path in (ROOT / "labkit").glob("*/__init__.py")}
    inside = [[name for name in layer if name in packages] for layer in layers]
    return [["app", "course"], *(layer for layer in inside if layer)]


def arrows(rooms: Iterable[str]) -> set[tuple[str, str]]:
    """Return which room imports which, without the arrows that a longer way makes needless."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False)

    def room(module: str) -> str:
        names = module.split(".")
        return names[0] if names[0] != "labkit" or len(names) == 1 else names[1]

    direct: dict[str, set[str]] = {name: set() for name in rooms}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if room(module) != room(imported) and {room(module), room(imported)} <= direct.keys():
                direct[room(module)].add(room(imported))

    def reached(name: str) -> set[str]:
        return direct[name].union(*map(reached, direct[name]))

    return {
        (name, target)
        for name, targets in direct.items()
        for target in targets
        if not any(target in reached(other) for other in targets - {target})
    }


def picture() -> str:
    """Return an SVG with a box for each room, its lines, and an arrow for each import."""
    rows = floors()
    width = max(map(len, rows)) * (WIDE + GAP) + GAP
    at: dict[str, tuple[float, float]] = {}
    for row, names in enumerate(rows):
        left = (width - len(names) * (WIDE + GAP) + GAP) / 2
        at |= {name: (left + place * (WIDE + GAP), 20 + row * FLOOR) for place, name in enumerate(names)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {20 + len(rows) * FLOOR}" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3.5" orient="auto">'
        '<path d="M0 0 L7 3.5 L0 7 z" fill="#8a94a6"/></marker>',
    ]
    for name, target in sorted(arrows(at)):
        (x, y), (to_x, to_y) = at[name], at[target]
        start = f"{x + WIDE / 2:.0f} {y + HIGH:.0f}"
        bend = f"{x + WIDE / 2:.0f} {y + FLOOR:.0f} {to_x + WIDE / 2:.0f} {to_y - FLOOR + HIGH:.0f}"
        end = f"{to_x + WIDE / 2:.0f} {to_y - 1:.0f}"
        if y == to_y:  # neighbours: over what stands between them
            start = f"{x + WIDE / 2:.0f} {y:.0f}"
            bend = f"{x + WIDE / 2:.0f} {y - 26:.0f} {to_x + WIDE / 2:.0f} {y - 26:.0f}"
        parts.append(
            f'<path d="M{start} C{bend} {end}" fill="none" stroke="#8a94a6" marker-end="url(#tip)"/>'
        )
    for name, (x, y) in at.items():
        folder = name if name in PACKAGES else f"labkit/{name}"
        parts.append(
            f'<rect x="{x:.0f}" y="{y}" width="{WIDE}" height="{HIGH}" rx="5" '
            'fill="#eef2f8" stroke="#4a5a75"/>'
            f'<text x="{x + WIDE / 2:.0f}" y="{y + 15}">{name}</text>'
            f'<text x="{x + WIDE / 2:.0f}" y="{y + 29}" font-size="10" fill="#555">'
            f"{sum(lines_of(files_of(folder))):,} lines</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


# ---- the table ---------------------------------------------------------------------------------------------


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
    parser = argparse.ArgumentParser(description="Print how large the rooms are, or draw them.")
    parser.add_argument("--picture", type=Path, help="write an SVG of the rooms and their imports there")
    target = parser.parse_args().picture
    if target:
        target.write_text(picture())
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
