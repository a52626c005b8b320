"""Which files does a value visit? Three are followed: a batch size, a learning rate and a picture's name.

``python -m tests.walks`` prints the files for each, a minute together. A file counts once a function of it
holds the value in an argument or a variable: itself, or in text, bytes, an array, a list or a dictionary.
What other processes and the browser hold isn't seen, nor what is reached through the configuration's object.
"""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
BATCH, RATE, PICTURE = 346, 0.0123, "odd-one-out.png"


def holds(value: Any, wanted: int | float | str, depth: int = 0) -> bool:
    """Return whether a variable holds what is followed."""
    if isinstance(value, str | bytes | PurePath):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return text == str(wanted) if isinstance(wanted, int) else str(wanted) in text
    if isinstance(value, int | float | np.number):
        return not isinstance(wanted, str) and type(value) is not bool and abs(float(value) - wanted) < 1e-9
    if isinstance(wanted, int):  # other numbers of a list may be the same by chance
        return False
    if isinstance(value, np.ndarray):
        value = value.ravel()[:1000].tolist()
    if isinstance(value, dict):
        value = list(value.values())
    return (
        depth < 2 and type(value) in (list, tuple) and any(holds(v, wanted, depth + 1) for v in value[:1000])
    )


@contextmanager
def following(wanted: int | float | str) -> Iterator[list[str]]:
    """Collect the files of labkit and app whose functions hold the value, in the order of the visits."""
    files: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if event != "return" or not name.startswith(("labkit/", "app/")) or name in files:
            return
        if any(holds(value, wanted) for value in list(frame.f_locals.values())):
            files.append(name)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def command(*words: str) -> None:
    from labkit.commands.main import main

    if main(list(words)):
        raise SystemExit(f"labkit {' '.join(words)} failed")


def page(name: str, run: Path, **url: str) -> Any:
    from streamlit import config

    from tests.app.pages import open_page

    config.set_option("server.address", "127.0.0.1")
    return open_page(name, str(run), **url)


def batch_size() -> list[str]:
    """From the flag to the step."""
    command("data", "prepare", "--dataset", "shapes")
    with following(BATCH) as files:
        command("train", "--preset", "smoke", "--train-batch-size", str(BATCH), "--train-steps", "3",
                "--validate-every-steps", "0", "--no-evaluate-test")  # fmt: skip
    return files


def learning_rate() -> list[str]:
    """From the notebook's cell to the chart."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    cells = json.loads((ROOT / "notebooks/train.ipynb").read_text())["cells"]
    run = Path(os.environ["LABKIT_HOME"]) / "rate"
    # As papermill writes it.
    given = f"# Parameters\nlearning_rate = {RATE}\npreset = 'smoke'\njob_dir = {str(run)!r}"
    with following(RATE) as files:
        for cell in cells:
            if cell["cell_type"] == "code":
                shell.run_cell("".join(cell["source"])).raise_error()
                if "parameters" in cell["metadata"].get("tags", []):
                    shell.run_cell(given).raise_error()
                if "prepared.train()" in "".join(cell["source"]):
                    break
        page("live", run)
    return files


def picture() -> list[str]:
    """From ``labkit data prepare`` to the page of the image."""
    home = Path(os.environ["LABKIT_HOME"])
    folder = home / "found"
    for place in range(60):
        target = folder / "ab"[place % 2] / (PICTURE if place == 0 else f"{place}.png")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), place * 4, np.uint8)).save(target)
    with following(PICTURE) as prepared:
        command("data", "prepare", "--images", str(folder), "--name", "pictures")
    command("train", "--preset", "smoke", "--dataset", "pictures", "--train-steps", "2",
            "--train-batch-size", "8", "--job-dir", str(home / "picture"))  # fmt: skip
    names = json.loads((home / "data" / "pictures" / "files.json").read_text())["files"]
    split, index = next((s, f.index(f"a/{PICTURE}")) for s, f in names.items() if f"a/{PICTURE}" in f)
    with following(PICTURE) as shown:
        page("image", home / "picture", split=split, index=str(index))
    return list(dict.fromkeys([*prepared, *shown]))


def main() -> None:
    walks: list[tuple[str, Callable[[], list[str]]]] = [
        ("a batch size, from its flag to the step", batch_size),
        ("a learning rate, from the cell of train.ipynb to its chart", learning_rate),
        ("a picture, from labkit data prepare to its page", picture),
    ]
    with tempfile.TemporaryDirectory() as home:
        os.environ["LABKIT_HOME"] = home
        for title, walk in walks:
            with redirect_stdout(sys.stderr):
                files = walk()
            print(f"{title}: {len(files)} files\n  " + "\n  ".join(files))


if __name__ == "__main__":
    main()
