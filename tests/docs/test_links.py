"""Links between the documents lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, ROOT

BESIDE = ("CONTRIBUTING.md", "deploy/README.md", "benchmarks/README.md")
PAGES = (*DOCUMENTS, *(ROOT / name for name in BESIDE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_headings_that_a_page_links_to_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(r"`((?:tests|benchmarks|labkit|notebooks|app)/[\w./]+)", page.read_text()):
        assert (ROOT / name).exists(), name


def test_the_architecture_describes_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.parent.name for path in (ROOT / "labkit").glob("*/__init__.py")]
    assert len(packages) > 15
    assert not [name for name in packages if f"| `labkit/{name}` |" not in page]


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in index


def test_every_picture_is_shown_and_small() -> None:
    shown = "".join(path.read_text() for path in PAGES)
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"images/{picture.name}" in shown
        assert picture.stat().st_size < 200_000
