"""``python -m labkit``: the ``labkit`` command."""

import sys

from labkit.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
