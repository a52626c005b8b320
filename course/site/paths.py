"""Where the course's sources are, and where what is made of them goes."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Paths:
    """The folders of one build.

    Args:
        root: the checkout, with ``README.md`` and ``docs``.
        notebooks: the sources of the lessons.
        build: for everything that is made.
        overview: the document with the table of lessons.
    """

    root: Path = ROOT
    notebooks: Path = ROOT / "notebooks"
    build: Path = ROOT / "build" / "course"
    overview: Path = ROOT / "docs" / "course.md"

    @property
    def executed(self) -> Path:
        """The executed notebooks."""
        return self.build / "notebooks"

    @property
    def home(self) -> Path:
        """``LABKIT_HOME`` of the lessons: their runs are not among the user's."""
        return self.build / "home"

    @property
    def pages(self) -> Path:
        """What Sphinx reads."""
        return self.build / "pages"

    @property
    def site(self) -> Path:
        """What Sphinx writes: open its ``index.html``."""
        return self.build / "site"
