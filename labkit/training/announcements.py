"""What a training says about itself: at its start, and where its step becomes another one."""

from labkit.models.layers import BatchNormalization
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.training.session import Session

__all__ = ["at_start", "of_compiling"]


def at_start(session: Session, run: RunDirectory, step: int, *, resumed: bool) -> list[str]:
    """Return the lines before the step after ``step``: place, network, devices, data, what may surprise."""
    config, manifest, devices = session.config, session.manifest, session.devices
    total_steps = config.run.train_steps
    lines = [devices.banner] if devices.banner else []
    counts = ", ".join(f"{manifest.count(name):,} {name}" for name in manifest.splits)
    lines.append(f"run {run.path}")
    lines.append(
        f"{session.model.name}, {session.num_parameters():,} parameters, "
        f"on {devices.describe()}; {manifest.dataset}: {counts}"
    )
    decay = config.model.batch_norm_decay
    initial_share = decay**total_steps
    normalizes = any(isinstance(layer, BatchNormalization) for layer in session.model.layers)
    if normalizes and initial_share > 0.05 and config.transfer.start_from is None:
        advice = "short runs want about 0.9" if decay > 0.9 else "lower it, or train for more steps"
        lines.append(
            f"note: with --batch-norm-decay {decay:g}, {initial_share:.0%} of the moving averages will "
            f"be initial values still after {counted(total_steps, 'step')}, and validation and test accuracy "
            f"far below that of training; {advice}"
        )
    if devices.asynchronous_workers > 1:
        lines.append(
            f"note: gradients of {devices.asynchronous_workers} asynchronous workers are some updates "
            "old; where the loss stays near that of guessing, "
            f"{session.loss.chance(manifest.num_classes):.2f}, "
            "lower --learning-rate or --momentum"
        )
    if session.freezing:
        count = session.trained_parameters(step)
        lines.append(f"{session.freezing.describe(total_steps)}; {count:,} weights are trained now")
    if resumed:
        lines.append(f"going on from step {step} of {total_steps}")
    return lines


def of_compiling(session: Session, step: int) -> dict[str, str]:
    """Return what is new to the step after ``step``, each in short and as a line; empty where nothing is.

    A step of other weights, or of other images, compiles.
    """
    news = {}
    stage = session.freezing.thaws_at(step)
    if stage is not None:
        count = session.trained_parameters(step)
        news[f"{stage} thaws"] = f"{stage} thaws after step {step}: {count:,} weights are trained"
    if step > 0 and session.image_size_at(step) != session.image_size_at(step - 1):
        side = session.image_size_at(step)
        height, width = (side, side) if side else session.manifest.image_shape[:2]
        images = f"images of {height} x {width} pixels"
        news[images] = f"{images} from step {step + 1} on"
    return news
