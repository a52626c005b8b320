"""A report of a run, or of several: one HTML file with its style, its script and its points."""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from time import time

from app.charts.component import code
from app.charts.store import CurveStore, Snapshot
from app.images.cards import STYLE as CARDS
from app.markup import escaped, table_html
from app.report.charts import board_html, comparison_charts, machine_board, predictions_html, run_board
from app.report.parts import COLUMNS, all_results, folded, head, moment, note, overview_row, section
from app.views.configuration import changed_settings, command_line, flatten
from labkit.analysis.results import grouped, result_of, result_rows
from labkit.config.config import describe
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing
from labkit.run_directory.summary import RunSummary, Summaries
from labkit.version import VERSION

OWN = Path(__file__).parent / "assets"
THEMES = Path(__file__).parents[1] / ".streamlit" / "config.toml"

# Nothing may be loaded from anywhere, whatever a run's texts hold.
POLICY = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def report(runs: Sequence[RunDirectory]) -> str:
    """Return the report of these runs, of several as a comparison. Files that can't be read are named in it.

    Raises InputError if a directory holds no run.
    """
    for run in runs:
        if not run.exists():
            raise InputError(f"there is no run in {run.path}: it has no config.json")
    every = [run.name for run in runs]
    names = [str(run.path) if every.count(run.name) > 1 else run.name for run in runs]
    summaries = Summaries(describe).of(runs)
    parts = [_Run(*given) for given in zip(names, runs, summaries, strict=True)]
    if len(parts) == 1:
        charts = run_board(names[0], parts[0].metrics) if parts[0].metrics else ""
        return _page(names[0], _parts(parts[0], charts=charts))
    return _page(f"Comparison of {counted(len(names), 'run')}", _compared(parts))


def refusal(reason: str) -> str:
    """Return a page that says why there is no report."""
    return _page("There is no report", note(reason))


class _Run:
    """What a report shows of a run. Each part is HTML, and says so where a file can't be read."""

    def __init__(self, name: str, run: RunDirectory, summary: RunSummary) -> None:
        self.name, self.run, self.summary = name, run, summary
        self.metrics: Snapshot | None = None
        self.problem = ""
        try:
            self.metrics = CurveStore(run.metrics_path).poll()
        except OSError as error:
            self.problem = note(f"{run.metrics_path} can't be read: {error.strerror}")
        if self.metrics and self.metrics.damaged_lines:
            lines = counted(self.metrics.damaged_lines, "damaged line")
            self.problem = note(f"Left out of metrics.jsonl: {lines}.")

    def settings(self) -> str:
        """Return the configuration: what differs from the defaults first, then all values."""
        try:
            values = self.run.read_config()
            every = table_html(("Setting", "Value"), flatten(values))
        except (InputError, RecursionError):
            return note("config.json is damaged.")
        changed = changed_settings(values)
        if self.summary.recorded_by:
            return every
        if changed is None:
            return note("config.json isn't one of this version of labkit: its defaults are unknown.") + every
        rows = [row for name, value in changed.items() for row in flatten(value, name)]
        first = table_html(("Setting", "Value"), rows) or "<p>All settings have their defaults.</p>"
        return "<p>Settings that differ from the defaults:</p>" + first + folded("All settings", every)

    def environment(self) -> str:
        """Return the command and the versions that the run recorded."""
        found = self.run.read_environment()
        command = command_line(self.run, found.pop("command", None))
        try:
            rows = list(flatten(found)) if found else []
        except RecursionError:
            return note("environment.json is nested too deeply to be shown.")
        line = f"<pre>{escaped(command)}</pre>" if command else ""
        versions = found.get("versions")
        first = [*versions.items()] if isinstance(versions, dict) else []
        first = [(f"version of {name}", value) for name, value in first if not isinstance(value, dict | list)]
        return (
            line
            + table_html(("Environment", ""), first)
            + folded("Whole environment", table_html(("", ""), rows))
        )


def _parts(one: _Run, level: int = 2, charts: str = "") -> str:
    """Return what is shown of a run, below headings of a level."""
    return "".join(
        [
            head(one.summary),
            one.problem,
            section("Charts", charts, level),
            section("Results", all_results(one.summary), level),
            section("Predictions", predictions_html(one.run), level),
            section("Configuration", one.settings(), level),
            section("Command and versions", one.environment(), level),
            section("Machine", machine_board(one.run, one.metrics) if one.metrics else "", level),
        ]
    )


def _compared(parts: Sequence[_Run]) -> str:
    read = [(part.name, part.metrics) for part in parts if part.metrics is not None]
    charts = comparison_charts(read)
    header, rows = result_rows(grouped([result_of(part.name, part.summary) for part in parts]))
    return "".join(
        [
            section("Results", table_html(header, rows)),
            section("Runs", table_html(COLUMNS, (overview_row(part.name, part.summary) for part in parts))),
            section("Charts", board_html(charts, "comparison", None) if charts else note("No metrics yet.")),
            *(section(part.name, _parts(part, 3)) for part in parts),
        ]
    )


def _page(title: str, body: str) -> str:
    style, script = _assets()
    when = moment(time())
    made = f"Made by labkit {VERSION} on {when}."
    holds = "It holds settings, commands, paths, names of machines and notes: read it before you share it."
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="color-scheme" content="light dark"><title>{escaped(title)[5:-6]} · labkit</title>'
        f"<style>{style}</style></head><body><header><h1>{escaped(title)}</h1><p>{made}</p></header>"
        f"<main>{body}</main><footer>{made} Drag over a chart to zoom, double-click to show the whole run; "
        f"with the keyboard: Tab to a chart, then arrows, +, − and 0. {holds}</footer>"
        f"<script>{script}</script></body></html>\n"
    )


@cache
def _assets() -> tuple[str, str]:
    """Return the style and the script. The colours are those of the dashboard's themes."""
    with open(THEMES, "rb") as file:
        themes = tomllib.load(file)["theme"]
    light, dark = (_variables(themes[name]) for name in ("light", "dark"))
    colours = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root:not(.paper){{{dark}}}}}"
    style = code("uPlot.min.css", "board.css") + CARDS.read_text() + (OWN / "report.css").read_text()
    script = code("uPlot.iife.min.js", "board.js") + (OWN / "report.js").read_text()
    return colours + style, script.replace("export default function () {}", "").replace(
        "</script", "<\\/script"
    )


def _variables(theme: dict[str, str]) -> str:
    """Return the colours of a theme under the names that Streamlit gives them."""
    names = {"primary": "primaryColor", "background": "backgroundColor", "text": "textColor"}
    names |= {"secondary-background": "secondaryBackgroundColor", "border": "borderColor"}
    return "".join(f"--st-{name}-color:{theme[key]};" for name, key in names.items())


def write_report(runs: Sequence[RunDirectory], path: Path) -> int:
    """Write the report of ``runs``, replacing the file at ``path``. Returns its size in bytes.

    Raises InputError if a run can't be read, OSError if the file can't be written.
    """
    try:
        data = report(runs).encode(errors="replace")
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return len(data)
