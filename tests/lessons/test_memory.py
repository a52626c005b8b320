"""What lesson 11 measures: the peak memory of a process, its model, and exchanges between workers."""

import subprocess
import sys

import numpy as np
import pytest

from course.lessons.memory.dense import all_gather, reduce_scatter, share_work
from course.lessons.memory.residual import held
from course.lessons.workers import Worker, workers_of


def test_a_peak_grows_with_what_is_held_and_stays() -> None:
    code = """if True:
        import numpy as np
        from course.lessons.memory import begin_peak, peak_bytes

        start = begin_peak()
        for _ in range(3):
            held = np.ones(10_000_000)
            del held
        print(peak_bytes() - start)
    """
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert grown == pytest.approx(8e7, rel=0.1)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 12, 24])
def test_a_step_in_segments_holds_their_inputs_and_one_segment(length: int) -> None:
    curve = held(24, length)
    assert max(curve) == 24 // length + 5 * length
    assert len(curve) == 3 * 24 - length  # forward, again but for the last segment, and backward
    assert curve[-1] == 1


def test_workers_sum_gather_and_share_arrays_of_uneven_parts() -> None:
    def exchange(worker: Worker) -> np.ndarray:
        return all_gather(worker, reduce_scatter(worker, np.arange(7.0) * 10**worker.rank))

    for result in workers_of(3).run(exchange).results:
        np.testing.assert_allclose(result, np.arange(7.0) * 111)
    matrices = [np.full((2, 2), number, np.float32) for number in range(5)]
    for shared in (False, True):
        done = workers_of(3).run(share_work, np.negative, matrices, shared)
        assert [sums for _, sums in done.results] == [[0.0, -4.0, -8.0, -12.0, -16.0]] * 3
        assert len(done.spans) == (5 if shared else 15)
