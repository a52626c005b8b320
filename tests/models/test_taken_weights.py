"""Weights of others: PyTorch's and Keras's files give the outputs that they had, or are refused in a line."""

import json
import pickle
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from keras import layers

from labkit.commands import main as cli
from labkit.config import Config, ModelConfig, TransferConfig
from labkit.config.architectures import parse_model_name
from labkit.errors import InputError
from labkit.models.initial_weights import read_weights, weight_arrays
from labkit.models.registry import build_model
from labkit.models.weight_files import read_weight_file
from labkit.models.weight_names import transfer_to
from labkit.models.weight_source import find_weight_source
from labkit.startup.tf_compat import without_values
from tests.models.reference_weights import CHAIN, batch, pytorch_weights, torchvision_weights

IMAGES, _ = batch(0, 2)
CLASSES = tuple("abcdefghij")
REFERENCE = np.load(Path(__file__).parent / "reference" / "taken.npz")
DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "uint16": "BF16", "int64": "I64"}


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write safetensors, with the names sorted, as their own library does."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, array in sorted(arrays.items()):
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": DTYPES[str(array.dtype)], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = [np.ascontiguousarray(array).tobytes() for _, array in sorted(arrays.items())]
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *data]))
    return path


def start(path: Path, model: keras.Model, name_map: Path | None = None, /, **fields):
    """Return what ``--start-from`` finds for a model, and load it."""
    transfer = TransferConfig(str(path), None if name_map is None else str(name_map))
    config = Config(model=ModelConfig(**fields), transfer=transfer)
    source = find_weight_source(str(path), config.model)
    found = transfer_to(model, read_weights(source, config.model, (32, 32, 3)), config, CLASSES)
    found.load(model)
    return found


def named(name: str, **fields) -> tuple[keras.Model, dict]:
    fields = parse_model_name(name) | fields
    return build_model(ModelConfig(**fields), num_classes=10, image_shape=(32, 32, 3)), fields


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


def chain(*begin: keras.layers.Layer) -> keras.Model:
    """The network of ``reference_weights.CHAIN`` as one writes it in Keras."""
    norm = {"epsilon": 1e-5}
    x = images = keras.Input((32, 32, 3))
    for layer in (
        *begin, layers.Conv2D(6, 5), layers.BatchNormalization(**norm), layers.ReLU(),
        layers.DepthwiseConv2D(3, depth_multiplier=2), layers.ReLU(), layers.MaxPool2D(4), layers.Flatten(),
        layers.BatchNormalization(**norm), layers.Dense(432, "relu"), layers.Dropout(0.5),
        layers.Dense(432, "relu"), layers.Dense(10),
    ):  # fmt: skip
        x = layer(x)
    return keras.Model(images, x, name="chain")


@pytest.mark.parametrize(
    ("depth", "name", "fields"),
    [
        (18, "imagenet_resnet18", {}),
        pytest.param(50, "imagenet_resnet50-v1.5", {"batch_norm_epsilon": 1e-3}, marks=pytest.mark.long),
    ],
)
def test_a_resnet_of_torchvision_gives_its_outputs(depth, name, fields, tmp_path):
    weights = {f"module.{key}": array for key, array in torchvision_weights(depth).items()}  # DataParallel's
    path = save(tmp_path / "theirs.safetensors", weights)
    model, fields = named(name, **fields)
    found = start(path, model, **fields)
    assert not found.missing and not found.unused and "conv1.weight is stem_conv1/kernel" in found.lines()[1]
    assert relative_error(model(IMAGES), REFERENCE[f"resnet{depth}"]) < 1e-4


@pytest.mark.parametrize(
    ("depth", "name", "said"),
    [
        (50, "imagenet_resnet50", "add --bottleneck-stride second"),
        (18, "imagenet_resnet34", "choose its --num-layers"),
        (18, "resnet20", "say with --name-map FILE which is which"),
    ],
)
def test_a_resnet_of_torchvision_is_not_another_network(depth, name, said, tmp_path):
    path = save(tmp_path / "theirs.safetensors", torchvision_weights(depth))
    with without_values():
        model, fields = named(name)
    with pytest.raises(InputError, match=said):
        start(path, model, **fields)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_chain_of_pytorch_gives_its_outputs_by_order_and_shape(dtype, tmp_path):
    weights = pytorch_weights(CHAIN)
    if dtype == "bfloat16":
        weights = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in weights.items()}
    else:
        weights = {name: array.astype(dtype) for name, array in weights.items()}
    weights["1.num_batches_tracked"] = np.array(3)
    model = chain()
    found = start(save(tmp_path / "theirs.safetensors", weights), model)
    assert not found.missing and not found.unused and "by order and shape" in found.lines()[1]
    assert relative_error(model(IMAGES), REFERENCE["chain"]) < (1e-5 if dtype[-2:] in "3264" else 3e-2)


