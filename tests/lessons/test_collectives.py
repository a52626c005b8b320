"""What lesson 10 measures with: an all-reduce in processes, messages changed on their way."""

import numpy as np
import pytest

from course.lessons.collectives import measure
from course.lessons.collectives.exchange import Through, halving_doubling, top_with_memory
from course.lessons.workers import WorkersFailed, workers_of

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("length", [8, 31])  # which no number of workers divides
def test_halving_and_doubling_sum_in_every_process_and_send_the_least(length):
    arrays = np.random.default_rng(0).integers(0, 9, (4, length)).astype(float)
    done = workers_of(4).run(halving_doubling, each=[(array,) for array in arrays])
    for result in done.results:
        np.testing.assert_array_equal(result, arrays.sum(0))
    assert done.messages_sent == [4] * 4
    if length == 8:
        assert done.bytes_sent == [1.5 * 64] * 4


def test_messages_are_changed_and_delayed_on_their_way():
    def swap(worker):
        link = Through(worker, delay=0.05, outgoing=lambda array: 2 * array, incoming=lambda array: array + 1)
        link.send(1 - worker.rank, np.array([10.0 * worker.rank]))
        return link.receive(1 - worker.rank)

    done = workers_of(2).run(swap)
    assert [result.tolist() for result in done.results] == [[21.0], [1.0]]
    assert min(done.seconds) >= 0.05
    assert [span.name for span in done.spans] == ["to 1", "to 0"]


def test_a_mistake_is_said_to_be_in_the_students_line():
    def sends_to_nobody(worker):
        Through(worker).send(7, np.zeros(1))

    with pytest.raises(WorkersFailed, match=r"ValueError in line \d+ of sends_to_nobody: "):
        workers_of(2).run(sends_to_nobody)


def test_what_top_k_leaves_out_is_sent_later():
    gradient, memory, sent = np.array([4.0, -3.0, 1.0, 0.0]), np.zeros(4), np.zeros(4)
    for _ in range(20):
        index, values, memory = top_with_memory(gradient, memory, 1)
        sent[index] += values
    np.testing.assert_allclose(sent + memory, 20 * gradient)
    assert (sent != 0).tolist() == [True, True, True, False]


def test_the_gradient_is_that_of_the_loss():
    random = np.random.default_rng(0)
    weights, images = random.normal(0, 0.3, (6 + 3) * 5), random.normal(size=(7, 6))
    labels = random.integers(0, 3, 7)

    def loss_of(values):
        return measure.loss_and_gradient(values, images, labels, hidden=5, classes=3)

    for index in range(0, len(weights), 4):
        step = 1e-6 * np.eye(len(weights))[index]
        numeric = (loss_of(weights + step)[0] - loss_of(weights - step)[0]) / 2e-6
        assert loss_of(weights)[1][index] == pytest.approx(numeric, abs=1e-6)
