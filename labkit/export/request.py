"""What is to be exported, and what came of it."""

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
    """What ``labkit.export.api.export`` was asked for, with everything found that can be without TensorFlow.

    ``config``: as recorded in the run; ``manifest``: of its data set; ``path``: where the file goes.
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
        """What the network returns, as its formats call it."""
        return "probabilities" if self.probabilities else "logits"


@dataclass(frozen=True)
class ExportResult:
    """What was exported, and the content of the file's description.

    ``comparison``: a ``labkit.export.check.Comparison`` where one was asked for. Where it failed, nothing
    was written to ``path``.
    """

    path: Path
    step: int
    description: dict[str, Any]
    comparison: Any = None

    @property
    def written(self) -> bool:
        return self.comparison is None or self.comparison.passed
