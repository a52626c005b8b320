"""What TensorBoard's pages are told of a run: its own server reads the files with its own readers.

``LABKIT_SCREENSHOTS=docs/images`` keeps pictures of the pages there.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image

from labkit.config import Config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader
from labkit.tensorboard.log_folder import LogFolder
from labkit.tensorboard.server import start_server
from labkit.training.checks import check_together
from tests.app.browser import browser_visit, process
from tests.properties.harness import labkit
from tests.tensorboard.conftest import FLAGS, STEPS, event_file

pytestmark = pytest.mark.slow

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def damaged(trained, tmp_path_factory) -> list[RunDirectory]:
    """Copies of a run: one cut in the middle of the scalars' file, one with bytes overwritten there."""
    copies = []
    for name in ("cut", "overwritten"):
        folder = tmp_path_factory.mktemp("damaged") / name
        copies.append(RunDirectory(shutil.copytree(trained["fast"].path, folder)))
        path = event_file(copies[-1])
        content = path.read_bytes()[: path.stat().st_size // 2]
        path.write_bytes(content if name == "cut" else content + bytes(64))
    return copies


@pytest.fixture(scope="module")
def dumped(trained, tmp_path_factory) -> RunDirectory:
    """A run with a dump for Debugger V2."""
    run = RunDirectory(tmp_path_factory.mktemp("dumped") / "dumped")
    data = str(trained["fast"].path.parents[1] / "data")
    own = ["--debugger-dump", "--train-steps", "2", "--no-evaluate-test", "--validate-every-steps", "0"]
    assert labkit("train", *FLAGS[:12], *own, "--data-dir", data, "--job-dir", str(run.path)) == 0
    return run


@pytest.fixture(scope="module")
def ask(trained, damaged, dumped, tmp_path_factory) -> Ask:
    """Return a function that asks the server for the data of a page."""
    # It stays, because threads of TensorBoard read it until the process ends.
    folder = LogFolder(tmp_path_factory.mktemp("logs"), lambda: [*trained.values(), *damaged, dumped])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", "http://127.0.0.1:9")  # as on many clusters; nothing answers there
        address = start_server(folder.path, 0)

    def ask(path: str, body: Any = None, **words: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        query = f"?{urlencode(words)}" if words else ""
        request = urllib.request.Request(f"{address}data/{path}{query}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return (
            json.loads(content) if answer.headers["Content-Type"].startswith("application/json") else content
        )

    end = time.monotonic() + 60
    while "dumped" not in ask("runs") or len(ask("plugin/histograms/tags")) < 3:
        assert time.monotonic() < end, ask("runs")
        time.sleep(0.1)
    return ask


@pytest.mark.long
def test_scalars_are_the_metrics_also_before_the_damage_of_a_file(ask, trained):
    assert {"slow, a:1", "fast", "fast/extras"} <= set(ask("runs"))
    reader = MetricsReader(trained["fast"].metrics_path)
    reader.poll()
    points = ask("plugin/scalars/scalars", run="fast", tag="train/loss")
    assert [(step, np.float32(value)) for _, step, value in points] == [
        (row["step"], np.float32(row["loss"])) for row in reader.split("train")
    ]
    assert len(points) == STEPS
    assert len(ask("plugin/scalars/scalars", run="fast", tag="validation/accuracy")) == 2
    for name in ("cut", "overwritten"):
        assert 0 < len(ask("plugin/scalars/scalars", run=name, tag="train/loss")) < STEPS
        assert ask("plugin/histograms/histograms", run=f"{name}/extras", tag="weights/stem_conv1/kernel")


@pytest.mark.long
def test_histograms_and_distributions_of_all_layers_and_images_of_the_first_batch(ask):
    run = "fast/extras"
    tags = set(ask("plugin/histograms/tags")[run])
    weights = {"stem_conv1/kernel", "stage3_block1_norm2/gamma", "logits/bias"}
    assert {f"{kind}/{weight}" for kind in ("weights", "gradients") for weight in weights} <= tags
    assert {"activations/stem_conv1", "activations/stage1_block1_relu1", "activations/logits"} <= tags
    tag = "weights/stem_conv1/kernel"
    histograms = ask("plugin/histograms/histograms", run=run, tag=tag)
    assert [step for _, step, _ in histograms] == [2, 4, 6]
    assert sum(count for _, _, count in histograms[0][2]) == 3 * 3 * 3 * 16
    distributions = ask("plugin/distributions/distributions", run=run, tag=tag)
    assert [step for _, step, _ in distributions] == [2, 4, 6]
    quantiles = [value for _, value in distributions[0][2]]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] < 0 < quantiles[-1]
    [shown] = ask("plugin/images/images", run=run, tag="train/images", sample=3)
    assert shown["step"] == 0
    picture = Image.open(io.BytesIO(ask(f"plugin/images/individualImage?{shown['query']}")))
    assert picture.size == (32, 32)
    assert len(picture.getcolors(10_000)) > 10


def test_the_graph_has_the_networks_stages_as_scopes(ask):
    text = ask("plugin/graphs/graph", run="fast/extras").decode()
    names = re.findall(r'^node {\s+name: "([^"]+)"', text, re.MULTILINE)
    top = {name.split("/")[0] for name in names if "/" in name}
    assert {"loss", "metrics", "gradient_tape", "optimizer", "moving_averages"} <= top
    [network] = [name for name in top if name.startswith("resnet8")]
    below = {name.split("/")[1] for name in names if name.startswith(f"{network}/")}
    assert below == {"stem", "stage1", "stage2", "stage3", "head"}
    for scope in ("stage2/block1/conv1", "stage2/block1/relu1", "stage2/block1/add1", "head/logits"):
        assert any(name.startswith(f"{network}/{scope}/") for name in names), scope
        assert any(name.startswith(f"gradient_tape/{network}/{scope}/") for name in names) or "add" in scope
    assert any(name.startswith("optimizer/stage3_block1_conv2/kernel/") for name in names)
    # Few enough that the page can be read.
    assert len({name.split("/")[0] for name in names if not name.startswith(("unknown", "Func"))}) < 60


@pytest.mark.long
def test_hparams_compares_the_runs(ask):
    experiment = ask("plugin/hparams/experiment", {"experimentName": "", "includeMetrics": True})
    columns = {column["name"]: column for column in experiment["hparamInfos"]}
    assert columns["learning_rate"]["differs"]
    assert not columns["num_layers"]["differs"]
    assert {"model", "train_batch_size", "batch_norm_decay", "nesterov"} <= columns.keys()
    assert "crop_padding" not in columns, "a rare field with its default"
    wanted = [{"hparam": name} for name in columns]
    tags = {"validation/accuracy", "test/accuracy", "train/loss"}
    wanted += [{"metric": {"group": "", "tag": tag}} for tag in tags]
    shown = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "startIndex": 0, "sliceSize": 100}
    rows = ask("plugin/hparams/session_groups", {**shown, "colParams": wanted})["sessionGroups"]
    by_run = {row["sessions"][0]["name"]: row for row in rows}
    slow, fast = by_run["slow, a:1"], by_run["fast"]
    assert (slow["hparams"]["learning_rate"], fast["hparams"]["learning_rate"]) == (0.02, 0.1)
    assert fast["hparams"]["nesterov"] is True
    assert "nesterov" not in slow["hparams"]
    metrics = {value["name"]["tag"]: value for value in fast["metricValues"]}
    assert tags <= metrics.keys()
    assert metrics["train/loss"]["trainingStep"] == STEPS


