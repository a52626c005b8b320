"""Checks of the built site: links, headings, alternative texts, folded answers, nothing from the network."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

from course.site.execute import FAILED

# What a browser loads by itself. `a` is not among them: a link is followed by its reader.
LOADS = "script[src], img[src], iframe[src], source[src], video[src], audio[src], embed[src], input[src], "
LOADS += "object[data], " + ", ".join(
    f"link[href][rel~={kind}]"
    for kind in ("stylesheet", "icon", "preload", "prefetch", "preconnect", "modulepreload")
)
REMOTE = re.compile(r"\s*(https?:|//)", re.IGNORECASE)
REMOTE_IN_CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""", re.IGNORECASE)
REMOTE_IN_SCRIPT = re.compile(r"""(?:import|require|fetch|src\s*=)[\s(\["']+(?:https?:)?//""")
LESSON = re.compile(r"\d\d_\w+\.html")


def read_page(path: Path) -> Any:
    """Return the page at ``path``."""
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def problems(site: Path) -> list[str]:
    """Return a line for everything that is wrong with the site, in the order of its pages."""
    pages = {path.resolve(): read_page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} holds no page"]
    ids = {
        path: {tag.get(name) for name in ("id", "name") for tag in page.select(f"[{name}]")}
        for path, page in pages.items()
    }
    found = []
    for path, page in pages.items():
        for checked in (_links(path, page, ids), _network(page), _structure(page), _folds(path, page)):
            found += [f"{path.relative_to(site.resolve())}: {problem}" for problem in checked]
    for path in sorted(site.rglob("*.css")):
        if REMOTE_IN_CSS.search(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)}: loads from the network")
    return found


def _loads(page: Any) -> list[str]:
    """Return the addresses from which a browser loads something by itself."""
    return [tag.get("src") or tag.get("data") or tag.get("href") for tag in page.select(LOADS)]


def _links(path: Path, page: Any, ids: dict[Path, set[str]]) -> Iterator[str]:
    for link in dict.fromkeys([*(tag["href"] for tag in page.select("a[href]")), *_loads(page)]):
        parts = urlsplit(link)
        if parts.scheme in ("http", "https"):
            if not re.fullmatch(r"[\w-]+(\.[\w-]+)*(:\d+)?", parts.netloc) or re.search(r"\s", link):
                yield f"malformed address {link!r}"
        elif parts.scheme:
            if parts.scheme not in ("data", "mailto"):
                yield f"link with an unknown scheme: {link[:80]!r}"
        elif not parts.netloc:
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or target.is_dir():
                yield f"broken link {link!r}"
            elif parts.fragment and target in ids and unquote(parts.fragment) not in ids[target]:
                yield f"link to a heading that isn't there: {link!r}"


def _network(page: Any) -> Iterator[str]:
    for address in filter(REMOTE.match, _loads(page)):
        yield f"loads {address} from the network"
    code = [tag.get("style") or tag.get_text() for tag in page.select("script, style, [style]")]
    if any(REMOTE_IN_CSS.search(text) or REMOTE_IN_SCRIPT.search(text) for text in code):
        yield "a script or style in the page loads from the network"


def _structure(page: Any) -> Iterator[str]:
    levels = [int(tag.name[1]) for tag in page.select("h1, h2, h3, h4, h5, h6")]
    if levels.count(1) != 1:
        yield f"{levels.count(1)} headings of level 1; there must be one"
    for before, level in pairwise(levels):
        if level > before + 1:
            yield f"a heading of level {level} follows one of level {before}"
    for image in page.select("img"):
        if not image.get("alt", "").strip():
            yield f"image without an alternative text: {image.get('src', '')[:60]}"


def _folds(path: Path, page: Any) -> Iterator[str]:
    if opened := page.select("details[open]"):
        yield f"{len(opened)} answers are not folded"
    if LESSON.fullmatch(path.name):
        if not any(summary.get_text().strip().endswith("?") for summary in page.select("summary")):
            yield "no folded recall question"
        if "### BEGIN SOLUTION" in page.get_text():
            yield "a solution is not folded"
    if page.find(id=FAILED):
        yield "the lesson failed when it was executed"
