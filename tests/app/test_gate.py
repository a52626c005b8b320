"""When the dashboard asks for a token, and how it says so."""

import os
import pwd
import sys
import time
import tomllib
import webbrowser

import pytest
import streamlit as st
from starlette.datastructures import Headers
from streamlit import config

from app import gate, state
from app.acting import buttons, launches
from app.images import answers
from app.run_table import actions
from labkit.commands import dashboard
from labkit.commands import main as cli
from labkit.config.config import recorded_config
from labkit.data.images.pictures import MAX_BYTES
from labkit.errors import InputError
from labkit.parts.trust import files_of, is_accepted
from labkit.run_directory import RunDirectory
from labkit.startup import others
from labkit.startup.others import other_users
from tests.app.browser import CHECKOUT
from tests.app.pages import open_page, press
from tests.parts.test_trust import FILE, foreign


@pytest.fixture
def token_of(monkeypatch):
    """Return a function that returns the token of a server that starts now."""

    def token(named=None, people=(), address="127.0.0.1"):
        gate._token.cache_clear()
        monkeypatch.delenv("LABKIT_TOKEN", raising=False)
        if named is not None:
            monkeypatch.setenv("LABKIT_TOKEN", named)
        monkeypatch.setattr(gate, "other_users", lambda: list(people))
        config.set_option("server.address", address)
        return gate._token()

    return token


def test_who_is_alone_needs_no_token_and_who_isnt_gets_a_new_one(token_of):
    assert token_of() == ""
    assert len(token_of(people=["bob"])) >= 32
    assert token_of(people=["bob"]) != token_of(people=["bob"])
    assert len(token_of(address="0.0.0.0")) >= 32
    assert token_of("mine") == "mine"
    assert token_of("", people=["bob"]) == "", "switched off"
    assert "LABKIT_TOKEN" not in os.environ, "not for what the dashboard starts"


def test_other_people_are_accounts_with_a_name_and_a_shell(monkeypatch):
    known = {1000: "ada", 1001: "bob", 1002: "me", 1003: "daemon", 33: "www-data"}

    def account(uid):
        shell = "/usr/sbin/nologin" if uid == 1003 else "/bin/sh"
        return pwd.struct_passwd((known[uid], "x", uid, uid, "", "/", shell))

    monkeypatch.setattr(pwd, "getpwuid", account)
    monkeypatch.setattr(os, "getuid", lambda: 1002)
    monkeypatch.setattr(others, "_user_ids", lambda: [1001, 1000, 1002, 1003, 33, 0, 100_000, 1001])
    assert other_users() == ["ada", "bob"], "and not this one"


def test_without_the_token_the_pages_say_what_is_missing(token_of):
    token_of("mine")
    assert "give the token" in state.why_not()
    assert not gate._same("\u00fcber \ud800", "token"), "a cookie of any letters"
    assert not state.may_act()
    token_of()
    assert state.may_act()


