"""Which devices a configuration gets on which machine."""

from dataclasses import replace

import pytest
import tensorflow as tf

from labkit.config import DistributionConfig, ModelConfig
from labkit.distributed import devices
from labkit.distributed.devices import (
    Devices,
    check_precision,
    choose_data_format,
    find_devices,
)
from labkit.errors import InputError

CPU = Devices("CPU", ("/cpu:0",))


@pytest.mark.parametrize(
    ("fields", "found", "kind", "names"),
    [
        ({}, 0, "CPU", ("/cpu:0",)),
        ({}, 2, "GPU", ("/gpu:0", "/gpu:1")),
        ({"num_gpus": 0}, 2, "CPU", ("/cpu:0",)),
        ({"num_gpus": 1}, 2, "GPU", ("/gpu:0",)),
        ({"num_gpus": 2, "variable_strategy": "GPU"}, 2, "GPU", ("/gpu:0", "/gpu:1")),
    ],
)
def test_real_devices(fields, found, kind, names):
    devices = find_devices(DistributionConfig(**fields), found)
    assert (devices.kind, devices.names, devices.simulated, devices.banner) == (kind, names, False, "")


@pytest.mark.parametrize("found", [0, 1])
def test_missing_gpus_are_simulated_only_where_asked_and_said(found):
    with pytest.raises(InputError, match=f"--num-gpus is 2, but TensorFlow finds {found} here"):
        find_devices(DistributionConfig(num_gpus=2), found)
    devices = find_devices(DistributionConfig(num_gpus=2, simulate_missing_gpus=True), found)
    assert devices.names == ("/cpu:0", "/cpu:1")
    assert devices.simulated and f"2 GPUs asked for, {found} found" in devices.banner
    with pytest.raises(InputError, match="no GPU is found"):
        find_devices(DistributionConfig(variable_strategy="GPU"), 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "CPU"),
        ({"kind": "GPU"}, "1 GPU"),
        (
            {"kind": "GPU", "names": ("/gpu:0", "/gpu:1"), "num_workers": 2},
            "2 synchronous workers, each 2 GPUs",
        ),
        ({"simulated": True}, "1 replica simulated on logical CPU devices"),
        ({"asynchronous_workers": 1, "num_ps": 1}, "1 asynchronous worker with 1 parameter server"),
        ({"asynchronous_workers": 3, "num_ps": 2}, "3 asynchronous workers with 2 parameter servers"),
    ],
)
def test_a_plan_in_words(fields, expected):
    assert replace(CPU, **fields).describe() == expected


def test_a_network_of_ones_own_is_channels_last_on_every_device():
    on_gpu = Devices("GPU", ("/gpu:0",))
    assert choose_data_format(ModelConfig(), on_gpu, probe=False) == "channels_first"
    assert choose_data_format(ModelConfig(model="nets.py:build"), on_gpu, probe=False) == "channels_last"


def test_a_layout_that_the_device_cannot_run_is_refused_with_its_reason(monkeypatch):
    def refuse(data_format, device, dtype):
        raise tf.errors.UnimplementedError(None, None, "only supports the NHWC tensor format")

    monkeypatch.setattr(devices, "_probe_data_format", refuse)
    with pytest.raises(
        InputError, match="channels_first.*only supports the NHWC.*allowed here: channels_last"
    ):
        choose_data_format(ModelConfig(data_format="channels_first"), CPU)
    # TensorFlow has no gradient of its kernels in float64 on a CPU; in float32 oneDNN has.
    monkeypatch.undo()
    with pytest.raises(InputError, match="channels_first.* in float64 .*allowed here: channels_last"):
        choose_data_format(ModelConfig(data_format="channels_first", precision="float64"), CPU)
    assert choose_data_format(ModelConfig(), CPU) == "channels_last"


def test_bfloat16_where_the_cpu_has_it(monkeypatch):
    check_precision(ModelConfig(precision="float64"), CPU)
    config = ModelConfig(precision="mixed_bfloat16")
    monkeypatch.setattr(devices, "bfloat16_instructions", lambda: ["avx512_bf16"])
    check_precision(config, CPU)
    monkeypatch.setattr(devices, "bfloat16_instructions", list)
    with pytest.raises(InputError, match="mixed_bfloat16.*avx512_bf16 or amx_bf16.*float32"):
        check_precision(config, CPU)


@pytest.mark.parametrize("allowed", [True, False])
def test_whether_operations_may_move_to_another_device_reaches_tensorflow(monkeypatch, allowed):
    given = []
    monkeypatch.setattr(tf.config, "set_soft_device_placement", given.append)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *_: None)
    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, name, lambda number: None)
    config = DistributionConfig(allow_soft_placement=allowed, num_gpus=0)
    devices.configure_tensorflow(config, deterministic=False)
    assert given == [allowed]


@pytest.mark.parametrize(
    ("cores", "ghosts", "threads", "inter", "own", "running", "chosen"),
    [
        (2, 2, 0, 0, True, False, 1),
        (1, 2, 0, 0, True, False, 1),
        (16, 2, 0, 0, True, False, 0),  # as many threads as cores, for either part
        (2, 1, 0, 0, True, False, 0),
        (2, 2, 2, 0, True, False, 2),
        (2, 2, 0, 1, True, False, 0),  # the parts one after the other
        (2, 2, 0, 0, False, False, 0),  # a kernel, whose next training would have one thread
        (2, 2, 0, 0, True, True, 0),
    ],
)
def test_parts_that_fill_the_cores_get_a_thread_each_in_labkits_own_processes(
    monkeypatch, cores, ghosts, threads, inter, own, running, chosen
):
    taken = {}
    monkeypatch.setattr(devices, "usable_cores", lambda: cores)
    monkeypatch.setattr(devices, "is_own_process", lambda: own)
    monkeypatch.setattr(devices, "is_running", lambda: running)
    monkeypatch.setattr(devices, "_set_threads", lambda flag, wanted, *_: taken.update({flag: wanted}))
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *_: None)
    config = DistributionConfig(num_gpus=0, num_intra_threads=threads, num_inter_threads=inter)
    devices.configure_tensorflow(config, deterministic=False, ghosts=ghosts)
    assert taken == {"--num-intra-threads": chosen, "--num-inter-threads": inter}


@pytest.mark.parametrize("first", [0, 1])
def test_a_training_on_all_gpus_after_one_on_fewer_does_not_take_fewer_silently(monkeypatch, first):
    found, runs = [tf.config.PhysicalDevice(f"gpu{number}", "GPU") for number in range(2)], []
    visible = list(found)

    def show(used, kind):
        if runs and list(used) != visible:
            raise RuntimeError
        visible[:] = used

    monkeypatch.setattr(devices, "_visible_before", [])
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: found)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(visible))
    monkeypatch.setattr(tf.config, "set_visible_devices", show)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: None)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, grows: None)

    def trained_on(num_gpus):
        config = DistributionConfig(num_gpus=num_gpus)
        return devices.configure_tensorflow(config, deterministic=False).names

    fewer = ("/gpu:0",) if first else ("/cpu:0",)
    assert trained_on(first) == fewer
    assert trained_on(None) == ("/gpu:0", "/gpu:1"), "TensorFlow hasn't begun"
    trained_on(first)
    runs.append(True)
    with pytest.raises(InputError, match=f"2 GPUs would train.*with {first}; give --num-gpus {first}"):
        trained_on(None)
    assert trained_on(first) == fewer
