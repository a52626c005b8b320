"""What ``labkit doctor`` finds: every problem is named and has a way out."""

from importlib import metadata

import pytest

from labkit.commands import doctor
from labkit.distributed import cpu
from tests.tiny import prepare_tiny


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch):
    """Without it, a processor with bfloat16 would compute for seconds in each test."""
    monkeypatch.setattr(doctor, "step_seconds", lambda: (0.1, 0.05))


def of(subject):
    return [finding for finding in doctor.findings() if finding.subject == subject]


def test_levels_are_known_and_whatever_is_not_ok_has_a_way_out(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_devices_by_tensorflow", lambda: iter(()))
    for full in (False, True):
        for finding in doctor.findings(full=full):
            assert finding.level in ("ok", "note", "problem")
            assert bool(finding.way_out) is (finding.level != "ok"), finding
        assert ("loading TensorFlow" in capsys.readouterr().err) is full


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
def test_the_exit_code_says_whether_there_is_a_problem(monkeypatch, capsys, level, code):
    found = [doctor.Finding(level, "disk", "text", "way"), doctor.Finding("ok", "cpu", "fine")]
    monkeypatch.setattr(doctor, "findings", lambda *, full: iter(found))
    assert doctor.doctor() == code
    assert "-> way" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("home", "refuses", "said"),
    [
        ("file", None, "is not a directory"),
        ("", lambda folder: False, "no permission"),
        ("", PermissionError(13, "Permission denied"), "Permission denied"),
        ("x" * 5000, None, "name too long"),
    ],
    ids=["file", "not writable", "not searchable", "too long"],
)
def test_a_home_that_cannot_be_used_is_a_problem(tmp_path, monkeypatch, home, refuses, said):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / home))
    if isinstance(refuses, OSError):
        exists = doctor.Path.exists

        def refuse(folder):
            if tmp_path in folder.parents:
                raise refuses
            return exists(folder)

        monkeypatch.setattr(doctor.Path, "exists", refuse)
    elif refuses:
        monkeypatch.setattr(doctor.os, "access", lambda folder, mode: False)
    found = of("data") + of("runs")
    assert {finding.subject for finding in found if finding.level == "problem"} >= {"runs"}
    assert any(said in finding.text for finding in found), found


def test_a_damaged_shard_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    manifest = prepare_tiny(tmp_path / "data")
    path = manifest.shard_path(manifest.splits["train"].shards[0])
    content = path.read_bytes()
    assert of("shapes")[0].level == "ok", of("shapes")[0].text
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert of("shapes")[0].level == "ok", "checksums are compared with --full alone"
    assert "checksums: labkit doctor --full" in of("shapes")[0].text
    monkeypatch.setattr(doctor, "_devices_by_tensorflow", lambda: iter(()))
    (found,) = [finding for finding in doctor.findings(full=True) if finding.subject == "shapes"]
    assert found.level == "problem" and path.name in found.text
    path.write_bytes(content[:-1])
    assert of("shapes")[0].level == "problem" and path.name in of("shapes")[0].text


# ---- Python and packages -------------------------------------------------------------------------------


def test_a_missing_extra_is_a_note_with_the_command_that_installs_it(monkeypatch):
    installed = metadata.version

    def version(name):
        if name in ("streamlit", "tf2onnx"):
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    assert [finding.level for finding in of("versions")] == ["ok"]
    (found,) = of("extras")
    assert found.level == "note"
    assert found.text == "not installed: app, onnx"
    assert "pip install '.[app,onnx]'" in found.way_out


# ---- devices --------------------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """What NVIDIA's driver says of a machine with one GPU."""
    folder = tmp_path / "nvidia"
    (folder / "gpus" / "0000:01:00.0").mkdir(parents=True)
    information = folder / "gpus" / "0000:01:00.0" / "information"
    information.write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\n")
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", folder)
    return folder


def test_gpus_are_named_without_tensorflow(driver, monkeypatch):
    monkeypatch.setattr(doctor, "import_tensorflow", lambda: pytest.fail("TensorFlow was imported"))
    found = of("devices")
    assert found[0].text.startswith("GPU 0: NVIDIA H200")
    # The tests' environment has none of CUDA's libraries.
    assert found[1].level == "note"
    assert "tensorflow[and-cuda]" in found[1].way_out


def test_a_driver_without_a_gpu_is_a_problem(driver):
    (driver / "gpus" / "0000:01:00.0" / "information").unlink()
    assert [finding.level for finding in of("devices")] == ["problem"]


# ---- processor -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "level", "words", "width"),
    [
        ({"avx2", "avx512f", "avx512_bf16", "amx_bf16"}, "ok", "avx512_bf16, amx_bf16; convolutions", "512"),
        ({"avx2", "avx512f"}, "note", "no avx512_bf16 or amx_bf16: emulated", "512"),
        ({"avx2"}, "note", "no avx512_bf16 or amx_bf16: emulated", "256"),
        (None, "note", "unknown", ""),
    ],
)
def test_whether_the_processor_computes_in_bfloat16_is_said(flags, level, words, width, monkeypatch):
    monkeypatch.setattr(cpu, "cpu_flags", lambda: flags)
    (found,) = of("bfloat16")
    assert found.level == level
    assert words in found.text
    assert not width or f"vectors of {width} bits" in of("instructions")[0].text


@pytest.mark.parametrize(
    ("bfloat16", "said"),
    [
        (0.147, "0.68 × the speed. bfloat16 isn't clearly faster here: stay with float32"),
        (0.090, "1.11 × the speed. bfloat16 isn't clearly faster here: stay with float32"),
        (0.050, "2.00 × the speed. bfloat16 is faster here: try --precision mixed_bfloat16"),
    ],
)
def test_bfloat16_is_advised_only_where_it_was_measured_to_be_faster(monkeypatch, bfloat16, said):
    monkeypatch.setattr(doctor, "bfloat16_instructions", lambda: ["avx512_bf16"])
    monkeypatch.setattr(doctor, "step_seconds", lambda: (0.1, bfloat16))
    (found,) = of("bfloat16")
    assert found.text.startswith("avx512_bf16; ")
    assert f"100.0 ms in float32, {bfloat16 * 1000:.1f} ms in bfloat16, {said}" in found.text


def test_the_measurement_takes_both_precisions(monkeypatch):
    monkeypatch.setattr(cpu, "BATCH", 1)
    monkeypatch.setattr(cpu, "SECONDS", 0.0)
    assert all(0 < seconds < 30 for seconds in cpu.step_seconds())


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        ("nonsense", "problem", "TF_CONFIG"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}', "ok", "worker:1"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 7}}', "problem", "7"),
    ],
)
def test_what_tf_config_makes_of_this_process_is_said(text, level, words, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    [found] = doctor._cluster()
    assert (found.level, words in found.text) == (level, True), found
    monkeypatch.delenv("TF_CONFIG")
    assert list(doctor._cluster()) == []
