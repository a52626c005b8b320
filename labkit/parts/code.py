"""Code that people bring: what a Python file names, run only by who consents to its very bytes.

A process runs a file's content if it was told to do so by this account: on the command line, by a function of
``import labkit``, or earlier (``labkit.parts.trust``). Tables, charts and rows never come here.
"""

import ast
import difflib
import hashlib
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.config import Config, fields_by_name
from labkit.config.fields import CODE
from labkit.errors import InputError, nearest
from labkit.home import expanded
from labkit.parts.trust import content_of, is_code_accepted
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing

# The digests of the contents that this process may run.
_allowed: set[str] = set()
# The modules that ``named_object`` has run, by digest: a class is one class for the whole process.
_modules: dict[str, ModuleType] = {}
_UNTIL = "until-"  # begins the name of a folder in a run's code/: that of the steps up to a number
_being_run: set[str] = set()


def allow(files: Mapping[str, bytes]) -> None:
    """Let this process run these contents, from wherever a file has them."""
    _allowed.update(hashlib.sha256(content).hexdigest() for content in files.values())


def with_whole_paths(config: Config) -> Config:
    """Return the configuration with files of code by their whole paths. Raises InputError."""
    changed = {}
    for name, info in fields_by_name().items():
        value = config.flat()[name]
        if info.acts and (path := info.file_of(value)) is not None:
            whole = str(expanded(path).absolute())
            changed[name] = whole + value.removeprefix(path)
    return config.replace(changed) if changed else config


def record(run: RunDirectory, files: Mapping[str, bytes]) -> None:
    """Keep copies of files of code with the run."""
    if not files:
        return
    run.code_path.mkdir(exist_ok=True)
    for path, content in files.items():
        with replacing(run.code_path / Path(path).name) as temporary:
            temporary.write_bytes(content)


def check_unchanged(run: RunDirectory, config: Config, files: Mapping[str, bytes], way_out: str) -> None:
    """Raise InputError, with the first difference, if a run was trained with other code of its network.

    Callbacks may change: they are called with what a step has made.

    Args:
        run: that was trained before.
        config: of the training that is to continue it.
        files: what this would run, from ``files_of``.
        way_out: for the error.
    """
    for path, kept in _changed(run, config, files):
        how = "" if not path.endswith(".py") else f" ({_difference(kept, files[path])})"
        raise InputError(f"{path} has changed since {run.path} was trained with it{how}; {way_out}")


