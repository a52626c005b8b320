"""The request and the result of an export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.export.formats import Format
from labkit.run_directory import RunDirectory

__all__ = ["ExportRequest", "ExportResult"]


@dataclass(frozen=True)
class ExportRequest:
    """The checked arguments of ``labkit.export.api.export``.

    ``config`` is the run's recorded configuration, ``manifest`` describes its data set, and ``path`` is the
    file or folder to write.
    """

    run: RunDirectory
    config: Config
    manifest: Manifest
    format: Format
    path: Path
    checkpoint: str
    standardized_input: bool
    probabilities: bool
    check: bool

    @property
    def output_name(self) -> str:
        """The name of the exported network's output."""
        return "probabilities" if self.probabilities else "logits"


@dataclass(frozen=True)
class ExportResult:
    """The result of an export, with the content of the file's description.

    ``comparison`` is a ``labkit.export.check.Comparison``, or None if no check was requested. If the check
    failed, nothing was written to ``path``.
    """

    path: Path
    step: int
    description: dict[str, Any]
    comparison: Any = None

    @property
    def written(self) -> bool:
        return self.comparison is None or self.comparison.passed
