"""A process that holds a network: its answers are the evaluation's, and it never outlives who asks."""

import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import psutil
import pytest

import labkit
from app.ask.client import AskedNetwork, Networks
from app.ask.process import Message, NetworkProcess, NoAnswer, _Turn, receive, send
from app.images.subject import checkpoint_to_ask, read_example
from app.network_process.__main__ import serve
from labkit.analysis.predictions import load_predictions
from labkit.data.of_run import data_set_of
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from tests.multilabel import prepare_small

FIELDS = {
    "model": "tutorial_cnn",
    "train_batch_size": 16,
    "train_steps": 6,
    "checkpoint_every_steps": 2,
    "keep_checkpoints": 5,
    "learning_rate": 0.01,
    "num_gpus": 0,
}
CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


@pytest.fixture(scope="module")
def run(trained) -> RunDirectory:
    return trained


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("several")
    prepare_small(folder / "data")
    fields = FIELDS | {"dataset": "shapes_multilabel", "loss": "sigmoid"}
    labkit.train(**fields, data_dir=folder / "data", job_dir=folder / "run")
    return RunDirectory(folder / "run")


@pytest.fixture(scope="module")
def networks():
    made = Networks()
    yield made
    made.close()


def network_of(networks: Networks, run: RunDirectory) -> AskedNetwork:
    return networks.of(run.path, load_predictions(run).summary["checkpoint_step"])


# ---- Messages -------------------------------------------------------------------------------------------


@pytest.fixture
def pair():
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        np.array([], np.float32),
        np.array(3, np.int64),
        np.arange(12.0).reshape(3, 4).T,
        np.array([1, 2], ">i4"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_a_message_arrives_as_it_was_sent(pair, array):
    send(pair[0], {"a": [1, "ü", None]}, {"x": array})
    found = receive(pair[1], 5)
    assert found.content == {"a": [1, "ü", None]}
    np.testing.assert_array_equal(found.arrays["x"], array)
    assert found.arrays["x"].shape == array.shape


def archive(**arrays: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.savez(data, **arrays)
    return data.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1",
        pickle.dumps({"content": "{}"}),
        archive(),
        archive(content=np.frombuffer(b"{", np.uint8)),
        archive(content=np.frombuffer(b"{}", np.uint8), x=np.array([None])),
    ],
)
def test_anything_else_is_refused_and_nothing_is_unpickled(pair, data):
    pair[0].send_bytes(data)
    with pytest.raises(ConnectionError, match="no message"):
        receive(pair[1], 5)


def test_silence_and_the_end_of_the_other_side_are_told_apart(pair):
    with pytest.raises(TimeoutError):
        receive(pair[1], 0.05)
    pair[0].close()
    with pytest.raises(ConnectionError):
        receive(pair[1], 5)


def test_an_answer_that_fails_does_not_end_the_process(pair):
    def answer(question: Message):
        if question.content["ask"] == "input":
            raise InputError("not so")
        raise KeyError("inside")

    thread = threading.Thread(target=serve, args=(pair[1], answer), kwargs={"about": {}, "idle_seconds": 5})
    thread.start()
    assert receive(pair[0], 5).content == {}
    for ask, expected in (("input", {"error": "not so"}), ("other", {"failed": "KeyError: 'inside'"})):
        send(pair[0], {"ask": ask})
        assert receive(pair[0], 5).content == expected
    pair[0].close()
    thread.join(5)
    assert not thread.is_alive()


def test_patient_questions_wait_for_the_others():
    turn, order = _Turn(), []

    def take(name: str, patient: bool) -> None:
        with turn.taken(patient=patient):
            order.append(name)

    with turn.taken():
        threads = []
        for name, patient in (("patient", True), ("urgent", False)):
            threads.append(threading.Thread(target=take, args=(name, patient)))
            threads[-1].start()
            time.sleep(0.1)
    for thread in threads:
        thread.join(5)
    assert order == ["urgent", "patient"]


