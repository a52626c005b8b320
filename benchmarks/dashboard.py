"""How soon does the dashboard show what happens, and what does that take?

Pages are opened and used in Chromium. A time ends with the first frame in which the page has what was asked
for. TensorBoard is measured beside it with the same scalars. With ``--parts``, the result goes into a folder
that is named after the parts, so that the result of all parts stays as it is.
"""

import argparse
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import dashboard_curves as curves
from benchmarks import dashboard_pages as pages
from benchmarks.common import at_least, make_parser, prepared_data, work_folder
from benchmarks.dashboard_servers import CHROMIUM
from benchmarks.report import Figure, Report
from labkit.data.manifest import Manifest

Part = Callable[[argparse.Namespace, Manifest, Path], list[Figure]]
PARTS: dict[str, Part] = {
    "follow": curves.follow,
    "follow-in-tensorboard": curves.follow_in_tensorboard,
    "long-run": curves.long_run,
    "long-run-in-tensorboard": curves.long_run_in_tensorboard,
    "cold-browser": pages.cold_browser,
    "listing": pages.listing,
    "searching": pages.searching,
    "switches": pages.switches,
    "filters": pages.filters,
    "what-if": pages.what_if,
    "image": pages.image,
    "memory": curves.memory,
    "training": curves.training,
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=30, warmup_steps=10)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--rows", type=at_least(1000), default=1_000_000, help="of the long run")
    parser.add_argument(
        "--runs", type=at_least(1), default=1000, help="that are listed, and trials of a search"
    )
    parser.add_argument("--images", type=at_least(100), default=10_000, help="predictions that are filtered")
    parser.add_argument("--seconds", type=at_least(3), default=20, help="of a repeat of following a run")
    parser.add_argument("--ticks", type=at_least(1), default=300, help="seconds of five open sessions")
    options = parser.parse_args(arguments)
    if CHROMIUM is None:
        parser.error("no Chromium on this machine (Debian: apt-get install chromium)")
    manifest = prepared_data(options.data_dir)
    report = Report("dashboard", __doc__, vars(options) | {"dataset": manifest.dataset})
    measured: list[Figure] = []
    failed = False
    for name in options.parts:
        print(f"-- {name}", flush=True)
        with work_folder() as folder:
            try:
                found = PARTS[name](options, manifest, folder)
            except Exception:  # what was measured before, which may be an hour's work, is kept
                traceback.print_exc()
                failed = True
                continue
        measured += found
        for figure in found:
            print(f"   {figure.name}: {figure.median:.3g} {figure.unit}", flush=True)
    if measured:
        some = [] if set(options.parts) == set(PARTS) else sorted(set(options.parts))
        report.finish(measured, options.output / "_".join(some))
    if failed:
        sys.exit("a part could not be measured: see above")


if __name__ == "__main__":
    main()
