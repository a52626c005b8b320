"""Where the course's sources are, and where what is made of them goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import InputError

__all__ = ["ROOT", "Paths"]

ROOT = Path(__file__).resolve().parents[1]


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

    def lessons(self) -> list[Path]:
        """Return the sources of the lessons in order, without the training notebook."""
        return sorted(self.notebooks.glob("[0-9][0-9]_*.ipynb"))

    def all_notebooks(self) -> list[Path]:
        """Return the sources of the lessons in order, and the training notebook."""
        return [*self.lessons(), *self.notebooks.glob("train.ipynb")]

    def chosen(self, names: Sequence[str]) -> list[Path]:
        """Return the sources with these names, such as ``04_replicas`` or ``04``; all if none is given.

        Raises InputError for a name that isn't there.
        """
        known = {path.stem: path for path in self.all_notebooks()}
        found = []
        for name in names:
            matches = [path for stem, path in known.items() if name in (stem, stem.partition("_")[0])]
            if not matches:
                raise InputError(f"no lesson {name!r} in {self.notebooks}; there are {', '.join(known)}")
            found += matches
        return found or list(known.values())
