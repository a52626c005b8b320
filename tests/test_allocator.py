"""A command that computes starts itself anew, once, with glibc told to keep its memory."""

import os
import platform
import subprocess
import sys

import pytest

from labkit import allocator
from labkit.allocator import CHOICE, KEEPING, choose, keep_memory
from labkit.errors import InputError

GLIBC = platform.libc_ver()[0] == "glibc"
PROBE = """
import os, sys
from labkit.allocator import keep_memory
found = sorted(name for name in os.environ if name.startswith("MALLOC_"))
print(os.getpid(), sys.argv[1:], found, flush=True)
keep_memory()
print("went on", flush=True)
"""


def lines_of_probe(tmp_path, **variables: str) -> list[str]:
    script = tmp_path / "probe.py"
    script.write_text(PROBE)
    others = {name: value for name, value in os.environ.items() if name not in (*KEEPING, CHOICE)}
    command = [sys.executable, "-X", "utf8", str(script), "two words", ""]
    done = subprocess.run(
        command, env=others | variables, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(not GLIBC, reason="this system's allocator is not glibc's")
def test_it_starts_anew_once_as_the_same_process_with_the_same_arguments(tmp_path):
    first, again, end = lines_of_probe(tmp_path)
    assert first.endswith("['two words', ''] []")
    assert again == first.removesuffix("[]") + str(sorted(KEEPING)), "another process, or other arguments"
    assert end == "went on"


@pytest.mark.parametrize(
    "variables",
    [
        {CHOICE: "default"},
        {"MALLOC_TOP_PAD_": "1"},
        {"MALLOC_ARENA_MAX": "2"},
        {"LD_PRELOAD": "libtcmalloc.so.4"},
        {"TF_CPU_ALLOCATOR_USE_BFC": "true"},
    ],
)
def test_it_leaves_alone_what_somebody_has_decided(variables, monkeypatch):
    monkeypatch.setattr(os, "execve", lambda *given: pytest.fail("started anew"))
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("glibc", "2.36"))
    keep_memory(dict(variables))


def test_other_systems_have_nothing_to_set(monkeypatch):
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("", ""))
    assert choose({}) == "default"


def test_an_unknown_choice_is_refused():
    with pytest.raises(InputError, match=f"{CHOICE} is 'jemalloc'; allowed: keeping, default"):
        choose({CHOICE: "jemalloc"})