@pytest.mark.long
def test_debugger_v2_reads_the_dump(ask):
    assert list(ask("plugin/debugger-v2/runs")) == ["__default_debugger_run__"]
    run = "__default_debugger_run__"
    end = time.monotonic() + 60
    while True:  # it reads in a thread of its own
        found = ask("plugin/debugger-v2/graph_execution/digests", run=run, begin=0, end=-1)
        names = {digest["op_name"] for digest in found["graph_execution_digests"]}
        kinds = {digest["op_type"] for digest in found["graph_execution_digests"]}
        has_kinds = {"Conv2D", "FusedBatchNormV3", "Conv2DBackpropFilter"} <= kinds
        if has_kinds and any("stage2/block1/conv1" in name for name in names):
            break
        assert time.monotonic() < end, (sorted(names)[:20], sorted(kinds))
        time.sleep(0.2)


def test_the_dump_is_refused_where_it_sees_nothing():
    with pytest.raises(InputError, match="--debugger-dump can't see into steps that --xla compiles"):
        Config.from_flat({"debugger_dump": True, "xla": True})
    config = Config.from_flat({"debugger_dump": True})
    for asynchronous in (False, True):
        with pytest.raises(InputError, match="--debugger-dump is for a single process"):
            check_together(config, num_workers=2, asynchronous=asynchronous)


# What each page must show of the runs.
PAGES = {
    "scalars": ["test/accuracy", "train/loss"],
    "histograms": ["activations", "gradients", "weights"],
    "graphs": ["optimizer", "gradient_tape", "metrics", "resnet8_1"],
    "hparams": ["learning_rate", "0.020000", "fast", "slow, a:1"],
}


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.browser
def test_scalars_histograms_graph_and_hparams_of_a_run(trained, tmp_path):
    command = [sys.executable, "-m", "labkit", "tensorboard", *(str(run.path) for run in trained.values())]
    kept = os.environ.get("LABKIT_SCREENSHOTS")
    pictures = Path(kept) if kept else tmp_path
    size = {"width": 1500, "height": 900}
    with browser_visit(viewport=size) as visit, process(command, stdout=subprocess.PIPE, text=True) as server:
        page = visit.page
        address = server.stdout.readline().split()[1]
        for name, words in PAGES.items():
            page.goto(f"{address}#{name}")
            page.reload()  # a new fragment alone loads nothing
            for word in words:
                box = page.locator(f'g.node[data-name="{word}"]')  # of the graph
                text = page.get_by_text(word, exact=True).filter(visible=True)
                (box if name == "graphs" else text).first.wait_for()
            if name != "graphs":
                text.first.scroll_into_view_if_needed()
            path = pictures / f"tensorboard-{name}.png"
            page.wait_for_timeout(1500)  # curves and boxes move into their places
            page.screenshot(path=path)
            picture = Image.open(path).convert("RGB").quantize(64)
            picture.save(path, optimize=True)
        server.stdout.close()
        assert visit.elsewhere == []
