"""Readers of a run directory see exactly what its writer wrote, even if the writer was killed."""

import itertools
import json
import math
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.run_directory import RunDirectory, Status, list_runs, process_alive, write_json_atomic
from labkit.run_directory.disk import check_writable
from labkit.run_directory.files import open_run_file
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader
from labkit.run_directory.rows import RowReader

numbers = st.floats(allow_nan=True, allow_infinity=True)
written_row = st.fixed_dictionaries({"split": st.just("train"), "step": st.integers(1), "loss": numbers})
written_rows = st.lists(written_row, max_size=30)


def row(step: int, **values: object) -> dict[str, object]:
    return {"split": "train", "step": step, "loss": 1.0 / step, **values}


def write(path: Path, rows: list, mode: str = "a") -> None:
    with open(path, mode) as file:
        file.writelines(json.dumps(value) + "\n" for value in rows)


def same(left: list[dict], right: list[dict]) -> bool:
    return json.dumps(left) == json.dumps(right)  # equal with NaN equal to itself


@given(rows=written_rows, cuts=st.lists(st.integers(1, 400), max_size=12))
@settings(max_examples=80, deadline=None)
def test_a_reader_sees_each_row_once_however_the_file_grows(tmp_path_factory, rows, cuts):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.append(rows)
    writer.close()
    data = path.read_bytes()
    for line in data.splitlines():  # NaN and infinities included
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    path.unlink()
    reader, seen = RowReader(path), []
    with open(path, "wb", buffering=0) as file:
        for cut in [*cuts, len(data)]:
            file.write(data[:cut])
            data = data[cut:]
            seen += reader.poll()
    assert same(seen, rows)
    assert same(reader.rows, rows)
    assert reader.damaged_lines == 0


@pytest.mark.parametrize("length", [10, 65_536, 200_000])
def test_a_partial_last_line_is_skipped_and_the_next_writer_removes_it(tmp_path, length):
    path = tmp_path / "metrics.jsonl"
    write(path, [row(1)])
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * length)
    reader = MetricsReader(path)
    assert reader.poll() and reader.rows == [row(1)]
    MetricsWriter(path).append([row(2)])
    assert path.read_bytes().startswith(whole + b'{"split"')
    assert reader.poll() and reader.rows == [row(1), row(2)]
    assert reader.damaged_lines == 0


@given(
    events=st.lists(
        st.one_of(
            st.tuples(st.just("rows"), st.integers(1, 9)),
            st.tuples(st.just("resume_point"), st.integers(0, 30)),
            st.tuples(st.just("poll"), st.just(0)),
        ),
        max_size=30,
    ),
    limit=st.sampled_from([None, 1, 50, 1000]),
)
@settings(max_examples=80, deadline=None)
def test_each_step_counts_once_after_any_number_of_resumptions(tmp_path_factory, events, limit):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    writer, reader, step, truth = MetricsWriter(path), MetricsReader(path), 0, []
    for serial, (kind, number) in enumerate([*events, ("poll", 0)]):
        if kind == "rows":
            rows = [row(step + place, serial=serial) for place in range(1, number + 1)]
            writer.append(rows)
            truth += rows
            step += number
        elif kind == "resume_point" and number <= step:
            writer.mark_resume_point(number)
            truth = [value for value in truth if value["step"] <= number]
            step = number
        elif kind == "poll":
            reader.poll(limit)
    while not reader.caught_up:
        reader.poll(limit)
    writer.close()
    assert reader.rows == truth
    assert [value["step"] for value in truth] == list(range(1, step + 1))


@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_replaced_file_is_read_from_its_beginning(tmp_path, longer, in_place):
    path = tmp_path / "metrics.jsonl"
    write(path, [row(step, session=1) for step in range(1, 4)])
    reader = MetricsReader(path)
    reader.poll()
    if not in_place:
        path.unlink()  # the new file often gets the old one's inode
    write(path, [row(step, session=2) for step in range(1, 12 if longer else 3)], mode="w")
    reader.poll()
    assert {value["session"] for value in reader} == {2}
    assert [value["step"] for value in reader] == list(range(1, 12 if longer else 3))
    assert reader.generation == 1


