"""``labkit doctor``: what this machine has, and what to do about each problem."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit import home
from labkit.config import DistributionConfig
from labkit.config.data_sets import BUILT_IN, GENERATED, is_own, prepare_command
from labkit.distributed import cpu
from labkit.distributed.cpu import (
    BFLOAT16_INSTRUCTIONS,
    CLEARLY_FASTER,
    bfloat16_instructions,
    cpu_model,
    step_seconds,
)
from labkit.distributed.task import VARIABLE, find_task
from labkit.errors import InputError, how_to_install, installed_version
from labkit.experiments.precision import keep_seconds
from labkit.run_directory.disk import check_writable, existing_folder
from labkit.startup.process import usable_cores
from labkit.startup.quiet_import import check_keras_backend, import_tensorflow

INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_vnni", *BFLOAT16_INSTRUCTIONS)
LEAST_FREE_BYTES = 2 * 2**30  # CIFAR-10's archive, its records, and a few runs
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
CUDA_PACKAGE = "nvidia-cudnn-cu12"  # one of those that tensorflow[and-cuda] brings
CUDA_WAY = "install CUDA's libraries: .venv/bin/pip install 'tensorflow[and-cuda]==2.21.0'"
CPU_ONLY = "CPU only; several replicas can be simulated (--simulate-missing-gpus)"
PACKAGES = ("tensorflow", "keras", "numpy")
REINSTALL = "install labkit again; in a checkout: make env"
# One package of each extra.
OF_EXTRAS = {"notebook": "jupyterlab", "app": "streamlit", "onnx": "tf2onnx", "search": "optuna"}
PYTHONS = ("3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``level``: ok, note or problem; ``way_out``: what to do, for the latter two."""

    level: str
    subject: str
    text: str
    way_out: str = ""


def doctor(*, full: bool = False) -> int:
    """Print all findings as they are made. Returns 1 where one is a problem, else 0.

    Args:
        full: Also reads every prepared shard to compare checksums, and lets TensorFlow look for GPUs.
    """
    worst = 0
    for finding in findings(full=full):
        mark = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}[finding.level]
        print(f"{mark}  {finding.subject:<14} {finding.text}")
        if finding.way_out:
            print(f"{'':<24} -> {finding.way_out}")
        worst |= finding.level == "problem"
    return int(worst)


def findings(*, full: bool = False) -> Iterator[Finding]:
    """Yield the findings, the quick ones first."""
    yield _python()
    yield _versions()
    yield _extras()
    yield _keras_backend()
    yield from _cluster()
    yield _cpu()
    yield from _threads()
    yield from _disk()
    if full:
        print("reading every prepared shard", file=sys.stderr)
    yield from _data_sets(full=full)
    if full:
        print("loading TensorFlow, which takes some seconds", file=sys.stderr)
        yield from _devices_by_tensorflow()
    else:
        yield from _devices_by_driver()
    yield _bfloat16()


def _cluster() -> Iterator[Finding]:
    if not os.environ.get(VARIABLE, "").strip():
        return
    try:
        task = find_task(DistributionConfig(), os.environ)
    except InputError as error:
        yield Finding("problem", "cluster", str(error), f"without a cluster: unset {VARIABLE}")
        return
    told = f"names this process {task.name}" if task else "names no cluster"
    yield Finding("ok", "cluster", f"{VARIABLE} {told}")


def _python() -> Finding:
    version = platform.python_version()
    if version.rpartition(".")[0] in PYTHONS:
        return Finding("ok", "python", version)
    return Finding("problem", "python", version, f"use one of Python {', '.join(PYTHONS)}")


def _versions() -> Finding:
    found = {name: installed_version(name) for name in PACKAGES}
    if missing := [name for name, version in found.items() if version is None]:
        return Finding("problem", "versions", f"missing: {', '.join(missing)}", REINSTALL)
    return Finding("ok", "versions", ", ".join(f"{name} {version}" for name, version in found.items()))


def _extras() -> Finding:
    found = {extra: installed_version(name) for extra, name in OF_EXTRAS.items()}
    if missing := [extra for extra, version in found.items() if version is None]:
        text = f"not installed: {', '.join(missing)}"
        return Finding("note", "extras", text, f"if wanted, {how_to_install(*missing)}")
    told = (f"{extra} ({OF_EXTRAS[extra]} {version})" for extra, version in found.items())
    return Finding("ok", "extras", ", ".join(told))


def _keras_backend() -> Finding:
    try:
        check_keras_backend()
    except InputError as error:
        text, _, way_out = str(error).partition("; ")
        return Finding("problem", "keras", text, way_out)
    return Finding("ok", "keras", "its backend is tensorflow")


def _cpu() -> Finding:
    flags = cpu.cpu_flags()
    if flags is None:
        return Finding(
            "note", "instructions", "unknown on this system", "none needed: TensorFlow finds them itself"
        )
    present = [name for name in INSTRUCTION_SETS if name in flags]
    if "avx2" not in present:
        return Finding("note", "instructions", "no AVX2", "training will be slow: use a newer CPU or a GPU")
    width = "512" if "avx512f" in present else "256"
    return Finding(
        "ok", "instructions", f"{cpu_model()}: {', '.join(present)}; float32 in vectors of {width} bits"
    )


def _bfloat16() -> Finding:
    found = bfloat16_instructions()
    if found:
        return _bfloat16_measured(", ".join(found))
    text = f"no {' or '.join(BFLOAT16_INSTRUCTIONS)}: emulated; --precision mixed_bfloat16 is refused"
    if cpu.cpu_flags() is None:
        text = "unknown on this system"
    return Finding("note", "bfloat16", text, "train in float32, or on a GPU")


