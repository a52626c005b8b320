"""The other people who are on this machine now."""

import os
import pwd
from collections.abc import Iterator
from contextlib import suppress

FIRST_PERSON = 1000  # user ids below are the system's


def other_users() -> list[str]:
    """Return the names of the people who run processes or are logged in here, without this account."""
    found = set()
    for one in _user_ids():
        with suppress(KeyError):  # an id without a name, as inside of a container
            known = pwd.getpwuid(one)
            is_person = os.path.basename(known.pw_shell) not in ("nologin", "false", "")
            if one >= FIRST_PERSON and one != os.getuid() and is_person:
                found.add(known.pw_name)
    return sorted(found)


def _user_ids() -> Iterator[int]:
    for folder in ("/proc", "/run/user"):  # where processes are hidden, a session still has its folder
        with suppress(OSError):
            for entry in os.scandir(folder):
                if entry.name.isdigit():
                    with suppress(OSError):
                        yield entry.stat().st_uid
