"""What is asked of a process that holds a network: its answers are the evaluation's."""

import io
import pickle
import threading
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest

from app.ask.client import AskedNetwork, Networks
from app.ask.process import Message, receive, send
from app.images.subject import checkpoint_to_ask, read_example
from app.network_process.__main__ import serve
from app.network_process.answers import Answers
from labkit.analysis.network import grad_cam, integrated_gradients, load_network
from labkit.analysis.predictions import load_predictions
from labkit.data.of_run import data_set_of
from labkit.data.shards import load_split
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from tests.app.conftest import train
from tests.multilabel import prepare_small

IMAGE = np.zeros((1, 32, 32, 3), np.uint8)
CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("several")
    prepare_small(folder / "data")
    return train(folder, "run", dataset="shapes_multilabel", loss="sigmoid")


@pytest.fixture(params=["trained", pytest.param("several", marks=pytest.mark.long)])
def run(request) -> RunDirectory:
    return request.getfixturevalue(request.param)


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


ARRAYS = (
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.array([], np.float32),
    np.array(3, np.int64),
    np.arange(12.0).reshape(3, 4).T,
    np.array([1, 2], ">i4"),
)


def test_a_message_arrives_as_it_was_sent_and_silence_is_no_end(pair):
    for array in ARRAYS:
        send(pair[0], {"a": [1, "ü", None]}, {"x": array})
        found = receive(pair[1], 5)
        assert found.content == {"a": [1, "ü", None]}
        np.testing.assert_array_equal(found.arrays["x"], array)
        assert found.arrays["x"].shape == array.shape
    with pytest.raises(TimeoutError):
        receive(pair[1], 0.05)
    pair[0].close()
    with pytest.raises(ConnectionError):
        receive(pair[1], 5)


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


def test_an_answer_that_fails_does_not_end_the_process(pair):
    def answer(question: Message):
        if question.content["ask"] == "input":
            raise InputError("not so")
        raise KeyError("inside")

    thread = threading.Thread(target=serve, args=(pair[1], answer), kwargs={"idle_seconds": 5})
    thread.start()
    for ask, expected in (("input", {"error": "not so"}), ("other", {"failed": "KeyError: 'inside'"})):
        send(pair[0], {"ask": ask})
        assert receive(pair[0], 5).content == expected
    pair[0].close()
    thread.join(5)
    assert not thread.is_alive()


# ---- Answers --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_answers_of_images_a_split_and_all_checkpoints_are_those_of_the_evaluation(networks, run):
    recorded, network = load_predictions(run), network_of(networks, run)
    step, loss = (recorded.summary[name] for name in ("checkpoint_step", "loss"))
    found = network.predict(recorded.images, recorded.labels)
    np.testing.assert_allclose(found.probabilities, recorded.probabilities, atol=1e-5)
    assert found.losses.mean() == pytest.approx(loss, abs=1e-4)
    alone = network.predict(recorded.images[:1])
    np.testing.assert_allclose(alone.probabilities, recorded.probabilities[:1], atol=1e-5)
    assert alone.losses is None

    reports = []
    found = network.evaluate("test", step, lambda *report: reports.append(report))
    np.testing.assert_allclose(found.probabilities[recorded.index], recorded.probabilities, atol=1e-5)
    assert found.losses.mean() == pytest.approx(loss, abs=1e-5)
    assert reports[-1] == (len(found.losses),) * 2
    assert len(network.evaluate("validation", 2).losses) == data_set_of(run).count("validation")

    features = network.features(recorded.images[:2])
    moments = network.history(recorded.images[0])
    np.testing.assert_array_equal(network.features(recorded.images[:2]), features)
    assert [found.step for found in moments] == run.checkpoint_steps() == [2, 4, 6]
    [at_step] = [found for found in moments if found.step == step]
    np.testing.assert_allclose(at_step.probabilities, recorded.probabilities[0], atol=1e-5)
    assert np.abs(moments[0].probabilities - moments[-1].probabilities).max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_nearest_images_are_those_of_the_smallest_distance(trained, networks, split):
    network, manifest = network_of(networks, trained), data_set_of(trained)
    image = read_example(manifest, "test", 3).image
    progress = []
    found = network.nearest(image, split, 5, progress=lambda *now: progress.append(now))
    rows, own = network.features(load_split(manifest, split)[0]), network.features(image[None])[0]
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


