"""Measurements that need links of a chosen rate: made here, or recorded where there can be none."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.lessons.begin import Lesson, say
from labkit.cluster.hosts import why_no_hosts
from labkit.distributed.cpu import cpu_model
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json


class Record:
    """What a lesson measures over links; written to ``measured.json`` in the lesson's folder.

    ``recorded.json`` in the lesson's package is a copy of such a file.
    """

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._values: dict[str, Any] = {}
        self._recorded = read_json(Path(__file__).parent / lesson.name[3:] / "recorded.json")
        self._reason = why_no_hosts()
        if self._reason is not None:
            say(f"{self._reason}. What needs such links is shown as it was recorded elsewhere.")

    @property
    def has_links(self) -> bool:
        """Whether this machine can make links of a chosen rate."""
        return self._reason is None

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what ``measure`` returns, with lists for arrays and tuples; or what was recorded."""
        if not self.has_links:
            self.mark()
            return self._recorded["values"][name]
        self._values[name] = json.loads(json.dumps(measure(), default=lambda value: value.tolist()))
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "processor": cpu_model(),
            "command": f"labkit notebook run notebooks/{self._lesson.name}.ipynb",
        }
        write_json_atomic(self._lesson.folder / "measured.json", {**about, "values": self._values})
        return self._values[name]

    def mark(self) -> None:
        """Say of what follows that it was recorded, where this machine can't make links."""
        if not self.has_links:
            date, processor = self._recorded["date"], self._recorded["processor"]
            say(f"*Recorded on {date}, {processor}; not measured here.*")
