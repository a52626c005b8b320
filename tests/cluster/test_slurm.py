"""Slurm: roles of tasks, the batch script, and its reaction to a scheduler's signals."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.cluster.flags import train_arguments
from labkit.cluster.slurm import (
    BatchOptions,
    expand_hostlist,
    listening_address,
    node_address,
    render_batch_script,
    task_from_slurm,
)
from labkit.commands import main as cli
from labkit.config import Config, fields_by_name
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from tests.cluster.examples import GOLDEN, ROOT, check_golden, documented_commands, printed
from tests.commands.in_process import config_of
from tests.fuzzing import value_or_line

GOLDEN_COMMANDS = {
    "gpus.sbatch": "labkit cluster slurm --nodes 4 --tasks-per-node 2 --gpus-per-task 1 --cpus-per-task 16 "
    "--memory 64G --partition gpu --account lab --time-limit 1-00:00:00 --signal-seconds 300 --job-name deep "
    "--labkit labkit -- train --sync --num-layers 56 --eval-batch-size 80 --job-dir 'runs/deep net'",
    "async.sbatch": "labkit cluster slurm --nodes 1 --tasks-per-node 4 --ps 1 --max-restarts 0 "
    "--labkit labkit -- train --dataset shapes --num-layers 8 --nesterov",
}


def step(rank: int, nodes: str, per_node: str, tasks: int, **others: object) -> dict[str, str]:
    """Return the variables of a job step's task."""
    values = {
        "SLURM_JOB_ID": 1234,
        "SLURM_STEP_ID": 0,
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_PROCID": rank,
        "SLURM_NTASKS": tasks,
        **others,
    }
    return {name: str(value) for name, value in values.items()}


# ---- the place of a task -------------------------------------------------------------------------------


LISTS = {
    "n0": "n0",
    "n[0-1,3]": "n0 n1 n3",
    "n[08-10]": "n08 n09 n10",
    "gpu-[1,12-13].rack,login": "gpu-1.rack gpu-12.rack gpu-13.rack login",
    "r[1-2]n[0-1]": "r1n0 r1n1 r2n0 r2n1",
    "a,b[7,9]": "a b7 b9",
}


