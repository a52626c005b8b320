"""The page of what callbacks kept."""

import numpy as np

import labkit
from labkit.callbacks.media import MediaWriter
from labkit.run_directory import RunDirectory
from tests.app.pages import checked, html_of, open_page, words


def test_a_run_without_media_says_how_to_keep_some(make_run):
    at = checked(open_page("media", make_run()))
    assert "No callback has kept" in words(at) and "log_histogram" in at.code[-1].value


def test_a_recorded_run_without_media_names_the_calls_of_its_recorder(runs_folder):
    labkit.start_run("mine").fail("no pictures")
    at = checked(open_page("media", RunDirectory(runs_folder / "mine")))
    assert "run.log_image" in words(at) and not at.code
    at = checked(open_page("live", RunDirectory(runs_folder / "mine")))
    assert "no pictures" in words(at) and "The log is empty." not in words(at)


def test_everything_kept_is_drawn_and_one_slider_shows_what_there_was_at_a_step(make_run):
    run = make_run()
    media = MediaWriter(run, lambda summary, step: None)
    for step in (10, 20):
        media.image("pixels", step, np.full((4, 4, 3), step, np.uint8))
        media.text("note", step, f"<b>step {step}</b>")
    for step in (20, 30):
        media.histogram("values", step, np.arange(step))
    at = checked(open_page("media", run))
    (slider,) = at.select_slider
    assert slider.label == "Step" and slider.options == ["10", "20", "30", "newest"]
    assert "&lt;b&gt;step 20&lt;/b&gt;" in html_of(at) and "data:image/png" in html_of(at)
    assert "30 values from 0 to 29" in words(at)
    at = checked(slider.set_value(20).run())
    assert "&lt;b&gt;step 20&lt;/b&gt;" in html_of(at) and "20 values from 0 to 19" in words(at)
    at = checked(at.select_slider[0].set_value(10).run())
    assert "&lt;b&gt;step 10&lt;/b&gt;" in html_of(at) and "nothing up to step 10" in words(at)
    media.text("note", 40, "later")
    at = checked(at.run())
    assert at.select_slider[0].value == 10, "another step to choose from leaves the choice"
    assert "&lt;b&gt;step 10&lt;/b&gt;" in html_of(at) and "later" not in html_of(at)


def test_a_missing_image_is_a_sentence_among_the_others(make_run):
    run = make_run()
    media = MediaWriter(run, lambda summary, step: None)
    media.image("first", 10, np.zeros((4, 4), np.uint8))
    media.text("second", 10, "there")
    (run.media_path / "first-00000010.png").unlink()
    at = checked(open_page("media", run))
    assert "can't be read" in words(at) and "there" in html_of(at)
