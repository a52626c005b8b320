"""Each check of the built site finds what it is for, and nothing in a page that is right."""

import pytest

from course.site.check import problems

GOOD = """<!doctype html><html><head><link rel="stylesheet" href="style.css"><link rel="author" href="a.html">
<script src="script.js"></script></head><body><h1 id="top">Title</h1><h2 id="über">Part</h2><h3>Detail</h3>
<h2>Next</h2><p><a href="a.html#über">a</a> <a href="#top">top</a> <a href="https://example.org/x?y=1#z">out</a>
<a href="mailto:someone@example.org">mail</a></p><img src="data:image/png;base64,AA==" alt="Nothing">
<details><summary>Why?</summary><p>Because.</p></details>
<svg xmlns="http://www.w3.org/2000/svg"></svg></body></html>"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "style.css").write_text("a { background: url(data:image/png;base64,AA==) }")
    (tmp_path / "script.js").write_text("// https://example.org")
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "00_tour.html").write_text(GOOD)
    return tmp_path


def test_a_good_site_has_no_problem_and_an_empty_one_has(site, tmp_path):
    (site / "a.html").write_text(GOOD.replace("Why?", "More"))
    assert problems(site) == [], "only lessons need recall questions"
    (site / "style.css").write_text("@font-face { src: url('https://fonts.example.org/x.woff2') }")
    assert problems(site) == ["style.css: loads from the network"]
    (tmp_path / "empty").mkdir()
    assert problems(tmp_path / "empty") == [f"{tmp_path / 'empty'} holds no page"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('href="a.html#über"', 'href="b.html"', "broken link 'b.html'"),
        ('href="a.html#über"', 'href="."', "broken link '.'"),
        ('href="a.html#über"', 'href="a.html#under"', "link to a heading that isn't there: 'a.html#under'"),
        ('href="#top"', 'href="#bottom"', "link to a heading that isn't there: '#bottom'"),
        ("https://example.org/x?y=1#z", "https://exa mple.org", "malformed address 'https://exa mple.org'"),
        ("https://example.org/x?y=1#z", "https:///x", "malformed address 'https:///x'"),
        ("https://example.org/x?y=1#z", "javascript:alert(1)", "link with an unknown scheme"),
        ('src="script.js"', 'src="absent.js"', "broken link 'absent.js'"),
        ("<h1", "<h2", "0 headings of level 1; there must be one"),
        ("<h2>Next</h2>", "<h1>Next</h1>", "2 headings of level 1; there must be one"),
        ("<h3>Detail</h3>", "<h4>Detail</h4>", "a heading of level 4 follows one of level 2"),
        ('alt="Nothing"', 'alt=" "', "image without an alternative text"),
        (' alt="Nothing"', "", "image without an alternative text"),
        ("<details>", "<details open>", "1 answers are not folded"),
        ("Why?", "Solution", "no folded recall question"),
        ("Because.", "### BEGIN SOLUTION", "a solution is not folded"),
        ("<p>Because", '<p id="course-failed">Because', "the lesson failed when it was executed"),
        ('src="script.js"', 'src="https://cdn.example.org/x.js"', "loads https://cdn.example.org/x.js from"),
        ('src="script.js"', 'src="//cdn.example.org/x.js"', "loads //cdn.example.org/x.js from the network"),
        (
            'href="style.css"',
            'href="https://fonts.example.org/x.css"',
            "loads https://fonts.example.org/x.css",
        ),
        ("data:image/png;base64,AA==", "http://example.org/x.png", "loads http://example.org/x.png from"),
        ("</head>", "<style>@import 'https://x.org/a.css';</style></head>", "style in the page loads from"),
        ("</head>", "<script>import('https://x.org/a.js')</script></head>", "style in the page loads from"),
        ("<p>Because", '<p style="background:url(//x.org/a.png)">Because', "style in the page loads from"),
        (
            "<p>Because",
            '<iframe src="http://localhost:6006"></iframe><p>Because',
            "loads http://localhost:6006",
        ),
    ],
)
def test_each_defect_is_found_once_and_named_with_its_page(old, new, said, site):
    assert old in GOOD
    (site / "00_tour.html").write_text(GOOD.replace(old, new, 1))
    (line,) = problems(site)
    assert line.startswith("00_tour.html: ")
    assert said in line
