"""The widgets of the form of a new run: basic fields first, the rest by group, found by a search."""

from collections.abc import Iterable
from html import escape
from typing import Any, TypeVar

import streamlit as st

from app.acting.draft import Checked, Draft, data_sets, form_fields, new_draft, with_data_set, with_preset
from app.markup import plain
from labkit.config.fields import GROUPS, FieldInfo
from labkit.config.presets import AUTO, PRESETS, preset_summary

DRAFT, GENERATION, FIRST = "start-draft", "start-generation", "start-first"
COLUMNS = 2
NO_PRESET = "none: the defaults of 2017"

T = TypeVar("T")


def draft() -> Draft:
    """Return the form of this visitor. It is kept while other pages are shown."""
    if DRAFT not in st.session_state:
        fill(new_draft("smoke"))
    kept: Draft = st.session_state[DRAFT]
    return kept


def fill(filled: Draft) -> None:
    """Show another form. Its widgets are new ones, which take their values from it."""
    st.session_state[DRAFT] = filled
    st.session_state[GENERATION] = st.session_state.get(GENERATION, 0) + 1


def draw(shown: Draft, checked: Checked) -> None:
    """Draw the form, with the sentence about each field that is wrong below it."""
    _head(shown)
    fields = form_fields()
    _grid([info for info in fields.values() if info.common], shown, checked)
    _, missing = data_sets(shown)
    if missing:
        st.caption(plain(missing))
    wanted = st.text_input(
        "Find a setting",
        key="start-find",
        placeholder="learning rate, momentum, checkpoint …",
        icon=":material/search:",
        live=True,
    )
    rest = [info for info in fields.values() if not info.common]
    if wanted and wanted.strip():
        found = [info for info in fields.values() if _fits(info, wanted)]
        _grid([info for info in found if not info.common], shown, checked)
        if not found:
            st.caption("No setting has these words. Empty the search to see all groups.")
        return
    # A group with a mistake opens, and doesn't close below the hand that corrects it.
    opened: set[str] = st.session_state.setdefault("start-opened", set())
    for group, text in GROUPS.items():
        members = [info for info in rest if info.group == group]
        if any(info.name in checked.errors for info in members):
            opened.add(group)
        title = f"{group.capitalize()}: {text}"
        with st.expander(title, expanded=group in opened, key=f"start-group-{group}"):
            if group == "cluster":
                _numbers(shown, PROCESSES)
            _grid(members, shown, checked)


def _fits(info: FieldInfo, wanted: str) -> bool:
    text = f"{info.name.replace('_', ' ')} {info.flag} {info.name} {info.help}".lower()
    return all(word in text for word in wanted.lower().split())


def _head(shown: Draft) -> None:
    left, right = st.columns(2)
    key = _key("preset")
    options = ["", AUTO, *PRESETS]
    left.selectbox(
        "Preset",
        options,
        index=options.index(_first(key, shown.preset)),
        key=key,
        format_func=lambda name: name or NO_PRESET,
        on_change=lambda: fill(with_preset(shown, str(st.session_state[key]))),
        help="Fills the form. What you change then is added to the command.",
    )
    named = _key("name")
    right.text_input(
        "Name",
        _first(named, shown.name),
        key=named,
        placeholder=shown.suggested_name(),
        on_change=lambda: setattr(shown, "name", str(st.session_state[named] or "")),
        help="Of the run's folder. Left empty, it is the one shown in grey.",
    )
    if shown.preset:
        st.caption(preset_summary(shown.preset))
    _numbers(shown, SEVERAL)
    st.caption("Several numbers in a field, such as `0.1, 0.03`, train a run with each.")


# Of numbers beside the settings: the attribute of the draft, label, lowest value and help.
SEVERAL = (
    ("seeds", "Seeds", 1, "Trainings with other seeds, which show how much of a result is chance."),
    ("at_once", "At once", 1, "Of several trainings, how many share this machine at a time."),
)
PROCESSES = (
    ("workers", "Workers", 1, "Processes that train, on this machine."),
    ("ps", "Parameter servers", 0, "With one or more, the workers are asynchronous."),
)


def _numbers(shown: Draft, numbers: Iterable[tuple[str, str, int, str]]) -> None:
    for column, (name, label, least, help) in zip(st.columns(COLUMNS), numbers, strict=True):
        key = _key(name)
        column.number_input(
            label,
            value=_first(key, getattr(shown, name)),
            min_value=least,
            max_value=64,
            step=1,
            key=key,
            on_change=lambda name=name, key=key: setattr(shown, name, int(st.session_state[key] or 0)),
            help=help,
        )


def _grid(fields: Iterable[FieldInfo], shown: Draft, checked: Checked) -> None:
    """Draw fields row by row, so that Tab goes through them in the order in which they are read."""
    members = list(fields)
    for first in range(0, len(members), COLUMNS):
        for column, info in zip(st.columns(COLUMNS), members[first : first + COLUMNS], strict=False):
            with column:
                _field(info, shown)
                if sentence := checked.errors.get(info.name):
                    st.html(f'<p class="lk-wrong" role="alert">{escape(sentence)}</p>')


def _key(name: str) -> str:
    return f"start-{st.session_state.get(GENERATION, 0)}-{name}"


def _first(key: str, value: T) -> T:
    """Return what a widget held when it was drawn first; ``value`` if that is now.

    It is the widget's default. A value assigned to the session instead is lost if the reader acts before the
    browser has drawn the widget, which then shows its own default and reports that as a change.
    """
    first: dict[str, T] = st.session_state.setdefault(FIRST, {})
    if key not in st.session_state:
        first[key] = value
    return first[key]


def _field(info: FieldInfo, shown: Draft) -> None:
    key = _key(f"field-{info.name}")
    first = _first(key, shown.shown[info.name])

    def take() -> None:
        held: str | bool = st.session_state[key]
        if info.name == "dataset" and shown.preset == AUTO:
            fill(with_data_set(shown, str(held)))
        shown.shown[info.name] = held

    help = f"{info.help} Default: {info.default_in_words}.".replace("<", "\\<").replace("*", "\\*")
    settings: dict[str, Any] = {"key": key, "on_change": take, "help": help}
    label = info.flag  # as the command beside the form has it
    if info.type is bool:
        st.checkbox(label, bool(first), **settings)
    elif info.choices or info.name == "dataset":
        _choice(info, label, shown, str(first), settings)
    else:
        st.text_input(label, str(first), placeholder=info.default_in_words, **settings)


def _choice(info: FieldInfo, label: str, shown: Draft, first: str, settings: dict[str, Any]) -> None:
    options = [str(choice) for choice in info.choices or ()]
    words = {name: name for name in options}
    if info.name == "dataset":
        words, _ = data_sets(shown)
        options = list(words)
    if info.optional:
        options, words = ["", *options], {"": info.default_in_words, **words}
    held = str(st.session_state.get(settings["key"], first))
    # A data set that isn't prepared: the sentence below says so.
    options += [name for name in dict.fromkeys((held, first)) if name not in options]
    st.selectbox(
        label, options, index=options.index(first), format_func=lambda name: words.get(name, name), **settings
    )
