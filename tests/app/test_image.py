"""An image's own page: shown at once, computed parts afterwards, a plain sentence for whatever is missing."""

import html
import io
import shlex
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from app.ask.client import Moment
from app.images import what_if
from app.images.sections import history_figure, learned_in_words, overlay
from app.images.subject import Subject
from app.images.what_if import Rectangle
from app.markup import plain
from labkit.analysis.predictions import load_predictions
from labkit.config import Config
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.conftest import CLASSES, write_predictions
from tests.app.test_pages import cards_of, checked, words

PATIENCE = 120


def open_image(run: RunDirectory, **url: str) -> AppTest:
    at = AppTest.from_string("from app.views import image\nimage.page()", default_timeout=PATIENCE)
    at.session_state["run"] = str(run.path)
    for name, value in url.items():
        at.query_params[name] = value
    return checked(at.run())


def finished(at: AppTest) -> AppTest:
    """Run the page again until nothing is waited for."""
    end = time.monotonic() + PATIENCE
    while "hourglass" in words(at):
        assert time.monotonic() < end, words(at)
        time.sleep(0.3)
        checked(at.run())
    return at


def configure(run: RunDirectory) -> None:
    """Give a made run a whole configuration, as a training writes it."""
    write_json_atomic(run.config_path, Config.from_flat({"dataset": "shapes"}).to_json())


def test_recorded_predictions_are_shown_without_any_network(make_run):
    run = make_run()
    arrays = write_predictions(run)
    at = open_image(run, index="7")
    shares = arrays["probabilities"][7]
    shown = cards_of(at)
    assert f"true: {html.escape(CLASSES[arrays['labels'][7]])}" in shown
    assert f"{shares.max():.1%}" in shown
    assert "<b>star" not in shown and "&lt;b&gt;star" in shown
    loss = -np.log(shares[arrays["labels"][7]])
    assert f"Loss {loss:.4f} nats" in words(at)
    assert "kept no checkpoint" in at.info[0].value
    assert "--keep-checkpoints" in at.code[0].value


@pytest.mark.parametrize("index", ["abc", "-1", "1.5", "1e3", "1e400", "9" * 40, "", "²", "None"])
def test_an_address_without_a_number_gives_a_sentence(make_run, index):
    run = make_run()
    write_predictions(run)
    at = open_image(run, index=index)
    assert "allowed: a whole number from 0" in words(at).replace("\\", "")


def test_a_data_set_that_is_gone_gives_a_sentence(make_run):
    run = make_run()
    configure(run)
    write_predictions(run)
    for place in ({"index": "60"}, {"split": "train"}, {"picture": "My own picture"}):
        text = words(open_image(run, **place)).replace("\\", "")
        assert "no prepared 'shapes' data set" in text
        assert "labkit data prepare --dataset shapes" in text


def test_damaged_predictions_break_no_page(make_run):
    run = make_run()
    configure(run)
    write_predictions(run)
    (run.predictions_path / "test.npz").write_bytes(b"PK\x03\x04 damaged")
    assert "no prepared" in words(open_image(run))


def test_cards_of_the_predictions_lead_to_the_page_of_the_image(make_run):
    run = make_run("a&b '\"<i>")
    write_predictions(run)
    at = AppTest.from_string("from app.views import predictions\npredictions.page()", default_timeout=30)
    at.session_state["run"] = run.name
    shown = cards_of(checked(at.run()))
    assert 'href="image?run=a%26b+%27%22%3Ci%3E&amp;split=test&amp;index=' in shown
    assert "<i>" not in shown


@pytest.mark.slow
def test_every_part_of_the_page_is_there_after_a_while(trained_home):
    at = open_image(trained_home, index="3")
    at = finished(at)
    text, shown = words(at), cards_of(at)
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
    assert cards_of(at).count(f"{shares.max():.1%}") >= 4  # recorded, unchanged, and twice side by side


def test_the_command_for_a_run_without_predictions_and_checkpoints_is_quoted(trained_home):
    other = RunDirectory(trained_home.path.with_name("third & last"))
    shutil.copytree(
        trained_home.path, other.path, ignore=shutil.ignore_patterns("checkpoints", "predictions")
    )
    program = (
        "import numpy as np\nfrom app.images import sections\nfrom app.images.subject import Subject\n"
        "from labkit.run_directory import RunDirectory\n"
        "subject = Subject(np.zeros((32, 32, 3), np.uint8), ['a'], False, None, 'train', 0)\n"
        f"sections._of_other(RunDirectory({str(other.path)!r}), subject)"
    )
    [command] = [element.value for element in checked(AppTest.from_string(program).run()).get("code")]
    shutil.rmtree(other.path)
    assert shlex.split(command) == ["labkit", "evaluate", str(other.path), "--split", "train"]


@pytest.mark.slow
def test_the_prediction_follows_a_change_and_reset_takes_it_back(trained_home):
    at = finished(open_image(trained_home, index="5"))
    before = cards_of(at)
    at.slider(key="wi-bright").set_value(0.0)
    finished(checked(at.run()))
    assert cards_of(at) != before
    assert "unchanged" in words(at)
    [reset] = [button for button in at.button if button.label == "Reset"]
    assert not reset.disabled
    reset.click()
    finished(checked(at.run()))
    assert cards_of(at) == before


