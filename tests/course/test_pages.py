"""Outputs of cells on a page: what Markdown or HTML could take for its own stays what it is."""

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.site.pages import page_of
from tests.course.small import PIXEL


@pytest.fixture
def page():
    def write(*outputs, source="x", **options) -> str:
        cell = new_code_cell(source, id="cell", outputs=list(outputs))
        return page_of(new_notebook(cells=[cell]), **options)

    return write


def shown(**data):
    return new_output("display_data", data={name.replace("_", "/"): value for name, value in data.items()})


def test_code_with_fences_gets_a_longer_fence(page):
    text = page(source='"""\n````\n"""')
    assert text.startswith('`````python\n"""\n````\n"""\n`````\n')


def test_the_log_of_tensorflow_is_left_out(page):
    lines = "WARNING: All log messages before absl::X\nE0000 00:00:1795.5  28 cuda.cc:52] failed\nmine\n"
    assert '<pre class="output">mine</pre>' in page(new_output("stream", name="stderr", text=lines))
    assert "cuda.cc" in page(new_output("stream", name="stdout", text=lines))


def test_an_error_is_shown_without_colours(page):
    text = page(new_output("error", ename="E", evalue="v", traceback=["\x1b[31mE\x1b[0m: <v>"]))
    assert '<pre class="output error">E: &lt;v&gt;</pre>' in text


def test_html_is_taken_before_text_and_a_live_widget_is_left_out(page):
    assert "<b>x</b>" in page(shown(text_html="<b>x</b>\n\n<i>y</i>", text_plain="plain"))
    widget = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "Widget()"}
    assert "Widget" not in page(new_output("display_data", data=widget))


def test_the_page_of_a_local_server_is_not_framed(page):
    text = page(shown(text_html='<iframe src="http://127.0.0.1:6006/" width="9"></iframe>', text_plain="x"))
    assert "<iframe" not in text
    assert "run the lesson to see it" in text


def test_names_of_folders_are_replaced(page):
    output = new_output("stream", name="stdout", text="in /tmp/home/runs\n")
    assert "in ~/.labkit/runs" in page(output, shown_as={"/tmp/home": "~/.labkit"})


def test_a_picture_is_in_the_page(page):
    output = new_output(
        "display_data", data={"image/png": PIXEL}, metadata={"image/png": {"alt": 'a: "b"\n#'}}
    )
    (image,) = BeautifulSoup(page(output), "html.parser").select("img")
    assert image["src"] == f"data:image/png;base64,{PIXEL}"
    assert image["alt"] == 'a: "b" #'


def test_code_in_a_question_is_code():
    cell = new_markdown_cell("<details><summary>What is `x`?</summary>\n\n`y`\n\n</details>")
    text = page_of(new_notebook(cells=[cell]))
    assert "<summary>What is <code>x</code>?</summary>" in text
    assert "\n`y`\n" in text
