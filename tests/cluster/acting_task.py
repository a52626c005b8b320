"""A task without TensorFlow that sends heartbeats, counts steps, writes a checkpoint and obeys its tests.

Run by the tests of the local cluster: ``acting_task.py STATE FOLDER``. Each process writes
``STATE/<name>.<pid>.json``; ``STATE/exit-<name>`` makes the task end with the code in it, and
``STATE/finish`` ends the run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from labkit.distributed.peers import EXIT_LOST_PEER, PeerLost, Peers, exit_after_loss
from labkit.distributed.task import ClusterTask, parse_tf_config


def main() -> int:
    state, folder = Path(sys.argv[1]), Path(sys.argv[2])
    task = parse_tf_config(os.environ["TF_CONFIG"])
    asked: list[int] = []
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, lambda number, frame: asked.append(number))
    # A helper that is hard to kill: it has its own session and ignores SIGTERM.
    helper = subprocess.Popen(["sh", "-c", "trap '' TERM HUP; exec sleep 1000"], start_new_session=True)
    life = {"pid": os.getpid(), "helper": helper.pid, "address": task.address, "time": time.time()}
    (state / f".{os.getpid()}").write_text(json.dumps(life))
    (state / f".{os.getpid()}").rename(state / f"{task.name}.{os.getpid()}.json")

    peers = Peers(folder, task.name, task.address, watched(task), interval=0.1, timeout=100.0)
    peers.start()
    try:
        peers.rendezvous(60.0)
    except PeerLost as loss:
        print(loss, flush=True)
        return EXIT_LOST_PEER
    peers.watch(exit_after_loss, of=[name for name in watched(task) if may_not_be_lost(name, task)])
    (state / f"met.{os.getpid()}").touch()
    return work(task, state, peers, asked)


def is_chief(task: ClusterTask) -> bool:
    return task.name == ("chief:0" if task.count("ps") else "worker:0")


def watched(task: ClusterTask) -> dict[str, str]:
    """Return the peers to watch; a server of an asynchronous cluster watches the chief only."""
    others = task.addresses()
    del others[task.name]
    if task.count("ps") and not is_chief(task):
        return {"chief:0": others["chief:0"]}
    return others


def may_not_be_lost(name: str, task: ClusterTask) -> bool:
    return not (is_chief(task) and task.count("ps") and name.startswith("worker"))


def work(task: ClusterTask, state: Path, peers: Peers, asked: list[int]) -> int:
    """Count steps until a file asks to stop."""
    checkpoint = state / "checkpoint"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"{task.name} goes on from step {step}" if is_chief(task) else f"{task.name} is here", flush=True)
    while True:
        if asked and not (state / "stubborn").exists():
            (state / f"asked-{task.name}").write_text(str(int(asked[0])))
            if task.count("ps") and not is_chief(task):
                return 143
            (state / "stop").touch()  # as in training, one that is asked stops all
        wanted = state / f"exit-{task.name}"
        if wanted.exists() and (code := wanted.read_text()):  # empty while the test writes it
            return int(code)
        trains = is_chief(task) or not task.count("ps")  # servers serve until they are ended
        stopped = trains and (state / "stop").exists()
        if stopped or (trains and (state / "finish").exists()):
            peers.leave()
            return 143 if stopped else 0
        step += 1
        if is_chief(task):
            (state / ".checkpoint").write_text(str(step))
            (state / ".checkpoint").rename(checkpoint)
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
