"""The logs of a local cluster's tasks: what each one printed, in a file of its own."""

from labkit.cluster.launch import _recorded


def test_each_task_has_a_log_and_a_full_disk_ends_nothing(tmp_path):
    printed: list[str] = []
    folder = tmp_path / "cluster"
    record = _recorded(printed.append, folder)
    lines = ["[worker:1] step 1 [of 2] ", "[cluster] worker:1 was killed", "[worker:0] \udc80"]
    for line in lines:
        record(line)
    assert printed == lines
    assert (folder / "worker-1.log").read_text().endswith("  step 1 [of 2] \n")
    assert "worker:1 was killed" in (folder / "launcher.log").read_text()
    assert "\\udc80" in (folder / "worker-0.log").read_text()
    (tmp_path / "file").touch()
    _recorded(printed.append, tmp_path / "file")("[worker:0] goes on")
    assert printed[-1] == "[worker:0] goes on"
