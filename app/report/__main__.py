"""``python app/report --output FILE RUN_DIRECTORY…``: write a report. ``labkit report`` starts this."""

import argparse
import sys
from pathlib import Path

# The checkout, which holds the packages, isn't on the path of a program that is started by its folder.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from app.report.document import write_report  # noqa: E402
from labkit.errors import InputError  # noqa: E402
from labkit.plurals import printable  # noqa: E402
from labkit.run_directory import RunDirectory  # noqa: E402


def main() -> int:
    """Write the report and say where it is. Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    try:
        size = write_report([RunDirectory(path) for path in options.runs], options.output)
    except InputError as error:
        print(f"labkit: error: {printable(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"labkit: error: --output {options.output} can't be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{options.output}: {size / 1e6:,.1f} MB, opens in a browser without a network")
    return 0


if __name__ == "__main__":
    sys.exit(main())