# ---- Answers --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("which", ["run", "several"])
def test_an_unchanged_image_gets_the_evaluations_answer(which, networks, request):
    recorded = load_predictions(request.getfixturevalue(which))
    network = network_of(networks, request.getfixturevalue(which))
    found = network.predict(recorded.images, recorded.labels)
    np.testing.assert_allclose(found.probabilities, recorded.probabilities, atol=1e-5)
    assert found.losses.mean() == pytest.approx(recorded.summary["loss"], abs=1e-4)
    alone = network.predict(recorded.images[:1])
    np.testing.assert_allclose(alone.probabilities, recorded.probabilities[:1], atol=1e-5)
    assert alone.losses is None


@pytest.mark.slow
@pytest.mark.parametrize("which", ["run", "several"])
def test_a_whole_split_gets_the_evaluations_answer(which, networks, request):
    run = request.getfixturevalue(which)
    recorded = load_predictions(run)
    step = recorded.summary["checkpoint_step"]
    reports = []
    found = network_of(networks, run).evaluate("test", step, lambda *report: reports.append(report))
    np.testing.assert_allclose(found.probabilities[recorded.index], recorded.probabilities, atol=1e-5)
    assert found.losses.mean() == pytest.approx(recorded.summary["loss"], abs=1e-5)
    assert reports[-1] == (len(found.losses),) * 2
    earlier = network_of(networks, run).evaluate("validation", run.checkpoint_steps()[0])
    assert len(earlier.losses) == data_set_of(run).count("validation")


@pytest.mark.parametrize("which", ["run", "several"])
def test_the_history_ends_with_the_last_prediction(which, networks, request):
    run = request.getfixturevalue(which)
    recorded = load_predictions(run)
    moments = network_of(networks, run).history(recorded.images[0])
    assert [found.step for found in moments] == run.checkpoint_steps() == [2, 4, 6]
    [at_step] = [found for found in moments if found.step == recorded.summary["checkpoint_step"]]
    np.testing.assert_allclose(at_step.probabilities, recorded.probabilities[0], atol=1e-5)
    assert np.abs(moments[0].probabilities - moments[-1].probabilities).max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_nearest_images_are_those_of_the_smallest_distance(run, networks, split):
    network, manifest = network_of(networks, run), data_set_of(run)
    image = read_example(manifest, "test", 3).image
    progress = []
    found = network.nearest(image, split, 5, progress=lambda *now: progress.append(now))
    rows, own = network.features(split), network.features(image[None])[0]
    assert rows.shape[0] == manifest.count(split) == progress[-1][1]
    distances = np.linalg.norm(rows.astype(float) - own, axis=1)
    np.testing.assert_array_equal(found.positions, np.argsort(distances, kind="stable")[:5])
    np.testing.assert_allclose(found.distances, np.sort(distances)[:5], atol=1e-5)
    for place, label, picture in zip(found.positions, found.labels, found.images, strict=True):
        example = read_example(manifest, split, int(place))
        assert example.label == label
        np.testing.assert_array_equal(example.image, picture)
    if split == "test":
        assert found.positions[0] == 3 and found.distances[0] == pytest.approx(0, abs=1e-4)
        assert 3 not in network.nearest(image, split, 5, exclude=3).positions


@pytest.mark.long
@pytest.mark.slow
def test_integrated_gradients_add_up_to_the_logits_difference(run, networks):
    from labkit.analysis.network import load_network
    from labkit.analysis.saliency import grad_cam, integrated_gradients

    held, network = load_network(run), network_of(networks, run)
    image = load_predictions(run).images[1]
    for label in (0, 4):
        found = network.saliency(image, label, "integrated_gradients")
        np.testing.assert_allclose(found, integrated_gradients(held, image, label), atol=1e-4)
        grey = held.model(0 * held.inputs(image[None]), training=False).numpy()[0, label]
        difference = held.logits(image[None])[0, label] - grey
        fine = integrated_gradients(held, image, label, steps=200).sum()
        assert fine == pytest.approx(difference, rel=0.02, abs=2e-3)
        cam = network.saliency(image, label, "grad_cam")
        assert cam.shape == image.shape[:2] and cam.min() >= 0
        np.testing.assert_allclose(cam, grad_cam(held, image, label), atol=1e-5)


