"""The configuration page: the configuration of a run and its environment."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import streamlit as st

from app import state
from app.live_update import heading
from app.markup import plain, show_command, table_html
from labkit.cluster.flags import making_command
from labkit.config.config import RECORDED_BY, describe
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

MOST_ENTRIES = 30  # of an object; the longest section of the configuration has fewer
MOST_CHARACTERS = 2000  # of a value


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    heading(run, "Configuration")
    st.caption(state.as_code(run.path))
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**Configuration**")
        try:
            recorded = run.read_config()
            changed, wanted = changed_settings(recorded), _wanted()
            others = _beside(run, recorded)
            parts = {} if others is None else {"differs from the other run": others}
            parts |= {"differs from the defaults": dict(changed)} if changed is not None else {}
            _sections(_found(parts, wanted))
            found = _found(recorded, wanted)
            _sections(found, expanded=changed is None or bool(wanted))
            if not found:
                st.caption(f"No setting has {state.as_code(wanted)} in its name or value.")
        except InputError as error:
            st.error(plain(str(error)))
        except RecursionError:
            st.error(f"{state.as_code(run.config_path)} is nested too deeply to be shown")
    with right:
        st.markdown("**Environment**")
        environment = run.read_environment()
        if environment:
            if command := command_line(run, environment.pop("command", None)):
                show_command(command)
            try:
                _sections(environment)
            except RecursionError:
                st.error(f"{state.as_code(run.environment_path)} is nested too deeply to be shown")
        else:
            st.caption("No environment is recorded yet (no readable `environment.json`).")


def _wanted() -> str:
    return st.text_input("Find", key="setting", bind="query-params", placeholder="decay").strip().lower()


def _found(parts: Mapping[str, Any], wanted: str) -> dict[str, Any]:
    """Return the settings whose name or value has a text, in their parts."""
    if not wanted:
        return dict(parts)
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, Mapping):
            part = {key: one for key, one in part.items() if wanted in f"{key} {one}".lower()}
        if part if isinstance(part, Mapping) else wanted in f"{name} {part}".lower():
            found[name] = part
    return found


def _beside(run: RunDirectory, recorded: dict[str, Any]) -> dict[str, str] | None:
    """Draw the choice of another run; return the settings that differ, in both; None without one."""
    others = {label: one for label, one in state.listed_runs().items() if one.path != run.path}
    label = st.selectbox("Compare with", list(others), index=None, key="configuration-beside")
    if label is None:
        return None
    mine, theirs = (dict(flatten(one)) for one in (recorded, others[label].read_config()))
    names = dict.fromkeys([*mine, *theirs])
    pairs = {name: (mine.get(name, "–"), theirs.get(name, "–")) for name in names}
    return {name: f"{one} (there: {other})" for name, (one, other) in pairs.items() if one != other}


def changed_settings(recorded: dict[str, Any]) -> Mapping[str, Any] | None:
    """Return what differs from the defaults; None of another program's run, and of a damaged part."""
    with suppress(InputError):
        return None if RECORDED_BY in recorded else describe(recorded).settings
    return None


def command_line(run: RunDirectory, recorded: Any) -> str:
    """Return the command that makes a run as a line for a shell; else the recorded one; "" without any."""
    with suppress(InputError):  # nothing else tells it
        recorded = making_command(run)
    return shlex.join(map(str, recorded)) if isinstance(recorded, list) else str(recorded or "")


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each leaf of nested objects as (dotted name, text). Lists are leaves.

    Of large objects and long texts only the beginning: 10,000 classes would be 10,000 rows.
    """
    if isinstance(value, dict) and value:
        for key, inner in islice(value.items(), MOST_ENTRIES):
            yield from flatten(inner, f"{name}.{key}" if name else str(key))
        if len(value) > MOST_ENTRIES:
            yield name, f"… and {len(value) - MOST_ENTRIES:,} more"
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        more = len(text) - MOST_CHARACTERS
        yield name, text if more <= 0 else f"{text[:MOST_CHARACTERS]} … and {more:,} more characters"


def _sections(values: dict[str, Any], *, expanded: bool = True) -> None:
    """Draw a table for each nested object, and one for the other values."""
    # Raises RecursionError for deep nesting before anything is drawn.
    for _ in flatten(values):
        pass
    flat = {name: value for name, value in values.items() if not isinstance(value, dict)}
    nested = {name: value for name, value in values.items() if isinstance(value, dict)}
    for name, section in ([("general", flat)] if flat else []) + list(nested.items()):
        with st.expander(plain(name[:1].upper() + name[1:].replace("_", " ")), expanded=expanded):
            if section:
                st.html(table_html((), flatten(section)))
            else:
                st.caption("nothing")
