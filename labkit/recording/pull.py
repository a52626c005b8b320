"""``labkit pull``: runs of another machine, copied over ssh by rsync as they grow."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import InputError, short
from labkit.run_directory import RunDirectory, RunLock, write_json_atomic
from labkit.run_directory.directory import ACTIVE_STATES, make_private
from labkit.run_directory.disk import holds_something_else
from labkit.run_directory.files import read_object
from labkit.run_directory.find import remember

_SOURCE = re.compile(r"([^\s:\[\]-][^\s:\[\]]*|(?:[^\s:@]+@)?\[[0-9A-Fa-f:.%]+\]):(?!:)(.*)", re.DOTALL)
# A line of rsync --list-only: mode, size, time, name.
_LISTED = re.compile(r"-\S+\s+([\d,.]+\s+\d+/\d+/\d+ \d+:\d+:\d+) (?:(.+)/)?config\.json")
# What of a run is copied, by rsync's rules. Files that only grow are copied in place, so that whoever follows
# them reads only what is new; the others are replaced as a whole. Notes are those of the people here.
_SMALL = ("- *.jsonl", "- *.log", "- .*", "- /*/notes.json", "- /*/pulled.json", "+ /*/*.json")
_FOLDERS = ("predictions", "media", "cluster", "code")
_REPLACED = (*_SMALL, *(f"+ /*/{name}/***" for name in _FOLDERS), "- *")
_GROWING = ("- .*", "+ /*/*.jsonl", "+ /*/*.log", "+ /*/media/", "+ /*/cluster/", "+ /*/*/*.jsonl", "- *")
# Of what ssh and rsync print. A shell that prints a greeting disturbs rsync.
_REASON = re.compile("^ssh: |denied|failed|refused|timed out|shell clean")
SECONDS_OF_SILENCE = 30  # after which a transfer counts as broken
SAME_CLOCK = 2.0  # seconds; the other machine tells its time in whole ones


class Unreachable(InputError):
    """The other machine or its folder can't be reached; later it may be."""