def test_the_browser_gets_the_token_by_a_file_that_nobody_else_reads(token_of, monkeypatch, capsys, tmp_path):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(gate.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(gate, "SECONDS_TO_LISTEN", 0.0)
    monkeypatch.setenv("LABKIT_OPEN_BROWSER", "1")
    token_of("mine")
    gate.announce()
    assert "/?token=mine" in capsys.readouterr().out
    end = time.monotonic() + 30
    while not opened and time.monotonic() < end:
        time.sleep(0.01)
    [page] = tmp_path.rglob("open.html")
    assert opened == [page.as_uri()] and "/?token=mine" in page.read_text()
    assert page.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("flags", "people", "asks", "streamlit_opens"),
    [
        ([], [], False, True),
        (["--token"], [], True, False),
        ([], ["bob"], True, False),
        (["--token", "--no-browser"], [], True, False),
    ],
)
def test_the_command_asks_for_a_token_with_a_flag_or_beside_others(
    flags, people, asks, streamlit_opens, monkeypatch
):
    def become(program, words, environment):
        sys.exit((words, environment))

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(dashboard, "other_users", lambda: people)
    monkeypatch.delenv("LABKIT_TOKEN", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main(["dashboard", *flags])
    words, environment = ended.value.code
    token = environment.get("LABKIT_TOKEN", "")
    assert bool(token) is asks and not (asks and any(token in word for word in words))
    assert f"--server.headless={str(not streamlit_opens).lower()}" in words
    opens = "--no-browser" not in flags and not streamlit_opens
    assert ("LABKIT_OPEN_BROWSER" in environment) is opens


def test_without_the_token_a_visitor_sees_listed_runs_and_starts_no_network(token_of, make_run, tmp_path):
    shown = make_run("shown")
    hidden = make_run("hidden")
    hidden.path.rename(tmp_path / "hidden")
    token_of("mine")
    st.session_state["folder"] = str(tmp_path)
    try:
        assert tmp_path not in state.run_folders()
        assert state.find_run("shown").path == state.find_run(str(shown.path)).path == shown.path
        for label in (str(tmp_path / "hidden"), "../hidden", "/etc"):
            assert not state.find_run(label).exists()
        asked = answers.ask(shown, 1, "key", lambda network, report: pytest.fail("it was asked"))
        assert asked.wait(30) and "given the token" in asked.error
        with pytest.raises(InputError, match="give the token"):
            launches.stop(shown)
        assert actions.attempt([str(shown.path)], lambda run: pytest.fail("it acted"), "Archived") == []
    finally:
        st.session_state.pop("folder", None)


def test_a_run_that_the_page_starts_is_private_where_the_mask_forgot_it(runs_folder, monkeypatch, tmp_path):
    monkeypatch.setattr(launches, "_launched", lambda *given, **rest: None)
    before = os.umask(0)
    try:
        launches.start(["train"], RunDirectory(tmp_path / "more" / "new"))
    finally:
        os.umask(before)
    assert (tmp_path / "more").stat().st_mode & 0o077 == 0


LAB, HUB = "lab.example.org", "ada.hub.example.org"
ASKED = (
    (LAB, "localhost:8501", f"https://{LAB}", True),
    (LAB, LAB, f"https://{LAB}", True),
    (LAB, f"{LAB}:8501", f"http://{LAB}:9999", False),
    (f"{LAB}:8443", "localhost:8501", f"https://{LAB}:8443", True),
    (f"{LAB}:8443", "localhost:8501", f"https://{LAB}", False),
    ("*.hub.example.org", HUB, f"https://{HUB}", True),
    ("*.hub.example.org", HUB, "https://mallory.hub.example.org", False),
    ("", "localhost:8501", "http://localhost:8501", True),
    ("", "localhost:8501", "http://localhost:9999", False),
    ("", "elsewhere.example.org", "http://elsewhere.example.org", False),
)


@pytest.mark.parametrize(("hosts", "host", "origin", "passes"), ASKED)
def test_a_named_host_stands_for_its_own_port_and_for_no_other_page(monkeypatch, hosts, host, origin, passes):
    monkeypatch.setenv("LABKIT_HOSTS", hosts)
    refusal = gate._refusal(Headers({"host": host, "origin": origin}), needs_origin=True)
    assert (refusal == "") is passes, refusal


def test_other_sites_reach_no_session_of_the_dashboard_and_pictures_have_its_limit():
    server = tomllib.loads((CHECKOUT / "app" / ".streamlit" / "config.toml").read_text())["server"]
    assert server["address"] == "127.0.0.1"
    assert server["enableCORS"] is server["enableXsrfProtection"] is True
    assert server["maxUploadSize"] * 2**20 == MAX_BYTES


def test_the_page_shows_the_code_before_its_button_works(tmp_path, monkeypatch):
    code = tmp_path / "mine.py"
    code.write_text(FILE)
    run = foreign(tmp_path, callbacks=str(code))
    started = []
    monkeypatch.setattr(launches, "_launched", lambda arguments, run, **_: started.append(arguments))
    with pytest.raises(InputError, match="--trust"):
        launches.resume(run)
    assert not started

    shown = open_page("live", run)
    assert any(FILE.strip() in one.value.strip() for one in shown.code)
    press(shown, "I trust it: resume")
    assert started == [["resume", str(run.path)]]
    assert is_accepted(recorded_config(run), files_of(recorded_config(run)))
    assert buttons.failure_of(run) == ""
