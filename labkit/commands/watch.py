"""``labkit watch``: say what happens to runs, here and to an address."""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any
from urllib.parse import urlsplit

from labkit.commands.flags import Flag, RunName
from labkit.config import field_aliases
from labkit.config.config import describe
from labkit.errors import InputError
from labkit.run_directory.find import known_runs, run_to_read
from labkit.run_directory.summary import RunSummary, Summaries
from labkit.run_directory.watch import ENDED, Watched

SECONDS_TO_SEND = 10.0


def watch(
    *runs: RunName,
    when: Annotated[tuple[str, ...], Flag(metavar="CONDITION")] = (),
    notify: Annotated[tuple[str, ...], Flag(metavar="URL")] = (),
    every: float = 5.0,
) -> int:
    """Say when runs end, fail, stall or are lost, when a loss is NaN, and when a condition comes true.

    With runs, it ends with the last of them: returns 0 if all are finished, otherwise 1, also where the
    folder of one is gone. Without, it watches all runs, also those that start later, until Ctrl-C. Runs of
    another machine come with labkit pull.

    Args:
        when: Condition such as "accuracy<0.5" or "training_loss>3", as of labkit runs --filter. May be
            repeated.
        notify: Address that gets a POST with each line, as JSON with text, run, state and step. Slack,
            Mattermost and Discord show the text. With the extra notify also an address of apprise, such as
            tgram://…, mailto://… May be repeated.
        every: Seconds between two looks.
    """
    if not 0.1 <= every <= 86400:
        raise InputError(f"--every is {every:g}; allowed: 0.1 to 86400 seconds")
    named = [run_to_read(run) for run in runs]
    summaries, watched = Summaries(describe), Watched(when, field_aliases(), tell_ended=bool(named))
    is_gone = False
    with Messages(notify) as messages:
        while True:
            for gone in [run for run in named if not run.path.is_dir()]:
                print(f"{time.strftime('%H:%M:%S')} {gone.path} is gone: moved or removed")
                named.remove(gone)
                is_gone = True
            if is_gone and not named:
                return 1
            seen = summaries.of(named or known_runs())
            for run, line in watched.look(seen):
                print(f"{time.strftime('%H:%M:%S')} {line}")
                messages.send(line, run)
            if named and all(run.state in ENDED for run in seen):
                return 0 if not is_gone and all(run.state == "finished" for run in seen) else 1
            time.sleep(every)


def _of_apprise(address: str) -> Any:
    """Return what sends to an address of apprise; None for another one, and where apprise isn't installed."""
    if "://" not in address or address.lower().startswith(("http:", "https:")):
        return None
    try:
        import apprise
    except ImportError:
        return None
    return apprise.Apprise.instantiate(address, asset=apprise.AppriseAsset(http_redirects=False))


class Messages:
    """Sends lines to addresses from threads of its own, so that none holds up the watching.

    Raises InputError for an address that is neither one of HTTP nor, where it is installed, of apprise.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._targets: list[Any] = []
        for address in addresses:
            try:
                parts = urlsplit(address)
                is_one = parts.scheme in ("http", "https") and parts.port != 0 and parts.hostname
                (parts.hostname or "").encode("idna")
            except ValueError:  # of a port or a name that can't be
                is_one = None
            target = address if is_one else _of_apprise(address)
            if not target:
                raise InputError(
                    f"--notify is {address!r}; allowed: https://… or http://…, or with labkit's extra notify "
                    "an address of apprise, such as tgram://…"
                )
            self._targets.append(target)
        self._pool = ThreadPoolExecutor(4, "labkit-notify")

    def __enter__(self) -> "Messages":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def send(self, line: str, run: RunSummary) -> None:
        """Send a line, and say on stderr if that fails. Returns at once."""
        # Names and messages are the runs': no word of them calls people. Slack reads <!channel>, others @all.
        quiet = line.replace("@", "@\u200b")
        text = quiet.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        body: dict[str, Any] = {"text": text, "content": quiet, "allowed_mentions": {"parse": []}}
        body |= {"run": run.name, "state": run.state, "step": run.step}
        for target in self._targets:
            self._pool.submit(self._post if isinstance(target, str) else self._hand_over, target, body)

    @staticmethod
    def _hand_over(target: Any, body: dict[str, Any]) -> None:
        if not target.notify(body=body["content"].replace("<", "<\u200b")):
            print(f"labkit: {target.service_name} has not taken: {body['text']}", file=sys.stderr)

    @staticmethod
    def _post(address: str, body: dict[str, Any]) -> None:
        import requests

        host = urlsplit(address).hostname  # the rest of an address is often its secret
        try:
            # Redirects aren't followed: what happens to runs goes to nobody but the address.
            # The answer isn't read: it may have no end.
            with requests.post(
                address, json=body, timeout=SECONDS_TO_SEND, allow_redirects=False, stream=True
            ) as answer:
                if answer.status_code < 300:
                    return
            why = f"answers {answer.status_code} {answer.reason}"
        except (requests.RequestException, ValueError) as error:
            why = "takes too long" if isinstance(error, requests.Timeout) else "can't be reached"
        print(f"labkit: {host} {why}; not sent: {body['text']}", file=sys.stderr)