def _bfloat16_measured(instructions: str) -> Finding:
    print("comparing float32 and bfloat16, which takes some seconds", file=sys.stderr)
    try:
        float32, bfloat16 = step_seconds()
    except ImportError as error:
        text = f"{instructions}, not measured: TensorFlow can't be imported: {error}"
        return Finding("note", "bfloat16", text, REINSTALL)
    except InputError:  # Keras has another backend, which a finding of its own says
        return Finding("note", "bfloat16", f"{instructions}, not measured", "set Keras's backend first")
    keep_seconds(float32, bfloat16)
    ratio = float32 / bfloat16
    advice = "isn't clearly faster here: stay with float32"
    if ratio >= CLEARLY_FASTER:
        advice = "is faster here: try --precision mixed_bfloat16"
    text = (
        f"{instructions}; convolutions of ResNet-20, forward and backward: {float32 * 1000:.1f} ms in "
        f"float32, {bfloat16 * 1000:.1f} ms in bfloat16, {ratio:.2f} × the speed. bfloat16 {advice}"
    )
    return Finding("ok", "bfloat16", text)


def _threads() -> Iterator[Finding]:
    text = f"{usable_cores()} usable cores; TensorFlow takes one thread a core unless told otherwise"
    yield Finding("ok", "threads", text)
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        yield Finding(
            "problem", "oneDNN", "switched off: steps take twice as long", "unset TF_ENABLE_ONEDNN_OPTS"
        )
    named = os.environ.get("OMP_NUM_THREADS")
    if named:
        yield Finding("note", "threads", f"OMP_NUM_THREADS={named}", "unset it if steps are slow")


def _disk() -> Iterator[Finding]:
    for subject, folder in (("data", home.data_home()), ("runs", home.runs_home())):
        try:
            check_writable(folder, subject)
            free = shutil.disk_usage(existing_folder(folder, subject)).free
        except InputError as error:
            text = str(error).rpartition("; ")[0].removeprefix(f"{subject} ")
            yield Finding("problem", subject, text, "set LABKIT_HOME to a folder of yours")
            continue
        text = f"{folder}, {free / 2**30:.1f} GiB free"
        if free < LEAST_FREE_BYTES:
            yield Finding("problem", subject, text, "free some space, or set LABKIT_HOME to another disk")
        else:
            yield Finding("ok", subject, text)


def _data_sets(*, full: bool) -> Iterator[Finding]:
    from labkit.data.manifest import find_manifest, has_size, prepared_names, verify_shards

    folder = home.data_home()
    prepared = prepared_names(folder)
    usual = [name for name in BUILT_IN if name in ("cifar10", *GENERATED, *prepared)]
    for dataset in (*usual, *filter(is_own, prepared)):
        prepare = prepare_command(dataset)
        try:
            manifest = find_manifest(folder, dataset)
        except InputError as error:
            yield Finding("problem", dataset, str(error), prepare)
            continue
        if manifest is None:
            yield Finding("note", dataset, "not prepared", prepare)
            continue
        shards = [shard for split in manifest.splits.values() for shard in split.shards]
        if full:
            damaged, checked = verify_shards(manifest), "every checksum agrees"
        else:
            damaged = [shard.file for shard in shards if not has_size(manifest, shard)]
            checked = "every shard has its size (checksums: labkit doctor --full)"
        if damaged:
            rebuild = f"rebuild with: {manifest.prepare_command if is_own(dataset) else prepare}"
            yield Finding("problem", dataset, f"damaged: {', '.join(damaged)}", rebuild)
        else:
            counts = ", ".join(f"{manifest.count(name):,} {name}" for name in manifest.splits)
            yield Finding("ok", dataset, f"{counts}; {checked}")


def _devices_by_driver() -> Iterator[Finding]:
    """Yield the GPUs that NVIDIA's driver knows: TensorFlow, which must use them, takes seconds to load."""
    if not NVIDIA_DRIVER.exists():
        yield Finding("ok", "devices", CPU_ONLY)
        return
    gpus = sorted((NVIDIA_DRIVER / "gpus").glob("*/information"))
    for index, path in enumerate(gpus):
        model = re.search(r"^Model:\s*(.+)$", path.read_text(errors="replace"), re.MULTILINE)
        name = model[1] if model else "unknown model"
        yield Finding("ok", "devices", f"GPU {index}: {name} (by the driver; TensorFlow's view: --full)")
    if not gpus:
        yield Finding("problem", "devices", "this machine has an NVIDIA driver, but no GPU", "see nvidia-smi")
    elif installed_version(CUDA_PACKAGE) is None:
        text = f"{CUDA_PACKAGE} isn't installed; TensorFlow may find no CUDA libraries"
        yield Finding("note", "devices", text, f"see what TensorFlow finds: labkit doctor --full; {CUDA_WAY}")


def _devices_by_tensorflow() -> Iterator[Finding]:
    try:
        import_tensorflow()
        import tensorflow as tf
    except ImportError as error:
        yield Finding("problem", "devices", f"TensorFlow can't be imported: {error}", REINSTALL)
        return
    except InputError:  # Keras's backend, a finding of its own
        return
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        details = tf.config.experimental.get_device_details(gpu)
        yield Finding("ok", "devices", f"{gpu.name}: {details.get('device_name', 'unknown')}")
    if gpus:
        return
    if NVIDIA_DRIVER.exists():
        text = "this machine has an NVIDIA driver, but TensorFlow finds no GPU"
        yield Finding("problem", "devices", text, CUDA_WAY)
    else:
        yield Finding("ok", "devices", CPU_ONLY)
