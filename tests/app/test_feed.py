"""What the live page fetches every second, instead of being drawn again."""

import json
import struct
from types import SimpleNamespace

import pytest

from app import feed
from app.charts.metric_charts import STANDARD, Options
from app.feed import Update, answer, packed
from app.live_update import Drawn, frame_of
from app.state import curves
from labkit.run_directory.metrics import MetricsWriter
from tests.app.boards import decoded
from tests.app.conftest import evaluation_row, train_row


def unpacked(body: bytes) -> tuple[dict, dict[str, bytes]]:
    (length,) = struct.unpack_from("<I", body)
    header, rest, boards = json.loads(body[4 : 4 + length]), body[4 + length :], {}
    for ident, _, size in header["boards"]:
        boards[ident], rest = rest[:size], rest[size:]
    assert rest == b""
    return header, boards


def asked(token: str, have: str = ""):
    return answer(SimpleNamespace(path_params={"token": token}, query_params={"have": have}))


@pytest.fixture(autouse=True)
def no_offers(monkeypatch):
    monkeypatch.setattr(feed, "_offers", feed._Offers())


def test_a_board_is_sent_once(make_run):
    boards = {"first": b"12345678", "second": b"1234"}
    header, sent = unpacked(packed(Update("<b>", boards), []))
    assert (header["html"], header["stale"], sent) == ("<b>", False, boards)
    versions = {ident: version for ident, version, _ in header["boards"]}
    _, sent = unpacked(packed(Update("<b>", boards | {"second": b"5678"}), list(versions.values())))
    assert sent == {"second": b"5678"}


def test_an_address_that_nobody_offers_is_not_found_and_the_longest_unused_ones_are_forgotten(monkeypatch):
    assert asked("x").status_code == 404
    monkeypatch.setattr(feed, "MOST", 2)
    for token in "abc":
        feed._offers.put(token, Update)
    assert [asked(token).status_code for token in "abc"] == [404, 200, 200]
    monkeypatch.setattr(feed, "KEPT_SECONDS", 0.0)
    feed._offers.put("d", Update)
    assert [asked(token).status_code for token in "bc"] == [404, 404]


def test_a_failure_makes_streamlit_draw_the_page_and_is_logged(caplog):
    feed._offers.put("a", lambda: 1 / 0)
    header, _ = unpacked(asked("a").body)
    assert header["stale"]
    assert "ZeroDivisionError" in caplog.text


def test_the_live_page_fetches_new_rows_and_is_drawn_again_for_what_is_not_fetched(make_run):
    run = make_run(state="running", steps=3)
    shown = frame_of(run, curves(run), "")
    drawn = Drawn(run, Options(), STANDARD, None, None)
    MetricsWriter(run.metrics_path).append([train_row(500, loss=7.25)])
    update = drawn.update(shown, "")
    assert not update.is_stale
    (board,) = map(decoded, update.boards.values())
    assert max(line.x[-1] for line in board.charts[0].lines.values()) == 500
    assert "7.25" in update.html and "Step 500" in update.html
    assert frame_of(run, curves(run), "it failed") != shown

    MetricsWriter(run.metrics_path).append([evaluation_row(500, perplexity=2.0)])
    assert drawn.update(shown, "").is_stale, "a metric was added, which can be chosen"
