"""Wrong answers to the exercises of lesson 14, each with words of its hint."""

import math
import os

import numpy as np


def never(machine, machines, hours):
    return machine / machines, 1 - math.exp(-hours * machines / machine)


def of_one_machine(machine, machines, hours):
    return machine / machines, math.exp(-hours / machine)


def number_of_failures(machine, machines, hours):
    return machine / machines, 1 - hours * machines / machine


def times_machines(machine, machines, hours):
    return machine * machines, math.exp(-hours / machine / machines)


def forgets(state, update, steps, every, folder):
    """Save nothing."""
    losses = []
    for step in range(steps):
        state, loss = update(state, step)
        losses.append(loss)
    return losses


def survivor(
    state, update, steps, every, folder, *, keep=("weights", "velocity"), past=True, whole=True, ahead=1
):
    """Survive, unless some of it is left out."""
    path, step, losses = folder / "saved.npz", 0, []
    if path.exists():
        with np.load(path) as saved:
            state = {**state, **{name: saved[name] for name in keep}}
            step, losses = int(saved["step"]), saved["losses"].tolist() if past else []
    while step < steps:
        state, loss = update(state, step)
        step, losses = step + 1, [*losses, loss]
        if step % every == 0:
            target = folder / "unfinished.npz" if whole else path
            np.savez(target, step=step - 1 + ahead, losses=losses, **{name: state[name] for name in keep})
            if whole:
                os.replace(target, path)
    return losses


def without_velocity(*arguments):
    return survivor(*arguments, keep=("weights",))


def without_past_losses(*arguments):
    return survivor(*arguments, past=False)


def makes_the_last_step_again(*arguments):
    return survivor(*arguments, ahead=0)


def over_the_old_one(*arguments):
    return survivor(*arguments, whole=False)


def after_each_step(state, update, steps, every, folder):
    return survivor(state, update, steps, 1, folder)


def half_as_often(state, update, steps, every, folder):
    return survivor(state, update, steps, 2 * every, folder)


def skips_a_step(state, update, steps, every, folder):
    return survivor(state, lambda state, step: update(state, step + (step > 2)), steps, every, folder)


def in_seconds(checkpoint, machine, machines, step):
    return round(math.sqrt(2 * checkpoint * machine / machines))


def without_2(checkpoint, machine, machines, step):
    return max(1, round(math.sqrt(checkpoint * machine / machines) / step))


def one_machines(checkpoint, machine, machines, step):
    return max(1, round(math.sqrt(2 * checkpoint * machine) / step))


def not_whole(checkpoint, machine, machines, step):
    return math.sqrt(2 * checkpoint * machine / machines) / step


def share(steps, log, step_seconds):
    return steps * step_seconds / (log[-1][0] - log[0][0])


def every_row(log, step_seconds):
    return share(sum(what == "step" for _, what, _ in log), log, step_seconds)


def highest(log, step_seconds):
    return share(max(step for _, _, step in log), log, step_seconds)


def saved_only(log, step_seconds):
    return share(max(step for _, what, step in log if what == "saved"), log, step_seconds)


def per_second(log, step_seconds):
    done = saved = 0
    for _, what, step in log:
        done = step if what == "step" else saved if what == "lost" else done
        saved = step if what == "saved" else saved
    return done / (log[-1][0] - log[0][0])


WRONG = {
    "14.1": [
        (never, "the other one is asked for"),
        (of_one_machine, "all of them must survive"),
        (number_of_failures, "it can be above 1"),
        (times_machines, "more machines fail more often"),
    ],
    "14.2": [
        (forgets, "load what was saved"),
        (without_velocity, "that the next step depends on"),
        (without_past_losses, "the losses so far belong into the checkpoint"),
        (makes_the_last_step_again, "the state after step 14 goes on with step 15"),
        (over_the_old_one, "Write to another name"),
        (after_each_step, "save when (step + 1) % every == 0"),
        (half_as_often, "is the newest state loaded"),
        (skips_a_step, "a process made the steps"),
    ],
    "14.3": [
        (in_seconds, "divide by the seconds of a step"),
        (without_2, "the 2 under the root"),
        (one_machines, "the MTBF of the cluster is shorter"),
        (not_whole, "a whole number of steps"),
    ],
    "14.4": [
        (every_row, "count once"),
        (highest, "after the last checkpoint are lost"),
        (saved_only, "unless they are lost"),
        (per_second, "a share of the time"),
    ],
}
