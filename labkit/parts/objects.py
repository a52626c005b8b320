"""Objects that are given to a function of ``import labkit`` in place of a name, as files that hold them.

The file of a function or class of a notebook or script has what the object uses: imports, constants, and
other functions and classes from the same place. So other processes can rebuild it, and people can read what a
run was trained with.
"""

import ast
import builtins
import hashlib
import inspect
import linecache
import os
import symtable
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.config.optimizer import KERAS_LOSSES, KERAS_OPTIMIZERS, LEFT_TO_LABKIT
from labkit.errors import InputError, short
from labkit.parts.code import refuse_imports_from_beside
from labkit.run_directory.directory import replacing


def file_of(value: Any) -> Path | None:
    """Return the file of the module in which a function or class can be found by its name.

    None for one that is defined in a notebook, in the script that runs, or inside of a function.
    """
    path = getattr(sys.modules.get(_module_of(value)), "__file__", None) or ""
    return Path(path) if path.endswith(".py") else None


def _module_of(value: Any) -> str:
    """Return the module from which something can be imported by its name; "" if from none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return ""
    return module if getattr(sys.modules.get(module), name, None) is value else ""


def source_of(argument: str, *values: Any) -> str:
    """Return the text of a Python file that defines functions or classes under their own names.

    Args:
        argument: that the user gave them as, for the error.
        values: the functions or classes.

    Raises InputError if a source, or something that one uses, can't be written into a file for all.
    """
    imports: dict[str, str] = {}
    parts: dict[str, str] = {}
    called: dict[str, Any] = {}
    for value in values:
        _add(argument, value.__name__, value, imports, parts, called)
    text = "\n".join(sorted(imports.values())) + "\n\n\n" + "\n\n\n".join(parts.values()) + "\n"
    refuse_imports_from_beside(argument, text)
    return text


def _add(
    argument: str,
    name: str,
    value: Any,
    imports: dict[str, str],
    parts: dict[str, str],
    called: dict[str, Any],
) -> None:
    """Add the definition of a name, behind those of the names that it uses. ``called``: values by name."""
    if name in called:
        if called[name] is not value and repr(called[name]) != repr(value):
            raise InputError(
                f"{argument} has two values of the name {name!r}: {short(called[name])[:60]} and "
                f"{short(value)[:60]}; give them other names"
            )
        return
    called[name] = value
    if isinstance(value, ModuleType):
        imports[name] = f"import {value.__name__}" + _as(name, value.__name__)
    elif home := _module_of(value):
        imports[name] = f"from {home} import {value.__name__}" + _as(name, value.__name__)
    elif inspect.isfunction(value) or inspect.isclass(value):
        parts[name] = ""  # so that a function may call itself
        text = _text(argument, name, value)
        for used, other in _used(value, text).items():
            _add(argument, used, other, imports, parts, called)
        del parts[name]
        parts[name] = text
    else:
        try:
            same = bool(ast.literal_eval(repr(value)) == value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            same = False
        if not same:
            raise _unwritable(argument, name, value)
        parts[name] = f"{name} = {value!r}"


def _as(name: str, of: str) -> str:
    return "" if name == of else f" as {name}"


def _unwritable(argument: str, name: str, value: Any) -> InputError:
    return InputError(
        f"{argument} uses {name!r}, {short(value)[:60]}, which can't be written into a file for other "
        f"processes; put both into a Python file and write {argument}='FILE.py:NAME', or make it a constant"
    )


def _text(argument: str, name: str, value: Any) -> str:
    try:
        text = _class_text(value) if inspect.isclass(value) else inspect.getsource(value)
        text = textwrap.dedent(text).rstrip()
        ast.parse(text)
    except (OSError, TypeError, SyntaxError):
        raise InputError(
            f"{argument} is {short(value)[:60]}, whose source Python doesn't have; put it into a Python file "
            f"and write {argument}='FILE.py:NAME'"
        ) from None
    if value.__name__ != name or text.startswith("lambda") or "<lambda>" in value.__name__:
        raise InputError(f"{argument} is {short(value)[:60]}; give a function that is defined with def")
    return text


def _class_text(value: type) -> str:
    """Return the source of a class. In a notebook ``inspect`` finds none, but a method knows its cell."""
    methods = [method for method in vars(value).values() if inspect.isfunction(method)]
    if not methods:
        return inspect.getsource(value)
    lines = linecache.getlines(methods[0].__code__.co_filename)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == value.__name__:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "".join(lines[first - 1 : node.end_lineno])
    return inspect.getsource(value)


def _used(value: Any, text: str) -> dict[str, Any]:
    """Return what a definition takes from around it, by name."""
    names, tables = set[str](), [symtable.symtable(text, "", "exec")]
    for table in tables:  # which grows by the functions inside; their own variables aren't taken from around
        tables += table.get_children()
        read = (one for one in table.get_symbols() if one.is_referenced())
        names |= {one.get_name() for one in read if one.is_global() or table is tables[0]}
    held = [value] if inspect.isfunction(value) else vars(value).values()
    functions = [one for one in held if inspect.isfunction(one)]
    around: dict[str, Any] = dict(vars(sys.modules.get(value.__module__, builtins)))
    around |= {name: one for function in functions for name, one in function.__globals__.items()}
    for function in functions:  # what a function around it has defined
        around |= inspect.getclosurevars(function).nonlocals
    own = {value.__name__, "__class__"}
    return {
        name: around[name]
        for name in sorted(names - own)
        if name in around and getattr(builtins, name, None) is not around[name]
    }


SAVED = "model.keras"
# The parts that may be given as objects, and what they may be.
ALLOWED = {
    "augment": "'FILE.py:NAME', or a function (images, seeds) that returns images of the same shape",
    "model": "a name, 'FILE.py:NAME', a function (input_shape, num_classes) that returns a Keras model, or a "
    "Keras model",
    "loss": "a name, 'FILE.py:NAME', a function (labels, logits) that returns [batch], or a Keras loss",
    "metrics": "a list of names, also Keras's, functions (labels, logits), and metrics of Keras; or "
    "'FILE.py:NAME'",
    "optimizer": "a name, 'FILE.py:NAME', a Keras optimizer, or a function or class that gives one",
}


@contextmanager
def as_files(flags: Mapping[str, Any], keep_in: Path | None = None) -> Iterator[dict[str, Any]]:
    """Give ``flags`` with each object in them as the file that holds it, which is there within the block.

    A function or class of a module is that module's file. One that is defined in a notebook or a script gets
    a file with its source and what it uses; a Keras model is saved. ``keep_in``: where these files stay after
    the block, at a path that follows from what is in them.

    Raises InputError for another object, and for one that can't be written into a file.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        given = dict(flags)
        keras, place = sys.modules.get("keras"), Path(folder)
        for argument in ALLOWED.keys() & given.keys():
            value = given[argument]
            if value is None or isinstance(value, str | os.PathLike):
                continue
            if keras is not None and isinstance(value, keras.Model) and argument == "model":
                given[argument] = str(_saved(argument, value, place / SAVED))
            elif keras is not None and isinstance(value, keras.optimizers.Optimizer):
                given |= _once(argument, _settings_of_optimizer(value, place), given)
            elif keras is not None and isinstance(value, keras.losses.Loss) and argument == "loss":
                given |= _once(argument, _settings_of_loss(value, place), given)
            elif argument == "metrics" and isinstance(value, list | tuple):
                given[argument] = _list_of_metrics(value, place)
            else:
                given[argument] = _reference(argument, value, place)
            if keep_in is not None and str(given[argument]).startswith(f"{place}{os.sep}"):
                given[argument] = _kept(given[argument], keep_in)
        yield given