def test_a_missing_file_has_no_rows_and_may_be_created_later(tmp_path):
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    assert not reader.poll() and reader.rows == []
    write(path, [row(1)])
    assert reader.poll() and len(reader.rows) == 1
    path.unlink()
    assert reader.poll() and reader.rows == []
    write(path, [row(1), row(2)])
    assert reader.poll() and len(reader.rows) == 2


@pytest.mark.parametrize(
    "line",
    [
        *(b"not json", b"[1, 2]", b'"text"', b"{", b"\xff\xfe", b"[" * 100_000, b'{"step": 1},{"step": 2}'),
        *(b'{"resumed_at_step": "soon"}', b'{"resumed_at_step": null}'),
        b'{"split": "train", "step": 1, "loss": 1.1.0}',
        *(b'{"split": "train"%s}' % step for step in (b"", b', "step": null', b', "step": "1"')),
        *(b'{"split": "train", "step": %s}' % step for step in (b"1.5", b"true")),
    ],
    ids=lambda line: str(line[:30]),
)
def test_a_damaged_line_is_counted_and_the_other_lines_are_read(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"split": "test", "step": 1}\n' + line + b'\n\n{"split": "train", "step": 2}\n')
    reader = MetricsReader(path)
    reader.poll()
    assert [value["step"] for value in reader] == [1, 2]
    assert reader.damaged_lines == 1
    write(path, [{"note": "x"}, {"step": None}, row(4), {"resumed_at_step": 2}, row(3)])
    reader.poll()
    assert row(4) not in reader.rows and reader.rows[-1] == row(3), "rows without a step hold no resuming up"


