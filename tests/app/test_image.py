"""An image's own page: shown at once, computed parts afterwards, a plain sentence for whatever is missing."""

import html
import io
import shlex
import shutil

import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image
from streamlit.testing.v1 import AppTest

from app.ask.client import Moment
from app.images import what_if
from app.images.sections import history_board, learned_in_words, overlay
from app.images.subject import Subject
from app.images.what_if import Changes, Rectangle, changed
from app.markup import plain
from labkit.analysis.predictions import load_predictions
from labkit.run_directory import RunDirectory
from tests.app.boards import decoded
from tests.app.conftest import CLASSES, configure, write_predictions
from tests.app.pages import (
    button,
    checked,
    commands_of,
    finished,
    html_of,
    open_main,
    open_page,
    press,
    words,
)


def open_image(run: RunDirectory, **url: str) -> AppTest:
    return open_page("image", run, **url)


def test_recorded_predictions_are_shown_without_any_network(make_run):
    run = make_run()
    arrays = write_predictions(run)
    at = open_image(run, index="7")
    shares = arrays["probabilities"][7]
    shown = html_of(at)
    assert f"true: {html.escape(CLASSES[arrays['labels'][7]])}" in shown
    assert f"{shares.max():.1%}" in shown
    assert "<b>star" not in shown and "&lt;b&gt;star" in shown
    loss = -np.log(shares[arrays["labels"][7]])
    assert f"Loss {loss:.4f} nats" in words(at)
    assert "kept no checkpoint" in at.info[0].value
    assert "--keep-checkpoints" in commands_of(at)[-1]


@pytest.mark.parametrize("index", ["abc", "-1", "1.5", "1e3", "1e400", "9" * 40, "", "²", "None"])
def test_an_address_without_a_number_gives_a_sentence(make_run, index):
    run = make_run()
    write_predictions(run)
    at = open_image(run, index=index)
    assert "allowed: a whole number from 0" in words(at)


def test_a_data_set_that_is_gone_gives_a_sentence_also_beside_damaged_predictions(make_run):
    run = make_run()
    configure(run)
    write_predictions(run)
    places = {"index": "60"}, {"split": "train"}, {"picture": "My own picture"}
    for place in (*places, {}):
        if not place:
            (run.predictions_path / "test.npz").write_bytes(b"PK\x03\x04 damaged")
        text = words(open_image(run, **place))
        assert "no prepared 'shapes' data set" in text
        assert "labkit data prepare --dataset shapes" in text


@pytest.mark.slow
def test_every_part_of_the_page_is_there_after_a_while(trained_home):
    at = finished(open_main("image", run=trained_home.name, index="3"))
    text, shown = words(at), html_of(at)
    recorded = load_predictions(trained_home)
    assert f"Recorded by the evaluation at step {recorded.summary['checkpoint_step']}" in text
    assert shown.count("lk-picture") > 3  # also in the style
    assert "Integrated gradients" in shown and "Grad-CAM" in shown
    assert shown.count('href="image?') == 16
    assert "split=train" in shown and "index=3&quot;" not in shown
    assert "kept checkpoint" in text
    assert "Still " in shown
    assert list(at.selectbox(key="other").options) == ["second"]
    at.selectbox(key="other").set_value("second")
    finished(checked(at.run()))
    shares = recorded.probabilities[3]
    assert html_of(at).count(f"{shares.max():.1%}") >= 4  # recorded, unchanged, and twice side by side


def test_the_command_for_a_run_without_predictions_and_checkpoints_is_quoted(trained_home):
    other = RunDirectory(trained_home.path.with_name("third & last"))
    shutil.copytree(
        trained_home.path, other.path, ignore=shutil.ignore_patterns("checkpoints", "predictions")
    )
    program = (
        "import numpy as np\nfrom app.images import sections\nfrom app.images.subject import Subject\n"
        "from labkit.run_directory import RunDirectory\n"
        "subject = Subject(np.zeros((32, 32, 3), np.uint8), ['a'], 'class', None, 'train', 0)\n"
        f"sections._of_other(RunDirectory({str(other.path)!r}), subject)"
    )
    [command] = commands_of(checked(AppTest.from_string(program).run()))
    shutil.rmtree(other.path)
    assert shlex.split(command) == ["labkit", "evaluate", str(other.path), "--split", "train"]


@pytest.mark.slow
def test_the_prediction_follows_a_change_and_reset_takes_it_back(trained_home):
    at = finished(open_image(trained_home, index="5"))
    before = html_of(at)
    at.slider(key="wi-brightness").set_value(0.0)
    finished(checked(at.run()))
    assert html_of(at) != before
    assert "unchanged" in words(at)
    assert not button(at, "Reset").disabled
    finished(press(at, "Reset"))
    assert html_of(at) == before


