"""The architectures and models that a configuration may name, declared without TensorFlow.

``labkit.models.registry`` builds them.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

from labkit.config.known_models import KNOWN_MODELS
from labkit.errors import InputError


@dataclass(frozen=True)
class Depths:
    """Allowed numbers of layers: those listed, or ``period`` * n + ``offset`` with n of at least 1."""

    default: int
    period: int = 0
    offset: int = 0
    listed: tuple[int, ...] = ()

    def allows(self, depth: int) -> bool:
        if self.listed:
            return depth in self.listed
        return depth >= self.period + self.offset and (depth - self.offset) % self.period == 0

    def allowed_near(self, depth: int) -> str:
        """Return the allowed depths in words, with examples next to ``depth``."""
        if self.listed:
            return f"{', '.join(map(str, self.listed))}, or none for its own, {self.default}"
        below = max(1, (depth - self.offset) // self.period) * self.period + self.offset
        return f"{self.period}n+{self.offset}, for example {below} or {below + self.period}"


@dataclass(frozen=True)
class Published:
    """The data set that a network was published for. Networks take other images and classes, too."""

    data_set: str
    image_shape: tuple[int, int, int]
    num_classes: int


MNIST = Published("MNIST", (32, 32, 1), 10)  # whose 28x28 pixels have a border in the paper
CIFAR10 = Published("CIFAR-10", (32, 32, 3), 10)
IMAGENET = Published("ImageNet", (224, 224, 3), 1000)


@dataclass(frozen=True)
class Architecture:
    """A family of networks.

    Args:
        name: the value of ``--model``.
        network: the function that makes it, ``module:function``. It is called with a ``LayerFactory``, the
            images, ``num_classes`` and what it ``takes``, and returns the logits.
        summary: a one-line description.
        paper: where it was published.
        depths: allowed depths by residual block. If there are two blocks, ``--block`` and
            ``--resnet-version`` may be chosen.
        takes: fields of the configuration that are arguments of the function, by the same name.
        published: for which images and classes.
        bottlenecks_from: the depth from which blocks are bottlenecks, whose stride ``--bottleneck-stride``
            chooses; None where there is no such choice.
        imagenet_weights: the network in keras.applications whose published weights fit, by depth.
    """

    name: str
    network: str
    summary: str
    paper: str
    depths: Mapping[str, Depths]
    takes: tuple[str, ...] = ()
    published: Published = CIFAR10
    bottlenecks_from: int | None = None
    imagenet_weights: Mapping[int, str] = field(default_factory=dict)

    @property
    def has_residual_variants(self) -> bool:
        return len(self.depths) > 1

    @property
    def has_one_depth(self) -> bool:
        return len(self.depths["basic"].listed) == 1


def _residual(default: int, default_bottleneck: int) -> Mapping[str, Depths]:
    """Three stages of n blocks, a first and a last layer: He et al. 2015, section 4.2; 2016, appendix."""
    return {"basic": Depths(default, 6, 2), "bottleneck": Depths(default_bottleneck, 9, 2)}


_OF_RESIDUAL = ("num_layers", "resnet_version", "block")
_OF_FAST = ("width_factor", "whitening", "dirac", "activation")

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            "resnet",
            "labkit.models.resnet:resnet",
            "residual network for small images, version 1 or 2, basic or bottleneck blocks",
            "He et al. 2015, arXiv:1512.03385; 2016, arXiv:1603.05027",
            _residual(44, 47),
            takes=_OF_RESIDUAL,
        ),
        Architecture(
            "se_resnet",
            "labkit.models.resnet:se_resnet",
            "resnet whose blocks scale each channel by a weight computed from the whole image",
            "Hu et al. 2017, arXiv:1709.01507",
            _residual(20, 29),
            takes=_OF_RESIDUAL,
        ),
        Architecture(
            "wide_resnet",
            "labkit.models.resnet:wide_resnet",
            "few residual blocks of many channels",
            "Zagoruyko & Komodakis 2016, arXiv:1605.07146",
            {"basic": Depths(16, 6, 4)},
            takes=("num_layers", "width_factor"),
        ),
        Architecture(
            "vgg",
            "labkit.models.convnets:vgg",
            "plain stack of 3x3 convolutions and maximum pools, with batch normalization",
            "Simonyan & Zisserman 2014, arXiv:1409.1556",
            {"basic": Depths(16, listed=(11, 13, 16, 19))},
            takes=("num_layers",),
        ),
        Architecture(
            "lenet",
            "labkit.models.convnets:lenet",
            "LeNet-5: two convolutions, three dense layers, tanh",
            "LeCun et al. 1998, doi:10.1109/5.726791",
            {"basic": Depths(5, listed=(5,))},
            published=MNIST,
        ),
        Architecture(
            "alexnet",
            "labkit.models.convnets:alexnet",
            "AlexNet for small images: five convolutions, the first with a stride of 4, one dense layer",
            "after Krizhevsky et al. 2012; github.com/bearpaw/pytorch-classification",
            {"basic": Depths(6, listed=(6,))},
        ),
        Architecture(
            "tutorial_cnn",
            "labkit.models.convnets:tutorial_cnn",
            "TensorFlow's CIFAR-10 tutorial: two convolutions, two dense layers",
            "github.com/tensorflow/models, tutorials/image/cifar10; after Krizhevsky's cuda-convnet",
            {"basic": Depths(5, listed=(5,))},
        ),
        Architecture(
            "fast",
            "labkit.models.convnets:fast_net",
            "few wide layers after a whitening convolution, for short training runs",
            "Jordan 2024, arXiv:2404.00498",
            {"basic": Depths(8, listed=(8,))},
            takes=_OF_FAST,
        ),
        Architecture(
            "fast_residual",
            "labkit.models.convnets:fast_residual",
            "the network fast with a third convolution, squeeze and excitation and a shortcut in each stage",
            "after airbench96, github.com/KellerJordan/cifar10-airbench; Hu et al. 2017, arXiv:1709.01507",
            {"basic": Depths(11, listed=(11,))},
            takes=_OF_FAST,
        ),
        Architecture(
            "vit",
            "labkit.models.patches:vit",
            "vision transformer: 12 layers of attention over patches of 4x4 pixels, sizes of ViT-Ti",
            "Dosovitskiy et al. 2020, arXiv:2010.11929; Beyer et al. 2022, arXiv:2205.01580",
            {"basic": Depths(12, listed=(12,))},
        ),
        Architecture(
            "convnext",
            "labkit.models.patches:convnext",
            "ConvNeXt-Atto with patches of 2x2 pixels: depthwise convolutions, layer normalization",
            "Liu et al. 2022, arXiv:2201.03545; sizes of Woo et al. 2023, arXiv:2301.00808",
            {"basic": Depths(12, listed=(12,))},
        ),
        Architecture(
            "imagenet_resnet",
            "labkit.models.resnet:imagenet_resnet",
            "residual network at its published size, for larger images; bottleneck blocks from depth 50",
            "He et al. 2015, arXiv:1512.03385, table 1",
            {"basic": Depths(50, listed=(18, 34, 50, 101, 152))},
            takes=("num_layers", "bottleneck_stride"),
            published=IMAGENET,
            bottlenecks_from=50,
            imagenet_weights={50: "ResNet50", 101: "ResNet101", 152: "ResNet152"},
        ),
        Architecture(
            "imagenet_se_resnet",
            "labkit.models.resnet:imagenet_se_resnet",
            "imagenet_resnet whose blocks scale each channel by a weight computed from the whole image",
            "Hu et al. 2017, arXiv:1709.01507, table 2; depths 18 and 34 as in PyTorchCV",
            {"basic": Depths(50, listed=(18, 34, 50, 101, 152))},
            takes=("num_layers", "bottleneck_stride"),
            published=IMAGENET,
            bottlenecks_from=50,
        ),
        Architecture(
            "imagenet_alexnet",
            "labkit.models.convnets:imagenet_alexnet",
            "AlexNet for larger images, as in torchvision: five convolutions, three dense layers",
            "Krizhevsky et al. 2012; in one tower, Krizhevsky 2014, arXiv:1404.5997",
            {"basic": Depths(8, listed=(8,))},
            published=IMAGENET,
        ),
        Architecture(
            "imagenet_vgg",
            "labkit.models.convnets:imagenet_vgg",
            "vgg as published, for larger images: two dense layers of 4,096 units, no batch normalization",
            "Simonyan & Zisserman 2014, arXiv:1409.1556, table 1",
            {"basic": Depths(16, listed=(11, 13, 16, 19))},
            takes=("num_layers",),
            published=IMAGENET,
            imagenet_weights={16: "VGG16", 19: "VGG19"},
        ),
        Architecture(
            "keras_application",
            "labkit.models.keras_application:keras_application",
            "a network of keras.applications (--application), for images of 32x32, some 75x75 pixels or more",
            "keras.io/api/applications",
            {"basic": Depths(1, listed=(1,))},  # has no depth to choose
            takes=("application",),
        ),
    )
}


# A function in a Python file of the user's: it decides the depth by arguments of its own.
BROUGHT = Architecture(
    "brought", "", "a network of one's own, FILE.py:NAME", "", {"basic": Depths(1, listed=(1,))}
)


def architecture_of(model: str) -> Architecture:
    """Return the architecture that ``--model`` names; ``BROUGHT`` for a function in a file."""
    return ARCHITECTURES.get(model, BROUGHT)


# All networks of keras.applications but ResNet50 to ResNet152, VGG16 and VGG19: these are imagenet_resnet and
# imagenet_vgg, whose names are others than those of the networks for small images.
APPLICATIONS = (
    "MobileNetV2", "ResNet50V2", "DenseNet121",
    "MobileNet", "ResNet101V2", "ResNet152V2", "DenseNet169", "DenseNet201",
    "MobileNetV3Small", "MobileNetV3Large", "NASNetMobile", "NASNetLarge",
    *(f"EfficientNetB{number}" for number in range(8)),
    *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")),
    *(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
    "Xception", "InceptionV3", "InceptionResNetV2",
)  # fmt: skip


def smallest_side(application: str) -> int:
    """Return the height and width in pixels below which a network of keras.applications takes no images."""
    return {"Xception": 71, "InceptionV3": 75, "InceptionResNetV2": 75}.get(application, 32)


def published_for(model: str, application: str) -> Published:
    """Return what a network was published for, with the smallest images that it takes if these are larger."""
    published = architecture_of(model).published
    side = smallest_side(application) if model == "keras_application" else 0
    height, width, channels = published.image_shape
    return replace(published, image_shape=(max(height, side), max(width, side), channels))


def default_depth(model: str, block: str) -> int:
    """Return the default depth of an architecture."""
    depths = architecture_of(model).depths
    return depths.get(block, depths["basic"]).default


def resolved_depth(model: str, num_layers: int | None, block: str) -> int:
    """Return the depth of a network; ``num_layers`` None means the architecture's default.

    Raises InputError, naming the flag, for a depth that the architecture doesn't have.
    """
    architecture = architecture_of(model)
    depths = architecture.depths[block]
    if num_layers is None:
        return depths.default
    if architecture is BROUGHT and num_layers != 1:
        raise InputError(
            f"--num-layers is {num_layers} with --model {model}, which takes a depth, if any, from "
            "--model-arguments; leave --num-layers out"
        )
    if not depths.allows(num_layers):
        kind = f"with {block} blocks" if architecture.has_residual_variants else f"for {model}"
        raise InputError(f"--num-layers is {num_layers}; allowed {kind}: {depths.allowed_near(num_layers)}")
    return num_layers


# The fields that a model's name tells.
NAMED_FIELDS = (
    "model", "application", "num_layers", "width_factor", "resnet_version", "block", "bottleneck_stride",
)  # fmt: skip


# ---- names ---------------------------------------------------------------------------------------------

_NAME = re.compile(
    r"(?P<model>[a-z_]+?)(?P<num_layers>\d+)?(?:_(?P<width_factor>[\d.]+))?"
    r"(?:-v(?P<resnet_version>1\.5|[12]))?(?:-(?P<block>bottleneck))?"
)


def model_name(config: Any) -> str:
    """Return a short name: ``resnet20``, ``resnet164-v2-bottleneck``, ``wide_resnet16_4``, ``mobilenetv2``.

    Args:
        config: a ``ModelConfig``.
    """
    if config.model == "keras_application":
        return config.application.lower()
    architecture = architecture_of(config.model)
    if architecture is BROUGHT:
        path, _, name = config.model.rpartition(":")
        return f"{PurePath(path).stem}.{name}" if path else PurePath(name).stem
    depth = "" if architecture.has_one_depth else str(config.num_layers)
    width = ""
    if "width_factor" in architecture.takes and not (architecture.has_one_depth and config.width_factor == 1):
        width = f"_{config.width_factor!r}".removesuffix(".0")
    variant = ""
    if architecture.has_residual_variants:
        variant = "" if config.resnet_version == 1 else f"-v{config.resnet_version}"
        variant += "" if config.block == "basic" else f"-{config.block}"
    if config.bottleneck_stride == "second":
        variant = "-v1.5"
    return f"{config.model}{depth}{width}{variant}"


def parse_model_name(name: str) -> dict[str, Any]:
    """Inverse of ``model_name``: return the values of ModelConfig's fields that the name stands for.

    Raises InputError for a name that ``model_name`` never returns, suggesting the nearest known one, and for
    a depth that the architecture doesn't have.
    """
    for application in APPLICATIONS:
        if name == application.lower():
            own = {"model": "keras_application", "application": application, "num_layers": 1}
            own |= {"width_factor": 1.0, "resnet_version": 1, "block": "basic"}
            return own | {"bottleneck_stride": "first"}
    found = _NAME.fullmatch(name)
    if found is None or found["model"] not in ARCHITECTURES:
        raise _unknown(name)
    try:
        values: dict[str, Any] = {
            "model": found["model"],
            "num_layers": int(found["num_layers"] or default_depth(found["model"], "basic")),
            "width_factor": float(found["width_factor"] or 1),
            "resnet_version": 2 if found["resnet_version"] == "2" else 1,
            "block": found["block"] or "basic",
            "bottleneck_stride": "second" if found["resnet_version"] == "1.5" else "first",
        }
    except ValueError:  # several decimal points, or too many digits for Python
        raise _unknown(name) from None
    first = ARCHITECTURES[values["model"]].bottlenecks_from
    has_stride = first is not None and values["num_layers"] >= first
    if model_name(SimpleNamespace(**values)) != name or (
        values["bottleneck_stride"] == "second" and not has_stride
    ):
        raise _unknown(name)
    try:
        resolved_depth(values["model"], values["num_layers"], values["block"])
    except InputError as error:
        larger = larger_relative(name)
        hint = f"; {larger} is for larger images" if larger else ""
        raise InputError(f"model {name!r}: {error}{hint}") from None
    return values | {"application": APPLICATIONS[0]}


def larger_relative(name: str) -> str | None:
    """Return the network of the same name at the size published for ImageNet; None if there is none.

    Args:
        name: such as ``resnet50``, which is a network for small images, or ``resnet18``, which is none.
    """
    larger = f"imagenet_{name}"
    return larger if larger in _PUBLISHED_FOR_IMAGENET else None


_PUBLISHED_FOR_IMAGENET = {
    f"{architecture.name}{depth}"
    for architecture in ARCHITECTURES.values()
    if architecture.published is IMAGENET
    for depth in architecture.depths["basic"].listed
}


def _unknown(name: str) -> InputError:
    known = [model.name for model in KNOWN_MODELS]
    depths = [model for model in known if model.startswith(name)] if name in ARCHITECTURES else []
    if depths:
        return InputError(f"model {name!r} lacks its depth; known, among others: {', '.join(depths)}")
    near = _near(name)
    hint = f"did you mean {near!r}?" if near else "known, among others: " + ", ".join(known)
    return InputError(f"unknown model {name!r}; {hint}")


def _near(name: str, likeness: float = 0.5) -> str:
    known = [*(model.name for model in KNOWN_MODELS), *map(str.lower, APPLICATIONS)]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=likeness)), "")


def misspelled(name: Any) -> str:
    """Return what is wrong with a text that is nearly a network's name, with what to write; else ""."""
    is_one = (
        isinstance(name, str) and name not in ARCHITECTURES and not re.search(r"[/:]|\.(py|keras)$", name)
    )
    try:
        if is_one and _near(name, 0.7):
            parse_model_name(name)
    except InputError as error:
        return str(error)
    return ""
