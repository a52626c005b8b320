"""How big is the code, and how many files does a reader open to follow one training step?

``python -m benchmarks.house [CHECKOUT ...]`` counts this checkout and those that are named, and prints a
Markdown table with a column for each. Older checkouts have older layouts: the first list of ``PATHS`` whose
files all exist is used. Options and lines of help come from the checkout's own command, run with this Python.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

# Files with code of one training step, in order, from `labkit train` to a row in metrics.jsonl, on one CPU;
# newest layout first.
PATHS = (
    (
        "labkit/commands/main.py",
        "labkit/commands/train.py",
        "labkit/training/plan.py",
        "labkit/training/checks.py",
        "labkit/training/session.py",
        "labkit/data/pipeline.py",
        "labkit/models/registry.py",
        "labkit/models/resnet.py",
        "labkit/training/step.py",
        "labkit/training/losses.py",
        "labkit/distributed/exchange.py",
        "labkit/training/loop.py",
        "labkit/training/telemetry.py",
        "labkit/run_directory/metrics.py",
    ),
    (
        "labkit/cli.py",
        "labkit/commands/train.py",
        "labkit/training/api.py",
        "labkit/training/resolution.py",
        "labkit/training/admission.py",
        "labkit/training/start.py",
        "labkit/training/session.py",
        "labkit/training/engines.py",
        "labkit/data/pipeline.py",
        "labkit/training/batches.py",
        "labkit/models/registry.py",
        "labkit/models/resnet.py",
        "labkit/training/network.py",
        "labkit/training/steps.py",
        "labkit/training/losses.py",
        "labkit/training/loop.py",
        "labkit/training/telemetry.py",
        "labkit/metrics.py",
    ),
)

# Those whose name says enough to read on without opening them.
BESIDE = {
    "labkit/cli.py",
    "labkit/commands/main.py",
    "labkit/training/checks.py",
    "labkit/models/registry.py",
    "labkit/training/losses.py",
    "labkit/distributed/exchange.py",
    "labkit/training/telemetry.py",
}


def main() -> int:
    """Print the table. Returns 0, or 1 where a checkout has none of the lists of files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT", help="Older checkouts.")
    here = Path(__file__).resolve().parents[1]
    checkouts = [*parser.parse_args().checkouts, here]
    columns = [counts(checkout.resolve()) for checkout in checkouts]
    names = [commit(checkout) for checkout in checkouts]
    print("| | " + " | ".join(names) + " |\n| --- |" + " ---: |" * len(names))
    for row in columns[0]:
        print(f"| {row} | " + " | ".join(str(column[row]) for column in columns) + " |")
    for name, checkout in zip(names, checkouts, strict=True):
        opened = [path for path in step_files(checkout) if path not in BESIDE]
        print(f"\nFiles to open for one CPU step, {name}: " + ", ".join(f"`{path}`" for path in opened))
    return 0 if all(step_files(checkout) for checkout in checkouts) else 1


def counts(checkout: Path) -> dict[str, object]:
    """Return what is counted, by its name in the table."""
    package = checkout / "labkit"
    files = sorted(package.rglob("*.py"))
    folders: dict[Path, int] = {}
    for path in files:
        folders[path.parent] = folders.get(path.parent, 0) + 1
    largest = max((folder for folder in folders if folder != package), key=folders.__getitem__)
    brief, full = help_of(checkout, "--help"), help_of(checkout, "--help-all")
    if not brief:
        raise SystemExit(f"labkit train --help fails in {checkout}")
    return {
        "files to open for one CPU step": len(set(step_files(checkout)) - BESIDE) or "unknown",
        "the same with entry, registry, losses, checks and writer": len(step_files(checkout)) or "unknown",
        "files in the largest package": f"{folders[largest]} ({largest.relative_to(checkout)})",
        "modules beside the packages in `labkit/`": len(list(package.glob("*.py"))) - 1,  # without __init__
        "files of `labkit`": len(files),
        "lines of `labkit`": f"{sum(len(path.read_text().splitlines()) for path in files):,}",
        "options of `labkit train`": options(full or brief),
        "lines of `labkit train --help`": len(brief.splitlines()),
        "lines of `labkit train --help-all`": len(full.splitlines()) or "–",
    }


def step_files(checkout: Path) -> tuple[str, ...]:
    """Return the list of files for the checkout's layout, or nothing where no list fits."""
    return next((paths for paths in PATHS if all((checkout / path).is_file() for path in paths)), ())


def help_of(checkout: Path, flag: str) -> str:
    """Return what ``labkit train`` of the checkout prints for a flag, or an empty text where it has none."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "80"}
    main = "commands.main" if (checkout / "labkit/commands/main.py").exists() else "cli"
    code = f"import sys; from labkit.{main} import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "train", flag]
    ended = subprocess.run(
        command, env=environment, cwd=checkout, capture_output=True, text=True, check=False
    )
    return ended.stdout if ended.returncode == 0 else ""


def options(text: str) -> int:
    """Return how many options a help text describes; ``--x, --no-x`` are one."""
    return len(re.findall(r"^ {2,6}(?:-h, )?--[a-z0-9-]+", text, re.MULTILINE))


def commit(checkout: Path) -> str:
    """Return the checkout's commit, abbreviated, or its folder's name where it is no repository."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or checkout.name


if __name__ == "__main__":
    sys.exit(main())