@pytest.mark.slow
def test_ones_own_picture_is_predicted_and_what_is_none_gives_a_sentence(trained_home):
    at = open_image(trained_home, picture="My own picture")
    assert "It sees any picture as one of them" in words(at)
    buffer = io.BytesIO()
    Image.new("RGBA", (90, 60), (255, 0, 0, 99)).save(buffer, "PNG")
    at.file_uploader(key="upload").set_value(("mine.png", buffer.getvalue(), "image/png"))
    text = words(finished(checked(at.run())))
    assert "middle 60×60" in text and "transparent parts became white" in text
    shown = html_of(at)
    assert "Predicted: " in shown and "true:" not in shown
    assert 'lk-fill wrong"' not in shown and 'lk-fill right"' not in shown
    at.file_uploader(key="upload").set_value(("mine.png", b"hello", "image/png"))
    assert "isn't a picture" in words(checked(at.run()))


@pytest.mark.long
@pytest.mark.slow
def test_a_damaged_checkpoint_leaves_what_was_recorded(trained_home, tmp_path):
    damaged = RunDirectory(shutil.copytree(trained_home.path, tmp_path / "damaged"))
    for path in damaged.checkpoints_path.glob("*/variables.index"):
        path.write_bytes(b"?")
    at = finished(open_image(damaged, index="1"))
    assert "Recorded by the evaluation" in words(at)
    assert words(at).count("can't be restored") == 1, "said once, not in every part"
    assert button(at, "Try again")


LEARNED = {
    (): "No checkpoint could be read.",
    (0, 0, 0): "It was wrong at every kept checkpoint, from step 10 to 30.",
    (1, 1, 1): "It was right at every kept checkpoint, from step 10 to 30.",
    (0, 1, 1): "Learned at step 20.",
    (0, 1, 0): "Learned at step 20, forgotten at step 30.",
    (1, 0, 1): "Right from the first kept checkpoint, step 10, forgotten at step 20, learned at step 30.",
}


@pytest.mark.parametrize("right", LEARNED)
def test_when_an_image_was_learned_in_words(right):
    assert learned_in_words([10, 20, 30][: len(right)], [bool(one) for one in right]) == LEARNED[right]


def test_the_history_leaves_out_what_could_not_be_read():
    moments = [Moment(1, np.array([0.1, 0.9])), Moment(2, None, "damaged"), Moment(3, np.array([0.6, 0.4]))]
    (chart,) = decoded(history_board(moments, ["<b>a</b>", "b"], np.array([0]))).charts
    assert list(chart.lines) == ["<b>a</b>"], "the page writes it as text, see test_browser_charts.py"
    assert chart.lines["<b>a</b>"].x.tolist() == [1, 3]
    assert chart.lines["<b>a</b>"].y.tolist() == [0.1, 0.6]


def test_an_overlay_shows_the_sign_and_leaves_the_image_where_nothing_matters():
    image = np.full((4, 4, 3), 100, np.uint8)
    values = np.zeros((4, 4))
    values[0, 0], values[3, 3] = 2.0, -2.0
    found = overlay(image, values).astype(int)
    assert found[0, 0, 0] > found[0, 0, 2] and found[3, 3, 2] > found[3, 3, 0]
    assert len(np.unique(found[1, 1])) == 1
    for odd in (np.zeros((4, 4)), np.full((4, 4), np.nan), np.full((4, 4), np.inf)):
        assert (overlay(image, odd) == found[1, 1]).all()


def test_the_loss_of_a_prediction_is_the_cross_entropy():
    image = np.zeros((2, 2, 3), np.uint8)
    one = Subject(image, ["a", "b"], "class", np.array(1))
    assert one.loss(np.array([0.25, 0.75])) == pytest.approx(-np.log(0.75))
    several = Subject(image, ["a", "b"], "classes", np.array([1, 0]))
    assert several.loss(np.array([0.9, 0.2])) == pytest.approx(-np.log(0.9) - np.log(0.8))
    assert several.is_right(np.array([0.9, 0.2])) and not several.is_right(np.array([0.9, 0.6]))
    assert Subject(image, ["a"], "class").loss(np.array([1.0])) is None


@pytest.mark.parametrize(
    "text", ["a*b*", "<b>x</b>", "[l](u)", "`c`", "$x$", ":red[x]", "# h", "1. x", "a\nb", "a\u202eb"]
)
def test_text_of_users_is_no_markdown_and_turns_no_direction(text):
    shown = MarkdownIt().render(plain(text))
    expected = html.escape(" ".join(text.split())).replace("\u202e", "\ufffd")
    assert shown.strip() == f"<p>{expected}</p>"


# ---- what if the image were another ----------------------------------------------------------------------


@pytest.fixture(params=[(12, 12, 3), (9, 14, 3), (10, 10, 1)], ids=str)
def image(request):
    return np.random.default_rng(0).integers(0, 256, request.param).astype(np.uint8)