@dataclass
class Pull:
    """Copies the runs of a folder of another machine into a folder of this one, again and again.

    Args:
        source: ``HOST:FOLDER`` as rsync has it; the folder holds runs, or is one.
        into: the folder for the runs.
        ssh: words of the command that reaches the host.

    Raises InputError for a source that isn't of this form.
    """

    source: str
    into: Path
    ssh: Sequence[str] = ("ssh",)
    _left_out: set[str] = field(default_factory=set)
    _states: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = _SOURCE.fullmatch(self.source)
        if found is None:
            raise InputError(
                f"{short(self.source)} names no folder of another machine; allowed: HOST:FOLDER, such as "
                "gpu7:runs"
            )
        self._host, folder = found[1], re.sub(r"^~(/|$)", "", found[2])
        self._of_ssh = self._host.replace("[", "").replace("]", "")  # which takes an IPv6 address as it is
        self._folder = folder.rstrip("/") or folder[:1] or "."

    def follow(self, seconds: float | None) -> Iterator[str]:
        """Copy until a single run has ended; of a folder with runs, without an end. Yields lines for people.

        Args:
            seconds: between two copies; None: copies once.

        Raises InputError where the first copy fails, and where a single run can't be copied any more.
        """
        with ExitStack() as stack:
            self._links = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-")))
            stack.callback(self._close)
            self._ahead = self._clock_ahead()
            locks: dict[str, RunLock] = {}
            stack.callback(lambda: list(map(RunLock.release, locks.values())))
            single, lines = self._copy(locks)
            yield from lines
            wait = seconds or 0.0
            while seconds is not None and (not single or any(map(_is_active, self._runs))):
                time.sleep(wait)
                try:
                    single, lines = self._copy(locks)
                    yield from lines
                    wait = seconds
                except Unreachable as error:
                    wait = min(60.0, max(2 * wait, 1.0))
                    yield f"{error}; again in {wait:.0f} s"

    # ---- one copy

    def _copy(self, locks: dict[str, RunLock]) -> tuple[bool, list[str]]:
        """Copy once. Returns whether the source is a single run, and lines about what has changed."""
        listed = self._listed()
        single = "" in listed
        place = self._folder
        if single:
            place, slash, name = self._folder.rpartition("/")
            if name in ("", ".", ".."):
                raise InputError(f"{self.source} is a run whose name isn't told; give its folder by name")
            listed = {name: listed[""]}
            place = place or slash
        self._place = f"{self._host}:{_with_slash(place)}"
        problems = {} if listed else {"": f"{self.source} holds no runs yet"}
        chosen = {}
        for name, config in listed.items():
            if not (why := self._taken(name, config, locks)):
                chosen[name] = config
            elif single:
                raise InputError(why)
            else:
                problems[name] = f"{name} is left out: {why}"
        lines = [line for name, line in problems.items() if name not in self._left_out]
        self._left_out |= problems.keys()
        for name, config in chosen.items():
            self._mark(name, config)
        if chosen:
            rules = [*(f"+ /{_literally(name)}/" for name in chosen), "- /*"]
            self._rsync(rules + list(_REPLACED), self._place, "--delay-updates")
            self._rsync(rules + list(_GROWING), self._place, "--inplace")
        self._runs = [RunDirectory(self.into / name) for name in chosen]
        for run in self._runs:
            lines += self._told(run, locks)
        return single, lines

    def _listed(self) -> dict[str, str]:
        """Return the runs of the folder, "" for the folder itself, with size and time of their settings."""
        rules = ["+ /config.json", "+ /*/", "+ /*/config.json", "- *"]
        place = f"{self._host}:{_with_slash(self._folder)}"
        listing = self._rsync(rules, place, "--list-only", "--no-h", into=False)
        found = {match[2] or "": match[1] for match in map(_LISTED.fullmatch, listing.splitlines()) if match}
        if "" in found:
            return {"": found[""]}
        return {name: at for name, at in found.items() if not name.startswith(".")}  # which isn't a run's

    def _taken(self, name: str, config: str, locks: dict[str, RunLock]) -> str:
        """Return why a run can't be copied; "" if it can. The one that another machine writes is locked."""
        if re.search(r"\\#\d{3}", name):  # as rsync writes it
            return "its name has a control character; rename it there"
        run = RunDirectory(self.into / name)
        if not os.path.lexists(run.path):
            make_private(self.into)
            run.path.mkdir()
        elif run.path.is_symlink():
            return f"{run.path} is a link"
        elif read_object(run.pulled_path).get("from") != self._place + name and (
            run.exists() or holds_something_else(run)
        ):
            return f"{run.path} holds something else, or went on here; choose another folder with --into"
        folders = [folder for folder in (run.checkpoints_path, run.numerics_path) if folder.is_dir()]
        here = [folder.name for folder in folders if any(folder.iterdir())]
        if here and read_object(run.pulled_path).get("config") not in (None, config):
            old = run.path / here[0]
            return f"its settings were written anew there, and {old} is of before; move that away to go on"
        if name not in locks and _is_active(run):
            lock = RunLock(run)
            if not lock.acquire():
                return f"another process writes {run.path}"
            locks[name] = lock
        return ""

    def _mark(self, name: str, config: str) -> None:
        """Write down where a run comes from; if it was started over, remove what was copied before."""
        run = RunDirectory(self.into / name)
        mark = {"from": self._place + name, "config": config, "clock_ahead": self._ahead}
        before = read_object(run.pulled_path)
        if before and before.get("config") != config:
            _forget(run)
        if before != mark:
            write_json_atomic(run.pulled_path, mark)

    def _told(self, run: RunDirectory, locks: dict[str, RunLock]) -> list[str]:
        """Return a line if the run is new or in another state. One that has ended may be continued here."""
        status, before = run.read_status(), self._states.get(run.name)
        if not _is_active(run) and run.name in locks:
            locks.pop(run.name).release()
        if before is None:
            remember(run)
        state = self._states[run.name] = status.liveness() if status else "no status yet"
        step = f", step {status.step:,} of {status.total_steps:,}" if status and status.total_steps else ""
        return [] if state == before else [f"{run.path}: {state}{step}"]

    # ---- the other machine

    def _clock_ahead(self) -> float:
        """Return by how many seconds the other machine's clock is ahead; 0 if it may be the same."""
        began = time.time()
        patience = None if sys.stdin.isatty() else SECONDS_OF_SILENCE  # somebody may type a password
        told = self._run([*self._ssh(), self._of_ssh, "date +%s"], patience).split()
        try:
            ahead = int(told[-1]) + 0.5 - (began + time.time()) / 2
        except (IndexError, ValueError):
            answer = short(" ".join(told))
            raise InputError(f"{self._host} answers `date +%s` with {answer}; allowed: a number") from None
        return round(ahead, 1) if abs(ahead) > SAME_CLOCK else 0.0

    def _ssh(self) -> list[str]:
        """Return the command that reaches the host. Its calls share a connection."""
        options = {
            "ControlMaster": "auto",
            "ControlPath": f"{self._links}/%C",
            "ControlPersist": "60",
            "ConnectTimeout": "10",
            "ServerAliveInterval": "10",
            # Only a terminal can be asked for a password.
            "BatchMode": "no" if sys.stdin.isatty() else "yes",
        }
        return [*self.ssh, *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]

    def _rsync(self, rules: Sequence[str], place: str, *flags: str, into: bool = True) -> str:
        """Copy what the rules allow. Returns what rsync printed."""
        filters = self._links / "rules"
        filters.write_text("".join(f"{rule}\n" for rule in rules), "utf-8", "surrogateescape")
        # Without -l, -D and -p: no links, devices and modes of the other machine.
        command = ["rsync", "-8rts", "--omit-dir-times", "--prune-empty-dirs", "--modify-window=-1"]
        command += [f"--timeout={SECONDS_OF_SILENCE}", f"--filter=. {filters}", *flags]
        return self._run(
            [*command, "-e", shlex.join(self._ssh()), "--", place, *([f"{self.into}/"] if into else [])]
        )

    def _run(self, command: Sequence[str], patience: float | None = None) -> str:
        # Times of a listing must be the same wherever and whenever this runs.
        variables: Mapping[str, str] = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        try:
            done = subprocess.run(command, env=variables, capture_output=True, timeout=patience, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{self.source} can't be read: no answer within {patience:g} s") from None
        except FileNotFoundError:
            raise InputError(f"labkit pull needs {command[0]}, which isn't installed here") from None
        told = done.stderr.decode(errors="replace")
        if done.returncode in (0, 24):  # 24: a file was replaced while rsync looked at it
            return done.stdout.decode("utf-8", "surrogateescape")
        if done.returncode == 127 or "rsync: command not found" in told:
            raise InputError(f"{self._host} has no rsync; install it there")
        lines = [line.strip() for line in told.splitlines() if line.strip()] or [
            f"exit code {done.returncode}"
        ]
        why = next(filter(_REASON.search, lines), lines[-1])
        login = f"; `{shlex.join([*self.ssh, self._of_ssh])}` must log in without a question"
        way = login if re.search("denied|verification", why) else ""
        raise Unreachable(f"{self.source} can't be read: {why.rstrip('.')}{way}")

    def _close(self) -> None:
        subprocess.run([*self._ssh(), "-O", "exit", self._of_ssh], capture_output=True, check=False)


def _forget(run: RunDirectory) -> None:
    """Remove what was copied of a run, and nothing that somebody brought or wrote."""
    for path in run.path.iterdir():
        if path.name in _FOLDERS and not path.is_symlink():
            shutil.rmtree(path)
        elif path.suffix in (".json", ".jsonl", ".log") and path not in (run.notes_path, run.pulled_path):
            path.unlink()


def _is_active(run: RunDirectory) -> bool:
    """Return whether the other machine may still train a run, of which some is here."""
    status = run.read_status()
    return run.exists() and (status is None or status.state in ACTIVE_STATES)


def _with_slash(folder: str) -> str:
    return "" if folder in ("", ".") else folder.rstrip("/") + "/"


def _literally(name: str) -> str:
    """Return a name as a pattern of rsync, in which a backslash counts only beside a wildcard."""
    return re.sub(r"([\\*?\[])", r"\\\1", name) if re.search(r"[*?\[]", name) else name