BAD = [
    ({"question": "nothing"}, {}, "question is 'nothing'"),
    ({}, {}, "question is None"),
    ({"question": ["predict"]}, {}, "question is"),
    ({"question": "predict"}, {}, "no images"),
    ({"question": "predict"}, {"images": np.zeros((1, 32, 32, 3), np.float32)}, "images are float32"),
    ({"question": "predict"}, {"images": np.zeros((1, 31, 32, 3), np.uint8)}, r"allowed: uint8 \[n, 32"),
    ({"question": "predict"}, {"images": np.zeros((0, 32, 32, 3), np.uint8)}, "allowed: 1 to 512"),
    ({"question": "predict"}, {"images": np.zeros((513, 32, 32, 3), np.uint8)}, "allowed: 1 to 512"),
    (
        {"question": "predict"},
        {"images": np.zeros((1, 32, 32, 3), np.uint8), "labels": np.array([10], np.int32)},
        "labels are",
    ),
    (
        {"question": "saliency", "class": 10, "method": "grad_cam"},
        {"images": np.zeros((1, 32, 32, 3), np.uint8)},
        "class is 10",
    ),
    (
        {"question": "saliency", "class": True, "method": "grad_cam"},
        {"images": np.zeros((1, 32, 32, 3), np.uint8)},
        "class is True",
    ),
    (
        {"question": "saliency", "class": 1, "method": "magic"},
        {"images": np.zeros((1, 32, 32, 3), np.uint8)},
        "method is 'magic'",
    ),
    ({"question": "features", "split": "../..", "start": 0}, {}, "split is"),
    (
        {"question": "nearest", "split": "test", "k": 0},
        {"images": np.zeros((1, 32, 32, 3), np.uint8)},
        "k is 0",
    ),
    (
        {"question": "predict", "step": 3},
        {"images": np.zeros((1, 32, 32, 3), np.uint8)},
        "allowed: best, last, or one of the steps 2, 4, 6",
    ),
]


@pytest.mark.slow
def test_bad_questions_get_a_sentence_and_the_next_one_an_answer(run, networks):
    network = network_of(networks, run)
    for content, arrays, expected in BAD:
        with pytest.raises(InputError, match=expected):
            network.process.ask(content, arrays)
    pid = network.process.pid
    assert network.predict(np.zeros((2, 32, 32, 3), np.uint8)).probabilities.shape == (2, 10)
    assert network.process.pid == pid


# ---- The process ----------------------------------------------------------------------------------------


def gone(pids: list[int]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.1)
    return False


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_process_gives_a_sentence_and_the_next_question_starts_another(run):
    process = NetworkProcess(run.path, 6)
    network = AskedNetwork(process)
    image = np.zeros((1, 32, 32, 3), np.uint8)
    try:
        first = network.predict(image).probabilities
        assert process.about["image_shape"] == [32, 32, 3]
        pid = process.pid
        assert all(psutil.Process(one).nice() >= 10 for one in family(pid)[1:])
        killer = threading.Timer(0.3, lambda: os.kill(family(pid)[-1], signal.SIGKILL))
        killer.start()
        with pytest.raises(NoAnswer, match=r"killed by SIGKILL.*Try again"):
            while True:
                network.saliency(image[0], 1, "integrated_gradients")
                assert process.pid in (pid, None), "it was started again without a word"
        np.testing.assert_allclose(network.predict(image).probabilities, first, atol=1e-6)
        assert process.pid != pid
        pids = family(process.pid)
    finally:
        process.close()
    assert gone(pids)
    with pytest.raises(NoAnswer, match="given up"):
        network.predict(image)