def test_a_later_poll_reads_only_what_was_appended(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write(path, [row(step) for step in range(1, 20_000)])
    reader = MetricsReader(path)
    reader.poll()
    parsed = []
    take = MetricsReader._take
    monkeypatch.setattr(
        MetricsReader, "_take", lambda reader, text: parsed.append(len(text)) or take(reader, text)
    )
    reader.poll()
    assert sum(parsed) == 0, "nothing new, nothing parsed"
    write(path, [row(20_000)])
    reader.poll()
    assert sum(parsed) < 200


def test_a_file_that_always_grows_holds_no_reader_up(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write(path, [row(step) for step in range(1, 1001)])
    monkeypatch.setattr("labkit.run_directory.reader.BLOCK_BYTES", 1000)
    reader, steps = MetricsReader(path), itertools.count(1001)
    read = MetricsReader.read

    def read_behind_a_writer(reader, max_bytes):
        write(path, [row(step) for step in itertools.islice(steps, 50)])  # more than a block
        return read(reader, max_bytes)

    monkeypatch.setattr(MetricsReader, "read", read_behind_a_writer)
    reader.poll()
    assert 1000 <= len(reader.rows) < 2000


def test_a_large_file_that_grows_while_it_is_opened_has_no_hole(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.run_directory.files._LARGE", 10)
    path, look = tmp_path / "metrics.jsonl", os.fstat
    write(path, [row(1)])

    def look_before_a_writer(descriptor):
        found = look(descriptor)
        with path.open("ab") as file:
            file.write(b"x" * 10_000)
        return found

    monkeypatch.setattr(os, "fstat", look_before_a_writer)
    with open_run_file(path) as file:
        assert file.read(1) == b"{"


KILLED_WRITER = """
import sys, pathlib
from labkit.run_directory.metrics import MetricsWriter
writer = MetricsWriter(pathlib.Path(sys.argv[1]))
start = int(sys.argv[2])
writer.mark_resume_point(start)
print("writing", flush=True)
step = start
while True:
    writer.append([{"split": "train", "step": step + place, "pad": "x" * 300} for place in range(1, 40)])
    step += 39
"""


@pytest.mark.slow
def test_a_reader_sees_every_step_once_while_writers_are_killed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    reader, last = MetricsReader(path), 0
    for _ in range(4):
        command = [sys.executable, "-c", KILLED_WRITER, str(path), str(last)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout.readline() == "writing\n"
            goal = last + 2_000
            while last < goal:
                assert writer.poll() is None
                reader.poll()
                steps = [value["step"] for value in reader]
                assert steps == list(range(1, len(steps) + 1))
                last = len(steps)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(30)
            writer.stdout.close()
        reader.poll()
        last = len(reader.rows)
    assert len(reader.resume_points) == 4
    assert reader.damaged_lines == 0
    assert [value["step"] for value in reader] == list(range(1, last + 1))


def here(**values: object) -> Status:
    defaults = {"state": "running", "heartbeat": 1000.0, "pid": os.getpid(), "host": socket.gethostname()}
    return Status(**{**defaults, **values})


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(30)
    return process.pid


def test_a_reader_tells_running_stalled_lost_and_ended_apart():
    fresh, old = 1000.0 + 1, 1000.0 + here().stalled_after_seconds + 1
    assert here().liveness(fresh) == "running"
    assert here(state="starting").liveness(fresh) == "starting"
    assert here().liveness(old) == "stalled"
    assert here(stalled_after_seconds=60.0).liveness(old) == "running", "the writer sets the limit"
    assert here(pid=ended_pid()).liveness(fresh) == "lost"
    assert here(pid=ended_pid(), host="another-machine").liveness(fresh) == "running"
    for state in ("finished", "interrupted", "failed"):
        assert here(state=state, pid=ended_pid()).liveness(old) == state


def test_a_zombie_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    process.stdout.read()  # returns when the process has ended; nobody has waited for it yet
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not process_alive(process.pid)
    process.wait(30)
    process.stdout.close()
    assert process_alive(os.getpid())


def test_a_status_is_read_as_written_and_invalid_fields_get_their_defaults(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.read_status() is None and run.read_environment() == {}
    status = here(step=3, total_steps=9, message="m", examples_per_second=math.inf, eta_seconds=None)
    run.write_status(status)
    assert run.read_status() == status
    run.status_path.write_text('{"state": "running", "step": "x", "heartbeat": null, "pid": [], "new": 1}')
    assert run.read_status() == Status("running")
    with pytest.raises(ValueError, match="unknown state 'asleep'"):
        run.write_status(Status("asleep"))
    with pytest.raises(InputError, match="is not a run"):
        run.read_config()
    for text, said in (("", "read"), ("{", "read"), ("[]", "isn't a JSON object"), ("[" * 100_000, "read")):
        run.status_path.write_text(text)
        run.config_path.write_text(text)
        assert run.read_status() is None
        with pytest.raises(InputError, match=said):
            run.read_config()


def test_a_failed_write_of_json_changes_nothing_and_leaves_no_file(tmp_path):
    path = tmp_path / "status.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json_atomic(path, {("no", "key"): 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["status.json"]


def test_runs_are_listed_most_recently_active_first_and_other_files_are_skipped(tmp_path):
    assert list_runs(tmp_path / "missing") == []
    for place, name in enumerate(["old", "new", "configured-only"]):
        run = RunDirectory(tmp_path / name)
        run.create()
        write_json_atomic(run.config_path, {})
        active = run.config_path
        if name != "configured-only":
            run.write_status(Status("finished"))
            active = run.status_path
        os.utime(active, (place, place))
    (tmp_path / "half-created").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [run.name for run in list_runs(tmp_path)] == ["configured-only", "new", "old"]
    assert list_runs(tmp_path / "file") == []


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o700), (0o002, 0o775), (0o022, 0o755), (0o077, 0o700)])
def test_nobody_writes_into_a_run_because_the_mask_forgot_it(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        RunDirectory(tmp_path / "run").create()
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o777)
        RunDirectory(tmp_path / "shared").create()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o777, "who made it has chosen"


def test_who_may_only_read_a_run_is_told_to_copy_it(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="copy the run to where you may write"):
        check_writable(tmp_path, "RUN")
