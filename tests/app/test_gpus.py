"""The GPUs of a run on the live page."""

from tests.app.boards import boards
from tests.app.test_machine import row, write
from tests.app.test_pages import open_page


def test_each_gpu_is_drawn_with_its_use_and_memory(make_run):
    run = make_run(state="running")
    used = {"gpu0_use_fraction": 0.5, "gpu0_memory_bytes": 2**30, "gpu11_use_fraction": 0.9}
    write(run, row(1), row(2, **used), row(3, **used, gpux_use_fraction=1))
    charts = {chart.title: chart for chart in boards(open_page("live", run))[1].charts}
    assert list(charts["GPU use"].lines) == ["GPU 0", "GPU 11"]
    assert charts["GPU use"].unit == "percent"
    assert charts["GPU use"].lines["GPU 11"].y.tolist() == [0.9, 0.9]
    assert charts["GPU memory in use"].lines["GPU 0"].y.tolist() == [2**30, 2**30]


def test_tasks_of_a_cluster_are_told_apart(make_run):
    run = make_run(state="running")
    write(run, row(1, process="chief:0", gpu0_use_fraction=0.5), row(2, process="chief:0"))
    write(
        run, row(1, process="worker:1", gpu0_use_fraction=0.25), row(2, process="worker:1"), task="worker-1"
    )
    charts = {chart.title: chart for chart in boards(open_page("live", run))[1].charts}
    assert list(charts["GPU use"].lines) == ["chief:0, GPU 0", "worker:1, GPU 0"]
