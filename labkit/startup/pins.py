"""The versions that labkit was tested with, for pip. Imports nothing that labkit depends on."""

import os
import tempfile


def pins() -> str:
    """Return the path of a new file that keeps pip at the versions of ``requirements.lock``."""
    lock = os.path.join(os.path.dirname(os.path.dirname(__file__)), "shipped", "requirements.lock")
    with open(lock, encoding="utf-8") as file:
        lines = [line.removesuffix("\\\n").strip() for line in file if line[:1].isalnum()]
    descriptor, path = tempfile.mkstemp(suffix=".txt", prefix="labkit-pins-")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path