@pytest.mark.slow
@pytest.mark.parametrize("split", ["test", "train"])
def test_the_pairs_most_alike_are_those_of_the_smallest_distance(trained, networks, split):
    network, manifest = network_of(networks, trained), data_set_of(trained)
    progress = []
    found = network.alike("test", split, 7, progress=lambda *now: progress.append(now))
    assert progress[-1][0] == progress[-1][1]
    of_test, others = (network.features(load_split(manifest, name)[0]) for name in ("test", split))
    distances = np.linalg.norm(of_test[:, None].astype(float) - others, axis=2)
    if split == "test":
        distances[np.tril_indices(len(distances))] = np.inf  # each pair once, and no image with itself
    np.testing.assert_allclose(found.distances, np.sort(distances.min(axis=1))[:7], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(distances[found.rows, found.others], found.distances, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_network_that_gives_nan_has_no_pairs(trained):
    made = Answers(trained, load_predictions(trained).summary["checkpoint_step"])
    made._weights = [np.full_like(one, np.nan) for one in made._weights]
    made._network.model.set_weights(made._weights)
    question = Message({"question": "alike", "split": "test", "other": "train", "k": 3}, {})
    with pytest.raises(InputError, match="NaN"):
        while made.answer(question)[1] == {}:
            pass


@pytest.mark.long
@pytest.mark.slow
def test_integrated_gradients_add_up_to_the_logits_difference(trained, networks):
    held, network = load_network(trained), network_of(networks, trained)
    image = load_predictions(trained).images[1]
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


SALIENCY = {"question": "saliency", "class": 1, "method": "grad_cam"}
BAD = [
    ({"question": "nothing"}, {}, "question is 'nothing'"),
    ({}, {}, "question is None"),
    ({"question": ["predict"]}, {}, "question is"),
    ({"question": "predict"}, {}, "no images"),
    ({"question": "predict"}, {"images": IMAGE.astype(np.float32)}, "images are float32"),
    ({"question": "predict"}, {"images": IMAGE[:, 1:]}, r"allowed: uint8 \[n, 32"),
    ({"question": "predict"}, {"images": IMAGE[:0]}, "allowed: 1 to 512"),
    ({"question": "predict"}, {"images": IMAGE.repeat(513, axis=0)}, "allowed: 1 to 512"),
    ({"question": "predict"}, {"images": IMAGE, "labels": np.array([10], np.int32)}, "labels are"),
    (SALIENCY | {"class": 10}, {"images": IMAGE}, "class is 10"),
    (SALIENCY | {"class": True}, {"images": IMAGE}, "class is True"),
    (SALIENCY | {"method": "magic"}, {"images": IMAGE}, "method is 'magic'"),
    ({"question": "nearest", "split": "../..", "k": 1}, {"images": IMAGE}, "split is"),
    ({"question": "nearest", "split": "test", "k": 0}, {"images": IMAGE}, "k is 0"),
    ({"question": "alike", "split": "test", "other": "tset", "k": 1}, {}, "split is 'tset'"),
    ({"question": "alike", "split": "test", "other": "test", "k": 513}, {}, "k is 513"),
    (
        {"question": "predict", "step": 3},
        {"images": IMAGE},
        "allowed: best, last, or one of the steps 2",
    ),
]


@pytest.mark.slow
def test_bad_questions_get_a_sentence_and_the_next_one_an_answer(trained, networks):
    network = network_of(networks, trained)
    for content, arrays, expected in BAD:
        with pytest.raises(InputError, match=expected):
            network.process.ask(content, arrays)
    pid = network.process.pid
    assert network.predict(IMAGE).probabilities.shape == (1, 10)
    assert network.process.pid == pid


# ---- Examples -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_image_out_of_range_is_named_and_so_is_a_split(trained):
    manifest = data_set_of(trained)
    assert read_example(manifest, "test", 39).image.shape == (32, 32, 3)
    for split, index in (("test", 40), ("test", -1), ("test", 10**12), ("other", 0)):
        with pytest.raises(InputError, match="numbered 0 to 39; there is no number|has no 'other' split"):
            read_example(manifest, split, index)


def test_the_checkpoint_to_ask_is_the_preferred_the_best_or_the_newest(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    assert checkpoint_to_ask(run) is None
    for step in (4, 5):
        (run.checkpoints_path / f"step-{step:08d}").mkdir()
    state = run.checkpoints_path / "step-00000005" / "state.json"
    for text, best in {"{": 5, "[]": 5, '{"best_step": "x"}': 5, '{"best_step": 4}': 4}.items():
        state.write_text(text)
        assert (checkpoint_to_ask(run), checkpoint_to_ask(run, 4), checkpoint_to_ask(run, 9)) == (
            best,
            4,
            best,
        )
