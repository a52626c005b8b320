"""``python app/report FILE RUN_DIRECTORY…``: write a report. ``labkit report`` starts this."""

import sys
from pathlib import Path

# The checkout, which holds the packages, isn't on the path of a program that is started by its folder.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from app.report.document import write_report  # noqa: E402
from labkit.errors import InputError  # noqa: E402
from labkit.plurals import printable  # noqa: E402
from labkit.run_directory import RunDirectory  # noqa: E402


def main(output: str, *runs: str) -> int:
    """Write the report and say where it is. Returns the exit code."""
    try:
        size = write_report(list(map(RunDirectory, runs)), Path(output))
    except InputError as error:
        print(f"labkit: error: {printable(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"labkit: error: --output {output} can't be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{output}: {size / 1e6:,.1f} MB, opens in a browser without a network")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