def test_a_flatten_of_turned_features_is_left_as_it_is(tmp_path):
    weights = {"0.weight": np.random.default_rng(0).normal(size=(10, 3072)).astype(np.float32)}
    path = save(tmp_path / "theirs.safetensors", weights)
    expected = IMAGES.transpose(0, 3, 1, 2).reshape(2, -1) @ weights["0.weight"].T
    for turn in ([], [layers.Permute((3, 1, 2))]):
        head = layers.Dense(10, use_bias=False)
        model = keras.Sequential([keras.Input((32, 32, 3)), *turn, layers.Flatten(), head])
        model = keras.Model(model.inputs, model.outputs)
        start(path, model)
        np.testing.assert_allclose(model(IMAGES), expected, rtol=1e-3, atol=1e-3)
    head = layers.Dense(10, use_bias=False)
    turned = keras.Sequential([keras.Input((32, 32, 3)), layers.Permute((2, 1, 3)), layers.Flatten(), head])
    with pytest.raises(InputError, match="flattens what 'permute"):
        start(path, keras.Model(turned.inputs, turned.outputs))
    hidden = keras.Sequential([layers.Flatten(), layers.Dense(10, use_bias=False)])
    images = keras.Input((32, 32, 3))
    with pytest.raises(InputError, match="inside of a model of its own; give a functional model"):
        start(path, keras.Model(images, hidden(images)))


def test_layers_of_one_shape_are_not_guessed_by_words(tmp_path):
    weights = pytorch_weights(CHAIN)
    words = {"8.": "up.", "10.": "down."}
    for number, word in words.items():
        for kind in ("weight", "bias"):
            weights[word + kind] = weights.pop(number + kind)
    path = save(tmp_path / "theirs.safetensors", weights)
    with pytest.raises(InputError, match=r"down, up have the same shapes.*--name-map FILE"):
        start(path, chain())


MAPS = {
    "layers": "# theirs ours\n0 conv2d\n1 batch_normalization\n3 depthwise_conv2d\n7 batch_normalization_1\n"
    "8 dense\n10 dense_1\n12 dense_2\n",
    "weights": {"0.weight": "conv2d/kernel", "0.bias": "conv2d/bias", "8": "dense", "10": "dense_1"},
}


@pytest.mark.parametrize("form", MAPS)
def test_a_name_map_decides(form, tmp_path):
    path = save(tmp_path / "theirs.safetensors", pytorch_weights(CHAIN))
    stated, text = tmp_path / "map", MAPS[form]
    stated.write_text(text if isinstance(text, str) else json.dumps(text))
    keras.utils.clear_session()
    model = chain()
    found = start(path, model, stated)
    if form == "layers":
        assert relative_error(model(IMAGES), REFERENCE["chain"]) < 1e-5
    else:
        assert len(found.loaded) == 6 and "12.weight" in found.unused and "dense_2/kernel" in found.missing
    assert ("8.weight", "dense/kernel", "loaded") in found.rows()


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"8.wieght": "dense"}, "'8.wieght', which the source doesn't have; did you mean '8.weight'"),
        ({"8": "dens"}, "'dens', which chain doesn't have; did you mean 'dense'"),
        (
            {"12": "dense"},
            "'12.weight' is dense/kernel, but its shape is [432, 10] there and [432, 432] in chain",
        ),
        ({"8": "dense", "10": "dense"}, "names 'dense' twice"),
        ({"8.weight": "dense"}, ""),
        ({"0": 3}, "is no pair of names"),
        ({"a": "b"}.items(), "can't be read"),
    ],
    ids=str,
)
def test_a_name_map_that_does_not_fit_is_refused(pairs, said, tmp_path):
    path, stated = save(tmp_path / "theirs.safetensors", pytorch_weights(CHAIN)), tmp_path / "map.json"
    stated.write_text(json.dumps(pairs) if isinstance(pairs, dict) else "one two three\n")
    keras.utils.clear_session()
    if not said:
        assert start(path, chain(), stated).loaded == ("dense/kernel",)
        return
    with pytest.raises(InputError) as refusal:
        start(path, chain(), stated)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_keras_weights_are_taken_by_name_and_else_by_order(tmp_path):
    path = tmp_path / "theirs.weights.h5"
    theirs, fields = named("se_resnet8")
    for weight in theirs.weights:
        weight.assign(np.random.default_rng(0).uniform(0.5, 1.5, weight.shape))
    theirs.save_weights(path)
    ours, _ = named("se_resnet8")
    found = start(path, ours, **fields)
    assert found.weights.how == "" and not found.missing and not found.unused
    np.testing.assert_array_equal(ours(IMAGES), theirs(IMAGES))

    theirs = chain()  # with other numbers in its names
    for name in ("chain.weights.h5", "chain.keras"):
        (theirs.save_weights if name.endswith("h5") else theirs.save)(tmp_path / name)
        ours = chain()
        assert not start(tmp_path / name, ours).missing
        np.testing.assert_array_equal(ours(IMAGES), theirs(IMAGES))