@pytest.mark.parametrize("text", LISTS)
def test_lists_of_nodes_as_slurm_reads_them(text, tmp_path):
    assert expand_hostlist(text) == LISTS[text].split()
    if shutil.which("scontrol") and ".rack" not in text:  # it reads no name after brackets
        (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=none\nNodeName=none\n")
        environment = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")}
        shown = subprocess.check_output(["scontrol", "show", "hostnames", text], env=environment, timeout=30)
        assert shown.decode().split() == LISTS[text].split()


@given(st.sampled_from(list(LISTS)), st.integers(0, 30), st.sampled_from(["", "[", "]", ",", "-", "a", "é"]))
def test_a_damaged_list_of_nodes_is_read_or_refused_in_one_line(text, at, put):
    nodes, line = value_or_line(lambda: expand_hostlist(text[:at] + put + text[at + 1 :]))
    assert all(nodes) if nodes else "Slurm nodes" in line


@pytest.mark.parametrize("text", ["n[", "n[1-", "n[]", "n[3-1]", "n[a]", "n 1", "a,,b", "n[1,]"])
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(InputError, match="Slurm nodes"):
        expand_hostlist(text)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_every_task_sees_one_cluster_and_its_own_place(counts, data):
    tasks = sum(counts)
    ps = data.draw(st.integers(0, max(0, tasks - 2)))
    shared = data.draw(st.booleans())  # nodes that are one host, as in a test
    seen = [
        task_from_slurm(
            step(rank, f"n[0-{len(counts) - 1}]", ",".join(map(str, counts)), tasks),
            ps=ps,
            address_of=lambda node: "10.0.0.1" if shared else node,
        )
        for rank in range(tasks)
    ]
    assert all(task.jobs == seen[0].jobs for task in seen)
    addresses = [task.address for task in seen]
    assert len(set(addresses)) == tasks
    if len(counts) > 1 and not shared:
        nodes = [f"n{node}" for node, count in enumerate(counts) for _ in range(count)]
        assert [address.partition(":")[0] for address in addresses] == nodes
    kinds = ["chief", *["worker"] * (tasks - 1 - ps), *["ps"] * ps] if ps else ["worker"] * tasks
    assert [task.job_name for task in seen] == kinds


def test_repeated_counts_and_ports_of_two_jobs():
    environment = step(4, "n[0-2]", "2(x2),1", 5)
    task = task_from_slurm(environment, address_of=str)
    assert task.jobs["worker"] == ("n0:20280", "n0:20281", "n1:20280", "n1:20281", "n2:20280")
    other = task_from_slurm({**environment, "SLURM_JOB_ID": "1235"}, address_of=str)
    assert not set(task.jobs["worker"]) & set(other.jobs["worker"])


def test_steps_of_neighbouring_jobs_have_blocks_of_their_own():
    firsts = [
        task_from_slurm(step(0, "n0", "20", 20, SLURM_JOB_ID=job, SLURM_STEP_ID=number)).port
        for job in range(100, 120)
        for number in range(20)
    ]
    assert len(set(firsts)) == len(firsts)
    assert all(20_000 <= port <= 31_980 and port % 20 == 0 for port in firsts)


def test_a_step_on_one_node_meets_on_loopback_and_others_at_the_address_of_their_node():
    task = task_from_slurm(step(1, "nowhere.invalid", "2", 2))
    assert task.jobs["worker"] == ("127.0.0.1:20280", "127.0.0.1:20281")
    assert listening_address(task) == "127.0.0.1"
    task = task_from_slurm(step(0, "n[0-1]", "1(x2)", 2), address_of=lambda node: f"fd00::{node[1:]}")
    assert task.jobs["worker"] == ("[fd00::0]:20280", "[fd00::1]:20280")
    assert node_address("localhost") == "localhost", "a name that resolves"
    # A task listens on its side of the way to the others.
    jobs = {"worker": ("somewhere.invalid:1000", "127.0.0.1:1000")}
    assert listening_address(ClusterTask(jobs, "worker", 0)) == "127.0.0.1"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "SLURM_STEP_NODELIST is not set; run this inside of a Slurm job"),
        (step(1, "n[0-1]", "2(x2)", 4, SLURMD_NODENAME="n1"), "srun --distribution=block"),
        (step(0, "n[0-1]", "2", 2), "2 nodes"),
        (step(0, "n[0-1]", "1(x2)", 3), "SLURM_NTASKS is 3"),
        (step("x", "n0", "2", 2), "SLURM_PROCID is 'x'"),
        (step(2, "n0", "2", 2), "SLURM_PROCID is 2, but SLURM_NTASKS is 2"),
        (step(0, "n0", "2", 2, SLURM_STEP_ID="-1"), "SLURM_STEP_ID is '-1'"),
        (step(0, "n0", "21", 21), "21 tasks share a host; allowed: at most 20"),
        (step(0, "n[0-1]", "many", 2), "SLURM_STEP_TASKS_PER_NODE is 'many'"),
        (step(0, "n0", "3", 3, ps=2), "--ps is 2 of 3 tasks"),
    ],
)
def test_environments_that_name_no_place(environment, message):
    with pytest.raises(InputError, match=re.escape(message)):
        task_from_slurm(environment, ps=int(environment.get("ps", 0)), address_of=str)


# ---- the batch script ----------------------------------------------------------------------------------


def test_golden_scripts_are_what_their_commands_print():
    check_golden(ROOT / "deploy" / "slurm/train.sbatch", printed(documented_commands()["slurm/train.sbatch"]))
    for name, command in GOLDEN_COMMANDS.items():
        check_golden(GOLDEN / name, printed(command))


def test_a_search_is_an_array_of_jobs_on_one_node_each():
    command = "labkit cluster slurm --nodes 3 --time-limit 10 -- search --join /shared/it --space lr=0.1,0.2"
    script = printed(command)
    assert "#SBATCH --array=1-3\n#SBATCH --nodes=1\n" in script
    assert "--output=labkit-%A_%a.log" in script
    assert re.search(
        r'LABKIT_EXIT_STATUS="\$PWD/\$exit_status" \S*labkit search \\\n +--join /shared/it', script
    )
    with pytest.raises(InputError, match="labkit search without --join"):
        cli.parse(["cluster", "slurm", "--nodes", "2", "--", "search", "--space", "lr=0.1,0.2"])()


