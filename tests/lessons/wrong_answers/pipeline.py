"""Plausible wrong answers to the exercises of lesson 12, each with words of its hint."""

import numpy as np


def all_passes(schedule, forward, backward):
    pairs = ((kind, stage) for stage, work in enumerate(schedule) for kind, _ in work)
    return sum((forward if kind == "F" else backward)[stage] for kind, stage in pairs)


def busiest_stage(schedule, forward, backward):
    return max(len(work) // 2 * (f + b) for work, f, b in zip(schedule, forward, backward, strict=True))


def formula_of_the_slowest(schedule, forward, backward):
    return (len(schedule[0]) // 2 + len(schedule) - 1) * (max(forward) + max(backward))


def in_turn(stages, micro_batches):
    return [[(kind, m) for m in range(micro_batches) for kind in "FB"] for _ in range(stages)]


def gpipe(stages, micro_batches):
    order = range(micro_batches)
    return [[("F", m) for m in order] + [("B", m) for m in reversed(order)] for _ in range(stages)]


def with_ahead(ahead_of, stages, micro_batches, rest=True):
    schedule = []
    for stage in range(stages):
        ahead = min(ahead_of(stages, stage), micro_batches)
        work = [("F", m) for m in range(ahead)]
        for m in range(micro_batches if rest else micro_batches - ahead):
            work += [("B", m), *([("F", ahead + m)] if ahead + m < micro_batches else [])]
        schedule.append(work)
    return schedule


def never_drained(stages, micro_batches):
    return with_ahead(lambda p, s: p - s, stages, micro_batches, rest=False)


def ends_reversed(stages, micro_batches):
    schedule = with_ahead(lambda p, s: p - s, stages, micro_batches)
    schedule[0] = gpipe(stages, micro_batches)[0]
    return schedule


def waits_forever(stages, micro_batches):
    schedule = with_ahead(lambda p, s: p - s, stages, micro_batches)
    schedule[-1].sort(key=lambda work: (work[1], work[0]))  # each backward pass before its forward pass
    return schedule


def lists_of_texts(stages, micro_batches):
    return [["F", "B"] * micro_batches] * stages


def equal_counts(costs, stages):
    return [len(costs) * stage // stages for stage in range(1, stages)]


def at_equal_shares(costs, stages):
    total, ends = sum(costs), np.cumsum(costs)
    return [int(np.searchsorted(ends, total * stage / stages)) + 1 for stage in range(1, stages)]


def nearest_to_equal_shares(costs, stages):
    ends = np.cumsum(costs)
    return [int(np.argmin(abs(ends - ends[-1] * stage / stages))) + 1 for stage in range(1, stages)]


def with_both_ends(costs, stages):
    return [0, *equal_counts(costs, stages), len(costs)]


def empty_stage(costs, stages):
    return [0] * (stages - 1)


def walk(worker, stages, micro_batches, layer, images, targets, backward=None, sends=True):
    stage = worker.rank % stages
    for m in range(micro_batches):
        outputs = layer.forward(m, images[m] if stage == 0 else worker.receive(worker.rank - 1))
        if stage < stages - 1 and sends:
            worker.send(worker.rank + 1, outputs)
    for m in backward(stage) if backward else range(micro_batches):
        gradient = targets[m] if stage == stages - 1 else worker.receive(worker.rank + 1)
        gradient = layer.backward(m, gradient)
        if stage > 0:
            worker.send(worker.rank - 1, gradient)
    return layer.gradient


def own_pipeline_only(*arguments):
    return walk(*arguments)


def mean_of_replicas(worker, stages, *others):
    own = walk(worker, stages, *others)
    twins = [rank for rank in range(worker.rank % stages, worker.size, stages) if rank != worker.rank]
    for twin in twins:
        worker.send(twin, own)
    return sum((worker.receive(twin) for twin in twins), own) / (len(twins) + 1)


def sum_over_all_workers(worker, *others):
    own = walk(worker, *others)
    rest = [rank for rank in range(worker.size) if rank != worker.rank]
    for rank in rest:
        worker.send(rank, own)
    return sum((worker.receive(rank) for rank in rest), own)


def keeps_its_outputs(*arguments):
    return walk(*arguments, sends=False)


def other_order_on_stage_0(worker, stages, micro_batches, *others):
    def order(stage):
        return range(micro_batches) if stage else reversed(range(micro_batches))

    return walk(worker, stages, micro_batches, *others, backward=order)


def sends_past_the_end(worker, stages, micro_batches, layer, images, targets):
    worker.send(worker.rank + 1, layer.forward(0, np.zeros((1, 6))))


def forgets_to_return(*arguments):
    walk(*arguments)


WRONG = {
    "12.1": [
        (all_passes, "at the same time"),
        (busiest_stage, "also waits for others"),
        (formula_of_the_slowest, "when its stage is free and its input is there"),
    ],
    "12.2": [
        (in_turn, "more forward passes ahead"),
        (gpipe, "it may keep p − s"),
        (never_drained, "left at the end"),
        (ends_reversed, "in different orders"),
        (waits_forever, "nobody can go on"),
        (lists_of_texts, "a list of pairs"),
    ],
    "12.3": [
        (equal_counts, "not the numbers of blocks"),
        (at_equal_shares, "no stage may be empty"),
        (nearest_to_equal_shares, "costs 7, and 6 is possible"),
        (with_both_ends, "has the shape"),
        (empty_stage, "your cuts are [0.0]"),
    ],
    "12.4": [
        (own_pipeline_only, "of its own pipeline"),
        (mean_of_replicas, "is a mean"),
        (sum_over_all_workers, "only those of its own stage"),
        (keeps_its_outputs, "worker 1 still waits for a message from worker 0"),
        (other_order_on_stage_0, "have the same order"),
        (sends_past_the_end, "has no peer 4"),
        (forgets_to_return, "the result of worker 0 is None"),
    ],
}