def _kept(reference: str, folder: Path) -> str:
    """Copy the file of a reference into a folder below ``folder``, and return the reference to the copy."""
    path, colon, name = reference.partition(":")
    content = Path(path).read_bytes()
    copy = folder / hashlib.sha256(content).hexdigest()[:16] / Path(path).name
    copy.parent.mkdir(parents=True, exist_ok=True)
    with replacing(copy) as temporary:
        temporary.write_bytes(content)
    return f"{copy}{colon}{name}"


# Values of an object in place of which a flag beside it counts. As in ``model.fit``, its learning rate stays.
_UNSET = {"weight_decay": 0.0, "learning_rate_schedule": "constant", "label_smoothing": 0.0}
_OPTIMIZERS = {name: short for short, name in KERAS_OPTIMIZERS.items()}  # labkit's names by Keras's


def _once(argument: str, made: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that an object stands for, without those in whose place ``given`` ones count.

    Raises InputError for another one that is given with another value.
    """
    flags = {name: value for name, value in made.items() if name not in given or value != _UNSET.get(name)}
    twice = [name for name in flags.keys() & given.keys() - {argument} if given[name] != flags[name]]
    if twice:
        raise InputError(f"{min(twice)} is given, and the {argument} has one; leave one of them out")
    return flags


def _settings_of_optimizer(optimizer: Any, folder: Path) -> dict[str, Any]:
    """Return the flags that stand for a Keras optimizer. Raises InputError."""
    kind, settings = type(optimizer), dict(optimizer.get_config())
    known = _OPTIMIZERS | {"AdamW": "adam", "SGD": "sgd"}
    builtin = kind.__module__.startswith("keras.")
    if builtin and kind.__name__ not in known:
        raise InputError(f"optimizer is a {kind.__name__}, which wraps others; allowed: one that doesn't")
    del settings["name"], settings["ema_momentum"], settings["ema_overwrite_frequency"]
    rate = settings.pop("learning_rate")
    if not isinstance(rate, float):
        raise InputError(
            "optimizer has a schedule of its own; give it a number, and learning_rate_schedule beside it"
        )
    flags: dict[str, Any] = {"learning_rate": float(f"{rate:.7g}"), "learning_rate_schedule": "constant"}
    flags["weight_decay"] = 0.0
    if (decay := settings.pop("weight_decay", None)) is not None:
        flags |= {"weight_decay": float(decay), "weight_decay_mode": "decoupled"}
    if (norm := settings.pop("global_clipnorm", None)) is not None:
        flags["gradient_clip_norm"] = float(norm)
    for name, instead in LEFT_TO_LABKIT.items():
        if (value := settings.pop(name, None)) not in (None, False):
            raise InputError(f"optimizer has {name}={value!r}, which labkit does instead; {instead}")
    if any(getattr(optimizer, f"_exclude_from_weight_decay{end}", None) for end in ("", "_pattern")):
        raise InputError(
            "optimizer excludes weights from its weight decay, which labkit doesn't take over; make it "
            "without that, and give weight_decay_of='kernels'"
        )
    if builtin and kind.__name__ == "SGD":
        return flags | settings | {"optimizer": "sgd"}
    _check_made_again("optimizer", optimizer, optimizer.get_config(), "a function that returns the optimizer")
    name = known[kind.__name__] if builtin else _reference("optimizer", kind, folder)
    flags["optimizer_arguments"] = {name: value for name, value in settings.items() if value is not None}
    return flags | {"optimizer": name}


def _check_made_again(argument: str, value: Any, config: Mapping[str, Any], instead: str) -> None:
    """Raise InputError where what ``get_config`` says of an object would make another one."""
    for one in inspect.signature(type(value)).parameters.values():
        is_rest = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if not (is_rest or one.name in config) and repr(getattr(value, one.name, "")) != repr(one.default):
            raise InputError(
                f"{argument} is a {type(value).__name__}, whose get_config has no {one.name!r}, so it can't "
                f"be made again; add it there, or give {instead}"
            )


def _settings_of_loss(loss: Any, folder: Path) -> dict[str, Any]:
    """Return the flags that stand for a Keras loss. Raises InputError."""
    # Keras's configuration of Huber leaves its delta out.
    kind, settings = type(loss), dict(loss.get_config()) | getattr(loss, "_fn_kwargs", {})
    known = {name: short for short, names in KERAS_LOSSES.items() for name in names.values()}
    if settings.pop("from_logits", True) is not True:
        raise InputError(f"loss is a {kind.__name__} of probabilities; make it with from_logits=True")
    if settings.get("reduction") not in (None, "none", "sum_over_batch_size"):
        raise InputError(f"loss has reduction={settings['reduction']!r}; labkit takes the mean; leave it out")
    if (ignored := settings.pop("ignore_class", None)) is not None and kind.__module__.startswith("keras."):
        raise InputError(
            f"loss is a {kind.__name__} with ignore_class={ignored}; leave that out, and give "
            f"class_weights={{'{ignored}': 0}}"
        )
    own = {
        name: value
        for name, value in settings.items()
        if name not in ("name", "reduction", "dtype", "axis") and value is not None
    }
    if not kind.__module__.startswith("keras."):
        _check_made_again("loss", loss, settings | {"from_logits": True}, "the class, and loss_arguments")
        return {"loss": _reference("loss", kind, folder), "loss_arguments": own}
    if kind.__name__ in ("CategoricalCrossentropy", "SparseCategoricalCrossentropy"):
        return {"loss": "softmax", "label_smoothing": own.get("label_smoothing", 0.0)}
    if kind.__name__ not in known:
        raise InputError(
            f"loss is Keras's {kind.__name__}; allowed: {', '.join(known)}, CategoricalCrossentropy, a loss "
            "of your own class or function, softmax, or sigmoid, which sums over the labels"
        )
    return {"loss": known[kind.__name__], "loss_arguments": own}


def _list_of_metrics(metrics: Sequence[Any], folder: Path) -> str:
    """Return names of metrics, or the file with a list of metrics and their sources. Raises InputError."""
    names = [one for one in metrics if isinstance(one, str)]
    by_keras = {one: f"keras.metrics.{one}()" for one in names if one.isidentifier() and one[0].isupper()}
    if len(names) == len(metrics) and not by_keras:
        return ",".join(names)
    own = [one for one in metrics if not isinstance(one, str)]
    keras = sys.modules.get("keras")
    objects = [one for one in own if keras is not None and isinstance(one, keras.metrics.Metric)]
    if len(own) == 1 and not names and not objects:
        return _reference("metrics", own[0], folder)
    defined = [type(one) if one in objects else one for one in own]
    if unnamed := [one for one in defined if not callable(one) or not getattr(one, "__name__", "")]:
        raise InputError(f"metrics has {short(unnamed[0])[:100]}; allowed: {ALLOWED['metrics']}")
    path = folder / "metrics.py"
    items = ", ".join(
        by_keras.get(one, repr(one))
        if isinstance(one, str)
        else _made_again(one)
        if one in objects
        else one.__name__
        for one in metrics
    )
    text = "import keras\n" * bool(by_keras) + source_of("metrics", *defined) + f"\n\nMETRICS = [{items}]\n"
    path.write_text(text, encoding="utf-8")
    return f"{path}:METRICS"


def _made_again(metric: Any) -> str:
    """Return the Python that makes a Keras metric again. Raises InputError where it would be another one."""
    config = metric.get_config()
    if not type(metric).__module__.startswith("keras."):
        _check_made_again("metrics", metric, config, "the class, or a function")
    try:
        ast.literal_eval(repr(config))
    except (ValueError, SyntaxError):
        raise _unwritable("metrics", metric.name, metric) from None
    return f"{type(metric).__name__}.from_config({config!r})"


def _reference(argument: str, value: Any, folder: Path) -> str:
    """Return ``FILE.py:NAME`` for a function or a class. Raises InputError for anything else."""
    name = getattr(value, "__name__", "")
    is_keras = isinstance(value, type) and value.__module__.startswith("keras.")
    if is_keras and argument == "optimizer":
        return _OPTIMIZERS.get(name, name)  # Keras's Muon isn't labkit's
    if not callable(value) or not name:
        raise InputError(f"{argument} is {short(value)[:100]}; allowed: {ALLOWED[argument]}")
    path = None if is_keras else file_of(value)
    if path is None:
        path = folder / argument / f"{name}.py"  # another argument's may have the name, too
        path.parent.mkdir(exist_ok=True)
        path.write_text(source_of(argument, value), encoding="utf-8")
    return f"{path}:{name}"


def _saved(argument: str, model: Any, path: Path) -> Path:
    """Save a Keras model, with the same bytes each time. Raises InputError where Keras can't."""
    whole = path.with_name("whole.keras")
    try:
        model.save(whole)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
        raise InputError(
            f"{argument} is a Keras model that can't be saved ({reason}); give the function that builds it"
        ) from None
    with zipfile.ZipFile(whole) as read, zipfile.ZipFile(path, "w") as written:
        for name in sorted(read.namelist()):
            if name != "metadata.json":  # has the date
                written.writestr(zipfile.ZipInfo(name), read.read(name))
        written.writestr(zipfile.ZipInfo("metadata.json"), "{}")
    whole.unlink()
    return path
