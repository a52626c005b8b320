"""Fenced blocks of the documents: what they hold, and what is said of running them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"<!-- (not run: \S.*|run by \S+::\w+) -->\n$")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``mark`` is the comment in the line before it, empty where there is none."""

    document: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"

    def commands(self) -> list[str]:
        """Return the command lines: continued lines joined, comments and empty lines left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        bare = (re.sub(r"(^|\s)#\s.*", "", line).strip() for line in lines)
        return [line for line in bare if line]


@dataclass(frozen=True)
class Command:
    """A command of a document, without the variables before it and the redirection behind it."""

    block: Block
    words: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.block.place}: {' '.join(self.words)}"


def blocks(*languages: str) -> list[Block]:
    """Return the blocks in one of the languages, of every document, in order."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        for match in _BLOCK.finditer(text):
            mark = _MARK.search(text[: match.start()])
            line = text.count("\n", 0, match.start()) + 1
            block = Block(
                str(path.relative_to(ROOT)), line, match["language"], match["text"], mark[1] if mark else ""
            )
            if block.language in languages:
                found.append(block)
    return found


def commands() -> list[Command]:
    """Return every command of every block without a language."""
    return [
        Command(block, words)
        for block in blocks("", "sh")
        for line in block.commands()
        for words in _split(line)
    ]


def _split(line: str) -> list[tuple[str, ...]]:
    words = shlex.split(line)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "<")]
    return [tuple(words[: ends[0]] if ends else words)] if words else []