@pytest.mark.slow
def test_ones_own_picture_is_predicted_and_what_is_none_gives_a_sentence(trained_home):
    at = open_image(trained_home, picture="My own picture")
    assert "It sees any picture as one of them" in words(at)
    buffer = io.BytesIO()
    Image.new("RGBA", (90, 60), (255, 0, 0, 99)).save(buffer, "PNG")
    at.file_uploader(key="upload").set_value(("mine.png", buffer.getvalue(), "image/png"))
    text = words(finished(checked(at.run()))).replace("\\", "")
    assert "middle 60×60" in text and "transparent parts became white" in text
    shown = cards_of(at)
    assert "Predicted: " in shown and "true:" not in shown
    assert 'lk-fill wrong"' not in shown and 'lk-fill right"' not in shown
    at.file_uploader(key="upload").set_value(("mine.png", b"hello", "image/png"))
    assert "isn't a picture" in words(checked(at.run())).replace("\\", "")


@pytest.mark.slow
def test_a_damaged_checkpoint_leaves_what_was_recorded(trained_home, tmp_path):
    damaged = RunDirectory(shutil.copytree(trained_home.path, tmp_path / "damaged"))
    for path in damaged.checkpoints_path.glob("*/variables.index"):
        path.write_bytes(b"?")
    at = finished(open_image(damaged, index="1"))
    assert "Recorded by the evaluation" in words(at)
    assert words(at).replace("\\", "").count("can't be restored") == 1, "said once, not in every part"
    assert [button for button in at.button if button.label == "Try again"]


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ([], "No checkpoint could be read."),
        ([0, 0, 0], "It was wrong at every kept checkpoint, from step 10 to 30."),
        ([1, 1, 1], "It was right at every kept checkpoint, from step 10 to 30."),
        ([0, 1, 1], "Learned at step 20."),
        ([0, 1, 0], "Learned at step 20, forgotten at step 30."),
        (
            [1, 0, 1],
            "Right from the first kept checkpoint, step 10, forgotten at step 20, learned at step 30.",
        ),
    ],
)
def test_when_an_image_was_learned_in_words(right, expected):
    assert learned_in_words([10, 20, 30][: len(right)], [bool(one) for one in right]) == expected


def test_the_history_leaves_out_what_could_not_be_read():
    moments = [Moment(1, np.array([0.1, 0.9])), Moment(2, None, "damaged"), Moment(3, np.array([0.6, 0.4]))]
    figure = history_figure(moments, ["<b>a</b>", "b"], np.array([0]))
    assert list(figure.data[0].x) == [1, 3]
    assert list(figure.data[0].y) == [0.1, 0.6]
    assert figure.data[0].name == "&lt;b&gt;a&lt;/b&gt;"


def test_an_overlay_shows_the_sign_and_leaves_the_image_where_nothing_matters():
    image = np.full((4, 4, 3), 100, np.uint8)
    values = np.zeros((4, 4))
    values[0, 0], values[3, 3] = 2.0, -2.0
    found = overlay(image, values).astype(int)
    assert found[0, 0, 0] > found[0, 0, 2] and found[3, 3, 2] > found[3, 3, 0]
    assert len(np.unique(found[1, 1])) == 1
    for odd in (np.zeros((4, 4)), np.full((4, 4), np.nan), np.full((4, 4), np.inf)):
        assert (overlay(image, odd) == found[1, 1]).all()


@pytest.mark.parametrize("drawn", [None, {}, {"left": "x", "top": 1, "width": 1, "height": 1}, 3])
def test_what_no_browser_would_send_is_no_rectangle(monkeypatch, drawn):
    monkeypatch.setattr(what_if.st, "session_state", {"key": type("State", (), {"drawn": drawn})()})
    assert what_if.dragged("key") is None
    assert what_if.dragged("other") is None


def test_a_dragged_rectangle_is_read(monkeypatch):
    drawn = {"left": 1, "top": 2, "width": 3.0, "height": 4, "time": 5}
    monkeypatch.setattr(what_if.st, "session_state", {"key": type("State", (), {"drawn": drawn})()})
    assert what_if.dragged("key") == Rectangle(1, 2, 3, 4)


def test_the_loss_of_a_prediction_is_the_cross_entropy():
    image = np.zeros((2, 2, 3), np.uint8)
    one = Subject(image, ["a", "b"], False, np.array(1))
    assert one.loss(np.array([0.25, 0.75])) == pytest.approx(-np.log(0.75))
    several = Subject(image, ["a", "b"], True, np.array([1, 0]))
    assert several.loss(np.array([0.9, 0.2])) == pytest.approx(-np.log(0.9) - np.log(0.8))
    assert several.is_right(np.array([0.9, 0.2])) and not several.is_right(np.array([0.9, 0.6]))
    assert Subject(image, ["a"], False).loss(np.array([1.0])) is None


@pytest.mark.parametrize(
    "text", ["a*b*", "<b>x</b>", "[l](u)", "`c`", "$x$", ":red[x]", "# h", "1. x", "a\nb"]
)
def test_text_of_users_is_no_markdown(text):
    from markdown_it import MarkdownIt

    shown = MarkdownIt().render(plain(text))
    assert shown.strip() == f"<p>{html.escape(' '.join(text.split()))}</p>"


def test_marks_that_turn_the_direction_are_shown_as_unknown():
    assert plain("a\u202eb") == "a\ufffdb"


def test_the_server_takes_pictures_as_large_as_the_page_allows():
    import tomllib

    from app.images.pictures import MAX_BYTES

    path = Path(__file__).resolve().parents[2] / "app" / ".streamlit" / "config.toml"
    assert tomllib.loads(path.read_text())["server"]["maxUploadSize"] * 2**20 == MAX_BYTES
