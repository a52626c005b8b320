"""Does a search find better settings than random search in the same minutes?

Searches five settings of a ResNet-8 with `labkit.search`: by TPE, with trials that are halved (ASHA), and
at random, with trials that all train to their end. Afterwards each repeats its best trial with fresh seeds,
which see the test images. Finished searches are reused: their `search.json` and `trials.json` are enough, so
that repeats can be made on several days. The searches have the whole machine, one after the other; `--side`
makes those of one side only, without a report, so that two commands can run at once, each on its core. Uses
CIFAR-10 if it is available, else `shapes`.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import labkit
from benchmarks.common import add_runs_flag, make_parser, prepared_data
from benchmarks.report import Figure, Goal, Report
from labkit.experiments.search.result import SearchResult
from labkit.experiments.search.work import Search

SPACE = {
    "learning_rate": "log:0.01:3",
    "momentum": "float:0.5:0.98",
    "weight_decay": "log:0.00001:0.01",
    "train_batch_size": "32,64,128,256",
    "label_smoothing": "float:0:0.2",
}
SIDES: dict[str, dict[str, Any]] = {
    "TPE with ASHA": {"sampler": "tpe", "halving": "asha"},
    "random search": {"sampler": "random", "halving": "none"},
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.set_defaults(repeats=3)
    parser.add_argument("--minutes", type=float, default=30.0, help="of each search, before its repeats")
    parser.add_argument("--train-steps", type=int, default=900, help="steps of a whole training")
    parser.add_argument("--trial-repeats", type=int, default=3, help="trainings of the best trial at the end")
    parser.add_argument("--side", choices=list(SIDES), help="make the searches of this side only, no report")
    add_runs_flag(parser, "search")
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    report = Report("search", __doc__, vars(options) | {"dataset": manifest.dataset})
    found: dict[str, list[SearchResult]] = {side: [] for side in SIDES}
    beside: list[float] = []  # percent of the trainings' own seconds; a search that is reused tells nothing
    for seed in range(options.repeats):
        # In alternating order, so that a drift of the machine's speed favours neither side.
        for side in list(SIDES) if seed % 2 == 0 else list(SIDES)[::-1]:
            if options.side not in (None, side):
                continue
            folder = options.runs / f"{side.replace(' ', '-')}-{seed}"
            if (there := SearchResult(folder)).state == "finished":
                found[side].append(there)
                continue
            began = time.perf_counter()
            with trainings_timed() as seconds:
                search = labkit.search(
                    SPACE,
                    minutes=options.minutes,
                    repeats=options.trial_repeats,
                    output=folder,
                    **SIDES[side],
                    dataset=manifest.dataset,
                    data_dir=str(options.data_dir),
                    num_layers=8,
                    num_gpus=0,
                    train_steps=options.train_steps,
                    validate_every_steps=max(1, options.train_steps // 9),  # the first rung
                    learning_rate_schedule="one_cycle",
                    batch_norm_decay=0.9,
                    seed=1000 * seed,
                )
            found[side].append(search)
            beside.append(100 * ((time.perf_counter() - began) / sum(seconds) - 1))
            print(f"{side}: {beside[-1]:.2f} % more seconds than those of its {len(seconds)} trainings")
    if options.side is not None:
        return  # the command without --side reports on both
    searched = {search.request.fixed["dataset"] for searches in found.values() for search in searches}
    report.configuration["dataset"] = ", ".join(sorted(searched))  # of a search that is reused, too
    rows = figures(found)
    if beside:
        rows.append(
            Figure("seconds of a search beside those of its trainings", "%", beside, Goal("at most", 2.0))
        )
    report.finish(rows, options.output)
    draw(found, options.output / "search.png", options.minutes)


@contextmanager
def trainings_timed() -> Iterator[list[float]]:
    """Give the seconds of each process that searches in the block run, from its start to its end."""
    seconds: list[float] = []
    ended = Search._ended

    def timed(search: Search, number: int, end: Any) -> None:
        seconds.append(end.seconds)
        ended(search, number, end)

    Search._ended = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Search._ended = ended  # type: ignore[method-assign]


def figures(found: Mapping[str, list[SearchResult]]) -> list[Figure]:
    """Return what each search had found, and what of it held with fresh seeds."""
    rows = []
    for side, searches in found.items():
        ends = [search.progress.conclusion for search in searches]
        names = {
            "chosen_value": "best validation accuracy",
            "repeated_mean": "validation accuracy with fresh seeds",
            "test_mean": "test accuracy with fresh seeds",
        }
        for name, words in names.items():
            if values := [100 * end[name] for end in ends if end[name] is not None]:
                rows.append(Figure(f"{side}: {words}", "%", values))
        rows.append(Figure(f"{side}: trials", "", [len(search.trials) for search in searches]))
    return rows


def best_so_far(search: SearchResult, end: float) -> tuple[list[float], list[float]]:
    """Return the minutes at which a search had a better value than before, and ``end``, with the values."""
    better = search.improvements()
    values = [one.value for one in better]
    return [*(one.at / 60 for one in better), end], [*values, values[-1]]


def draw(found: Mapping[str, list[SearchResult]], path: Path, minutes: float) -> None:
    """Draw the best validation accuracy against the ``minutes`` of searching, a line for each search."""
    from labkit.figures import png
    from labkit.figures.style import drawing

    with drawing(7, 4, "Best validation accuracy of searches against minutes") as figure:
        axis = figure.subplots()
        for number, (side, searches) in enumerate(found.items()):
            for place, search in enumerate(searches):
                times, values = best_so_far(search, minutes)
                axis.step(times, values, f"C{number}", where="post", label=side if place == 0 else None)
        axis.set(xlabel="minutes", ylabel="best validation accuracy so far")
        axis.legend()
    path.write_bytes(png(figure))


if __name__ == "__main__":
    main()
