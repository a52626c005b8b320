"""The panel beside the charts of the live page: smoothing, other runs, metrics, formulas, arrangement.

What a visitor chooses is in the address, where it differs from what is kept for all runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import state
from app.charts import formulas, picked
from app.charts.board import SIZES
from app.charts.layout import Layout, keep, kept_path, read_kept
from app.charts.metric_charts import BESIDE, KNOWN, USUAL, controls, look_of, standard
from app.charts.store import MAX_METRICS, Snapshot
from app.live_update import Drawn
from app.markup import number_text, one_of, plain
from labkit.config.config import recorded_by
from labkit.errors import InputError, short
from labkit.run_directory import RunDirectory

OPEN = "charts-open"  # in the session: whether the panel is
FAILED = "charts-failed"  # in the session: why the last button failed
MAX_BESIDE = len(BESIDE)  # runs that are laid over
MAX_ADDED = 12  # metrics of callbacks that are drawn without being chosen
FORMULA_HELP = (
    f"One a line, of names such as `validation/loss` or `loss`, the training's, with `+ - * / **` and "
    f"{', '.join(f'`{name}`' for name in formulas.FUNCTIONS)}. Write spaces around a division. "
    "`max(validation/accuracy)` is the largest so far. Of two curves, the one with fewer points counts with "
    "its last value."
)
Lines = tuple[str, ...]


def draw(run: RunDirectory, metrics: Snapshot | None, step: int | None) -> tuple[Drawn, DeltaGenerator]:
    """Draw the axis, and the panel that *Charts* opens; below them, what can't be done.

    Args:
        run: the run directory.
        metrics: of the run; None if they can't be read.
        step: whose batch is shown.

    Returns what the page shall show, without its zoom, and the place for it.
    """
    row = st.container(horizontal=True, vertical_alignment="center", gap="small", key="live-controls")
    below, body = st.container(), st.container(key="live-body")
    is_open, wrong = bool(st.session_state.get(OPEN)), list[str]()
    with row:
        # Closed, it is hidden: Streamlit forgets what isn't drawn.
        key = "live-panel" if is_open else "live-panel-shut"
        options, place = controls(metrics.full_names() if metrics else (), lambda: body.container(key=key))
        button = st.container(width="content")
        _jump(run, metrics)
    with place:
        others = _others(run, wrong)
        kept = _kept(wrong)
        names = _names(metrics, kept, wrong)
        drawn = Drawn(run, options, names, step, None, others=others)
        titles = drawn.titles(metrics) if metrics else {}
        layout = _arrange(kept, titles)
    try:
        shown = len(layout.arranged(titles))
    except InputError as error:
        wrong.append(f"{error}; all charts are shown")
        layout, shown = replace(layout, find=""), len(titles)
    button.button(
        "Charts" if shown == len(titles) else f"Charts ({shown} of {len(titles)})",
        icon=":material/tune:",
        key="charts-button",
        type="primary" if is_open else "secondary",
        help="Smoothing, scale, other runs, formulas, order",
        on_click=lambda: st.session_state.update({OPEN: not is_open}),
    )
    for sentence in wrong:
        below.warning(plain(f"{sentence[0].upper()}{sentence[1:]}."))
    return replace(drawn, options=options._replace(size=layout.size), layout=layout), body


def _jump(run: RunDirectory, metrics: Snapshot | None) -> None:
    """Draw the button that leads to the largest jump of the loss."""
    if metrics is not None and not recorded_by(run) and (jumps := picked.jumps(metrics)):
        step, ratio = jumps[0]
        picked.step_button(
            f"Largest jump of the loss: step {step:,} ({number_text(ratio, '.2g')} ×)",
            run,
            step,
            scroll=True,
            icon=":material/photo_library:",
            key="largest-jump",
            help=f"Shows the images of its batch. The loss is {number_text(ratio, '.2g')} times as high "
            "as around it. A click on a point of a training curve shows those of its step; J goes on to the "
            "next jump.",
        )


def _others(run: RunDirectory, wrong: list[str]) -> tuple[tuple[str, RunDirectory], ...]:
    """Draw the choice of runs to lay over. Returns those that are there, by their labels."""
    known = state.listed_runs()
    others = [label for label, one in known.items() if one.path != run.path]
    labels = several("beside", "Other runs in the same charts", others, most=MAX_BESIDE)
    wrong += [f"no run {short(label)} is listed" for label in labels if label not in known]
    there = {label: known[label] for label in labels if label in others}
    for one in there.values():
        try:
            state.curves(one)
        except OSError as error:
            wrong.append(f"{one.metrics_path} can't be read: {error.strerror}")
    return tuple(there.items())


def _names(metrics: Snapshot | None, kept: Layout, wrong: list[str]) -> Lines:
    """Draw the choice of further metrics and the field of the formulas. Returns the names of ``Drawn``."""
    found = metrics.metrics() if metrics else []
    usual = standard(found)
    known = KNOWN.keys() - {"f1_macro"}  # which --metrics adds, as it does auc
    added = [name for name in found if name not in (*usual, *known)][:MAX_ADDED]
    more = {look_of(name).title: name for name in found if name not in (*usual, *added)}
    chosen = [more[title] for title in several("more", "More metrics", more) if title in more]
    text = st.text_area(
        "Formulas",
        kept.formulas,
        key="formulas",
        bind="query-params",
        height=90,
        placeholder="train/loss - validation/loss",
        help=FORMULA_HELP,
    )
    texts = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if metrics is not None and metrics.leaves_out_metrics():
        wrong.append(f"the run has very many metrics. The first {MAX_METRICS} of a split can be drawn")
    if len(texts) > formulas.MOST:
        wrong.append(f"of {len(texts)} formulas the first {formulas.MOST} are drawn")
    texts = texts[: formulas.MOST]
    if metrics is not None and metrics.tables:
        problems = {text: formulas.found(metrics, text).why_not for text in texts}
        # What is kept for all runs names metrics that some of them don't have.
        general = {line.strip() for line in kept.formulas.splitlines()}
        wrong += [why for text, why in problems.items() if why and text not in general]
        texts = [text for text in texts if not (problems[text] and text in general)]
    return tuple(dict.fromkeys((*usual, *added, *chosen, *(f"={text}" for text in texts))))


def _arrange(kept: Layout, titles: Mapping[str, str]) -> Layout:
    """Draw what arranges the charts of these titles."""
    find = st.text_input(
        "Find charts",
        key="find",
        bind="query-params",
        max_chars=200,
        placeholder="loss|acc",
        help="A regular expression, in upper or lower case.",
    )
    first = several("first", "First, in this order", titles.values(), kept.first)
    hidden = several("hidden", "Hidden", titles.values(), kept.hidden)
    size = one_of("Size", SIZES, "size", kept.size)
    layout = Layout(st.session_state["formulas"], first, hidden, size, find or "")
    with st.container(horizontal=True, gap="small"):
        if state.may_act():
            about = f"Formulas, order, hidden charts and size, in {kept_path()}"
            st.button("Keep for all runs", on_click=_keep, args=(layout,), help=plain(about))
        st.button(
            "Reset",
            on_click=_keep,
            args=(None,),
            help="The usual smoothing, scale and order of all charts, no formulas; order also for all runs.",
        )
    state.say_failure(FAILED)
    return layout


def _kept(wrong: list[str]) -> Layout:
    try:
        return read_kept()
    except InputError as error:
        wrong.append(f"{error}; the charts are arranged as without it, and Reset removes it")
        return Layout()


def _keep(kept: Layout | None) -> None:
    """Keep this for all runs. None forgets it, and what the visitor chose."""
    if kept or state.may_act():
        state.attempt(FAILED, keep, kept)
        if FAILED not in st.session_state:
            st.toast("Kept for all runs." if kept else "Nothing is kept for all runs.")
    if not kept:
        usual = _kept([])
        first, hidden = list(usual.first), list(usual.hidden)
        st.session_state.update(USUAL, formulas=usual.formulas, first=first, hidden=hidden, size=usual.size)


def several(
    name: str, label: str, options: Iterable[str], usual: Lines = (), most: int | None = None
) -> Lines:
    """Draw a choice of several, in the order in which they are chosen. What this run lacks stays chosen."""
    chosen = st.multiselect(
        label,
        list(dict.fromkeys((*options, *usual))),
        default=usual,
        key=name,
        bind="query-params",
        accept_new_options=True,
        max_selections=most,
        placeholder="Choose",
    )
    return tuple(chosen)
