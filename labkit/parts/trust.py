"""Consent to what a record would make this machine do: run a file, listen on an address.

A run directory is data: tables, charts, evaluations and predictions need no consent. To train on from
somebody else's record may run the Python file that it names, or open ports. This account consents by starting
a run itself, or by ``--trust``. The consent is for one configuration and the bytes of its files: it is an
HMAC-SHA-256 over both, kept in the account's state folder, with a key that is kept there too. So whoever can
write to a run, but not to that folder, can't give it; and a run stays trusted when it is moved or renamed.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.config import Config, fields_by_name
from labkit.config.config import PLACES
from labkit.errors import InputError, reason_of, short
from labkit.home import expanded, state_home
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import open_regular

# What a launcher and the dashboard hand on to the processes that they start: the digest of checked files.
APPROVED = "LABKIT_APPROVED"
LARGEST_FILE = 2**20  # bytes of a file of code
LARGEST_SAVED = 2**31  # of a saved Keras model
Tasks = tuple[int, int] | None  # of a cluster: its workers and parameter servers
_LARGEST_LIST = 2**24  # bytes; a consent has 65


def acts(name: str, value: Any) -> bool:
    """Return whether the value of a field runs a file or opens ports. A built-in part runs no file."""
    info = fields_by_name().get(name)
    if info is None or not info.acts or value == info.default:
        return False
    return not info.is_code or info.file_of(value) is not None


def acting(config: Config) -> dict[str, Any]:
    """Return the values that run a file or open ports, by name; empty for most runs."""
    return {name: value for name, value in config.flat().items() if acts(name, value)}


def files_of(config: Config) -> dict[str, bytes]:
    """Return the content of each file that a training with ``config`` runs, by its path.

    Raises InputError for one that can't be read, is no regular file, or has more than 1 MiB, and for two of
    one name: a run keeps copies of them in one folder.
    """
    files: dict[str, bytes] = {}
    for name, value in acting(config).items():
        info = fields_by_name()[name]
        if (named := info.file_of(value)) is not None:
            path = expanded(named).absolute()
            if any(Path(other).name == path.name for other in files if other != str(path)):
                raise InputError(
                    f"{info.flag} {path} has the name of another file of code; rename one of them"
                )
            files[str(path)] = content_of(info.flag, path)
    return files


def content_of(flag: str, path: Path) -> bytes:
    """Return the content of the file that a flag names. Raises InputError as ``files_of`` does."""
    largest = LARGEST_SAVED if path.suffix == ".keras" else LARGEST_FILE
    try:
        with open_regular(path) as file:  # a pipe would be waited for, a device has no end
            content = file.read(largest + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{flag} {path} can't be read: {getattr(error, 'strerror', error)}") from None
    if len(content) > largest:
        raise InputError(f"{flag} {path} has more than {largest:,} bytes, the most that it may have")
    return content


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return a text that tells files and their contents, also none, from any others."""
    # By their names: a run has copies of them elsewhere.
    digests = {Path(path).name: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def check_approved(files: Mapping[str, bytes], approved: str | None = None) -> None:
    """Refuse files other than those that were checked, here or by the process that started this one."""
    approved = os.environ.get(APPROVED) if approved is None else approved
    if approved is not None and approved != digest_of(files):
        names = ", ".join(files) or "a file of code"
        raise InputError(f"{names} has changed since it was checked; start again")


def demands(config: Config, files: Mapping[str, bytes], tasks: Tasks = None) -> str:
    """Return what a training with ``config`` would do beside training, in words; "" for most runs."""
    known = fields_by_name()
    said = [
        f"{known[name].acts} {value!r}"
        for name, value in acting(config).items()
        if known[name].file_of(value) is None
    ]
    ran = [
        f"run {path!r}, whose SHA-256 is {hashlib.sha256(content).hexdigest()}"
        for path, content in files.items()
    ]
    started = [f"start {sum(tasks)} processes that listen on ports"] if tasks else []
    return " and ".join([*ran, *said, *started])


def check_trust(
    run: RunDirectory,
    config: Config,
    files: Mapping[str, bytes],
    tasks: Tasks = None,
    *,
    trust: bool = False,
) -> None:
    """Refuse what the record of a run would make this machine do, unless this account consents to it.

    Args:
        run: whose record it is.
        config: as it is recorded; where run and data lie doesn't matter.
        files: from ``files_of``.
        tasks: how many workers and parameter servers continue it; None: one process.
        trust: whether the user consents now; that is remembered.

    Raises InputError, which names files, digests and addresses.
    """
    if trust:
        accept(config, files, tasks, now=True)
    elif not is_accepted(config, files, tasks):
        would = demands(config, files, tasks)
        raise InputError(
            f"{run.path} would {would}, but your account hasn't started it like this; if you trust "
            "what it does, add --trust"
        )


def check_preset_file(path: str, values: Mapping[str, Any]) -> None:
    """Refuse a preset's file with code that this account has never trained with, or that opens ports.

    Raises InputError with the flag to give in person.
    """
    for name, value in values.items():
        if not acts(name, value):
            continue
        info = fields_by_name()[name]
        file = info.file_of(value)
        if file is None or not is_code_accepted(content_of(info.flag, expanded(file).absolute())):
            raise InputError(
                f"--preset {path} has {info.flag} {short(value)}, which this account hasn't trained with; to "
                f"allow it, give {info.flag} yourself"
            )


def with_consent(config: Config) -> tuple[Config, str]:
    """Return a recorded configuration without what this account hasn't consented to, and that in words."""
    found = acting(config)
    try:
        if is_accepted(config, files_of(config)):
            return config, ""
    except InputError:  # a file that isn't here
        pass
    known = fields_by_name()
    words = ", ".join(f"{name}={value!r}" for name, value in found.items())
    left_out = [name for name, info in known.items() if name in found or info.of_code in found]
    return config.replace({name: known[name].default for name in left_out}), words


def accept(config: Config, files: Mapping[str, bytes], tasks: Tasks = None, *, now: bool = False) -> None:
    """Remember that this account consents. Who consents to several processes does so to one, too.

    Args:
        now: whether the user says so. Raises InputError then if the state folder can't be written; at the
            start of a training that is passed over.
    """
    if is_accepted(config, files, tasks) and is_accepted(config, files):
        return
    try:
        key = _key()
        lines = {_consent(key, config, files, one) + "\n" for one in (None, tasks)}
        lines |= {_consent_to_code(key, content) + "\n" for content in files.values()}
        descriptor = os.open(_folder() / "trusted", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a") as file:
            file.write("".join(lines))
    except OSError as error:
        if now:
            raise InputError(
                f"the consent can't be kept in {state_home()}: {reason_of(error)}; make that folder "
                "writable, or set XDG_STATE_HOME to one that is"
            ) from None


def is_accepted(config: Config, files: Mapping[str, bytes], tasks: Tasks = None) -> bool:
    """Return whether this account has consented to this configuration with these files, or needn't."""
    if not acting(config) and tasks is None:
        return True
    return _is_known(lambda key: _consent(key, config, files, tasks))


def is_code_accepted(content: bytes) -> bool:
    """Return whether this account has trained with a file of this content, or consented to it."""
    return _is_known(lambda key: _consent_to_code(key, content))


def _is_known(line: Callable[[bytes], str]) -> bool:
    """Return whether the list of consents has the line that is made with the account's key."""
    try:
        with open(_folder() / "trusted", "rb") as file:
            known = file.read(_LARGEST_LIST).split()
        wanted = line(_key()).encode()
    except OSError:
        return False
    return any(hmac.compare_digest(wanted, one) for one in known)


def _consent_to_code(key: bytes, content: bytes) -> str:
    return hmac.new(key, b"code:" + hashlib.sha256(content).digest(), hashlib.sha256).hexdigest()


def _consent(key: bytes, config: Config, files: Mapping[str, bytes], tasks: Tasks) -> str:
    known = fields_by_name()
    settings = {
        name: known[name].canonical(value) for name, value in config.flat().items() if name not in PLACES
    }
    text = json.dumps([settings, digest_of(files), tasks], sort_keys=True)
    return hmac.new(key, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def _folder() -> Path:
    """Return the account's state folder, which nobody else may open. Raises OSError where it isn't so."""
    folder = state_home()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = os.stat(folder)
    if found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another account")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def _key() -> bytes:
    """Return the account's key of 32 random bytes, made at the first call. Raises OSError."""
    path = _folder() / "key"
    if not path.exists():
        made = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
        made.write_bytes(b"")
        made.chmod(0o600)
        made.write_bytes(secrets.token_bytes(32))
        with suppress(FileExistsError):  # another process was faster; its key counts
            os.link(made, path)
        made.unlink()
    return path.read_bytes()
