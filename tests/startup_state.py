"""For --callbacks: records what a training can see of its own process, beside the run directory."""

import ctypes
import json
import os
import random
import resource
import signal
import sys

import numpy as np
import psutil
from tensorflow.python.client import device_lib

import labkit

PR_GET_PDEATHSIG = 2  # <linux/prctl.h>


class StateOfProcess(labkit.Callback):
    def on_start(self, training):
        me, death = psutil.Process(), ctypes.c_int()
        ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(death), 0, 0, 0)
        with open("/proc/self/status") as file:
            masks = [line.split() for line in file if line.startswith(("SigBlk", "SigIgn", "Umask"))]
        state = {
            "environment": dict(os.environ),
            "shown": [me.cmdline(), {name: me.environ()[name] for name in sorted(me.environ())}],
            "arguments": [sys.argv, sys.orig_argv],
            "path": sys.path,
            "folder": os.getcwd(),
            "main": sys.modules["__main__"].__spec__.name,
            "streams": [
                [s.encoding, s.errors, s.write_through, s.isatty()] for s in (sys.stdout, sys.stderr)
            ],
            "input": os.readlink("/proc/self/fd/0"),
            "open": self.open_files(),
            "leads": [os.getsid(0) == me.pid, os.getpgrp() == me.pid, death.value],
            "signals": [
                masks,
                *(str(signal.getsignal(number)) for number in (signal.SIGPIPE, signal.SIGCHLD)),
            ],
            "limits": [resource.getrlimit(limit) for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)],
            "affinity": me.cpu_affinity(),
        }
        chance = [np.random.random(), random.random(), device_lib.list_local_devices()[0].incarnation]
        with open(f"{training.run.path}.state.json", "w") as file:
            json.dump([state, chance], file)

    @staticmethod
    def open_files():
        """Return what is open, without numbers and times: ``pipe:``, a file's path."""
        paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sorted(
            os.readlink(path).split("[")[0].split(".tfevents")[0] for path in paths if os.path.lexists(path)
        )


callbacks = [StateOfProcess()]
