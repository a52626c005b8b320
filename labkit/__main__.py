"""The ``labkit`` command, also as ``python -m labkit``."""

import os
import sys
from os.path import abspath, dirname


def main() -> int:
    """Run the command line of this process. Returns the exit code."""
    import _signal  # which Python has loaded; signal itself takes a while

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until the next lines have run: no traceback
    from labkit.startup.child import import_path
    from labkit.startup.interruption import described, end_on_requests, leave_requests

    end_on_requests()
    if sys.path[0] == dirname(dirname(abspath(__file__))):  # python -m labkit in a checkout, installed or not
        os.environ["PYTHONPATH"] = import_path()
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
