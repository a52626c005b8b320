"""The ``labkit`` command, also as ``python -m labkit``."""

import os
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process. Returns the exit code."""
    import _signal  # which Python has loaded; signal itself takes a while

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until the next lines have run: no traceback
    from labkit.startup.interruption import described, end_on_requests, leave_requests

    end_on_requests()
    _let_children_import_this_labkit()
    try:
        from labkit.commands.main import main as run

        return run()
    except KeyboardInterrupt as stop:  # before the command began
        print(f"labkit: {described(stop.args[0])}", file=sys.stderr)
        return 128 + int(stop.args[0])
    finally:
        leave_requests()


def _let_children_import_this_labkit() -> None:
    """Name the folder of this package for children, which don't look into the current folder.

    ``python -m labkit`` in a checkout that isn't the installed one found it there.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[0] == root:
        named = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, named]))


if __name__ == "__main__":
    sys.exit(main())