def test_the_defaults_change_nothing_and_return_a_copy(image):
    result = changed(image, Changes())
    np.testing.assert_array_equal(result, image)
    assert not np.shares_memory(result, image)
    np.testing.assert_array_equal(changed(image, Changes(rotate=360.0, seed=7)), image)


@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, -2), (-4, 5), (100, -100)])
def test_a_shift_moves_every_pixel_by_exactly_that_much(image, right, down):
    result = changed(image, Changes(shift_x=right, shift_y=down))
    mean = np.rint(image.mean(axis=(0, 1))).astype(np.uint8)
    height, width = image.shape[:2]
    for y in range(height):
        for x in range(width):
            inside = 0 <= y - down < height and 0 <= x - right < width
            np.testing.assert_array_equal(result[y, x], image[y - down, x - right] if inside else mean)


def test_flips_quarter_turns_and_brightness_are_exact(image):
    once = changed(image, Changes(flip=True))
    np.testing.assert_array_equal(once, image[:, ::-1])
    np.testing.assert_array_equal(changed(once, Changes(flip=True)), image)
    square = np.random.default_rng(1).integers(0, 256, (11, 11, 3)).astype(np.uint8)
    for turns in (1, 2, 3, -1):
        np.testing.assert_array_equal(changed(square, Changes(rotate=90.0 * turns)), np.rot90(square, turns))
    brighter = np.clip(np.rint(image * 1.5), 0, 255)
    np.testing.assert_array_equal(changed(image, Changes(brightness=1.5)), brighter)
    assert changed(image, Changes(brightness=0.0)).max() == 0


def test_a_turn_agrees_with_pil_away_from_the_edge():
    y, x = np.mgrid[:40, :40]
    smooth = (127 + 60 * np.sin(x / 6) + 50 * np.cos(y / 5)).astype(np.uint8)[..., None].repeat(3, axis=2)
    ours = changed(smooth, Changes(rotate=25.0)).astype(int)
    theirs = np.asarray(Image.fromarray(smooth).rotate(25.0, Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(ours - theirs)[12:-12, 12:-12].max() <= 2


def test_blur_keeps_the_mean_of_a_flat_image_and_spreads_a_point():
    flat = np.full((9, 9, 3), 77, np.uint8)
    np.testing.assert_array_equal(changed(flat, Changes(blur=2.0)), flat)
    point = np.zeros((21, 21, 1), np.uint8)
    point[10, 10] = 255
    spread = changed(point, Changes(blur=1.0))[..., 0].astype(float)
    offsets = np.arange(21) - 10
    expected = 255 * np.exp(-0.5 * (offsets[:, None] ** 2 + offsets**2)) / (2 * np.pi)
    np.testing.assert_allclose(spread, expected, atol=1.0)


def test_noise_depends_on_its_seed_alone():
    grey = np.full((64, 64, 3), 128, np.uint8)
    first, again, other = (changed(grey, Changes(noise=10.0, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert first.astype(float).std() == pytest.approx(10.0, rel=0.05)


def test_jpeg_is_what_pil_writes(image):
    result = changed(image, Changes(jpeg_quality=30))
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[2] == 1 else image).save(buffer, "JPEG", quality=30)
    np.testing.assert_array_equal(result, np.asarray(Image.open(buffer)).reshape(image.shape))
    assert (result != image).any()


def test_a_cover_hides_its_part_and_no_other(image):
    result = changed(image, Changes(cover=Rectangle(left=2, top=3, width=4, height=5)))
    inside = np.zeros(image.shape[:2], bool)
    inside[3:8, 2:6] = True
    np.testing.assert_array_equal(result[~inside], image[~inside])
    assert len(np.unique(result[inside], axis=0)) == 1
    over = changed(image, Changes(cover=Rectangle(-3, -3, 5, 4)))
    np.testing.assert_array_equal(over[1:], image[1:])
    assert (over[:1, :2] == over[0, 0]).all()


@pytest.mark.parametrize(
    "changes", [{"blur": -1.0}, {"noise": -1.0}, {"brightness": -0.1}, {"jpeg_quality": 0}]
)
def test_strengths_out_of_range_are_refused(image, changes):
    with pytest.raises(ValueError, match="can't be negative|1 to 100"):
        changed(image, Changes(**changes))


@pytest.mark.parametrize(
    ("drawn", "rectangle"),
    [
        ({"left": 1, "top": 2, "width": 3.0, "height": 4, "time": 5}, Rectangle(1, 2, 3, 4)),
        ({"left": "x", "top": 1, "width": 1, "height": 1}, None),
        ({}, None),
        (None, None),
        (3, None),
    ],
)
def test_a_dragged_rectangle_is_read_and_what_no_browser_would_send_is_none(monkeypatch, drawn, rectangle):
    monkeypatch.setattr(what_if.st, "session_state", {"key": type("State", (), {"drawn": drawn})()})
    assert what_if.dragged("key") == rectangle
    assert what_if.dragged("other") is None
