"""Make a data set in a process of its own: ``python -m <this module> CONFIGURATION``.

What prepares it would need TensorFlow, and what the process of ``labkit compare`` holds would hide the
memory of the trainings that it starts (``labkit.analysis.comparison.processes``).
"""

import json
import sys
from collections.abc import Sequence

from labkit.analysis.comparison.processes import exit_code
from labkit.config import Config
from labkit.training.plan import plan_run

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Prepare the data set of a configuration, given as JSON. Returns the exit code."""

    def work() -> None:
        config = Config.from_json(json.loads(arguments[0]))
        print(plan_run(config, has_run=False, uses_devices=False).data_note, flush=True)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
