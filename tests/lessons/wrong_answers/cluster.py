"""Plausible wrong answers to the exercises of lesson 05, each with words of its hint."""

import json


def as_dict(workers, servers, job, index):
    return {"cluster": {"worker": workers, "ps": servers}, "task": {"type": job, "index": index}}


def from_one(workers, servers, job, index):
    return json.dumps(
        {"cluster": {"worker": workers, "ps": servers}, "task": {"type": job, "index": index + 1}}
    )


def text_index(workers, servers, job, index):
    return json.dumps(
        {"cluster": {"worker": workers, "ps": servers}, "task": {"type": job, "index": str(index)}}
    )


def empty_ps(workers, servers, job, index):
    return json.dumps(as_dict(workers, servers, job, index))


def always_worker_1(workers, servers, job, index):
    return json.dumps({"cluster": {"worker": workers, "ps": servers}, "task": {"type": "worker", "index": 1}})


def without_servers(workers, servers, job, index):
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def joined(workers, servers, job, index):
    cluster = {"worker": ",".join(workers), "ps": ",".join(servers)}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def without_rest(batch, workers, k):
    size = batch // workers
    return k * size, (k + 1) * size


def inclusive(batch, workers, k):
    size = batch / workers
    return round(k * size), min(batch, round((k + 1) * size) + 1)


def fractions(batch, workers, k):
    return k * batch / workers, (k + 1) * batch / workers


def rest_to_the_last(batch, workers, k):
    size = batch // workers
    return k * size, batch if k == workers - 1 else (k + 1) * size


def all_writes(log):
    return list(range(sum(what == "write" for what, _ in log)))


def with_its_own(log):
    version, seen, found = 0, {}, []
    for what, worker in log:
        if what == "read":
            seen[worker] = version
        else:
            version += 1
            found.append(version - seen[worker])
    return found


def reads_of_others(log):
    found = []
    for number, (what, worker) in enumerate(log):
        if what == "write":
            since = max(at for at in range(number) if log[at] == ("read", worker))
            found.append(sum(kind == "read" for kind, _ in log[since + 1 : number]))
    return found


def mean_time(seconds, images):
    rate = len(seconds) * images / (sum(seconds) / len(seconds))
    return rate, rate


def one_workers_images(seconds, images):
    return images / max(seconds), sum(images / each for each in seconds)


def sum_of_means(seconds, images):
    return len(seconds) * images / max(seconds), len(seconds) * images / (sum(seconds) / len(seconds))


def bytes_for_bits(parameters, workers, megabits):
    return 2 * (workers - 1) / workers * parameters * 4 / (megabits * 1e6)


def once(parameters, workers, megabits):
    return parameters * 32 / (megabits * 1e6)


def powers_of_two(parameters, workers, megabits):
    return 2 * (workers - 1) / workers * parameters * 32 / (megabits * 2**20)


WRONG = {
    "05.1": [
        (as_dict, "use json.dumps"),
        (text_index, "write the number 1"),
        (empty_ps, "an empty list"),
        (from_one, "indices begin with 0 in each job"),
        (always_worker_1, "is the job's name"),
        (without_servers, 'needs the lists "worker" and "ps"'),
        (joined, "a list of host:port"),
    ],
    "05.2": [
        (without_rest, "goes to nobody"),
        (inclusive, "goes to two workers"),
        (fractions, "can't be divided"),
        (rest_to_the_last, "spread the rest"),
    ],
    "05.3": [
        (all_writes, "since this worker's last read"),
        (with_its_own, "the update itself"),
        (reads_of_others, "count the reads"),
    ],
    "05.4": [
        (mean_time, "who does everybody wait for"),
        (one_workers_images, "the images of one worker"),
        (sum_of_means, "add the rates"),
    ],
    "05.5": [
        (bytes_for_bits, "one byte is 8 bits"),
        (once, "2 (W - 1) / W"),
        (powers_of_two, "powers of ten"),
    ],
}
