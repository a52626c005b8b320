"""``labkit replicas``: one training on several layouts of replicas, their losses side by side."""

import functools
import sys
from typing import Annotated, Any

from labkit.commands.flags import Flag, LocalPath, Preset, converter, takes
from labkit.errors import InputError, require_extra
from labkit.experiments import replicas as experiment


@takes(
    experiment.compare_replicas,
    layouts=Flag(metavar="NAMES"),
    tolerance=Flag(type=converter(float, "a number above 0, in nats")),
)
def replicas(
    *, preset: Preset = None, output: Annotated[LocalPath | None, Flag(metavar="DIR")] = None, **given: Any
) -> int:
    """Train, print and write what is compared. Returns the exit code. Raises InputError.

    Without other flags, ResNet-8 is trained on the generated data set shapes, with batches of 128 at a
    constant learning rate of 2e-4, with and without synchronized batch normalization; --sync-batch-norm and
    --no-sync-batch-norm train one of the two. The other flags are those of labkit train that don't choose
    steps, a directory, devices or a cluster: see labkit train --help-all.

    Args:
        output: Folder for runs and results. Default: <home>/comparisons/<name made from the settings>.
    """
    require_extra("notebook", ("matplotlib",), "labkit replicas")
    say = functools.partial(print, flush=True)
    try:
        comparison = experiment.compare_replicas(preset=preset, output=output, announce=say, **given)
    except KeyboardInterrupt as stop:
        if not stop.args:
            raise
        say("stopped; the same command continues")
        return 128 + stop.args[0]
    except InputError:
        raise
    except RuntimeError as failure:
        print(f"labkit: error: {failure}", file=sys.stderr)
        return 1
    say(f"\n{comparison}")
    _write(comparison)
    say(f"\nreplicas.png, .md and .json are in {comparison.folder}")
    return 0


def _write(comparison: experiment.ReplicaComparison) -> None:
    from labkit import figures as plots
    from labkit.experiments.comparison.tables import write_if_changed

    for kind, content in (
        ("md", comparison.as_markdown().encode()),
        ("json", comparison.as_json().encode()),
        ("png", plots.png(plots.replica_curves(comparison))),
    ):
        write_if_changed(comparison.folder / f"replicas.{kind}", content)
