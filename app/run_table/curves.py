"""The curves beside the table of runs: which of its rows have one, and the chart of them."""

import shlex
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import address, state
from app.charts import component
from app.charts.board import DASHES, PALETTE, Chart, Line
from app.charts.metric_charts import Options, look_of, metric_lines
from app.charts.store import Snapshot
from app.comparing.curves import MEAN_AND_RANGE, VALUES, mean_and_range, without
from app.markup import plain
from app.state import MAX_RUNS
from labkit.plurals import counted, listed
from labkit.run_directory import RunDirectory
from labkit.run_directory.summary import RunSummary

MOST_ROWS = 20  # that have a curve: nobody tells more lines apart
READ_SECONDS = 0.3  # of metrics each time that the page is drawn; the rest follows
SHOWN_NAMES = 3  # of runs without the metric
OPTIONS = Options(smoothing=0.6)
METRIC, BOX, EYES = "runs-metric", "runs-metric-box", "runs-eyes"
SLOTS, ORDER, READ = "runs-slots", "runs-order", "runs-read"
TITLES = {"none": "None"} | {f"{split}/{value}": title for title, (split, value) in VALUES.items()}
NONE, FIRST, *_ = TITLES  # the choice of no curves, and the metric that is drawn at first
ALL = ""  # in the place of the name of a row


class Drawn(NamedTuple):
    """A row whose curve is drawn: its name, the paths of its runs, its colour, and the one of its dashes."""

    name: str
    runs: tuple[str, ...]
    color: str
    dashed_as: str


