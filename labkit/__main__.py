"""The ``labkit`` command, also as ``python -m labkit``."""

import sys

from labkit.startup.interruption import described, end_on_requests, leave_requests

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process. Returns the exit code."""
    end_on_requests()
    try:
        from labkit.commands.main import main as run

        return run()
    except KeyboardInterrupt as stop:  # before the command began
        print(f"labkit: {described(stop.args[0])}", file=sys.stderr)
        return 128 + int(stop.args[0])
    finally:
        leave_requests()


if __name__ == "__main__":
    sys.exit(main())
