"""``labkit predict`` and ``labkit serve``: what a network says of pictures, here or behind an address."""

import csv
import json as json_module
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from labkit.commands.flags import DataDir, Flag, LocalPath, RunName
from labkit.errors import InputError, require_extra
from labkit.home import expanded
from labkit.plurals import counted
from labkit.run_directory.directory import replacing
from labkit.run_directory.disk import output_file
from labkit.run_directory.find import run_to_read
from labkit.tables import print_table

LONGEST = 60  # characters of a path in the table
_RUN = "A run: its name or directory; or a file that labkit export wrote, with its .json beside it."


def predict(
    run: Annotated[str, Flag(metavar="RUN", help=_RUN)],
    /,
    *pictures: Annotated[str, Flag(metavar="PICTURE", nargs="+")],
    checkpoint: Annotated[str, Flag(metavar="best|last|STEP")] = "best",
    top: int = 1,
    output: Annotated[LocalPath | None, Flag(metavar="FILE.csv")] = None,
    json: bool = False,
    skip_damaged: bool = False,
    data_dir: DataDir | None = None,
) -> int:
    """Predict the classes of pictures. Returns 0.

    Pictures are fitted to the network as those of its data set were: see docs/models.md.

    Args:
        pictures: Files, folders, patterns such as 'new/*.png', or - for a picture on standard input.
        checkpoint: Checkpoint to ask: best (on validation; without it, the newest), last, or a step.
        top: How many classes of each picture to show, the most probable first.
        output: Writes a table of all predictions in place of printing them.
        json: Prints one line of JSON for each picture.
        skip_damaged: Leaves out files that can't be read, and names them. Without it they are an error.
    """
    from labkit.analysis import predict as asking
    from labkit.export.ask import exported_network, is_exported

    if top < 1:
        raise InputError(f"--top is {top}; allowed: 1 or more")
    if json and output is not None:
        raise InputError("--json prints and --output writes a file; give one of the two")
    path = None if output is None else output_file(output, (".csv",)).absolute()
    file = Path(expanded(run)).absolute()
    if not is_exported(file):
        found = asking.predict(
            run_to_read(run),
            pictures,
            checkpoint=checkpoint,
            data_dir=data_dir,
            skip_damaged=skip_damaged,
            standard_input=sys.stdin.buffer.read,
        )
    elif checkpoint != "best" or data_dir is not None:
        raise InputError(f"{run} is an exported file; --checkpoint and --data-dir are for a run")
    else:
        opened = partial(exported_network, file)
        found = asking.ask_about(pictures, opened, skip_damaged, sys.stdin.buffer.read)
    rows = [{"path": name} | found.row(number, top) for number, name in enumerate(found.names)]
    if json:
        for row in rows:
            print(json_module.dumps(row, ensure_ascii=False))
    elif path is None:
        _print_table(found, rows)
    else:
        _write(path, found, rows, top)
        print(f"{counted(len(rows), 'picture')}, by the checkpoint of step {found.step}: {path}")
    if top > 1 and found.targets == "numbers":
        print(f"note: --top {top} has no effect: the network gives numbers, not classes", file=sys.stderr)
    for name, reason in found.skipped.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    return 0


def _cells(found: Any, row: dict[str, Any]) -> list[Any]:
    """Return the values of a row, the path apart."""
    if found.targets == "numbers":
        return list(row["numbers"].values())
    best = [value for one in row.get("top", [row]) for value in (one["class"], one["probability"])]
    return [";".join(row["classes"]), *best] if found.targets == "classes" else best


def _titles(found: Any, top: int) -> list[str]:
    if found.targets == "numbers":
        return list(found.classes)
    count = min(top, len(found.classes))
    places = ["" if place == 0 else f"_{place + 1}" for place in range(count)]
    best = [f"{name}{place}" for place in places for name in ("class", "probability")]
    return ["classes", *best] if found.targets == "classes" else best


def _print_table(found: Any, rows: list[dict[str, Any]]) -> None:
    cells = [_cells(found, row) for row in rows]
    top = (len(cells[0]) - (found.targets == "classes")) // 2
    titles = _titles(found, top)
    numbers = [name for name in titles if found.targets == "numbers" or name.startswith("probability")]
    print_table(
        ("picture", *titles),
        [
            (
                row["path"] if len(row["path"]) <= LONGEST else f"…{row['path'][1 - LONGEST :]}",
                *(_text(value, found.targets == "numbers") for value in values),
            )
            for row, values in zip(rows, cells, strict=True)
        ],
        right=tuple(numbers),
    )


def _text(value: Any, is_number: bool) -> str:
    if isinstance(value, str):
        return value or "none"
    return f"{value:.4g}" if is_number else f"{value:.1%}"


def _write(path: Path, found: Any, rows: list[dict[str, Any]], top: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", *_titles(found, top)])
        table.writerows([row["path"], *_cells(found, row)] for row in rows)


def serve(
    run: RunName,
    *,
    checkpoint: Annotated[str, Flag(metavar="best|last|STEP")] = "best",
    port: int = 8600,
    data_dir: DataDir | None = None,
) -> int:
    """Answer what a run's network sees on pictures that are sent to it, until Ctrl-C. Returns 0.

    A page to drop a picture on is at the printed address. Programs send a picture file with POST to /predict
    and get JSON; ?top=3 tells more classes. GET /ready answers once the network is there. It listens on
    127.0.0.1 alone.

    Args:
        checkpoint: Checkpoint to ask: best (on validation; without it, the newest), last, or a step.
        port: Port to listen on; 0 takes a free one.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}; allowed: 0 to 65535")
    require_extra("app", ("starlette", "uvicorn"), "labkit serve")
    from labkit.analysis.serve import serve_network

    serve_network(run_to_read(run), checkpoint, port, data_dir)
    return 0
