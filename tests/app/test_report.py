"""Reports: what is in the file, that nothing else is needed, and that no text of a run becomes markup."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from app.report import charts
from app.report.document import report
from labkit import __version__
from labkit.config import Config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter
from tests.app.boards import Board, decoded
from tests.app.conftest import train_row, write_predictions
from tests.app.test_machine import row, write
from tests.app.test_pages import open_page

EVIL = '<script>alert("x")</script>'


class Parsed(HTMLParser):
    """The attributes that load something, the text outside of scripts, and the number of each element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._within = tag
        found = dict(attributes)
        names = ("src", "srcset", "data", "poster", "action") + (() if tag == "a" else ("href",))
        self.loads += [found[name] or "" for name in names if name in found]

    def handle_endtag(self, tag):
        self._within = ""

    def handle_data(self, data):
        if self._within not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def boards_of(text: str) -> list[Board]:
    packed = re.findall(r'<script type="text/plain" class="points">([^<]*)</script>', text)
    return [decoded(gzip.decompress(base64.b64decode(one))) for one in packed]


def test_a_report_holds_everything_and_loads_nothing(make_run):
    run = make_run(loss=float("nan"))
    arrays = write_predictions(run)
    write(run, row(1), row(2, gpu0_use_fraction=0.5))
    MetricsWriter(run.metrics_path).append([train_row(121, perplexity=7.0)])
    text = report([run])
    page = Parsed(text)
    assert all(one.startswith("data:image/png;base64,") for one in page.loads), "nothing is loaded"
    assert not re.search(r"@import|url\(", text.partition("</style>")[0])
    assert "default-src 'none'" in text
    mistakes = (arrays["probabilities"].argmax(1) != arrays["labels"]).sum()
    for words in (
        "State finished", "Steps 121 of 200", "Best validation 90.00%", "3.11.2",
        "labkit train --preset smoke --job-dir 'a b'", f"Made by labkit {__version__} on 20",
        f"The {min(mistakes, 24)} most confident mistakes", "Confusion matrix", "run.train_steps 200",
    ):  # fmt: skip
        assert words in page.text, words
    first, second = boards_of(text)
    assert [chart.title for chart in first.charts][:4] == [
        "Loss", "Accuracy", "Learning rate", "Examples per second",
    ]  # fmt: skip
    assert first.charts[0].lines["train"].of == 121
    assert first.charts[0].lines["train"].marks["NaN"][0] == 1
    assert "perplexity" in [chart.title for chart in first.charts]
    assert "GPU use" in [chart.title for chart in second.charts]


def test_what_differs_from_the_defaults_comes_before_all_settings(make_run):
    run = make_run()
    recorded = Config.from_flat({"dataset": "shapes", "num_layers": 14, "train_steps": 77}).to_json()
    run.config_path.write_text(json.dumps(recorded))
    text = Parsed(report([run])).text
    assert "Settings that differ from the defaults: Setting Value dataset shapes num_layers 14" in text
    assert text.index("train_steps 77") < text.index("All settings") < text.index("run.train_steps 77")


def test_no_text_of_a_run_becomes_markup(make_run, runs_folder):
    run = make_run(f"a {EVIL.replace('/', '∕')}", status={"message": EVIL})
    write_predictions(run)  # with a class named <b>star</b>
    run.environment_path.write_text(json.dumps({"command": [EVIL], "versions": {EVIL: EVIL}}))
    (run.path / "notes.json").write_text(json.dumps({"tags": [EVIL], "note": EVIL}))
    MetricsWriter(run.metrics_path).append([train_row(121, **{EVIL: 1.0})])
    text = report([run])
    parsed = Parsed(text)
    assert 'alert("x")' not in re.sub(r"&quot;", "'", "".join(re.findall(r"<script.*?</script>", text, re.S)))
    assert parsed.tags.count("script") == 2, "the points of one board, and our own script"
    assert "b" not in parsed.tags
    assert parsed.text.count(EVIL) >= 5, "it is shown as it is"


def test_runs_are_compared_with_a_line_for_each_and_their_differences(make_run):
    one, other = make_run("one"), make_run("other", steps=50)
    config = json.loads(other.config_path.read_text())
    other.config_path.write_text(json.dumps({**config, "data": {**config["data"], "train_batch_size": 64}}))
    text = report([one, other])
    [board] = boards_of(text)
    assert board.charts[0].title == "Loss, train"
    assert {name: line.of for name, line in board.charts[0].lines.items()} == {"one": 120, "other": 50}
    page = Parsed(text).text
    assert "Comparison of 2 runs" in page
    assert re.search(r"train_batch_size.* one finished.* 128 .*other finished.* 64 ", page)


def test_points_are_kept_up_to_the_limit_and_peaks_beyond_it(make_run, monkeypatch):
    run = make_run()
    run.metrics_path.unlink()
    rows = [train_row(step, loss=50.0 if step == 777 else 1.0) for step in range(1, 2001)]
    MetricsWriter(run.metrics_path).append(rows)  # type: ignore[arg-type]
    whole = report([run])
    assert all(
        len(line.y) == line.of == 2000 for c in boards_of(whole)[0].charts for line in c.lines.values()
    )
    assert "at most" not in Parsed(whole).text
    monkeypatch.setattr(charts, "MAX_POINTS", 3000)
    less = report([run])
    lines = [line for chart in boards_of(less)[0].charts for line in chart.lines.values()]
    assert sum(len(line.y) for line in lines) <= 3000 + 2 * len(lines)
    assert boards_of(less)[0].charts[0].lines["train, raw"].y.max() == 50
    assert "The charts hold at most 3,000 points" in Parsed(less).text


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", b"{", "config.json is damaged"),
        ("config.json", b"[" * 100_000, "config.json is damaged"),
        ("environment.json", b"\x00", "first"),
        ("metrics.jsonl", b"\xff\n{", "no metrics yet"),
        ("metrics.jsonl", None, "no metrics yet"),
        ("status.json", b"{}", "unknown"),
        ("predictions/test.npz", b"PK", "is damaged"),
        ("machine.jsonl", b"\x00\xff\n", "first"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_there(make_run, file, content, words):
    run = make_run()
    path = run.path / file
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    assert words in Parsed(report([run])).text


def test_a_run_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no run in"):
        report([RunDirectory(tmp_path)])


def test_large_images_and_many_classes_stay_small(make_run):
    run = make_run()
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(60), 80).astype(np.float32)
    run.predictions_path.mkdir()
    images = np.broadcast_to(rng.integers(0, 256, (1, 300, 400, 3), dtype=np.uint8), (80, 300, 400, 3))
    labels = rng.integers(0, 60, 80)
    np.savez(run.predictions_path / "test.npz", images=images, labels=labels, probabilities=probabilities)
    text = report([run])
    assert "The most frequent confusions" in text
    assert Parsed(text).tags.count("img") == 24
    assert len(text) < 6_000_000


def test_the_live_page_and_the_comparison_offer_the_files(make_run):
    run = make_run("a <b>b</b> $x$")
    for page in ("live", "compare"):
        at = open_page(page, run)
        labels = [button.proto.label for button in at.get("download_button")]
        assert labels == ["Report as HTML", "Metrics as CSV", "Metrics as Parquet"], page
