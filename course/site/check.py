"""Checks of the built site: links, headings, alternative texts, folded answers, nothing from the network."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from course.site.execute import FAILED

# What a browser loads by itself. `a` is not among them: a link is followed by its reader.
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
LOADS |= {"embed": "src", "object": "data", "input": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "modulepreload", "shortcut"}
REMOTE = re.compile(r"\s*(https?:|//)", re.IGNORECASE)
REMOTE_IN_CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""", re.IGNORECASE)
REMOTE_IN_SCRIPT = re.compile(r"""(?:import|require|fetch|src\s*=)[\s(\["']+(?:https?:)?//""")
LESSON = re.compile(r"\d\d_\w+\.html")


@dataclass
class Page(HTMLParser):
    """What the checks want to know of a page."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    images: list[tuple[str, str]] = field(default_factory=list)  # (source, alternative text)
    headings: list[int] = field(default_factory=list)
    open_details: int = 0
    summaries: list[str] = field(default_factory=list)
    code: str = ""  # of scripts and styles in the page
    text: str = ""
    _within: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADS and values.get(LOADS[tag]):
            self.loads.append(values[LOADS[tag]])
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").lower().split()):
            self.loads.append(values.get("href", ""))
        if tag == "img":
            self.images.append((values.get("src", ""), values.get("alt", "")))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "details" and "open" in values:
            self.open_details += 1
        if tag == "summary":
            self.summaries.append("")
        if tag in ("script", "style", "summary"):
            self._within.append(tag)
        self.code += values.get("style", "") + "\n"

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            self._within.remove(tag)

    def handle_data(self, data: str) -> None:
        if "script" in self._within or "style" in self._within:
            self.code += data
            return
        if "summary" in self._within:
            self.summaries[-1] += data
        self.text += data


def read_page(path: Path) -> Page:
    """Return what the checks want to know of the page at ``path``."""
    page = Page(path)
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


def problems(site: Path) -> list[str]:
    """Return a line for everything that is wrong with the site, in the order of its pages."""
    pages = {path.resolve(): read_page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} holds no page"]
    found = []
    for page in pages.values():
        name = page.path.relative_to(site)
        for checked in (_links(page, pages), _network(page), _headings(page), _images(page), _folds(page)):
            found += [f"{name}: {problem}" for problem in checked]
    for path in sorted(site.rglob("*.css")):
        if REMOTE_IN_CSS.search(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)}: loads from the network")
    return found


def _links(page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for link in dict.fromkeys([*page.links, *page.loads]):
        parts = urlsplit(link)
        if parts.scheme in ("http", "https"):
            if not re.fullmatch(r"[\w-]+(\.[\w-]+)*(:\d+)?", parts.netloc) or re.search(r"\s", link):
                yield f"malformed address {link!r}"
        elif parts.scheme:
            if parts.scheme not in ("data", "mailto"):
                yield f"link with an unknown scheme: {link[:80]!r}"
        elif not parts.netloc:
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path.resolve()
            if not target.exists() or target.is_dir():
                yield f"broken link {link!r}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"link to a heading that isn't there: {link!r}"


def _network(page: Page) -> Iterator[str]:
    for address in page.loads:
        if REMOTE.match(address):
            yield f"loads {address} from the network"
    if REMOTE_IN_CSS.search(page.code) or REMOTE_IN_SCRIPT.search(page.code):
        yield "a script or style in the page loads from the network"


def _headings(page: Page) -> Iterator[str]:
    if page.headings.count(1) != 1:
        yield f"{page.headings.count(1)} headings of level 1; there must be one"
    for before, level in zip([0, *page.headings], page.headings, strict=False):
        if level > before + 1 and before:
            yield f"a heading of level {level} follows one of level {before}"


def _images(page: Page) -> Iterator[str]:
    for source, alt in page.images:
        if not alt.strip():
            yield f"image without an alternative text: {source[:60]}"


def _folds(page: Page) -> Iterator[str]:
    if page.open_details:
        yield f"{page.open_details} answers are not folded"
    if LESSON.fullmatch(page.path.name):
        if not any(summary.strip().endswith("?") for summary in page.summaries):
            yield "no folded recall question"
        if "### BEGIN SOLUTION" in page.text:
            yield "a solution is not folded"
    if FAILED in page.ids:
        yield "the lesson failed when it was executed"