PARENT = """
import sys, time
import numpy as np
from pathlib import Path
from app.ask.client import Networks
network = Networks().of(Path(sys.argv[1]), 6)
network.predict(np.zeros((1, 32, 32, 3), np.uint8))
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
print(network.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.slow
def test_nothing_is_left_when_the_asking_process_is_killed(run):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(run.path)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    try:
        pids = family(int(parent.stdout.readline()))
        assert len(pids) > 1
    finally:
        parent.kill()
        parent.wait(PATIENCE)
        parent.stdout.close()
    assert gone(pids)


@pytest.mark.long
@pytest.mark.slow
def test_it_ends_after_a_silence_and_starts_again_when_asked(run):
    process = NetworkProcess(run.path, 6, idle_seconds=0.5)
    image = np.zeros((1, 32, 32, 3), np.uint8)
    try:
        first = AskedNetwork(process).predict(image).probabilities
        assert gone(family(process.pid))
        np.testing.assert_allclose(AskedNetwork(process).predict(image).probabilities, first, atol=1e-6)
    finally:
        process.close()


@pytest.mark.slow
def test_loading_that_takes_too_long_is_ended(run):
    process = NetworkProcess(run.path, 6, load_seconds=0.3)
    pids: list[int] = []
    watcher = threading.Timer(0.15, lambda: pids.extend(family(process.pid)))
    watcher.start()
    with pytest.raises(NoAnswer, match="took longer than 0 seconds"):
        AskedNetwork(process).predict(np.zeros((1, 32, 32, 3), np.uint8))
    watcher.join()
    assert process.pid is None
    assert gone(pids)


@pytest.mark.long
@pytest.mark.slow
def test_a_network_that_cannot_be_loaded_says_why(run, several, tmp_path, monkeypatch):
    import shutil

    damaged = RunDirectory(shutil.copytree(run.path, tmp_path / "damaged"))
    for path in damaged.checkpoints_path.glob("step-00000006/variables.data*"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"step-00000006 can't be restored"):
        AskedNetwork(NetworkProcess(damaged.path, 6)).predict(np.zeros((1, 32, 32, 3), np.uint8))
    networks = Networks()
    try:
        image = load_predictions(damaged).images[0]
        moments = networks.of(damaged.path, 4).history(image)
        assert [bool(found.problem) for found in moments] == [False, False, True]
    finally:
        networks.close()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))  # without data
    moved = RunDirectory(shutil.copytree(run.path, tmp_path / "moved"))
    text = moved.config_path.read_text().replace(str(run.path.parents[1] / "data"), str(tmp_path / "none"))
    moved.config_path.write_text(text)
    with pytest.raises(InputError, match="no prepared 'shapes' data set"):
        AskedNetwork(NetworkProcess(moved.path, 6)).predict(np.zeros((1, 32, 32, 3), np.uint8))
    with pytest.raises(InputError, match="no prepared 'shapes' data set"):
        data_set_of(moved)


@pytest.mark.slow
def test_at_most_two_networks_are_kept(run, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(NetworkProcess, "close", lambda process: closed.append(process.step))
    networks = Networks()
    for step in (2, 4, 2, 6, 2):
        assert networks.of(run.path, step).process.step == step
    assert closed == [4]
    with pytest.raises(InputError, match="no checkpoint of step 3"):
        networks.of(run.path, 3)


# ---- Examples -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_image_out_of_range_is_named(run):
    manifest = data_set_of(run)
    assert read_example(manifest, "test", 39).image.shape == (32, 32, 3)
    for index in (40, -1, 10**12):
        with pytest.raises(InputError, match="numbered 0 to 39; there is no number"):
            read_example(manifest, "test", index)
    with pytest.raises(InputError, match="has no 'other' split"):
        read_example(manifest, "other", 0)


@pytest.mark.slow
def test_the_checkpoint_to_ask_is_the_preferred_the_best_or_the_newest(run, tmp_path):
    assert checkpoint_to_ask(run, 2) == 2
    assert checkpoint_to_ask(run, 3) in (4, 6)
    assert checkpoint_to_ask(run, None) in run.checkpoint_steps()
    empty = RunDirectory(tmp_path / "empty")
    empty.create()
    assert checkpoint_to_ask(empty) is None
    folder = empty.checkpoints_path / "step-00000005"
    folder.mkdir()
    assert checkpoint_to_ask(empty) == 5
    for text in ("{", "[]", '{"best_step": "x"}', '{"best_step": [1]}'):
        (folder / "state.json").write_text(text)
        assert checkpoint_to_ask(empty) == 5
