"""The table of docs/reliability.md, from what the cases measured."""

from dataclasses import dataclass
from pathlib import Path

HEAD = ("mode", "who", "how", "when", "what happened", "noticed by", "noticed after", "trains again after")


@dataclass(frozen=True)
class Case:
    """One case of the matrix. Times in seconds since the signal; None where there is nothing to time."""

    mode: str
    who: str
    how: str
    when: str
    what: str
    noticed_by: str = ""
    noticed: float | None = None
    again: float | None = None

    def row(self) -> tuple[str, ...]:
        times = ["–" if value is None else f"{value:.1f} s" for value in (self.noticed, self.again)]
        return (self.mode, self.who, self.how, self.when, self.what, self.noticed_by or "–", *times)


def write_table(path: Path, cases: list[Case]) -> None:
    """Write the cases as a Markdown table, in the order in which they ran."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(case.row() for case in cases)]
    path.write_text("".join(f"| {' | '.join(row)} |\n" for row in rows))