def choose(rows: Sequence[dict[str, Any]], view: Hashable, sort: str) -> list[Drawn] | None:
    """Return the rows whose curves are drawn, and give them an ``eye``; None: no curves are wanted.

    These are the rows whose eye was opened, the last one first, and then those that stand first and whose eye
    wasn't closed. A row keeps its colour while its curve is drawn.

    ``view``: what the rows depend on beside the runs. ``sort``: where it is empty, rows keep their places.
    """
    chosen = st.session_state.get(METRIC)
    chosen = address.follow("metric", None if chosen == FIRST else chosen) or FIRST
    chosen = st.session_state[METRIC] = chosen.replace("/=", "/")  # a formula has no place here
    text = st.session_state[EYES] = address.follow("eyes", st.session_state.get(EYES))
    if chosen == NONE:
        return None
    tops = [row for row in rows if "group" not in row]
    if not sort:
        seen, keys = st.session_state.get(ORDER, (None, ()))
        places = {key: place for place, key in enumerate(keys if seen == view else ())}
        tops.sort(key=lambda row: places.get(row["key"], -1))
        st.session_state[ORDER] = view, [row["key"] for row in tops]
    eyes = _eyes(text)
    opened = {name: place for place, name in enumerate(reversed(eyes))}
    shown = [row for row in tops if eyes.get(row["name"], eyes.get(ALL, True))]
    shown = sorted(shown, key=lambda row: opened.get(row["name"], len(opened)))[:MOST_ROWS]
    before, now = st.session_state.get(SLOTS, {}), [row["key"] for row in shown]
    free = iter(sorted(set(range(MOST_ROWS)) - {before.get(key) for key in now}))
    slots = st.session_state[SLOTS] = {key: before[key] if key in before else next(free) for key in now}
    drawn = []
    for row in shown:
        key, slot = row["key"], slots[row["key"]]
        # Of two lines of one colour, the second has other dashes.
        color, dashed_as = (PALETTE[at % len(PALETTE)] for at in (slot, slot + slot // len(PALETTE)))
        row["eye"] = {"color": color, "dash": DASHES[dashed_as]}
        runs = (one["key"] for one in rows if key in (one["key"], one.get("group")) and "runs" not in one)
        drawn.append(Drawn(row["name"], tuple(runs), color, dashed_as))
    return drawn


def _eyes(text: str | None) -> dict[str, bool]:
    """Return by its name whether a row's eye was opened or closed, in that order; ``ALL``: all others."""
    try:
        words = shlex.split(text or "")
    except ValueError:  # half a quotation in the address
        return {}
    return {word[1:]: word[0] == "+" for word in words if word[:1] in ("+", "-")}


def turn(name: str, shown: bool) -> None:
    """Open or close the eye of the row with this name, or those of ``ALL``. Call it from a callback."""
    eyes = _eyes(st.session_state.get(EYES)) if name != ALL else {}
    eyes.pop(name, None)
    if name != ALL or not shown:
        eyes[name] = shown
    st.session_state[EYES] = shlex.join("-+"[opened] + one for one, opened in eyes.items()) or None


def show(
    drawn: Sequence[Drawn] | None, rows: int, runs: Mapping[str, RunSummary], choice: DeltaGenerator
) -> None:
    """Draw the choice of the metric in its place, and the chart of what ``choose`` gave, of so many rows."""
    sizes = [len(one.runs) for one in drawn or ()]
    # Of large groups as many runs count as fit, of each the same number.
    most = next(most for most in range(MAX_RUNS, 0, -1) if sum(min(most, size) for size in sizes) <= MAX_RUNS)
    paths = [path for one in drawn or () for path in one.runs[:most]]
    st.session_state[READ] = {key: one for key, one in st.session_state.get(READ, {}).items() if key in paths}
    unread = _read(paths, runs)
    read = {path: found for path, (_, found) in st.session_state[READ].items()}
    metrics = {path: found for path, found in read.items() if isinstance(found, Snapshot)}
    there = dict.fromkeys(name for found in metrics.values() for name in found.full_names())
    usual = [name for name in TITLES if name in (NONE, FIRST, *there)]
    st.session_state[BOX] = st.session_state[METRIC]
    choice.selectbox(
        "Curves",
        list(dict.fromkeys([*usual, *there, st.session_state[METRIC]])),
        key=BOX,
        on_change=lambda: st.session_state.update({METRIC: st.session_state[BOX]}),
        format_func=_title,
    )
    if drawn is None:
        return
    limit = f"; {MOST_ROWS} is the most" if len(drawn) == MOST_ROWS else ""
    said = [f"Curves of {len(drawn)} of {rows:,} rows{limit}."] if len(drawn) < rows else []
    said += [f"The metrics of {counted(unread, 'run')} are still being read."] if unread else []
    said += [f"Of groups: {MEAN_AND_RANGE}"] if max(sizes, default=1) > 1 else []
    said += [f"Of each group the first {most} runs count."] if max(sizes, default=1) > most else []
    said += [why for why in read.values() if isinstance(why, str)]
    shown = [one._replace(runs=tuple(path for path in one.runs[:most] if path in metrics)) for one in drawn]
    st.fragment(_board, key="runs-curves")(shown, metrics, said)
    component.prepare()
    if unread:
        state.watch("curves", lambda: _read(paths, runs), READ_SECONDS, seen=unread)


def _read(paths: Iterable[str], runs: Mapping[str, RunSummary]) -> int:
    """Read the metrics of the runs that have changed. Returns for how many there was no time.

    The session keeps them, or why they can't be read, with the summary of the run at that time.
    """
    read, end = st.session_state[READ], time.monotonic() + READ_SECONDS
    changed = [path for path in paths if read.get(path, (None,))[0] is not runs[path]]
    for place, path in enumerate(changed):
        if time.monotonic() > end:
            return len(changed) - place
        run = RunDirectory(path)
        try:
            read[path] = runs[path], state.why_not_shown(run) or state.curves(run)
        except OSError as error:
            read[path] = runs[path], f"{state.as_code(run.metrics_path)} can't be read: {error.strerror}."
    return 0


def _title(name: str) -> str:
    split, _, value = name.partition("/")
    return TITLES.get(name) or f"{look_of(value).title} ({split})"


def _board(drawn: Sequence[Drawn], metrics: Mapping[str, Snapshot], said: list[str]) -> None:
    name, title = st.session_state[METRIC], _title(st.session_state[METRIC])
    split, _, value = name.partition("/")
    labels = {path: state.clean(RunDirectory(path).name) for path in metrics}

    def lines_of(one: Drawn) -> list[Line]:
        """Return the line of a run, or the mean and range over the runs of a group."""
        lines = [
            replace(line, style="row", dashed_as=one.dashed_as)
            for path in one.runs
            for line in metric_lines(metrics[path], split, value, labels[path], one.color, OPTIONS, raw=False)
        ]
        lines = mean_and_range(one.name, lines)
        return [replace(lines[0], name=one.name)] if len(lines) == 1 else lines

    def charts(_: object) -> list[Chart]:
        lines = [line for one in drawn for line in lines_of(one)]
        return [Chart(name, title, lines, look_of(value).unit, OPTIONS.is_logarithmic(value, lines))]

    wanted = name, drawn, [(path, found.version, found.last_step()) for path, found in metrics.items()]
    look = {"axis": "step", "x_title": "Step", "height": 320, "points": 12_800 // MOST_ROWS}
    component.draw_charts("runs-board", wanted, charts, name="runs", **look)
    lacking = without(split, value, [(labels[path], found) for path, found in metrics.items()])
    more = [plain(f"{title} isn't recorded by {listed(lacking, SHOWN_NAMES)}.")] if lacking else []
    if split == "train" and value != "learning_rate":
        more += [OPTIONS.smoothing_in_words]
    st.caption(" ".join([*said, *more]))