def test_a_configuration_survives_as_arguments():
    changed = {}
    for name, info in fields_by_name().items():
        if name in ("worker_hosts", "ps_hosts", "job_name", "task_index", "num_layers", "warmup_steps"):
            continue
        if info.choices:
            changed[name] = info.choices[-1]
        elif info.type is bool:
            changed[name] = not info.default
        elif info.optional and info.default is not None:
            changed[name] = None
        elif info.type is str:
            changed[name] = "a text, with 'quotes'"
        else:
            changed[name] = info.type((info.default or 1) / 2 if info.below else (info.default or 1) + 1)
    fixed = {"model": "fast", "application": "MobileNetV2", "num_layers": 8, "resnet_version": 1}
    fixed["bottleneck_stride"] = "first"
    fixed |= {"block": "basic", "num_gpus": 1, "progressive_resizing": "16:0.25,24:0.5"}
    fixed |= {
        "cutout_size": 0,
        "random_resized_crop": 0.0,
        "brightness": 0.0,
        "crop_padding": 4,
        "crop_padding_mode": "constant",
        "flip": "random",
        "contrast": 0.0,
        "mixup_alpha": 0.0,
        "cutmix_alpha": 0.0,
    }  # what others need
    fixed |= {"random_rotation": 0.0, "trivial_augment": False}
    fixed |= {"learning_rate_schedule": "one_cycle", "optimizer": "muon"}
    fixed |= {"adamw_beta1": 0.9, "adamw_beta2": 0.999}
    fixed |= {"staircase_factor": 0.1, "staircase_epochs": 350.0}
    fixed |= {"dataset": "pets.2024", "fold": "2/5"}  # not any text
    fixed |= {"slow_worker": "1:3", "profile_steps": "2:4", "debugger_dump": False}
    fixed |= {"model_arguments": None, "optimizer_arguments": None, "loss_arguments": None}
    fixed |= {"callback_arguments": None}
    fixed |= {"bottleneck_stride": "first"}
    fixed |= {"augment": "mine.py:noisy", "balanced_sampling": False, "ghost_batches": 3}
    fixed |= {"class_weights": "balanced", "metrics": "auc", "loss": "sigmoid"}
    fixed |= {"epochs": None, "steps_range": None}  # instead of the steps
    fixed |= {"gradient_compression": "none"}  # the other is refused with float64
    config = Config.from_flat({**changed, **fixed})
    assert config_of(train_arguments(config)) == config
    assert train_arguments(Config()) == ["train"]


# Stand-ins for srun and scontrol. srun exits with the codes of a list, one by one, and writes what its tasks
# would record; scontrol records its calls.
FAKE_SRUN = """#!/bin/bash
printf '%s\\n' "$@" >>"$NOTES/srun"
read -r code failed step <"$NOTES/codes"; sed -i 1d "$NOTES/codes"
while [[ $1 != --exit-status ]]; do shift; done
if ((failed)); then echo "$failed" >"$2.failed"; fi
if ((step)); then echo "$step" >"$2.step"; fi
exit "$code"
"""
FAKE_SCONTROL = '#!/bin/bash\necho "$@" >>"$NOTES/scontrol"\n'


def run_script(
    folder: Path, options: BatchOptions, codes: list[int], *, failed: int = 0, steps: Sequence[int] = ()
) -> tuple[list[int], list[str], str]:
    """Run a script once for each code that srun ends with; return its codes, calls of scontrol and output.

    ``failed`` is what a failed task recorded each time, ``steps`` where the tasks stopped (0: not recorded).
    """
    script = folder / "train.sbatch"
    script.write_text(render_batch_script(Config.from_flat({"dataset": "shapes", "job_dir": "a b"}), options))
    programs = folder / "programs"
    programs.mkdir()
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    noted = zip_longest(codes, steps, fillvalue=0)
    (folder / "codes").write_text("".join(f"{code} {failed} {step}\n" for code, step in noted))
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "NOTES": str(folder),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[0-1]",
    }
    ended, output = [], ""
    for restart in range(len(codes)):
        environment["SLURM_RESTART_COUNT"] = str(restart)
        result = subprocess.run(
            ["bash", str(script)], env=environment, cwd=folder, capture_output=True, text=True, timeout=30
        )
        assert not result.stderr
        ended.append(result.returncode)
        output += result.stdout
    requeued = folder / "scontrol"
    notes = requeued.read_text().splitlines() if requeued.exists() else []
    return ended, notes, output


@pytest.mark.parametrize(
    ("code", "requeued"),
    [(0, 0), (1, 0), (2, 0), (75, 1), (126, 0), (127, 0), (130, 0), (137, 1), (139, 1), (143, 1)],
)
def test_which_exit_codes_requeue(code, requeued, tmp_path):
    ended, notes, output = run_script(tmp_path, BatchOptions(nodes=2), [code], steps=[5])
    assert ended == [code]
    assert ("would fail again" in output) is (code in (1, 2, 126, 127))  # 130: stopped, and can go on
    assert notes == ["requeue 7"] * requeued


