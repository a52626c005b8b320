"""What ``labkit cluster slurm|kubernetes …`` prints for a command line, and files to compare it with.

After an intended change run ``LABKIT_RENEW_GOLDEN=1 .venv/bin/pytest tests/cluster -k golden``, then read
the difference with git.
"""

import contextlib
import io
import os
import shlex
from pathlib import Path

from labkit.commands import main as cli

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("golden")


def printed(command: str) -> str:
    """Return what a command line, ``labkit cluster … -- train …``, prints."""
    program, *arguments = shlex.split(command)
    assert program == "labkit"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert cli.main(arguments) == 0
    return output.getvalue()


def check_golden(path: Path, text: str) -> None:
    """Compare ``text`` with a file, or renew the file where that was asked for."""
    if os.environ.get("LABKIT_RENEW_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs from the output; see tests/cluster/examples.py"


def documented_commands() -> dict[str, str]:
    """Return the command that deploy/README.md gives for each generated file."""
    parts = (ROOT / "deploy" / "README.md").read_text().split("\n- `")[1:]
    blocks = {part.partition("`")[0]: part.split("```")[1].strip() for part in parts if "```" in part}
    assert len(blocks) == 3
    return blocks
