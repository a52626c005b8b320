"""``labkit watch``: what happens to a run is said once, and reaches an address that may be slow or broken."""

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import labkit
from labkit.commands import main as cli
from labkit.config import field_aliases
from labkit.config.config import describe
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import rename_run
from labkit.run_directory.summary import Summaries
from labkit.run_directory.watch import Watched
from tests.commands.in_process import answer, refused


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def hook():
    """An address, its server's answers by path, and the messages that it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, body))
            if self.path == "/slow":
                time.sleep(3)
            if self.path == "/endless":
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):
                    while not time.sleep(0.5):
                        self.wfile.write(b"x" * 999)
                return
            self.send_response({"/broken": 500, "/away": 302}.get(self.path, 200))
            if self.path == "/away":
                self.send_header("Location", f"{address}/other")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield address, got
    server.shutdown()


def looker(*conditions, **settings):
    summaries, watched = Summaries(describe), Watched(conditions, field_aliases(), **settings)

    def look(*runs) -> list[str]:
        return [line for _, line in watched.look(summaries.of([RunDirectory(run.path) for run in runs]))]

    return look


def test_each_event_is_said_once_and_again_after_it_has_ceased():
    run = labkit.start_run("first", total_steps=9)
    run.log(1, loss=1.0)
    run._write_status()
    look = looker("training_loss>3")
    assert look(run) == []
    for step, loss, said in [
        (2, 4.0, 1),
        (3, 5.0, 0),
        (4, 1.0, 0),
        (5, 4.0, 1),
        (6, float("nan"), 1),
        (7, float("nan"), 0),
    ]:
        run.log(step, loss=loss)
        run._write_status()
        lines = look(run)
        assert len(lines) == said
        assert all(f"step {step}" in line for line in lines)
        assert all(("the loss is NaN" in line) == (step == 6) for line in lines)
    run.fail("no more pictures")
    assert look(run) == ["first: failed: no more pictures at step 7"]
    assert look(run) == []


def test_a_run_that_failed_because_of_its_loss_is_said_once():
    run, look = labkit.start_run("first"), looker()
    assert look(run) == []
    run.log(3, loss=float("nan"))
    run.fail("loss is nan at step 3")
    assert look(run) == ["first: failed: loss is nan at step 3"]


def test_a_run_that_is_renamed_is_not_told_again():
    run, look = labkit.start_run("first"), looker()
    assert look(run) == []
    run.fail("no more pictures")
    assert look(run) == ["first: failed: no more pictures"]
    renamed, _ = rename_run(RunDirectory(run.path), "second")
    other = labkit.start_run("third")
    other.fail("no more pictures")
    assert look(renamed, other) == ["third: failed: no more pictures"]


def test_what_had_ended_before_is_told_of_named_runs_only():
    run = labkit.start_run("first")
    run.finish()
    assert looker()(run) == []
    assert looker(tell_ended=True)(run) == ["first: finished"]
    look = looker()
    assert look() == []
    assert look(run) == ["first: finished"]  # it came and ended between two looks


def test_it_ends_with_its_runs_and_the_code_says_how():
    labkit.start_run("good").finish()
    labkit.start_run("bad").fail("why")
    assert answer("watch", "good").code == 0
    both = answer("watch", "good", "bad")
    assert both.code == 1
    assert "bad: failed: why" in both.out


def test_a_run_that_is_moved_away_is_told_and_no_longer_waited_for(home):
    with labkit.start_run("first") as run:
        threading.Timer(1, run.path.rename, [home / "elsewhere"]).start()
        told = answer("watch", "first", "--every", "0.2")
        assert told.code == 1 and "first is gone: moved or removed" in told.out
        (home / "elsewhere").rename(run.path)


def test_a_training_that_is_frozen_is_stalled_and_later_told_again():
    run, look = labkit.start_run("first"), looker()
    assert look(run) == []
    run._over.set()  # no more heartbeats
    run._thread.join()
    path = RunDirectory(run.path)
    for _ in range(2):
        path.write_status(replace(path.read_status(), heartbeat=time.time() - 60))
        [line] = look(run)
        assert line.startswith("first: stalled: no heartbeat since")
        assert look(run) == []
        path.write_status(replace(path.read_status(), heartbeat=time.time()))
        assert look(run) == []


def test_a_training_that_is_killed_is_lost(tmp_path):
    program = "labkit.start_run('first').log(1, loss=1.0); print('up', flush=True); time.sleep(60)"
    program = f"import labkit, time; {program}"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    told = answer("watch", "first", "--every", "0.2")
    assert told.code == 1
    assert "first: lost" in told.out


@pytest.mark.long
def test_addresses_get_each_line_and_a_broken_one_holds_nothing_up(hook):
    address, got = hook
    labkit.start_run("first").finish()
    urls = [f"{address}/{path}" for path in ("good", "broken", "away", "slow")] + [
        "http://127.0.0.1:9/secret"
    ]
    began = time.monotonic()
    told = answer("watch", "first", *(word for url in urls for word in ("--notify", url)))
    assert time.monotonic() - began < 20
    assert told.code == 0
    assert sorted(path for path, _ in got) == [
        "/away",
        "/broken",
        "/good",
        "/slow",
    ]  # no redirect is followed
    body = dict(got)["/good"]
    line = "first: finished"
    known = {"run": "first", "state": "finished", "step": 0, "allowed_mentions": {"parse": []}}
    assert body == {"text": line, "content": line, **known}
    assert "answers 500" in told.err
    assert "answers 302" in told.err
    assert "can't be reached" in told.err
    assert "secret" not in told.err


def test_other_addresses_are_those_of_apprise_and_redirects_are_not_followed(hook, monkeypatch):
    (_, port), got = hook[0].rsplit(":", 1), hook[1]
    labkit.start_run("first").fail("boom <!channel>")
    at = [f"json://user:secret@127.0.0.1:{port}/{path}" for path in ("fine", "broken", "away")]
    told = answer("watch", "first", *(word for one in at for word in ("--notify", one)))
    assert sorted(path for path, _ in got) == ["/away", "/broken", "/fine"]
    assert {body["message"] for _, body in got} == {"first: failed: boom <\u200b!channel>"}
    assert told.err.count("JSON has not taken: first: failed") == 2 and "secret" not in told.err
    assert "allowed: https" in refused("watch", "first", "--notify", "nothing://x")
    monkeypatch.setitem(sys.modules, "apprise", None)  # not installed
    assert "extra notify" in refused("watch", "first", "--notify", "tgram://secret/chat")


def test_an_answer_without_an_end_is_not_waited_for(hook):
    address, got = hook
    labkit.start_run("first").finish()
    began = time.monotonic()
    assert answer("watch", "first", "--notify", f"{address}/endless").code == 0
    assert time.monotonic() - began < 5
    assert len(got) == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nothing"], "no run at 'nothing'"),
        (["--notify", "slack"], "--notify is 'slack'"),
        (["--notify", "file:///etc/passwd"], "--notify"),
        (["--when", "acuracy>1"], "accuracy"),
        (["--when", ""], "--when is ''"),
        (["--notify", "http://host:99999/x"], "--notify"),
        (["--notify", "http://a..b/x"], "--notify"),
        (["--when", "accuracy>much"], "much"),
        (["--every", "nan"], "--every"),
    ],
)
def test_bad_input_is_one_line(words, part):
    assert part in refused("watch", *words)


@pytest.mark.long
def test_without_runs_it_waits_for_ctrl_c():
    labkit.start_run("old").finish()
    child = subprocess.Popen(
        [sys.executable, "-m", "labkit", "watch", "--every", "0.2"], stdout=subprocess.PIPE, text=True
    )
    time.sleep(4)
    labkit.start_run("new").finish()
    assert "new: finished" in child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert cli.main(["runs"]) == 0


def test_a_message_of_a_run_calls_nobody_and_is_one_line(hook):
    address, got = hook
    labkit.start_run("first").fail("boom <!channel> @everyone\n12:00:00 other: finished")
    told = answer("watch", "first", "--notify", f"{address}/good")
    assert "first: failed: boom <!channel> @everyone\\n12:00:00 other" in told.out
    [(_, body)] = got
    assert "<!channel>" not in body["text"]
    assert "@everyone" not in body["text"] + body["content"]
