"""The page of what callbacks kept."""

import numpy as np

from labkit.callbacks.media import MediaWriter
from tests.app.pages import checked, html_of, open_page, words

KINDS = ("note", "pixels", "values")


def test_a_run_without_media_says_how_to_keep_some(make_run):
    at = checked(open_page("media", make_run()))
    assert "No callback has kept" in words(at) and "log_histogram" in at.code[0].value


def test_everything_kept_is_drawn_and_a_slider_chooses_the_step(make_run):
    run = make_run()
    media = MediaWriter(run, lambda summary, step: None)
    for step in (10, 20):
        media.image("pixels", step, np.full((4, 4, 3), step, np.uint8))
        media.histogram("values", step, np.arange(step))
        media.text("note", step, f"<b>step {step}</b>")
    at = checked(open_page("media", run))
    assert {slider.label for slider in at.select_slider} == {f"Step of {kind}" for kind in KINDS}
    assert "&lt;b&gt;step 20&lt;/b&gt;" in html_of(at) and "data:image/png" in html_of(at)
    assert "20 values from 0 to 19" in words(at)
    at.select_slider[0].set_value(10)
    assert "&lt;b&gt;step 10&lt;/b&gt;" in html_of(checked(at.run()))


def test_a_missing_image_is_a_sentence_among_the_others(make_run):
    run = make_run()
    media = MediaWriter(run, lambda summary, step: None)
    media.image("first", 10, np.zeros((4, 4), np.uint8))
    media.text("second", 10, "there")
    (run.media_path / "first-00000010.png").unlink()
    at = checked(open_page("media", run))
    assert "can't be read" in words(at) and "there" in html_of(at)
