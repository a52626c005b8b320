"""``labkit search``: many trainings with other settings under one budget, of which the best is kept."""

import shlex
import sys
from typing import Annotated, Any

from labkit.commands.flags import Flag, Preset, takes
from labkit.errors import InputError
from labkit.experiments.search import api


@takes(api.search)
def search(
    *,
    space: Annotated[tuple[str, ...], Flag(nargs="+", action="extend", metavar="NAME=VALUES")] = (),
    preset: Preset = None,
    **given: Any,
) -> int:
    """Search, and print and write what was found. Returns the exit code.

    The other flags are those of labkit train that are the same for all trials: see labkit train --help-all.

    Args:
        space: A setting and its values: model=resnet20,vgg11, crop_padding=int:0:4,
            momentum=float:0.5:0.99, learning_rate=log:0.01:1, or model_arguments.width=logint:16:64 for an
            argument of your own part.
    """
    settings: dict[str, str] = {}
    for word in space:
        name, _, values = word.partition("=")
        name = name.replace("-", "_")
        if not values or name in settings:
            problem = "names a setting twice" if name in settings else "has no values"
            raise InputError(f"--space {word} {problem}; write each setting once: learning_rate=log:0.01:1")
        settings[name] = values
    try:
        found = api.search(settings or None, preset=preset, **given)
    except RuntimeError as failure:
        print(f"labkit: failed: {failure}", file=sys.stderr)
        return 1
    which = f" of the first of {found.equals + 1} equal trials" if found.equals else ""
    preset = shlex.quote(str(found.folder / "preset.json"))
    print(f"\n{found}\n\nbest settings{which}: labkit train --preset {preset}")
    return 0
