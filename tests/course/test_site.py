"""``make course`` on a course of two small lessons, and on the sources of this checkout."""

import re

import pytest

from course.lessons import verdict
from course.lessons.verdict import Exercise
from course.site.__main__ import main
from course.site.build import Paths, build_site
from course.site.check import problems, read_page
from tests.course.small import make_paths

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    paths = make_paths(tmp_path_factory.mktemp("course"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict, "exercises", lambda lesson: (Exercise("01.1", "title", str),))
        assert main(["build", "00"], paths) == 0
    return paths


def text(paths, page):
    return (paths.site / page).read_text()


@pytest.mark.long
def test_the_lesson_is_executed_in_a_home_of_its_own_and_leaves_no_partial_file(built):
    assert sorted(path.name for path in built.executed.iterdir()) == ["00_first.ipynb", "01_second.ipynb"]
    assert built.home.is_dir()
    assert "outputs" not in (built.notebooks / "00_first.ipynb").read_text().replace('"outputs": []', "")


@pytest.mark.long
def test_a_page_shows_figures_with_their_texts_and_what_was_printed(built):
    page = read_page(built.site / "notebooks" / "00_first.html")
    assert [image["alt"] for image in page.select("img")] == [
        "step 1 of three",
        *(f"step {step} of three, step {step}" for step in (1, 2, 3)),
    ]
    shown = text(built, "notebooks/00_first.html")
    assert "<p>Two and two make <strong>4</strong>.</p>" in shown
    assert "<p>✓ two is even</p>" in shown
    assert '<pre class="output">&lt;b&gt;red\nwhole</pre>' in shown
    assert 'class="labkit-frames"' in shown
    assert 'href="01_second.html"' in shown
    assert [summary.text for summary in page.select("summary")] == ["Setup and parameters", "What is lost?"]
    assert 'href="notebooks/01_second.html">01 Second</a>' in text(built, "index.html")


@pytest.mark.long
def test_a_solution_and_its_outputs_are_folded_and_the_stub_is_not(built):
    shown = text(built, "notebooks/01_second.html")
    before, folded, after = re.split(r'<details class="solution">|</details>', shown, maxsplit=2)
    assert "your code" in before
    assert "✓ exercise" in folded
    assert "<summary>Solution</summary>" in folded
    assert "SOLUTION" not in shown
    assert "✓ exercise" not in before + after
    assert "✓ exercise" not in after
    page = read_page(built.site / "notebooks" / "01_second.html")
    assert page.select("img")[0]["alt"] == 'A "pixel": nothing'
    assert "What is lost?" in [summary.text for summary in page.select("summary")]


@pytest.mark.long
def test_the_site_has_the_documents_the_reference_and_the_linked_files(built):
    assert 'href="docs/guide.html"' in text(built, "index.html")
    assert 'href="../README.html"' in text(built, "docs/guide.html")
    assert text(built, "index.html") == text(built, "README.html")
    assert list(built.site.glob("_downloads/*/code.py"))
    reference = text(built, "course/site/api/labkit.html")
    for name in ("labkit.train", "labkit.Run", "labkit.Callback.after_step"):
        assert f'id="{name}"' in reference
    assert 'id="course.lessons.check"' in text(built, "course/site/api/course.lessons.html")
    assert 'id="labkit.figures.widgets.slider"' in text(built, "course/site/api/labkit.figures.widgets.html")
    assert 'id="labkit.figures.training_curves"' in text(built, "course/site/api/labkit.figures.html")


def test_the_table_has_a_row_for_each_lesson(built):
    overview = built.overview.read_text()
    first = "| 00 [First](../notebooks/00_first.ipynb) | 0 | 2 | 17 | 1 | 1 | 0 of 0 | 0 of 0 | 1 | 0 |"
    assert first in overview
    assert "| 01 [Second](../notebooks/01_second.ipynb) | 10 | 2 | " in overview
    assert " | 1 | 0 | 1 of 1 | 1 of 1 | 0 | 0 |" in overview
    assert overview.startswith("# Course\n\nWords.\n")
    assert overview.endswith("\nMore words.\n")
    assert 'href="../notebooks/00_first.html"' in text(built, "docs/course.html")


@pytest.mark.long
def test_the_sources_of_this_checkout_make_a_site(tmp_path):
    paths = Paths(build=tmp_path)
    build_site(paths)
    assert not [line for line in problems(paths.site) if "no folded recall question" not in line]