def _changed(run: RunDirectory, config: Config, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the path of each file of the network's code that has changed, and what the run has of it."""
    named = (info.code_of(config.flat()[name]) for name, info in fields_by_name().items() if info.identity)
    for path in dict.fromkeys(filter(None, named)):
        copy = run.code_path / Path(path).name
        if copy.exists() and (kept := content_of("code", copy)) != files[path]:
            yield path, kept


def keep_replaced(run: RunDirectory, config: Config, files: Mapping[str, bytes], step: int) -> Iterator[str]:
    """Keep the code of the steps up to ``step`` where it has changed since. Yields a line for each file.

    Arguments: as of ``check_unchanged``. The new code isn't recorded yet.
    """
    for path, content in _changed(run, config, files):
        kept = run.code_path / f"{_UNTIL}{step}" / Path(path).name
        if not kept.exists():  # no step was made with another change at this step
            kept.parent.mkdir(exist_ok=True)
            with replacing(kept) as temporary:
                temporary.write_bytes(content)
        yield (
            f"note: {path} has changed; steps after {step} and all evaluations use the new code; that of the "
            f"steps before is {kept}"
        )


def code_changed_after(run: RunDirectory) -> int:
    """Return the last step that was made with other code of the network; 0 if all have the same."""
    names = (path.name.removeprefix(_UNTIL) for path in run.code_path.glob(f"{_UNTIL}*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def check_code_of_step(run: RunDirectory, step: int) -> None:
    """Raise InputError if a step was made with other code than the run has now."""
    if step <= (last := code_changed_after(run)):
        raise InputError(
            f"step {step} of {run.path} was made with other code, {run.code_path / f'{_UNTIL}{last}'}; "
            f"allowed: steps after {last}"
        )


def note_of_code(run: RunDirectory, step: int) -> str:
    """Return a line if the code of a run has changed since the checkpoint of a step; else ""."""
    last = code_changed_after(run)
    if step >= last:
        return ""
    return f"note: the code changed after step {last}; the new code evaluates the checkpoint of step {step}"


def _difference(old: bytes, new: bytes) -> str:
    """Return how many lines of a text have changed, and the first of them."""
    before, after = (content.decode("utf-8", "replace").splitlines() for content in (old, new))
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    shown = " ".join(textwrap.shorten(line, 60, placeholder=" …") for line in changed[:2])
    return f"{counted(len(changed), 'line')}: {shown}"


def module_of(flag: str, path: Path, content: bytes) -> ModuleType:
    """Run a Python file and return it as a module.

    Args:
        flag: that names the file.
        path: of the file.
        content: of the file. It isn't read again: what was checked is what runs.

    Raises InputError where it can't be run.
    """
    name = f"labkit_code_{hashlib.sha256(content).hexdigest()[:16]}"
    if name in _being_run:
        raise InputError(
            f"{flag} {path} uses labkit when it is read; put that under if __name__ == '__main__':"
        )
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # where dataclasses and pickle look for the classes of the file
    _being_run.add(name)
    try:
        refuse_imports_from_beside(f"{flag} {path}", content)
        exec(compile(content, str(path), "exec"), vars(module))
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        neighbour = f"{error.name}.py" if isinstance(error, ModuleNotFoundError) else ""
        if neighbour and (path.parent / neighbour).is_file():
            raise InputError(
                f"{flag} {path} imports {neighbour} beside it, but a run keeps one file; write what it needs "
                f"into {path.name}, or install {neighbour} as a package"
            ) from None
        raise InputError(f"{flag} {path} can't be run: {first_line(error)}") from None
    finally:
        _being_run.discard(name)
    return module


def refuse_imports_from_beside(what: str, content: bytes | str) -> None:
    """Raise InputError where code imports a module that lies beside the script or notebook of this process.

    The run would train, and nobody could resume or evaluate it. Raises SyntaxError for what isn't Python.
    """
    tree = ast.parse(content)
    for block in tree.body:
        if isinstance(block, ast.If) and re.search("__name__|TYPE_CHECKING", ast.unparse(block.test)):
            block.body = []  # doesn't run when a run needs the code
    for node in ast.walk(tree):
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in (one.partition(".")[0] for one in modules):
            if _is_beside(module):
                raise InputError(
                    f"{what} imports {module}, which lies beside your script or notebook, but a run keeps "
                    f"one file; write all that it needs into one file, or install {module} as a package"
                )


def _is_beside(module: str) -> bool:
    main = sys.modules["__main__"]
    places = [os.getcwd()]
    of_script = getattr(getattr(main, "__spec__", None), "name", "__main__") == "__main__"  # or its folder
    if of_script and getattr(main, "__file__", None):
        places.append(os.path.dirname(os.path.realpath(str(main.__file__))))
    beside = {os.path.realpath(place) for place in places}
    paths = list(sys.path)
    at = next((at for at, path in enumerate(paths) if os.path.realpath(path or ".") in beside), None)
    if sys.flags.safe_path or at is None:
        return False
    own = paths.pop(at)  # the same folder may be there once more, as that of a package
    finders = [finder for finder in sys.meta_path if finder is not PathFinder]
    return (
        PathFinder.find_spec(module, [own]) is not None
        and PathFinder.find_spec(module, paths) is None
        and not any(finder.find_spec(module, None) for finder in finders)
    )


def allowed_content(flag: str, path: Path) -> bytes:
    """Return the content of a file of code. Raises InputError if it can't be read, or may not be run."""
    content = content_of(flag, path)
    digest = hashlib.sha256(content).hexdigest()
    if digest not in _allowed and not is_code_accepted(content):
        run = path.parent.parent if path.parent.name == "code" else path
        raise InputError(
            f"{path} would be run, whose SHA-256 is {digest}, but your account hasn't trained with it; "
            f"read it, and if you trust it: labkit trust {shlex.quote(str(run))}"
        )
    return content


def named_object(flag: str, reference: str) -> Any:
    """Return what ``FILE.py:NAME`` names.

    Raises InputError if the file can't be read or run, has no such name, or may not be run: then the sentence
    says how to consent.
    """
    found = CODE.fullmatch(reference)
    assert found is not None, reference
    path, name = expanded(found["path"]).absolute(), found["name"]
    content = allowed_content(flag, path)
    digest = hashlib.sha256(content).hexdigest()
    if digest not in _modules:
        _modules[digest] = module_of(flag, path, content)
    names = vars(_modules[digest])
    if name not in names:
        own = [name for name, value in names.items() if callable(value) and not name.startswith("_")]
        near = nearest(name, own)
        hint = f"it has: {', '.join(own) or 'nothing that can be called'}"
        raise InputError(f"{flag} {path} has no {name!r}; {f'did you mean {near!r}?' if near else hint}")
    return names[name]


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message, of Keras's the first with a reason."""
    before = r"(?s)^.*Error encountered:\s+|^Exception encountered when calling [^\n]*\s+|\x1b\[\d*m"
    message = re.sub(before, "", str(error)).strip() or str(error)
    return f"{type(error).__name__}: {message}".splitlines()[0][:300]
