"""The certificate of a ``--deterministic`` run: hashes by which a later change of its files is found.

It lies in the run directory, so it shows what was changed by accident, or by somebody who didn't renew it.
Who wants more keeps the line that ``labkit verify`` prints of it elsewhere.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory.checkpoints import checkpoint_path
from labkit.run_directory.directory import RunDirectory, write_json_atomic
from labkit.run_directory.files import open_run_file, read_json

FORMAT = 1
ROW_DIGITS = 8  # hexadecimal, of a row's hash: a changed row keeps it by chance once in 4 billion times
MOST_NAMED = 5  # rows that a finding names


@dataclass(frozen=True)
class Certificate:
    """Hashes of a run, written when a session of its training ended.

    ``step``: the last step. ``settings``: those of the configuration that decide the result. ``data``: the
    checksum of the data set's manifest, which holds those of its files. ``rows``: the first digits of the
    SHA-256 of each line of ``metrics.jsonl``, one after the other. ``checkpoints``: by step, the SHA-256 of
    each file. ``code``: the same of the files of code; None in a certificate of an older labkit.
    """

    step: int
    settings: dict[str, Any]
    data: str
    rows: str
    checkpoints: dict[str, dict[str, str]]
    format: int = FORMAT
    code: dict[str, str] | None = None

    @property
    def sha256(self) -> str:
        """SHA-256 of the certificate's content: the one line that vouches for all the others."""
        content = {name: value for name, value in asdict(self).items() if value is not None}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def changes(self, run: RunDirectory, settings: Mapping[str, Any], data: str) -> list[str]:
        """Return a sentence for each thing that isn't as it was certified; empty if all is.

        Rows and checkpoints that were added since count as no change, and checkpoints that were removed
        neither: training goes on, and keeps the newest ones.

        Args:
            run: the run.
            settings: those of its configuration that decide the result, as they are now. What was certified
                and isn't among them, this labkit doesn't have any more.
            data: the checksum of its data set's manifest as it is now.
        """
        found = [
            f"config.json: {name} was {self.settings.get(name)!r} and is {settings.get(name)!r}"
            for name in settings
            if self.settings.get(name) != settings.get(name)
        ]
        if data != self.data:
            found.append(f"the data set is another: its checksum was {self.data[:12]} and is {data[:12]}")
        found += self._changed_rows(run)
        for step, files in self.checkpoints.items():
            folder = checkpoint_path(run.checkpoints_path, int(step))
            if folder.is_dir():
                now = _hashes(folder)
                names = sorted(name for name in {*files, *now} if files.get(name) != now.get(name))
                found += [f"{folder.parent.name}/{folder.name}/{name} was changed" for name in names]
        if self.code:
            # The code of now, and what a later session may have replaced.
            folders = [path for path in (run.code_path, *run.code_path.glob("*")) if path.is_dir()]
            kept = [file for folder in folders for file in _hashes(folder).items()]
            found += [f"code/{file[0]} was changed" for file in self.code.items() if file not in kept]
        return found

    def _changed_rows(self, run: RunDirectory) -> list[str]:
        certified = [self.rows[at : at + ROW_DIGITS] for at in range(0, len(self.rows), ROW_DIGITS)]
        lines = _lines(run.metrics_path)
        found = []
        if len(lines) < len(certified):
            missing = counted(len(certified) - len(lines), "row")
            found.append(f"metrics.jsonl: {missing} of {len(certified):,} certified ones are missing")
        changed = [
            f"metrics.jsonl, line {number} was changed"
            for number, (line, digits) in enumerate(zip(lines, certified, strict=False), start=1)
            if _row_hash(line) != digits
        ]
        found += changed[:MOST_NAMED]
        if len(changed) > MOST_NAMED:
            found.append(f"metrics.jsonl: {counted(len(changed) - MOST_NAMED, 'more changed row')}")
        return found


def write_certificate(run: RunDirectory, *, step: int, settings: Mapping[str, Any], data: str) -> None:
    """Certify a run as it is now. Only the process that writes the run may call this."""
    checkpoints = {
        str(found): _hashes(checkpoint_path(run.checkpoints_path, found)) for found in run.checkpoint_steps()
    }
    rows = "".join(_row_hash(line) for line in _lines(run.metrics_path))
    code = _hashes(run.code_path) if run.code_path.is_dir() else {}
    certificate = Certificate(step, dict(settings), data, rows, checkpoints, code=code)
    write_json_atomic(run.certificate_path, {**asdict(certificate), "sha256": certificate.sha256})


def read_certificate(run: RunDirectory) -> Certificate | None:
    """Return a run's certificate; None if it has none. Raises InputError if it is damaged or was changed."""
    path = run.certificate_path
    try:
        content = read_json(path)
        certificate: Certificate = msgspec.convert(content, Certificate)
        if certificate.sha256 != content.get("sha256") or certificate.format != FORMAT:
            raise ValueError("its own hash doesn't fit its content")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = str(error).removeprefix(f"{path} can't be read: ")
        raise InputError(
            f"{path} is damaged or was changed ({reason}), so it vouches for nothing; "
            "remove it to verify the steps alone"
        ) from None
    return certificate


def _hashes(folder: Path) -> dict[str, str]:
    hashes = {}
    for path in sorted(path for path in folder.iterdir() if not path.is_dir()):
        with open_run_file(path) as file:
            hashes[path.name] = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
    return hashes


def _lines(path: Path) -> list[bytes]:
    try:
        with open_run_file(path) as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def _row_hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:ROW_DIGITS]