@pytest.mark.parametrize("failed", [1, 2])
def test_a_failed_task_ends_the_job_though_others_lost_it(failed, tmp_path):
    ended, notes, output = run_script(tmp_path, BatchOptions(nodes=2), [75], failed=failed)
    assert ended == [failed]
    assert not notes
    assert output.endswith(f"labkit: exit code {failed}; not restarted, because it would fail again\n")
    assert not list(tmp_path.glob("labkit-7*"))


@pytest.mark.parametrize("code", [143, 138])  # 138: the script was edited to --signal=USR1@…
def test_stops_without_a_new_step_are_counted(code, tmp_path):
    ended, notes, output = run_script(
        tmp_path, BatchOptions(nodes=2, max_restarts=1), [code] * 4, steps=[10, 10, 20, 0]
    )
    assert ended == [code] * 4
    assert notes == ["requeue 7"] * 3
    words = [line for line in output.splitlines() if ", start " not in line]
    stopped, stuck = "labkit: stopped after a checkpoint", "labkit: stopped without a new step"
    back = "; requeued"
    assert words == [stopped + back, stuck + back, stopped + back, f"{stuck}; gave up, --max-restarts is 1"]


def test_lost_tasks_are_counted_and_time_limits_are_not(tmp_path):
    ended, notes, output = run_script(
        tmp_path,
        BatchOptions(nodes=2, max_restarts=2),
        [75, 143, 143, 143, 137, 143, 75],
        steps=[0, 10, 20, 30, 0, 40, 0],
    )
    assert ended == [75, 143, 143, 143, 137, 143, 75]
    assert notes == ["requeue 7"] * 6
    assert output.splitlines()[-1] == "labkit: lost a task (exit code 75); gave up, --max-restarts is 2"


def test_what_the_step_runs(tmp_path):
    run_script(tmp_path, BatchOptions(nodes=2, cpus_per_task=3, ps=0, labkit="/opt/lab kit/labkit"), [0])
    # With --train-steps it trains this configuration and not one that it fits to the data.
    assert (tmp_path / "srun").read_text().splitlines() == [
        *("--distribution=block", "--kill-on-bad-exit=0", "--cpus-per-task=3", "/opt/lab kit/labkit"),
        *("cluster", "slurm-task", "--exit-status", "labkit-7.0", "--", "train"),
        *("--dataset", "shapes", "--job-dir", "a b", "--train-steps", "80000"),
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "--nodes is 0; allowed: 1 to 65535"),
        ({"time_limit": "soon"}, "--time-limit is 'soon'; allowed: minutes"),
        *(({"time_limit": text}, "allowed: more than 180 seconds") for text in ("3", "2:59", "0-00:03")),
        ({"partition": "a\n#SBATCH --exclusive"}, "--partition is"),
        ({"job_name": "my job"}, "--job-name is 'my job'"),
        ({"labkit": "labkit; reboot"}, "--labkit is"),
        ({"gpus_per_task": -1}, "--gpus-per-task is -1; allowed: 0 to 65535"),
    ],
)
def test_options_that_slurm_would_refuse_or_misread(wrong, message):
    with pytest.raises(InputError, match=re.escape(message)):
        BatchOptions(**{"nodes": 2, **wrong})
    for limit in ("4", "3:01", "00:03:01", "0-1", "1-00:00", "2-00:00:00"):
        assert BatchOptions(nodes=1, time_limit=limit).time_limit == limit


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ({}, {}, "--train-batch-size is 128 with 3 replicas"),
        ({"num_gpus": 2}, {"nodes": 2, "gpus_per_task": 1}, "--num-gpus is 2, but each process gets only 1"),
        ({"sync": True}, {"ps": 1}, "--ps is 1 with --sync"),
        ({}, {"ps": 2}, "--ps is 2 of 3 tasks"),
        ({"xla": True}, {"ps": 1}, "--xla needs"),
        ({"optimizer": "muon"}, {"ps": 1}, "--optimizer is muon"),
    ],
)
def test_trainings_that_the_tasks_cannot_share(values, options, words):
    config = Config.from_flat(
        {"dataset": "shapes", "train_batch_size": 128, "eval_batch_size": 128, **values}
    )
    with pytest.raises(InputError, match=words):
        render_batch_script(config, BatchOptions(**{"nodes": 3, **options}))
