"""Links and names that nobody expects, and runs that go away while their page is open."""

import pytest

from app import state
from labkit.run_directory.metrics import MetricsWriter
from tests.app.conftest import write_predictions
from tests.app.test_layers import layer_row
from tests.app.test_pages import PAGES, open_main, words


@pytest.mark.parametrize("page", PAGES)
def test_a_name_of_any_characters_breaks_no_page(make_run, page):
    for name in ("a__b", "bad-\udcff", "~nosuch", "x" * 200, "a%20&c=d#e?"):
        run = make_run(name)
        write_predictions(run)
        MetricsWriter(run.layers_path).append([layer_row(50)])
        text = words(open_main(page, run=state.clean(name)))
        assert ("Rename the folder" in text) is (name == "bad-\udcff" and page != "compare")
