"""What TensorBoard's pages are told of a run: its own server reads the files with its own readers."""

import io
import json
import re
import shutil
import time
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image

from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader
from labkit.tensorboard.log_folder import LogFolder
from labkit.tensorboard.server import start_server
from tests.properties.harness import labkit
from tests.tensorboard.conftest import FLAGS, STEPS, event_file

pytestmark = pytest.mark.slow

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def damaged(trained, tmp_path_factory) -> list[RunDirectory]:
    """Copies of a run: one cut in the middle of the scalars' file, one with bytes overwritten there."""
    copies = []
    for name in ("cut", "overwritten"):
        copy = RunDirectory(tmp_path_factory.mktemp("damaged") / name)
        shutil.copytree(trained["fast"].path, copy.path)
        path = event_file(copy)
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        path.write_bytes(content[:middle] if name == "cut" else content[:middle] + bytes(64))
        copies.append(copy)
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
def test_runs_have_their_own_names_whatever_is_in_them(ask):
    assert {"slow, a:1", "fast", "fast/extras"} <= set(ask("runs"))


def test_scalars_are_the_metrics(ask, trained):
    reader = MetricsReader(trained["fast"].metrics_path)
    reader.poll()
    points = ask("plugin/scalars/scalars", run="fast", tag="train/loss")
    assert [(step, np.float32(value)) for _, step, value in points] == [
        (row["step"], np.float32(row["loss"])) for row in reader.split("train")
    ]
    assert len(points) == STEPS
    assert len(ask("plugin/scalars/scalars", run="fast", tag="validation/accuracy")) == 2


def test_histograms_and_distributions_of_weights_gradients_and_activations(ask):
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


def test_images_of_the_first_batch(ask):
    [found] = ask("plugin/images/tags")["fast/extras"].values()
    assert found["samples"] == 16
    [shown] = ask("plugin/images/images", run="fast/extras", tag="train/images", sample=3)
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
    rows = ask(
        "plugin/hparams/session_groups",
        {
            "experimentName": "",
            "allowedStatuses": ["STATUS_SUCCESS"],
            "colParams": wanted,
            "startIndex": 0,
            "sliceSize": 100,
        },
    )["sessionGroups"]
    by_run = {row["sessions"][0]["name"]: row for row in rows}
    slow, fast = by_run["slow, a:1"], by_run["fast"]
    assert (slow["hparams"]["learning_rate"], fast["hparams"]["learning_rate"]) == (0.02, 0.1)
    assert fast["hparams"]["nesterov"] is True
    assert "nesterov" not in slow["hparams"]
    metrics = {value["name"]["tag"]: value for value in fast["metricValues"]}
    assert tags <= metrics.keys()
    assert metrics["train/loss"]["trainingStep"] == STEPS


def test_a_damaged_file_costs_only_what_is_behind_the_damage(ask):
    for name in ("cut", "overwritten"):
        points = ask("plugin/scalars/scalars", run=name, tag="train/loss")
        assert 0 < len(points) < STEPS
        assert ask("plugin/histograms/histograms", run=f"{name}/extras", tag="weights/stem_conv1/kernel")


def test_debugger_v2_reads_the_dump(ask):
    assert list(ask("plugin/debugger-v2/runs")) == ["__default_debugger_run__"]
    run = "__default_debugger_run__"
    end = time.monotonic() + 60
    while True:  # it reads in a thread of its own
        found = ask("plugin/debugger-v2/graph_execution/digests", run=run, begin=0, end=-1)
        names = {digest["op_name"] for digest in found["graph_execution_digests"]}
        if any("stage2/block1/conv1" in name for name in names):
            break
        assert time.monotonic() < end, sorted(names)[:20]
        time.sleep(0.2)
    kinds = {digest["op_type"] for digest in found["graph_execution_digests"]}
    assert {"Conv2D", "FusedBatchNormV3", "Conv2DBackpropFilter"} <= kinds
