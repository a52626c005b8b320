"""The dashboard under attack: by pages elsewhere, in a real browser, and by programs on this machine."""

import functools
import http.client
import http.server
import socket
import threading
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.app.browser import dashboard

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TOKEN = "of-this-test"
# What a page elsewhere tries: to read a page, to open the WebSocket, to show a page in a frame.
ATTACK = """async (address) => {
    const tried = {};
    tried.read = await fetch(address + "/start").then((answer) => answer.text(), () => "refused");
    tried.socket = await new Promise((done) => {
        const socket = new WebSocket(address.replace("http", "ws") + "/_stcore/stream", ["streamlit"]);
        socket.onopen = () => done("open");
        socket.onerror = () => done("refused");
    });
    const frame = document.createElement("iframe");
    frame.src = address + "/start";
    const loaded = new Promise((done) => { frame.onload = done; });
    document.body.append(frame);
    await loaded;
    try { tried.frame = frame.contentWindow.location.href; } catch (error) { tried.frame = "another origin"; }
    return tried;
}"""


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """The address of a dashboard with a token."""
    with dashboard(tmp_path_factory.mktemp("locked"), LABKIT_TOKEN=TOKEN) as (address, _):
        yield address


@pytest.fixture(scope="module")
def other_port(tmp_path_factory):
    """The port of another server of this machine, which has an empty page."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "index.html").write_text("<!doctype html><title>elsewhere</title><body>")
    page = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def asked(address, path="/", **headers):
    """Ask a server by HTTP; return status, headers and text."""
    place = urlsplit(address)
    link = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    link.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = link.getresponse()
    return answer.status, answer.headers, answer.read().decode(errors="replace")


def opens(address, *, origin=None, host=None):
    """Return whether the WebSocket takes a program that sends these headers."""
    place = urlsplit(address)
    url = f"ws://{host or place.netloc}/_stcore/stream"
    link = socket.create_connection((place.hostname, place.port), timeout=60)
    try:
        with connect(url, sock=link, origin=origin, subprotocols=["streamlit"], open_timeout=60):
            return True
    except InvalidStatus as error:
        return error.response.status_code != 403


def asks_for_code(page):
    """Return whether the form has a field for a file of code."""
    page.get_by_role("textbox", name="Find a setting").fill("callbacks")
    page.keyboard.press("Enter")
    field = page.get_by_role("textbox", name="--callbacks", exact=True)
    field.or_(page.get_by_text("No setting has these words")).wait_for()
    return field.count() == 1


# ---- programs ------------------------------------------------------------------------------------------


def test_a_program_gets_in_only_as_a_browser_at_this_address_would(served):
    host = urlsplit(served).netloc
    port = host.partition(":")[2]
    assert opens(served, origin=f"http://{host}")
    assert not opens(served)
    for origin in (
        "http://evil.test",
        f"http://127.0.0.1:{int(port) + 1}",
        f"http://localhost:{port}",
        "null",
    ):
        assert not opens(served, origin=origin), origin
    assert not opens(served, origin=f"http://evil.test:{port}", host=f"evil.test:{port}")
    assert opens(served, origin="http://localhost:9000", host="localhost:9000"), "a port forwarded by SSH"


def test_a_request_is_answered_only_under_a_name_of_the_server_and_never_in_a_frame(served):
    for name in ("127.0.0.1", "localhost:1234", "[::1]:80"):
        status, headers, _ = asked(served, Host=name)
        assert status == 200
        assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
        assert headers["X-Frame-Options"] == "SAMEORIGIN"
    for name in ("evil.test", "localhost.evil.test", "127.0.0.1.evil.test", ""):
        status, _, text = asked(served, Host=name)
        assert (status, text.count("\n")) == (403, 1) and "LABKIT_HOSTS" in text
    assert asked(served, Origin="http://evil.test")[0] == 403
    assert asked(served, Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert asked(served, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200, "a link elsewhere"


@pytest.mark.long
def test_one_variable_names_the_hosts_of_a_proxy(tmp_path):
    with dashboard(tmp_path, LABKIT_HOSTS="lab.example, *.cloud.example") as (address, _):
        assert asked(address, Host="lab.example")[0] == asked(address, Host="a.cloud.example")[0] == 200
        assert asked(address, Host="cloud.example")[0] == asked(address, Host="evil.example")[0] == 403
        # A proxy that speaks to the server as localhost, while the browser speaks to the proxy.
        assert opens(address, origin="https://lab.example", host="localhost:8501")
        assert not opens(address, origin="https://evil.example", host="localhost:8501")


# ---- pages in a browser --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["evil.test", "127.0.0.1", "localhost"])
def test_a_page_elsewhere_or_at_another_port_reads_and_frames_nothing(served, other_port, visit, name):
    visit.page.goto(f"http://{name}:{other_port}/")
    tried = visit.page.evaluate(ATTACK, served)
    assert (tried["read"], tried["socket"]) == ("refused", "refused")
    assert tried["frame"] == "another origin"
    framed = [one for one in visit.complaints if "frame" in one.lower()]
    assert framed, visit.complaints


def test_a_name_that_was_made_to_lead_here_gets_one_sentence(served, visit):
    visit.page.goto(f"http://evil.test:{urlsplit(served).port}/start")
    assert "is no name of this dashboard" in visit.page.inner_text("body")


@pytest.mark.long
def test_with_a_token_nothing_acts_before_it_is_given_and_all_after(locked, visit):
    page = visit.page
    page.goto(f"{locked}/start")
    page.get_by_text("give the token that the server printed").wait_for()
    assert page.get_by_role("button", name="Start", exact=True).count() == 0
    page.goto(f"{locked}/labkit/token")
    page.get_by_label("Token").fill("guessed")
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("This isn't the token.").wait_for()
    page.goto(f"{locked}/start?token=guessed")
    page.get_by_text("This isn't the token.").wait_for()
    page.goto(f"{locked}/start")
    page.get_by_text("give the token that the server printed").wait_for()
    page.goto(f"{locked}/labkit/token")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Go on").click()
    page.wait_for_url(f"{locked}/")
    page.goto(f"{locked}/start")
    page.get_by_role("button", name="Start", exact=True).wait_for()
    [cookie] = [one for one in page.context.cookies() if one["name"] == "labkit_token"]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert TOKEN not in cookie["value"]


@pytest.mark.long
def test_the_address_with_the_token_leads_to_the_one_without(locked, visit):
    visit.page.goto(f"{locked}/start?token={TOKEN}")
    visit.page.get_by_role("button", name="Start", exact=True).wait_for()
    assert visit.page.url == f"{locked}/start"
    visit.went_well()
    assert asked(locked, f"//evil.test/?token={TOKEN}")[1]["Location"] == "/evil.test/"


@pytest.mark.long
def test_code_is_named_in_the_form_only_where_the_server_allows_it(tmp_path, served, visit):
    visit.page.goto(f"{served}/start")
    visit.page.get_by_role("button", name="Start", exact=True).wait_for()  # who started it acts
    assert not asks_for_code(visit.page)
    with dashboard(tmp_path, LABKIT_ALLOW_CODE="1") as (address, _):
        visit.page.goto(f"{address}/start")
        assert asks_for_code(visit.page)
