"""A solution of project 1: worker 0 leads; each step it says who computes what, and adds up what comes."""

import argparse
import json
import os
import time
from multiprocessing.connection import Client, Listener
from pathlib import Path

import numpy as np

from course.lessons.data_parallel import BATCH, RATE, batch, initial_weights, losses_and_gradient

LOST = (EOFError, OSError)
EVERY = 10  # steps between two checkpoints


def load(folder):
    """Return the last step of the checkpoint and the weights after it."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        return 0, initial_weights()
    with np.load(path) as stored:
        return int(stored["step"]), stored["weights"]


def save(folder, step, weights):
    with open(folder / "new.npz", "wb") as file:
        np.savez(file, step=step, weights=weights)
    os.replace(folder / "new.npz", folder / "checkpoint.npz")


def part(step, place, count):
    return np.array_split(batch(step), count)[place]


def lead(ports, steps, folder):
    with Listener(("127.0.0.1", ports[0])) as listener:
        others = [listener.accept() for _ in ports[1:]]
    done, weights = load(folder)
    while done < steps:
        step, lost = done + 1, []
        for place, other in enumerate(others, 1):
            try:
                other.send((step, place, len(others) + 1, weights))
            except LOST:
                lost.append(other)
        loss, gradient = losses_and_gradient(weights, part(step, 0, len(others) + 1))
        for other in others:
            try:
                more, added = other.recv()
                loss, gradient = loss + more, gradient + added
            except LOST:
                lost.append(other)
        if lost:
            others = [other for other in others if other not in lost]
            done, weights = load(folder)
            continue
        with open(folder / "losses.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": loss / BATCH}) + "\n")
        done, weights = step, weights - RATE * gradient / BATCH
        if done % EVERY == 0:
            save(folder, done, weights)
    for other in others:
        other.send(None)


def follow(port):
    while True:
        try:
            leader = Client(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    while (task := leader.recv()) is not None:
        step, place, count, weights = task
        leader.send(losses_and_gradient(weights, part(step, place, count)))


def main():
    parser = argparse.ArgumentParser()
    for name, kind in (("rank", int), ("ports", str), ("steps", int), ("folder", Path)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    given = parser.parse_args()
    ports = [int(port) for port in given.ports.split(",")]
    follow(ports[0]) if given.rank else lead(ports, given.steps, given.folder)


if __name__ == "__main__":
    main()