def test_attention_has_a_name_for_each_of_its_kernels():
    images = keras.Input((4, 8))
    model = keras.Model(images, layers.MultiHeadAttention(2, 4, name="attention")(images, images))
    assert {"attention/query/kernel", "attention/value/bias"} < weight_arrays(model).keys()
    assert len(weight_arrays(model)) == len(model.weights) == 8


ONE = {"a/kernel": np.zeros((2, 2), np.float32)}
ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def header(**entries) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


HOSTILE = {
    "empty": b"",
    "pickle": pickle.dumps(ONE),
    "huge header": (2**62).to_bytes(8, "little") + b"{}",
    "no JSON": (4).to_bytes(8, "little") + b"{{{{",
    "nested": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "a list": (2).to_bytes(8, "little") + b"[]",
    "overlap": header(a=ENTRY, b=ENTRY),
    "beyond the end": header(a=ENTRY | {"data_offsets": [8, 24]}),
    "too short": header(a=ENTRY)[:-1],
    "gap": header(a=ENTRY) + bytes(4),
    "another size": header(a=ENTRY | {"shape": [2, 3]}),
    "huge shape": header(a=ENTRY | {"shape": [2**40, 2**40]}),
    "negative": header(a=ENTRY | {"shape": [-2, -2]}),
    "no numbers": header(a=ENTRY | {"shape": [True, 4.0]}),
    "dtype": header(a=ENTRY | {"dtype": "OBJ"}),
    "no place": header(a={"dtype": "F32", "shape": [2, 2]}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_damaged_or_hostile_file_is_refused_in_one_line(what, tmp_path):
    path = tmp_path / "theirs.safetensors"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(
        InputError, match=r"theirs.safetensors can't be read as a safetensors file: "
    ) as refusal:
        read_weight_file(path)
    assert "\n" not in str(refusal.value)


def test_a_file_of_keras_that_points_elsewhere_or_is_a_bomb_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(64))
    with h5py.File(tmp_path / "external.weights.h5", "w") as file:
        group = file.create_group("layers/dense/vars")
        group.create_dataset("0", (4, 4), "f4", external=[(str(tmp_path / "secret"), 0, 64)])
    with h5py.File(tmp_path / "bomb.weights.h5", "w") as file:
        group = file.create_group("layers/dense/vars")
        group.create_dataset("0", (2**20, 2**20), "f4", chunks=(64, 64), fillvalue=1.0)
    with h5py.File(tmp_path / "link.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = h5py.ExternalLink(str(tmp_path / "bomb.weights.h5"), "/layers")
    (tmp_path / "none.weights.h5").write_bytes(pickle.dumps(ONE))
    said = {"external": "in another file", "bomb": "more than 20 times", "none": "can't be read"}
    for name, words in said.items():
        with pytest.raises(InputError, match=words) as refusal:
            read_weight_file(tmp_path / f"{name}.weights.h5")
        assert "\n" not in str(refusal.value)
    assert not read_weight_file(tmp_path / "link.weights.h5")


@pytest.mark.parametrize("name", ["resnet.pt", "resnet.pth", "pytorch_model.bin"])
def test_a_pickle_is_refused_with_the_way_out(name, tmp_path):
    (tmp_path / name).write_bytes(pickle.dumps(ONE))
    with pytest.raises(InputError, match=r"may hold a pickle.*safetensors\.torch\.save_file"):
        find_weight_source(str(tmp_path / name), ModelConfig())


def test_a_name_map_needs_weights():
    with pytest.raises(InputError, match="--name-map is 'map.txt' without --start-from"):
        TransferConfig(name_map="map.txt")


def test_the_table_of_a_file_that_names_its_classes_is_that_of_a_training_with_them(tmp_path, capsys):
    path = tmp_path / "exported.keras"
    build_model(ModelConfig(num_layers=8), num_classes=3, image_shape=(32, 32, 3)).save(path)
    (tmp_path / "exported.keras.json").write_text('{"classes": ["a", "b", "c"]}')
    assert cli.main(["models", "resnet8", "--start-from", str(path)]) == 0
    out = capsys.readouterr().out
    assert ["logits/kernel", "logits/kernel", "loaded"] in [line.split() for line in out.splitlines()]
    assert "37 of 37 weights loaded" in out and "32×32×3 and the 3 classes of the file" in out


def test_labkit_models_shows_what_becomes_of_each_weight(tmp_path, capsys):
    path = save(tmp_path / "theirs.safetensors", torchvision_weights(18))
    assert cli.main(["models", "imagenet_resnet18", "--start-from", str(path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert cli.main(["models", "--start-from", str(path)]) == 2  # without a network
    assert ["layer4.0.downsample.1.running_var", "stage4_block1_norm1/moving_variance", "loaded"] in lines
    assert ["fc.weight", "logits/kernel", "new:", "[512,", "10]", "there,", "[512,", "1000]", "here"] in lines
