"""TensorBoard's pages in a real browser. ``LABKIT_SCREENSHOTS=docs/images`` keeps their pictures there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.app.browser import browser_visit, process

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.alone, pytest.mark.browser]

# What each page must show of the runs.
PAGES = {
    "scalars": ["test/accuracy", "train/loss"],
    "histograms": ["activations", "gradients", "weights"],
    "graphs": ["optimizer", "gradient_tape", "metrics", "resnet8_1"],
    "hparams": ["learning_rate", "0.020000", "fast", "slow, a:1"],
}


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
