"""A full or broken disk ends a run with its reason in one line; the same command then loses no step."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from labkit.run_directory import RunDirectory, directory
from labkit.run_directory.disk import disk_failure
from labkit.run_directory.metrics import MetricsWriter
from labkit.training import loop, telemetry
from tests.properties.harness import assert_bit_equal, checkpoint_values, labkit, losses, metrics
from tests.tiny import prepare_tiny

STEPS, LONG = 8, 150  # LONG: the disk is full before the last step


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder)
    return folder


def flags(path: Path, data_dir: Path) -> list[str]:
    settings = "--dataset shapes --num-layers 8 --train-batch-size 12 --learning-rate 0.05 --num-gpus 0 "
    settings += f"--train-steps {STEPS} --validate-every-steps 4 --checkpoint-every-steps 3 --deterministic"
    return ["train", *settings.split(), "--job-dir", str(path), "--data-dir", str(data_dir)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data_dir) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    assert labkit(*flags(path, data_dir)) == 0
    return path


def fail_in_metrics(patch) -> None:
    append = MetricsWriter.append

    def torn(writer, rows) -> None:
        if rows[0].get("step") == 5:
            os.write(writer._descriptor, b'{"split": "train", "st')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(writer, rows)

    patch.setattr(MetricsWriter, "append", torn)


def fail_in_checkpoint(patch) -> None:
    def torn(checkpoint, path) -> None:
        Path(f"{path}.data-00000-of-00001").write_bytes(b"half")
        raise tf.errors.ResourceExhaustedError(None, None, f"{path}; {os.strerror(errno.ENOSPC)}")

    write = tf.train.Checkpoint.write
    patch.setattr(
        tf.train.Checkpoint, "write", lambda self, path: (torn if "0006" in path else write)(self, path)
    )


def fail_in_status(patch) -> None:
    def refuse(path, text) -> None:
        if path.name == "status.json" and '"step": 4' in text:
            refused.append(path)
        if path.name == "status.json" and refused:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        write(path, text)

    refused: list[Path] = []
    patch.setattr(telemetry, "SECONDS_BETWEEN_STATUSES", 0.0)  # or step 4 may be over before the next one
    write = directory.write_text_atomic
    patch.setattr(directory, "write_text_atomic", refuse)
    patch.setattr(directory, "overwrite", refuse)


def fail_in_predictions(patch) -> None:
    def refuse(run, *arguments, **settings) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(run.predictions_path / "test.npz"))

    patch.setattr(loop, "write_predictions", refuse)


@pytest.mark.parametrize(
    ("fail", "number", "last"),
    [
        (fail_in_metrics, errno.ENOSPC, 4),
        pytest.param(fail_in_checkpoint, errno.ENOSPC, 4, marks=pytest.mark.long),
        pytest.param(fail_in_status, errno.EROFS, 3, marks=pytest.mark.long),
        pytest.param(fail_in_predictions, errno.EIO, STEPS, marks=pytest.mark.long),
    ],
)
def test_the_run_fails_with_its_reason_and_then_ends_as_the_undisturbed_one(
    undisturbed, data_dir, tmp_path, capsys, fail, number, last
):
    run = RunDirectory(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        fail(patch)
        capsys.readouterr()
        assert labkit(*flags(run.path, data_dir)) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"labkit: failed: {os.strerror(number)}")
    assert f"then the same command goes on from step {last}, the last checkpoint" in said
    if fail is not fail_in_status:
        status = run.read_status()
        assert status.state == "failed"
        assert os.strerror(number) in status.message
    assert run.checkpoint_steps()[-1] == last
    assert not list(run.checkpoints_path.glob(".*"))

    assert labkit(*flags(run.path, data_dir)) == 0
    assert run.read_status().state == "finished"
    assert losses(run.path) == losses(undisturbed)
    assert [row["step"] for row in metrics(run.path).split("validation")] == [4, 8]
    assert len(metrics(run.path).split("test")) == 1
    assert (run.predictions_path / "test.npz").exists()
    assert_bit_equal(checkpoint_values(undisturbed, STEPS), checkpoint_values(run.path, STEPS))


FILLED = """
set -eu
mount -t tmpfs -o size=80m tmpfs "$1"; shift
cd "$1"; shift
( for i in $(seq 600); do sleep 0.05; ! grep -qs '"step": 5,' run/metrics.jsonl || break; done
  cat /dev/zero > filling 2>/dev/null || true ) &
code=0; "$@" 2> "$KEPT/error" || code=$?
wait
cat "$KEPT/error" >&2
cat run/status.json; echo; du --apparent-size -s run/checkpoints/.*.tmp 2>/dev/null || true
rm filling
"$@" > /dev/null 2> "$KEPT/error" || { cat "$KEPT/error" >&2; exit 99; }
cp -r run "$KEPT"
exit $code
"""


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_disk_that_is_really_full(data_dir, tmp_path):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    more = f"--train-steps {LONG} --validate-every-steps 0 --checkpoint-every-steps 20 --no-evaluate-test"
    command = [sys.executable, "-m", "labkit", *flags(Path("run"), data_dir), *more.split()]
    unshare = ["unshare", "--map-root-user", "--mount", "bash", "-c", FILLED, "bash", str(disk), str(disk)]
    ended = subprocess.run(
        [*unshare, *command],
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"KEPT": str(kept), "PYTHONPATH": os.getcwd()},
    )
    assert ended.returncode == 1, ended.stderr[-2000:]
    [said] = [line for line in ended.stderr.splitlines() if line.startswith("labkit:")]
    assert said.startswith("labkit: failed: No space left on device")
    assert "Traceback" not in ended.stderr
    assert '"state": "failed"' in ended.stdout
    assert "No space left on device" in ended.stdout
    assert ".tmp" not in ended.stdout
    assert [row["step"] for row in metrics(kept / "run").split("train")] == list(range(1, LONG + 1))
    shutil.rmtree(kept)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "x", "/a"), "No space left on device (/a); free some space"),
        (OSError(errno.ENOENT, "x", "/a"), None),
        (ValueError("No space left on device"), None),
        (tf.errors.UnknownError(None, None, "/a/b.tmp; Input/output error"), "Input/output error (/a/b.tmp)"),
        (tf.errors.UnknownError(None, None, "a tensor"), None),
    ],
)
def test_which_errors_come_from_the_disk(error, words):
    found = disk_failure(error)
    assert found is None if words is None else found.startswith(words)
